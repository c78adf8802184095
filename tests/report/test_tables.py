"""Tables in every file format, read back by other programs, and the tables that commands print."""

import csv
import io
import json
import sys
from types import SimpleNamespace

import openpyxl
import pyarrow.parquet
import pytest
from rich.console import Console

from vit.evaluation import ClassScore, LabelScore
from vit.report.multi_label import label_table
from vit.report.summary import class_table, print_summary
from vit.report.tables import TABLES, open_table, prediction_cells, prediction_columns

COLUMNS = ["file", *prediction_columns(2)]
ROWS = [{"file": f"photos/{i}, x.jpg", **prediction_cells(["cat", "dög"], [0.75, 0.25])} for i in range(3)]


def written(kind, rows):
    stream = io.BytesIO()
    table = TABLES[kind](stream, COLUMNS)
    for row in rows:
        table.write(row)
    table.close()
    return stream.getvalue()


@pytest.mark.parametrize("count", [0, 1, 3])
def test_tables_of_all_kinds_are_read_back(count):
    rows = ROWS[:count]
    read = list(csv.DictReader(io.StringIO(written("csv", rows).decode())))
    assert [{**row, "probability": float(row["probability"]), "probability_2": float(row["probability_2"])}
            for row in read] == rows
    assert json.loads(written("json", rows)) == rows
    assert pyarrow.parquet.read_table(io.BytesIO(written("parquet", rows))).to_pylist() == rows


def test_no_character_of_a_text_ends_its_row():
    row = {**ROWS[0], "file": 'a\rb\nc\r\nd"e,f\x85g\u2028h'}
    found = written("csv", [row, ROWS[1]])
    assert [each["file"] for each in csv.DictReader(io.StringIO(found.decode(), newline=""))] == [
        row["file"],
        ROWS[1]["file"],
    ]
    assert found.count(b"\n") == 3 + 2 and found.endswith(b"0.250000\n")
    assert json.loads(written("json", [row])) == [row]
    assert written("text", [{"text": row["file"]}]).decode() == 'a b c  d"e,f\x85g\u2028h\n'


def test_parquet_writes_more_rows_than_one_group():
    rows = [{**ROWS[0], "file": str(i)} for i in range(2500)]
    table = pyarrow.parquet.read_table(io.BytesIO(written("parquet", rows)))
    assert table.column("file").to_pylist() == [str(i) for i in range(2500)]


def test_numbers_after_a_group_of_parquet_without_any_are_written():
    stream, last = io.BytesIO(), {"text": "a", "mask": 2, "word": "b", "probability": 0.5, "next": 0.25, "error": None}
    table = TABLES["parquet"](stream, list(last))
    for row in [{"error": "too long"}] * 1000 + [last]:  # 1,000 texts that cannot be read
        table.write(row)
    table.close()
    assert pyarrow.parquet.read_table(stream).to_pylist()[-1] == last


def test_file_names_that_are_no_utf8_survive():
    name = b"caf\xe9.jpg".decode("utf-8", "surrogateescape")
    row = {**ROWS[0], "file": name}
    assert b"caf\xe9.jpg" in written("csv", [row])
    assert json.loads(written("json", [row]))[0]["file"] == name
    assert pyarrow.parquet.read_table(io.BytesIO(written("parquet", [row])))["file"][0].as_py() == "caf\\udce9.jpg"
    text = written("csv", [row]).decode("utf-8", "surrogateescape")
    assert next(csv.DictReader(io.StringIO(text)))["file"] == name


def test_columns_number_the_predictions_after_the_first():
    assert COLUMNS == ["file", "label", "probability", "label_2", "probability_2"]
    assert prediction_columns(1) == ["label", "probability"]


def test_an_opened_table_is_complete_after_an_error_beside_the_earlier_file(tmp_path):
    (tmp_path / "p.json").write_text("earlier")
    with pytest.raises(RuntimeError), open_table(tmp_path / "p.json", COLUMNS, TABLES["json"]) as table:
        table.write(ROWS[0])
        raise RuntimeError
    assert json.loads((tmp_path / "p.incomplete.json").read_text()) == ROWS[:1]
    assert (tmp_path / "p.json").read_text() == "earlier"


def test_the_next_command_stays_on_one_line():
    command = "python -m vit predict " + "long/" * 40 + "[model] --top-k 3"
    console = Console(file=io.StringIO(), width=60)
    print_summary({"accuracy": 0.98765, "model": "runs/[x]/model"}, "digits", command, console)
    text = console.file.getvalue()
    assert command in text.splitlines()[-1]
    assert "0.9877" in text and "runs/[x]/model" in text


def test_class_table_shows_the_worst_of_many():
    scores = [ClassScore(f"class {i}", 10, i / 100, 0.5, i / 100) for i in range(100)]
    console = Console(file=io.StringIO(), width=100)
    console.print(class_table(scores, most=5))
    text = console.file.getvalue()
    assert "class 4" in text and "class 5 " not in text and "the 5 worst of 100 classes" in text


