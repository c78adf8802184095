"""Tables of labelled texts, the generated questions, and the inputs of the encoder."""

import json

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest

from tests.data.shares import near
from vit.data import (
    ByteTokenizer,
    DataError,
    EvalBatches,
    TextDataset,
    TextInputs,
    TextSplit,
    TrainBatches,
    corpus,
    image_text,
    number_questions,
    number_stories,
    parallel,
    text_table,
    threads,
)
from vit.data.sets.number_stories import MAX_COUNT, PEOPLE, THINGS
from vit.data.text.dataset import truncated_lengths
from vit.data.text.tokenizers import BOS, EOS

BYTES = ByteTokenizer()
ROWS = [(f"text {i}", f"more {i}", "yes" if i % 3 else "no") for i in range(30)]


@pytest.mark.parametrize("read", [text_table, parallel, image_text, corpus])
def test_the_lines_that_are_read_are_reported(tmp_path, read, monkeypatch):
    """Tables of many rows were read without a progress bar."""
    monkeypatch.setattr(threads, "INTERVAL", 0)
    file, seen = tmp_path / "t.tsv", []
    file.write_text("text\tlabel\ten\tde\tfile\n" + "".join(f"{i}\t{i % 2}\t{i}\t{i}\t{i}.png\n" for i in range(300)))
    for i in range(300):
        (tmp_path / f"{i}.png").touch()
    read(file, progress=lambda *each: seen.append(each))
    lines = 300 + (read is corpus)  # the header
    assert [each for each in seen if each[0] == "lines"] == [("lines", done, None) for done in range(1, lines + 1)]
    assert read is not image_text or seen[-1] == ("files", 300, 300)


def test_excel(tmp_path):
    import openpyxl

    book = openpyxl.Workbook()
    for row in [["text", "label"], *([text, label] for text, _, label in ROWS)]:
        book.active.append(row)
    book.save(tmp_path / "t.xlsx")
    assert everything(text_table(tmp_path / "t.xlsx")) == sorted((text, label) for text, _, label in ROWS)
    (tmp_path / "bad.xlsx").write_bytes(b"no zip")
    with pytest.raises(DataError, match="bad.xlsx: cannot be read as .xlsx"):
        text_table(tmp_path / "bad.xlsx")


def test_whole_numbers_stored_as_floats_are_labels_without_a_fraction(tmp_path):
    rows = [{"text": f"text {i}", "label": float(i % 2)} for i in range(20)]
    (tmp_path / "t.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "t.parquet")
    for name in ("t.jsonl", "t.parquet"):
        assert text_table(tmp_path / name).classes == ["0", "1"]
        assert text_table(tmp_path / name, classes=["no", "yes"]).classes == ["no", "yes"]


def sizes(source):
    return {key: len(split) for key, split in source.splits.items()}


def everything(source):
    return sorted(
        (*(column[i] for column in split.texts), source.classes[split.labels[i]])
        for split in source.splits.values()
        for i in range(len(split))
    )


def write(path, lines):
    path.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    return path


def test_tables_of_all_kinds(tmp_path):
    csv = write(tmp_path / "t.csv", ["text,second,label", *(",".join(row) for row in ROWS)])
    tsv = write(tmp_path / "t.tsv", ["\t".join(row) for row in ROWS])
    records = [{"text": a, "second": b, "label": c} for a, b, c in ROWS]
    jsonl = write(tmp_path / "t.jsonl", map(json.dumps, records))
    parquet = tmp_path / "t.parquet"
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(records), parquet)
    for path, options in (
        (csv, {"second": "second"}),
        (tsv, {"text": 0, "second": 1, "label": 2}),
        (jsonl, {"second": "second"}),
        (parquet, {"second": "second"}),
    ):
        source = text_table(path, **options)
        assert source.classes == ["no", "yes"] and near(sizes(source), {"train": 24, "val": 3, "test": 3})
        assert everything(source) == sorted(ROWS)
        assert min(source.counts("val").tolist() + source.counts("test").tolist()) >= 1
    assert everything(text_table(csv)) == sorted((a, c) for a, _, c in ROWS)
    assert text_table(csv).splits["test"].names[0].startswith("t.csv line ")


@pytest.mark.parametrize("kind", ["parquet", "json"])
def test_a_row_is_named_after_its_table_also_beside_further_columns(tmp_path, kind):
    rows = [{"text": a, "label": c, "source": "web", "year": 2026} for a, _, c in ROWS]
    if kind == "json":
        (tmp_path / "t.json").write_text(json.dumps(rows))
    else:
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "t.parquet")
    names = [name for split in text_table(tmp_path / f"t.{kind}").splits.values() for name in split.names]
    assert sorted(names) == sorted(f"t.{kind} row {i}" for i in range(30))


@pytest.mark.parametrize(("line", "hint"), [
    ('"two lines', "; quotes of TSV do not protect tabs and line breaks: save the table as .csv"), ("text alone", "")])
def test_a_tsv_whose_quoted_cells_have_line_breaks_is_to_be_saved_as_csv(tmp_path, line, hint):
    file = write(tmp_path / "t.tsv", ["text\tlabel", line])
    with pytest.raises(DataError) as error:
        text_table(file)
    assert str(error.value) == f"{file} line 2: has 1 fields, the header has 2{hint}"


def test_bytes_of_parquet_are_read_as_text(tmp_path):
    """Some programs save strings without the type of strings."""
    columns = {"text": [a.encode() for a, _, _ in ROWS], "label": [c.encode() for _, _, c in ROWS]}
    pyarrow.parquet.write_table(pyarrow.table(columns), tmp_path / "t.parquet")
    source = text_table(tmp_path / "t.parquet")
    assert source.classes == ["no", "yes"] and everything(source) == sorted((a, c) for a, _, c in ROWS)
    pyarrow.parquet.write_table(pyarrow.table(columns | {"text": [b"\xff"] * len(ROWS)}), tmp_path / "t.parquet")
    with pytest.raises(DataError, match="t.parquet: the bytes in its column 'text' are not text in UTF-8"):
        text_table(tmp_path / "t.parquet")


@pytest.mark.parametrize("kind", ["parquet", "json"])
@pytest.mark.parametrize(("cell", "what"), [(["a", "b"], "a list"), ({"en": "a"}, "an object")])
def test_a_text_that_is_a_list_or_an_object_is_an_error(tmp_path, kind, cell, what):
    rows = [{"text": cell, "label": "ab"[i % 2]} for i in range(20)]
    if kind == "json":
        (tmp_path / "t.json").write_text(json.dumps(rows))
    else:
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "t.parquet")
    with pytest.raises(DataError, match=f"t.{kind} row 0: text must be a string, but is {what}"):
        text_table(tmp_path / f"t.{kind}")


def test_class_names_that_a_parquet_file_states_are_named(tmp_path, caplog):
    features = {"label": {"names": ["neg", "pos"], "_type": "ClassLabel"}}
    labels = pyarrow.table({"text": [f"text {i}" for i in range(20)], "label": [0, 1] * 10})
    stated = labels.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})
    pyarrow.parquet.write_table(stated, tmp_path / "t.parquet")
    assert text_table(tmp_path / "t.parquet").classes == ["0", "1"]
    assert "column label are the class names, although it states others: 'data.classes=[neg,pos]'" in caplog.text
    caplog.clear()
    assert text_table(tmp_path / "t.parquet", classes=["neg", "pos"]).classes == ["neg", "pos"] and not caplog.text


def test_tsv_that_is_quoted_as_csv_is_reported(tmp_path, caplog):
    quoted = ["text\tlabel", *(f'"it says ""{i}"""\t{"ab"[i % 2]}' for i in range(20))]
    assert everything(text_table(write(tmp_path / "t.tsv", quoted)))[0] == ('"it says ""0"""', "a")
    assert "t.tsv: cells of 20 lines, such as line 2, are quoted as in CSV, but quotes of TSV are part" in caplog.text
    caplog.clear()
    for line in ('"it" says "c"\ta', '"c\ta'):  # a text with quotes, or whose second quote is elsewhere
        text_table(write(tmp_path / "t.tsv", [*quoted, line]))
    assert not caplog.text


def test_splits_and_class_names(tmp_path):
    lines = ["text,label,split", "a,10,train", "b,2,train", "c,2,dev", "d,10,test", "e,9,train"]
    source = text_table(write(tmp_path / "t.csv", lines))
    assert source.classes == ["2", "9", "10"] and sizes(source) == {"train": 3, "val": 1, "test": 1}
    numbered = write(tmp_path / "n.csv", ["text,label", "a,0", "b,1", "c,1"])
    source = text_table(numbered, classes=["bad", "good"], fractions=(1, 0, 0))
    assert everything(source) == [("a", "bad"), ("b", "good"), ("c", "good")]
    named = write(tmp_path / "m.jsonl", ['{"text": "a", "label": true}', '{"text": "b", "label": false}'])
    source = text_table(named, classes=["true", "false"], fractions=(1, 0, 0))
    assert source.classes == ["true", "false"] and everything(source) == [("a", "true"), ("b", "false")]