@pytest.mark.parametrize(("table", "score"), [
    (class_table, lambda i, images: ClassScore(f"name {i}", images, 0.0, 0.5, i / 1000)),
    (label_table, lambda i, images: LabelScore(f"name {i}", images, 0.5, 0.5, 0.5, 0.5, i / 1000)),
])
def test_of_many_classes_those_without_an_image_are_not_the_worst(table, score):
    """Two classes of ImageNet's thousand, measured with a model of all of them."""
    scores = [score(i, 8 if i in (500, 700, 900) else 0) for i in range(1000)]
    for most, message in ((40, "3 of 1000"), (2, "the 2 worst of them")):
        console = Console(file=io.StringIO(), width=120)
        console.print(table(scores, most=most))
        text = " ".join(console.file.getvalue().split())
        assert message in text and "name 500" in text and "name 0 " not in text and ("name 900" in text) == (most == 40)


@pytest.mark.parametrize(("table", "score"), [
    (class_table, lambda name: ClassScore(name, 9, 0.5, 0.5, 0.5)),
    (label_table, lambda name: LabelScore(name, 9, 0.5, 0.5, 0.5, 0.5, 0.5)),
])
def test_long_names_without_a_space_are_whole_on_a_narrow_terminal(table, score):
    names = ["photograph_of_a_digit_that_was_seen_from_the_side_of_the_street_" + end for end in ("east", "west")]
    console = Console(file=io.StringIO(), width=80)
    console.print(table([score(name) for name in names]))
    letters = "".join(line.split(" 9 ")[0].strip() for line in console.file.getvalue().splitlines())
    assert all(name in letters for name in names) and "…" not in letters


@pytest.mark.parametrize(("table", "score"), [
    (class_table, lambda name: ClassScore(name, 12_345, 0.1111, 0.2222, 0.3333)),
    (label_table, lambda name: LabelScore(name, 12_345, 0.1111, 0.2222, 0.3333, 0.4444, 0.5555)),
])
def test_the_numbers_of_classes_are_whole_on_a_terminal_of_55_columns(table, score):
    """They were 0.11…, and headings prec…."""
    console = Console(file=io.StringIO(), width=55)
    console.print(table([score("a_name_of_a_label_that_is_wrapped")], narrow=True))
    text = console.file.getvalue()
    numbers = ["12,345", "0.1111", "0.2222", "0.3333", *(["0.4444", "0.5555"] if table is label_table else [])]
    assert "…" not in text
    row = next(line for line in text.splitlines() if "12,345" in line)
    assert sorted(row.split()[1:]) == sorted(numbers) and all(len(line) <= 55 for line in text.splitlines())


def test_a_list_that_is_empty_in_the_first_group_of_parquet_has_items_in_the_next():
    rows = [{"labels": [], "probabilities": []}] * 1000 + [{"labels": ["cat"], "probabilities": [0.5]}]
    stream = io.BytesIO()
    table = TABLES["parquet"](stream, list(rows[0]))
    for row in rows:
        table.write(row)
    table.close()
    found = pyarrow.parquet.ParquetFile(stream)
    assert found.read().to_pylist() == rows
    assert found.metadata.num_row_groups == 2 and found.metadata.row_group(0).num_rows == 1000


def test_texts_in_a_sheet_of_excel_are_no_formulas_and_keep_tabs(tmp_path):
    texts = ["=1+1", "a\tb", "c\nd", "x" * 32_767]  # the longest that a cell holds
    rows = [{**ROWS[0], "file": text} for text in texts]
    sheet = openpyxl.load_workbook(io.BytesIO(written("xlsx", rows))).active
    assert [cell.value for cell in sheet["A"]] == ["file", *texts]
    assert sheet["A2"].data_type == "s"
    with pytest.raises(ValueError, match="32,767 characters, and a text has 32,768"), \
            open_table(tmp_path / "p.xlsx", COLUMNS, TABLES["xlsx"]) as table:
        table.write({**ROWS[0], "file": "x" * 32_768})


def test_a_sheet_of_excel_may_be_full(monkeypatch, tmp_path):
    monkeypatch.setattr(TABLES["xlsx"], "ROWS", 3)  # with the header
    assert openpyxl.load_workbook(io.BytesIO(written("xlsx", ROWS[:2]))).active.max_row == 3
    with pytest.raises(ValueError, match="a sheet of Excel has 3 rows"), \
            open_table(tmp_path / "p.xlsx", COLUMNS, TABLES["xlsx"]) as table:
        for row in ROWS:
            table.write(row)


@pytest.mark.parametrize(("terminal", "shown"), [(True, b"\\x1b[31m"), (False, b"\x1b[31m")])
def test_control_characters_are_escaped_on_a_terminal_only(terminal, shown, monkeypatch):
    stream = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", SimpleNamespace(buffer=stream, isatty=lambda: terminal))
    with open_table(None, ["text"], TABLES["text"]) as table:
        table.write({"text": "\x1b[31mred\ttext"})
    assert stream.getvalue() == shown + b"red\ttext\n"


def test_a_closed_standard_output_is_an_error(monkeypatch):
    monkeypatch.setattr(sys, "stdout", None)
    with pytest.raises(ValueError, match="standard output is closed, as by >&-; choose a file with --output FILE"):
        open_table(None, ["path"]).__enter__()