@pytest.mark.parametrize(
    ("lines", "options", "text"),
    [
        (["text,kind", "a,b"], {}, "has no column 'label' for data.label; its columns are text, kind"),
        (["text,label", "a,"], {}, "t.csv line 2: label is empty, as in 1 of 1 line"),
        (["text,label", "a,x", " ,y"], {}, "t.csv line 3: text is empty"),
        (
            ["text,label", "a,x", "b,z"],
            {"classes": ["x", "y"]},
            r"line 3: label 'z' is not among the 2 classes \(x, y\)",
        ),
        (["text,label", "a,0", "b,2"], {"classes": ["x", "y"]}, "line 3: label '2' is not among the 2 classes"),
        (["text,label", "a,x", "b,x"], {"fractions": (1, 0, 0)}, "found 1 class"),
        (["text,label,split", "a,x,train", "b,y,test"], {}, r"1 of 2 classes has no training text \('y'\); add texts"),
        (["text,label"], {}, "has 0 rows"),
        (
            ["text,label", *(f'x{i},"a' if i == 60 else f"x{i},{'ab'[i % 2]}" for i in range(100))],
            {},
            "t.csv line 62: the row that begins there is not valid CSV",
        ),
    ],
)
def test_wrong_tables(tmp_path, lines, options, text):
    with pytest.raises(DataError, match=text):
        text_table(write(tmp_path / "t.csv", lines), **options)


def test_rows_left_out_are_listed(tmp_path):
    lines = ["text,label,split", "a,x,train", ",y,train", "b,,train", "c,y,train", "d,x,val"]
    source = text_table(write(tmp_path / "t.csv", lines), on_empty="skip")
    assert everything(source) == [("a", "x"), ("c", "y"), ("d", "x")] and sizes(source) == {"train": 2, "val": 1}
    assert source.left_out == [("t.csv line 3", "text is empty"), ("t.csv line 4", "label is empty")]
    with pytest.raises(DataError, match="none of the 2 lines has text in each column"):
        text_table(write(tmp_path / "t.csv", ["text,label,split", ",a,train", ",b,train"]), on_empty="skip")
    with pytest.raises(FileNotFoundError, match="data.path: the table .*none.csv does not exist"):
        text_table(tmp_path / "none.csv")
    with pytest.raises(DataError, match="t.txt is not one of .tsv, .csv, .jsonl, .xlsx, .parquet"):
        text_table(write(tmp_path / "t.txt", ["x"]))
    pyarrow.parquet.write_table(pyarrow.table({"text": ["a"], "kind": ["b"]}), tmp_path / "p.parquet")
    with pytest.raises(DataError, match="has no column 'label' for data.label; its columns are text, kind"):
        text_table(tmp_path / "p.parquet")


def toy(n=20, pairs=True):
    names = [f"toy line {i + 1}" for i in range(n)]
    texts = (["a" * (1 + i % 7) for i in range(n)], ["b" * (1 + i % 3) for i in range(n)])
    return TextSplit(np.arange(n) % 2, names, texts if pairs else texts[:1])


@pytest.mark.parametrize("pairs", [True, False])
def test_batches(pairs):
    seen = []
    dataset = TextDataset(toy(pairs=pairs), BYTES, progress=lambda *each: seen.append(each))
    assert seen == [("tokenization", len(dataset), len(dataset))] * (1 + pairs)
    batch = dataset.__getitems__([(2, 6), (2, 1), (5, 19)])
    assert batch["label"].tolist() == [0, 1, 1] and batch["index"].tolist() == [6, 1, 19]
    assert batch["epoch"].tolist() == [2, 2, 5]
    for i, ids, segment, mask in zip(
        batch["index"].tolist(), batch["source"], batch["segment"], batch["source_mask"], strict=True
    ):
        a, b = BYTES.encode("a" * (1 + i % 7)), BYTES.encode("b" * (1 + i % 3))
        assert ids[mask].tolist() == ([BOS, *a, EOS, *b, EOS] if pairs else [BOS, *a, EOS])
        assert segment[mask].tolist() == [0] * (len(a) + 2) + ([1] * (len(b) + 1) if pairs else [])
        assert not ids[~mask].any() and not segment[~mask].any()
    epochs = TrainBatches(dataset, 6, seed=1, balance="sampler")
    assert [len(b["index"]) for b in epochs] == [6, 6, 6]
    ranks = [list(EvalBatches(dataset, 8, rank, 2)) for rank in range(2)]
    real = [int(i) for r in ranks for b in r for i, w in zip(b["index"], b["weight"], strict=True) if w == 1]
    assert sorted(real) == list(range(20))


def test_long_texts():
    split = TextSplit(
        np.arange(3), ["f line 1", "f line 2", "f line 3"], (["abcdefgh", "ab", "a"], ["x", "xyzuvw", "y"])
    )
    with pytest.raises(DataError, match="f line 1: 12 tokens are more than data.max_len=9; 2 of 3 texts are longer"):
        TextDataset(split, BYTES, 9)
    skipped = TextDataset(split, BYTES, 9, on_long="skip")
    assert len(skipped) == 1 and skipped[0]["label"].tolist() == [2] and skipped.split.names[0] == "f line 3"
    assert [name for name, _ in skipped.left_out] == ["f line 1", "f line 2"] and skipped.cut == []
    with pytest.raises(DataError, match="f line 1: all 3 texts have more than data.max_len=4 tokens, at least 5"):
        TextDataset(split, BYTES, 4, on_long="skip")
    cut = TextDataset(split, BYTES, 9, on_long="cut")
    batch = cut.__getitems__([(0, 0), (0, 1), (0, 2)])
    assert cut.left_out == [] and len(cut.cut) == 2 and batch["source_mask"].sum(1).tolist() == [9, 9, 5]
    assert BYTES.decode(batch["source"][0]) == "abcde" and BYTES.decode(batch["source"][1]) == "ab"
    assert batch["segment"][1].tolist() == [0] * 4 + [1] * 5


@pytest.mark.parametrize("on_long", ["skip", "cut"])
def test_long_texts_are_tokenized_once(on_long, monkeypatch):
    split = TextSplit(np.arange(2), ["f line 1", "f line 2"], (["abcdefgh", "ab"],))
    tokenized, encode = [], BYTES.encode_batch
    monkeypatch.setattr(ByteTokenizer, "encode_batch", lambda _, texts: tokenized.extend(texts) or encode(texts))
    TextDataset(split, BYTES, 6, on_long)
    assert tokenized == ["abcdefgh", "ab"]


def test_the_longer_of_two_texts_is_cut_first():
    """Against removing one token at a time."""
    for limit in range(2, 12):
        for a in range(12):
            for b in range(12):
                x, y = a, b
                while x + y > limit:
                    x, y = (x - 1, y) if x > y else (x, y - 1)
                assert truncated_lengths(np.array([[a], [b]]), limit)[:, 0].tolist() == [x, y], (a, b, limit)
    assert truncated_lengths(np.array([[3, 9]]), 5).tolist() == [[3, 5]]
    with pytest.raises(ValueError, match="max_len leaves 1 token for 2 texts"):
        truncated_lengths(np.zeros((2, 1), int), 1)


def test_text_inputs():
    batch = TextInputs(BYTES, [["ab", ""]], 10).batch(np.arange(2))
    assert batch["source"].tolist() == [[BOS, 102, 103, EOS], [BOS, EOS, 0, 0]] and not batch["segment"].any()
    with pytest.raises(ValueError, match="one or two columns of texts of equal length"):
        TextInputs(BYTES, [["a"], ["b", "c"]])


def answer(story, question):
    """Answers a question by parsing its story."""
    from tests.data.sets.test_spelled_numbers import read

    clauses = [clause.split() for clause in story.split(" and ")]
    owned = [(words[0], read(" ".join(words[2:-1])), words[-1]) for words in clauses if words[0] in PEOPLE]
    people, amounts, things = map(list, zip(*owned, strict=True))
    assert len(clauses) == 5 and len(owned) == len(set(people)) == len(set(amounts)) == len(set(things)) == 3
    assert all(1 <= n <= MAX_COUNT for n in amounts) and set(things) <= set(THINGS)
    best = {"who has the most": max, "who has the fewest": min}[question](amounts)
    return ("first", "second", "third")[amounts.index(best)]


def test_generated_questions_have_correct_answers():
    source = number_questions(train=1500, val=100, test=300)
    assert sizes(source) == {"train": 1500, "val": 100, "test": 300} and source.classes == ["first", "second", "third"]
    for split in source.splits.values():
        for i in range(len(split)):
            assert answer(split.texts[0][i], split.texts[1][i]) == source.classes[split.labels[i]]
    train = source.splits["train"]
    assert source.counts("train").min() > 440
    assert abs(list(train.texts[1]).count("who has the most") - 1000) < 80
    stories = [set(split.texts[0]) for split in source.splits.values()]
    assert not stories[0] & stories[2] and len(stories[0]) == 1500
    one = number_questions(pairs=False, train=50, val=0, test=0)
    assert one.splits["train"].texts[0][3] == f"{train.texts[0][3]} . {train.texts[1][3]}"
    assert sizes(text_table()) == {"train": 20_000, "val": 1_000, "test": 2_000}


def test_bag_of_words_does_not_predict_the_answer():
    """A linear model on word counts is at chance level, one third."""
    from sklearn.feature_extraction.text import CountVectorizer
    from sklearn.linear_model import LogisticRegression

    source = number_questions(pairs=False, train=4000, val=0, test=1000)
    train, test = source.splits["train"], source.splits["test"]
    counts = CountVectorizer().fit(train.texts[0])
    model = LogisticRegression(max_iter=200).fit(counts.transform(train.texts[0]), train.labels)
    assert 0.27 < model.score(counts.transform(test.texts[0]), test.labels) < 0.40


def test_a_column_of_splits_that_is_not_used_is_reported(tmp_path, caplog):
    rows = [f"text {i},{'ab'[i % 2]},{('train', 'Dev')[i % 3 == 0]},train\n" for i in range(20)]
    (tmp_path / "t.csv").write_text("text,label,set,vehicle\n" + "".join(rows))
    text_table(tmp_path / "t.csv")
    assert "t.csv: the column 'set' states splits (Dev, train) and is not used; data.split=set uses it" in caplog.text
    assert "vehicle" not in caplog.text
    caplog.clear()
    parallel(tmp_path / "t.csv", "text", "label")
    assert "'set' states splits" in caplog.text
    caplog.clear()
    assert len(text_table(tmp_path / "t.csv", split="set").splits["val"]) == 7 and not caplog.text


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_splits_of_other_formats_are_reported_too_and_labels_may_be_named_split(tmp_path, caplog, kind):
    rows = [{"text": f"text {i}", "split": "ab"[i % 2], "set": ("train", "Dev")[i // 15]} for i in range(30)]
    path = tmp_path / f"t.{kind}"
    if kind == "jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    else:
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    source = text_table(path, label="split")
    assert source.classes == ["a", "b"]
    assert f"{path.name}: the column 'set' states splits (train, Dev) and is not used; data.split=set" in caplog.text
    assert len(text_table(path, label="split", split="set").splits["val"]) == 15


def test_labels_of_a_csv_table_may_be_named_split(tmp_path):
    (tmp_path / "t.csv").write_text("text,split\n" + "".join(f"text {i},{'ab'[i % 2]}\n" for i in range(30)))
    assert text_table(tmp_path / "t.csv", label="split").classes == ["a", "b"]


@pytest.mark.parametrize("make", [number_questions, number_stories])
def test_generated_texts_of_a_negative_number_are_an_error(make):
    with pytest.raises(ValueError, match="val=-1 must be at least 0"):
        make(train=10, val=-1)


def label_studio(tasks, text="text"):
    """An export: (text, choices of each annotation)."""
    return json.dumps([
        {"id": 100 + i, "data": {text: words, "source": "mail"}, "annotations": [
            {"id": i, "was_cancelled": False, "result": [] if chosen is None else [
                {"type": "choices", "from_name": "sentiment", "to_name": "text", "value": {"choices": chosen}}]}
            for chosen in annotations]} for i, (words, annotations) in enumerate(tasks)])


def test_an_export_of_label_studio(tmp_path):
    tasks = [(f"text {i}\nof mine", [["good" if i % 2 else "bad"]] * (1 + i % 3)) for i in range(20)]
    (tmp_path / "project.json").write_text(label_studio(tasks))
    found = text_table(tmp_path / "project.json", fractions=(0.6, 0.2, 0.2))
    assert found.classes == ["bad", "good"] and sum(map(len, found.splits.values())) == 20
    read = {split.texts[0][i]: found.classes[split.labels[i]] for split in found.splits.values()
            for i in range(len(split))}
    assert read == {words: annotations[0][0] for words, annotations in tasks}
    (tmp_path / "other.json").write_text(label_studio(tasks, "body"))
    assert sum(map(len, text_table(tmp_path / "other.json", text="body").splits.values())) == 20
    with pytest.raises(DataError, match="has no column 'text' for data.text; its columns are body, source, label"):
        text_table(tmp_path / "other.json")


@pytest.mark.parametrize(("content", "message"), [
    (label_studio([("a", [["x", "y"]]), ("b", [["x"]])]), r"task 100 has the choices \['x', 'y'\], but a text has one"),
    (label_studio([("a", [["x"]]), ("b", [["x", "y"]])]), "task 101 has the choices"),
    (label_studio([("a", [["x"], ["y"]])]), "task 100: annotators disagree"),
    (label_studio([("a", [["x"]]), ("b", [])]), "task 101: it has not been annotated"),
    (label_studio([("a", [None])]), "no task has choices, which label a text; write a table with the columns text and"),
    (label_studio([("a", [["x"]]), ("b", [None])]), "1 of 2 texts have no choice, first 'task 101'"),
    (json.dumps({"a": "b"}), "expected one object per text"),
    ("[", "cannot be read as JSON"),
])
def test_what_is_no_export_with_a_choice_per_text_is_an_error(content, message, tmp_path):
    (tmp_path / "t.json").write_text(content)
    with pytest.raises(DataError, match=message):
        text_table(tmp_path / "t.json")


def test_a_folder_with_a_table_of_each_split(tmp_path, caplog):
    for name, rows in (("train", ROWS[:20]), ("test", ROWS[20:])):
        (tmp_path / f"{name}.csv").write_text("text,label\n" + "".join(f"{a},{c}\n" for a, _, c in rows))
    found = text_table(tmp_path)
    assert sizes(found)["test"] == 10 and sum(sizes(found).values()) == 30 and found.name == tmp_path.name
    assert everything(found) == sorted((text, label) for text, _, label in ROWS)
    assert found.splits["test"].names[0] == "test.csv line 2"
    with open(tmp_path / "test.csv", "a") as file:
        file.write("a,maybe\n")
    with pytest.raises(DataError, match="test.csv line 12: label 'maybe' is not among the 2 classes"):
        text_table(tmp_path)
    assert sizes(text_table(tmp_path, train="test.csv", fractions=(1, 0, 0)))["train"] == 11
    (tmp_path / "test.csv").write_text("text\na\n")  # without labels, as in competitions
    assert set(text_table(tmp_path).splits) == {"train", "val"} and "test.csv: has no column 'label'" in caplog.text
    (tmp_path / "test.csv").write_text("text,label\na,-1\nb,-1\n")  # as in GLUE
    found = text_table(tmp_path)
    assert set(found.splits) == {"train", "val"} and "2 labels are -1, so they are withheld, and the" in caplog.text
    assert found.left_out == [("test.csv", "all of its 2 labels are -1, so they are withheld")]
    text_table(tmp_path / "train.csv", val="test.csv")
    assert "data.val=test.csv has no effect" in caplog.text


def test_equal_labels_of_a_split_may_be_placeholders(tmp_path, caplog):
    for name, labels in (("train", "ab" * 6), ("test", "a" * 10)):
        rows = "".join(f"{name} {i},{label}\n" for i, label in enumerate(labels))
        (tmp_path / f"{name}.csv").write_text(f"text,label\n{rows}")
    assert len(text_table(tmp_path).splits["test"]) == 10
    assert "test.csv: all of the 10 labels of test are 'a', and the data has 2 classes" in caplog.text


@pytest.mark.parametrize("form", ["objects", "columns"])
def test_json(tmp_path, form):
    rows = [{"text": text, "label": label} for text, _, label in ROWS]
    content = rows if form == "objects" else {key: [row[key] for row in rows] for key in ("text", "label")}
    (tmp_path / "t.json").write_text(json.dumps(content))
    assert everything(text_table(tmp_path / "t.json")) == sorted((text, label) for text, _, label in ROWS)


@pytest.mark.parametrize("kind", ["csv", "jsonl", "parquet"])
def test_a_column_of_texts_that_marks_the_validation_split(tmp_path, caplog, kind):
    rows = [{"text": f"text {i}", "label": "ab"[i % 2], "is_valid": i >= 20} for i in range(30)]
    path = tmp_path / f"t.{kind}"
    if kind == "csv":
        path.write_text("text,label,is_valid\n" + "".join(",".join(map(str, row.values())) + "\n" for row in rows))
    elif kind == "jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    else:
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    text_table(path)
    assert "the column 'is_valid' states splits" in caplog.text
    assert len(text_table(path, split="is_valid").splits["val"]) == 10
