"""`vit predict`: readable inputs are predicted, the others are listed by file and line; modes of computation."""

import csv
import gzip
import io
import json
import re
import shutil
from dataclasses import fields, replace

import numpy as np
import openpyxl
import pytest
import torch
from PIL import Image
from pyarrow import parquet

import vit
from vit.bundle import save_bundle
from vit.cli import main
from vit.cli.prediction.options import GenerationOptions
from vit.data import Preprocessing
from vit.data.formats.spreadsheets import spreadsheet_rows
from vit.generation import Generation
from vit.generation.native.library import COMPILERS
from vit.report.tables import TABLES, open_table

LONG = "123456789"


@pytest.fixture
def typed(monkeypatch):
    """Sets the content of standard input."""
    def put(content):
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(content), "utf-8"))
    return put


def test_unreadable_lines_are_listed_by_file_and_line_after_the_predictions(models, tmp_path, capfd):
    first, second = tmp_path / "a.txt", tmp_path / "b.txt"
    first.write_text("ab\n\ncd\n")
    second.write_bytes(b"e\n" + LONG.encode() + b"\nf\xff\ng\n")
    assert main(["predict", str(models / "translator"), str(first), str(second)]) == 3
    printed = capfd.readouterr()
    lines = printed.out.split("\n")[:-1]
    assert len(lines) == 7 and [lines[i] for i in (1, 4, 5)] == ["", "", ""]  # outputs stay aligned with lines
    assert "2 of 7 lines could not be read:" in printed.err
    assert f"{second} line 2: has 10 tokens, but the model reads at most 9" in printed.err
    assert f"{second} line 3: byte 2 is not UTF-8" in printed.err
    out = tmp_path / "out.csv"
    assert main(["predict", str(models / "translator"), str(first), str(second), "-k", "2", "-o", str(out)]) == 3
    rows = list(csv.DictReader(out.open()))
    assert [row["source"] for row in rows if not row["error"]] == ["ab", "", "cd", "e", "g"]
    assert [row["error"].split(":")[0] for row in rows if row["error"]] == [f"{second} line 2", f"{second} line 3"]
    assert f"wrote 5 predictions and 2 errors to {out}" in capfd.readouterr().err


def test_an_image_from_standard_input(models, typed, tmp_path, capfd):
    path, model = tmp_path / "a.png", str(models / "image_to_text")
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (8, 24, 3), np.uint8)).save(path)
    typed(path.read_bytes())
    assert main(["predict", model, "-", str(path)]) == 0
    first, second = csv.DictReader(capfd.readouterr().out.splitlines())
    assert first.pop("file") == "image 0" and second.pop("file") == str(path) and first == second
    assert main(["predict", model, "https://example.org/a.png"]) == 2
    assert "curl -s https://example.org/a.png | vit predict MODEL -" in " ".join(capfd.readouterr().err.split())


def test_a_classifier_predicts_the_readable_lines(models, typed, capfd):
    typed(b"hello\n\nwith\ttab\n")
    assert main(["predict", str(models / "classifier")]) == 3
    printed = capfd.readouterr()
    assert [row["text"] for row in csv.DictReader(printed.out.splitlines())] == ["hello", "", ""]
    assert "2 of 3 lines could not be read:" in printed.err
    assert "line 2: is empty" in printed.err and "line 3: has 2 texts, but the model expects one text" in printed.err


def test_other_images_are_predicted_beside_an_unreadable_one(models, tmp_path, capfd):
    for i in range(3):
        Image.fromarray(np.full((8, 12), 80 * i, np.uint8)).save(tmp_path / f"{i}.png")
    (tmp_path / "1.png").write_bytes(b"no image")
    assert main(["predict", str(models / "image_to_text"), str(tmp_path)]) == 3
    printed = capfd.readouterr()
    rows = list(csv.DictReader(printed.out.splitlines()))
    assert [row["file"][-5:] for row in rows] == ["0.png", "1.png", "2.png"]
    assert [row["error"][:16] for row in rows] == ["", "cannot be opened", ""]
    assert "1 of 3 files could not be read:" in printed.err and "1.png: cannot be opened" in printed.err


def test_time_augmentation_changes_scores_and_is_for_images(models, tmp_path, typed, capfd):
    image = np.random.default_rng(0).integers(0, 256, (8, 12), np.uint8)
    Image.fromarray(image).save(tmp_path / "line.png")
    translator = vit.load(models / "image_to_text", device="cpu")
    line = str(tmp_path / "line.png")
    assert main(["predict", str(models / "image_to_text"), line, "--tta", "2", "--views", "3"]) == 2
    assert "--views is the former name of --tta; give one of them" in " ".join(capfd.readouterr().err.split())
    for versions, option in ((1, "--tta"), (3, "--tta"), (3, "--views")):
        command = ["predict", str(models / "image_to_text"), line, "-k", "2", option, str(versions)]
        assert main(command) == 0
        printed = capfd.readouterr()
        assert ("--views is now called --tta" in printed.err) == (option == "--views")
        (row,) = csv.DictReader(printed.out.splitlines())
        (prediction,) = translator.predict([image], replace(translator.settings, n_best=2, tta=versions))
        assert float(row["score"]) == pytest.approx(prediction.scores[0], abs=1e-5)
    assert prediction.scores != translator.predict([image], replace(translator.settings, n_best=2))[0].scores
    typed(b"ab\n")
    for kind in ("translator", "classifier"):
        assert main(["predict", str(models / kind), "--tta", "2"]) == 2
        printed = " ".join(capfd.readouterr().err.split())
        assert "--tta is for models that read images, but" in printed and "reads texts; leave it out" in printed


def test_options_of_generation_are_those_of_the_settings(models, typed, capfd):
    translator, lines = vit.load(models / "translator", device="cpu"), ["ab", "cde"]
    sampled = Generation(sample=True, temperature=0.7, seed=5, n_best=2, max_len=6)
    cases = {
        ("--sample", "--temperature", "0.7", "--seed", "5", "-k", "2"): translator.predict(lines, sampled),
        ("--length-penalty-form", "gnmt", "--beam", "4", "-k", "2"): translator.predict(
            lines, translator.changed_settings(length_penalty_form="gnmt", beam=4, n_best=2)),
        ("--prefix", "ab", "--length-penalty", "0.3", "-k", "2"): translator.predict(lines, replace(
            translator.settings, prefix=tuple(translator.tokenizer.encode("ab")), length_penalty=0.3, n_best=2)),
        ("--max-len", "4", "--min-len", "3", "--no-repeat-ngram", "1", "-k", "2"): translator.predict(
            lines, translator.changed_settings(max_len=4, min_len=3, no_repeat_ngram=1, n_best=2)),
        ("--sample", "--sampling-top-k", "9", "--top-p", "0.8", "-k", "2"): translator.predict(
            lines, translator.changed_settings(sample=True, top_k=9, top_p=0.8, n_best=2)),
    }
    for options, predictions in cases.items():
        typed(b"ab\ncde\n")
        assert main(["predict", str(models / "translator"), *options]) == 0
        rows = list(csv.DictReader(io.StringIO(capfd.readouterr().out, newline="")))  # texts may have line breaks
        assert [(row["text"], row["text_2"]) for row in rows] == [prediction.texts for prediction in predictions]
        scores = [prediction.scores[0] for prediction in predictions]
        assert [float(row["score"]) for row in rows] == pytest.approx(scores, abs=1e-5)
        assert "--prefix" not in options or all(row["text"].startswith("ab") for row in rows)
    for options in (["--temperature", "0.5"], ["--sample", "--beam", "3"], ["--length-penalty", "nan"]):
        assert main(["predict", str(models / "translator"), *options]) == 2
    assert "--length-penalty is nan, but must be a finite number" in capfd.readouterr().err


def test_given_texts_are_scored(models, tmp_path, capfd):
    """The last reference is too long, and has a row with the reason."""
    sources, references = ["ab", "cde", "f"], ["xy", "z w", "0123456789"]
    (tmp_path / "in.txt").write_text("\n".join(sources) + "\n")
    (tmp_path / "out.txt").write_text("\n".join(references) + "\n")
    translator = vit.load(models / "translator", device="cpu")
    settings = translator.changed_settings(length_penalty=0.5)
    expected = translator.score(sources[:2], references[:2], settings)
    command = ["predict", str(models / "translator"), str(tmp_path / "in.txt"), "--references",
               str(tmp_path / "out.txt"), "--length-penalty", "0.5"]
    for format, read in (("csv", lambda text: list(csv.DictReader(io.StringIO(text)))), ("json", json.loads)):
        assert main([*command, "-f", format]) == 3
        *rows, bad = read(capfd.readouterr().out)
        assert bad["error"] == f"{tmp_path / 'out.txt'} line 3: has 11 tokens, but the model generates at most 9; " \
                               "shorten it: 0123456789…"
        for row, scored in zip(rows, expected, strict=True):
            tokens, values = ((json.loads(row[name]) if format == "csv" else row[name])
                              for name in ("tokens", "log_probs"))
            assert (row["source"], row["reference"]) == (scored.source, scored.text)
            assert tokens == list(scored.tokens) and values == pytest.approx(scored.log_probs, abs=1e-5)
            assert float(row["log_prob"]) == pytest.approx(scored.log_prob, abs=1e-5)
            assert float(row["score"]) == pytest.approx(scored.score, abs=1e-5)
    assert main([*command, "-o", str(tmp_path / "scores.parquet")]) == 3
    assert parquet.read_table(tmp_path / "scores.parquet").to_pylist()[0]["log_probs"] == pytest.approx(
        expected[0].log_probs, abs=1e-5)


@pytest.mark.parametrize(("options", "message"), [
    (["--beam", "3"], "--beam is for generated texts, but --references scores given ones; leave it out"),
    (["-k", "2"], "--top-k is for generated texts, but --references scores"),
    (["--sample", "--sampling-top-k", "2"], "--sample is for generated texts"),
    (["-f", "text"], "--format text is for generated texts"),
    (["--explain"], "--explain is for the search of a text, but --references scores given texts"),
    (["--fast"], "--fast is for the search of a text"),
    ([], "out.txt has 2 lines, but there is 1 input; write one line per input"),
])
def test_what_does_not_fit_given_texts_is_refused(models, tmp_path, capfd, options, message):
    (tmp_path / "in.txt").write_text("ab\n")
    (tmp_path / "out.txt").write_text("ab\ncd\n")
    command = [str(tmp_path / "in.txt"), "--references", str(tmp_path / "out.txt")]
    assert main(["predict", str(models / "translator"), *command, *options]) in (1, 2)
    assert message in " ".join(capfd.readouterr().err.split())
    assert main(["predict", str(models / "classifier"), *command]) == 2
    assert "--references is for models that generate text" in capfd.readouterr().err


def test_every_setting_of_generation_is_an_option():
    """But the ids of special tokens, and -k for n_best and --tta, which other models have too."""
    settings = {field.name for field in fields(Generation)} - {"bos", "eos", "pad", "n_best", "tta"}
    assert set(GenerationOptions(**dict.fromkeys((each.name for each in fields(GenerationOptions)), 1)).settings()
               ) == settings


def test_the_weight_of_ctc_is_that_of_the_settings(models, tmp_path, capfd):
    image = np.random.default_rng(0).integers(0, 256, (8, 12), np.uint8)
    Image.fromarray(image).save(tmp_path / "line.png")
    assert main(["predict", str(models / "image_to_text"), str(tmp_path / "line.png"), "--ctc", "0.4"]) == 0
    (row,) = csv.DictReader(capfd.readouterr().out.splitlines())
    predictor = vit.load(models / "image_to_text", device="cpu")
    (expected,), (without,) = (predictor.predict([image], predictor.changed_settings(ctc=ctc)) for ctc in (0.4, 0))
    assert float(row["score"]) == pytest.approx(expected.score, abs=1e-5) and expected.score != without.score


@pytest.mark.parametrize("name", ["--beam", "--temperature", "--length-penalty", "--max-len", "--sampling-top-k"])
def test_a_classifier_has_no_options_of_text_generation(models, typed, capfd, name):
    typed(b"ab\n")
    assert main(["predict", str(models / "classifier"), name, "3"]) == 2
    assert f"{name} is for models that generate text" in capfd.readouterr().err


@pytest.mark.parametrize("kind", ["translator", "classifier"])
def test_the_exit_code_is_1_if_no_input_could_be_read(models, typed, capfd, kind):
    typed(f"{LONG}\n{LONG}\n".encode())
    assert main(["predict", str(models / kind), "-"]) == 1
    assert "2 of 2 lines could not be read:" in capfd.readouterr().err


@pytest.mark.parametrize("kind", ["translator", "classifier"])
def test_standard_input_is_read_as_a_file_is(models, typed, tmp_path, capfd, kind):
    content = "\ufeffab\r\nc\u2028d\ne".encode() + b"\xff\nlast"
    (tmp_path / "lines.txt").write_bytes(content)
    typed(content)
    command = ["predict", str(models / kind), "--format", "json"]
    assert main(command) == 3
    piped = capfd.readouterr()
    assert main([*command, str(tmp_path / "lines.txt")]) == 3
    read = capfd.readouterr()
    assert piped.out == read.out.replace(f"{tmp_path / 'lines.txt'} ", "")
    assert '"ab"' in piped.out and '"last"' in piped.out
    assert piped.err == read.err.replace(f"{tmp_path / 'lines.txt'} ", "") and "line 3: byte 2" in piped.err


def test_a_missing_file_is_reported_before_the_first_prediction(models, tmp_path, capfd):
    (tmp_path / "a.txt").write_text("ab\n")
    assert main(["predict", str(models / "translator"), str(tmp_path / "a.txt"), str(tmp_path / "b.txt")]) == 1
    printed = capfd.readouterr()
    assert printed.out == "" and "b.txt does not exist" in printed.err and "standard input" not in printed.err
    assert main(["predict", str(models / "translator"), "a text"]) == 1
    assert "the file a text does not exist; a text itself comes from standard input: echo 'a text' |" in " ".join(
        capfd.readouterr().err.split())


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-32"])
def test_standard_input_in_utf_16_is_refused_whole(models, typed, capfd, encoding):
    typed("ab\ncd\n".encode(encoding))
    assert main(["predict", str(models / "translator"), "-f", "text"]) == 1
    printed = capfd.readouterr()
    assert printed.out == "" and "standard input: is not UTF-8, but UTF-16 or UTF-32; convert it" in printed.err


def test_a_utf_16_file_with_a_byte_order_mark_is_read_and_one_without_is_refused(models, tmp_path, capfd):
    (tmp_path / "marked.txt").write_bytes("ab\ncd\n".encode("utf-16"))
    (tmp_path / "bare.txt").write_bytes("ab\ncd\n".encode("utf-16-le"))
    assert main(["predict", str(models / "translator"), str(tmp_path / "marked.txt"), "-k", "2"]) == 0
    assert [row["source"] for row in csv.DictReader(capfd.readouterr().out.splitlines())] == ["ab", "cd"]
    assert main(["predict", str(models / "translator"), str(tmp_path / "bare.txt")]) == 1
    assert "bare.txt: is not UTF-8" in capfd.readouterr().err


def test_control_characters_are_not_sent_to_a_terminal(monkeypatch, capfd):
    row = {"text": "a\x1b[31mred\x07 ü\t\x9b", "score": 0.5}
    for terminal in (True, False):
        monkeypatch.setattr("sys.stdout.isatty", lambda terminal=terminal: terminal)
        for kind in ("text", "csv", "json"):
            with open_table(None, ["text", "score"], TABLES[kind]) as table:
                table.write(row)
            printed = capfd.readouterr().out
            assert ("\x1b" in printed or "\\u001b" in printed and kind == "json") != terminal
            assert "red" in printed and ("\x9b" in printed or kind == "json") != terminal or kind == "json"


def test_fast_prints_what_was_chosen_and_is_for_image_classifiers_and_generation(models, tmp_path, capfd):
    torch.manual_seed(0)
    model = vit.create_model("vit_tiny", image_size=16, patch_size=8, num_classes=3, depth=1)
    save_bundle(tmp_path / "model", model, ["a", "b", "c"], Preprocessing(size=16))
    (tmp_path / "photos").mkdir()
    for number in range(66):
        Image.new("RGB", (16, 16), (number, 200 - number, 3 * number)).save(tmp_path / "photos" / f"{number:02}.png")
    command = ["predict", str(tmp_path / "model"), "--fast", "--batch-size", "7"]
    assert main([*command, str(tmp_path / "photos")]) == 0
    printed = capfd.readouterr()
    rows = [line for line in printed.out.splitlines() if line.startswith(str(tmp_path))]  # a logger may print lines too
    assert len(rows) == 66 and "the same predictions for 64 images" in printed.err
    assert "per image: 32-true" in printed.err.replace("\n", " ")
    assert main([*command, str(tmp_path / "photos" / "00.png")]) == 0
    assert "fast: 32-true, since other modes are compared on 64 images" in capfd.readouterr().err
    assert main(["predict", str(models / "classifier"), "--fast"]) == 2
    assert "--fast is for image classifiers and for models that generate text" in capfd.readouterr().err
    (tmp_path / "lines.txt").write_text("ab\ncd\n")
    assert main(["predict", str(models / "translator"), str(tmp_path / "lines.txt"), "--fast"]) == 0
    compiler = any(map(shutil.which, COMPILERS))
    choice = ".*eager .* ms, compiled .* ms" if compiler else "since the compiled decoding step needs a C.. compiler"
    assert re.search(f"fast: (the compiled decoding step|eager mode), {choice}", capfd.readouterr().err)


@pytest.mark.parametrize("format", ["csv", "json"])
def test_the_n_best_of_several_labels_have_a_column_each(tmp_path, capfd, format):
    model = vit.create_model("vit_tiny", image_size=16, patch_size=8, num_classes=3, depth=1)
    save_bundle(tmp_path / "model", model, ["a", "b", "c"], Preprocessing(size=16), thresholds=[0.5] * 3)
    Image.new("RGB", (16, 16), (200, 100, 50)).save(tmp_path / "a.png")
    best = vit.load(tmp_path / "model").predict(tmp_path / "a.png", top_k=2)[0]
    assert main(["predict", str(tmp_path / "model"), str(tmp_path / "a.png"), "-k", "2", "-f", format]) == 0
    printed = capfd.readouterr().out
    row = json.loads(printed)[0] if format == "json" else next(csv.DictReader(printed.splitlines()))
    assert (row["label"], row["label_2"]) == best.names
    assert (float(row["probability"]), float(row["probability_2"])) == pytest.approx(best.probabilities, abs=1e-6)


def test_the_ending_of_the_output_determines_the_format(models, tmp_path, capfd):
    (tmp_path / "lines.txt").write_text("ab\ncd\n")
    command = ["predict", str(models / "translator"), str(tmp_path / "lines.txt"), "-o"]
    for name in ("a.csv", "a.JSON", "a.jsonl", "a.parquet", "a.xlsx", "a.txt", "a"):
        assert main([*command, str(tmp_path / name)]) == 0
    assert next(csv.DictReader((tmp_path / "a.csv").open()))["source"] == "ab"
    assert [row["source"] for row in json.loads((tmp_path / "a.JSON").read_text())] == ["ab", "cd"]
    rows = json.loads((tmp_path / "a.JSON").read_text())
    assert [json.loads(line) for line in (tmp_path / "a.jsonl").read_text().splitlines()] == rows
    sheet = [row for _, row in spreadsheet_rows(tmp_path / "a.xlsx")]
    assert sheet[0][: len(rows[0])] == list(rows[0]) and [row[0] for row in sheet[1:]] == ["ab", "cd"]
    assert float(sheet[1][2]) == pytest.approx(rows[0]["score"], rel=1e-14)  # Excel has 15 digits
    assert parquet.read_table(tmp_path / "a.parquet")["source"].to_pylist() == ["ab", "cd"]
    assert (tmp_path / "a.txt").read_text() == (tmp_path / "a").read_text() and "," not in (tmp_path / "a").read_text()
    classify = ["predict", str(models / "classifier"), str(tmp_path / "lines.txt"), "-o"]
    for name, first in (("b.parquet", b"PAR1"), ("b.json", b"[\n"), ("b", b"text,")):
        assert main([*classify, str(tmp_path / name)]) == 0
        assert (tmp_path / name).read_bytes().startswith(first)
    assert main([*classify, str(tmp_path / "c"), "-f", "parquet"]) == 0
    capfd.readouterr()
    for options, message in ((["c.json", "-f", "csv"], "--format csv contradicts the ending of"),
                             (["c.tsv"], "not written as .tsv"),
                             (["c.jsonl", "-f", "json"], "--format json contradicts the ending of"),
                             (["c.xls", "-f", "xlsx"], "not written as .xls")):
        assert main([*classify, str(tmp_path / options[0]), *options[1:]]) == 2
        assert message in " ".join(capfd.readouterr().err.replace("│", "").split())
        assert not (tmp_path / options[0]).exists()


def test_an_output_that_is_an_input_is_refused(models, tmp_path, capfd):
    (tmp_path / "photos").mkdir()
    image, lines, link = tmp_path / "photos" / "a.png", tmp_path / "lines.txt", tmp_path / "link.txt"
    Image.fromarray(np.zeros((8, 12), np.uint8)).save(image)
    lines.write_text("ab\n")
    link.symlink_to(lines)
    reader, translator = str(models / "image_to_text"), str(models / "translator")
    for command in (["predict", reader, image, "-o", image], ["predict", reader, image.parent, "-o", image],
                    ["predict", translator, lines, "-o", lines], ["predict", translator, lines, "-o", link],
                    ["attention", reader, image, "-o", image]):
        found = "is not written as .png" if command[2] == image.parent else "would overwrite an input; choose another"
        assert main([*map(str, command)]) in (1, 2)
        assert found in capfd.readouterr().err
    assert lines.read_text() == "ab\n" and Image.open(image).size == (12, 8)


def test_an_invalid_option_leaves_an_existing_output_as_it_is(tmp_path, capfd):
    model = vit.create_model("vit_tiny", image_size=16, patch_size=8, num_classes=3, depth=1)
    save_bundle(tmp_path / "model", model, ["a", "b", "c"], Preprocessing(size=16))
    Image.new("RGB", (16, 16)).save(tmp_path / "a.png")
    (tmp_path / "out.csv").write_text("earlier")
    command = ["predict", tmp_path / "model", tmp_path / "a.png", "-o", tmp_path / "out.csv", "--tta", "3"]
    assert main([*map(str, command)]) == 2
    assert "use --tta 2" in capfd.readouterr().err and (tmp_path / "out.csv").read_text() == "earlier"


def test_standard_input_may_be_one_of_several_files(models, typed, tmp_path, capfd):
    (tmp_path / "lines.txt").write_text("ab\ncd\n")
    typed(b"e\n")
    assert main(["predict", str(models / "classifier"), str(tmp_path / "lines.txt"), "-"]) == 0
    assert [row["text"] for row in csv.DictReader(capfd.readouterr().out.splitlines())] == ["ab", "cd", "e"]


def test_options_without_effect_on_a_search_are_named(models, typed, tmp_path, capfd):
    command, output = ["predict", str(models / "translator"), "-"], str(tmp_path / "tree.svg")
    for options, message in ((["--seed", "1"], "--seed has no effect"),
                             (["-k", "2", "-f", "text"], "has only the first of 2 texts"),
                             (["--explain", "--fast", "-o", output], "--fast has no effect")):
        typed(b"ab\n")
        assert main([*command, *options]) == 0
        assert message in capfd.readouterr().err
    typed(b"ab\n")
    assert main([*command, "--sample", "--seed", "1", "-k", "2"]) == 0
    assert "nothing" not in capfd.readouterr().err


def test_a_table_that_is_read_as_lines_is_named(models, tmp_path, capfd):
    for name, named in (("a.csv", True), ("a.jsonl.gz", True), ("a.txt", False), ("a.tsv", False)):
        content = b"text\nab\n"
        (tmp_path / name).write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
        assert main(["predict", str(models / "translator"), str(tmp_path / name)]) == 0
        assert (f"{tmp_path / name} is read as lines, each of which is one text" in capfd.readouterr().err) is named


def test_a_folder_is_no_file_of_texts(models, tmp_path, capfd):
    for kind in ("translator", "classifier"):
        assert main(["predict", str(models / kind), str(tmp_path)]) == 1
        assert f"{tmp_path} is a folder, but this model reads texts" in capfd.readouterr().err


def test_an_excel_file_has_texts_as_they_are(models, tmp_path, capfd, monkeypatch):
    """No formulas and no characters that Excel refuses; several values of a row are in one cell."""
    texts = ["=1+1", "#N/A", "a\x1bb"]
    (tmp_path / "lines.txt").write_text("".join(f"{text}\n" for text in texts))
    command = ["predict", str(models / "classifier"), str(tmp_path / "lines.txt")]
    assert main([*command, "-o", str(tmp_path / "a.xlsx")]) == 0
    cells = list(openpyxl.load_workbook(tmp_path / "a.xlsx").worksheets[0].columns)[0]
    assert [cell.value for cell in cells] == ["text", "=1+1", "#N/A", r"a\x1bb"]
    assert {cell.data_type for cell in cells} == {"s"}
    capfd.readouterr()
    assert main([*command, "-f", "xlsx"]) == 2
    assert "an Excel file cannot be printed" in " ".join(capfd.readouterr().err.replace("│", "").split())
    monkeypatch.setattr("vit.report.tables.ExcelTable.ROWS", 2)
    assert main([*command, "-o", str(tmp_path / "b.xlsx")]) == 1
    assert "a sheet of Excel has 2 rows" in capfd.readouterr().err
    monkeypatch.setattr("vit.cli.prediction.options.find_spec", lambda name: None)
    assert main([*command, "-o", str(tmp_path / "c.xlsx")]) == 2
    assert "pip install 'vitwright[xlsx]'" in " ".join(capfd.readouterr().err.replace("│", "").split())


def test_attention_reads_the_only_text_of_a_file(models, tmp_path, capsys):
    model, file, figure = str(models / "classifier"), tmp_path / "one.txt", tmp_path / "a.png"
    for content, message in (("", "holds no text"), ("a\nb\n", "holds more than 1 text")):
        file.write_text(content)
        assert main(["attention", model, str(file), "-o", str(figure)]) == 1
        assert message in capsys.readouterr().err
    assert main(["attention", model, str(tmp_path), "-o", str(figure)]) == 1
    assert "is a folder, but this model reads texts" in capsys.readouterr().err
    assert main(["attention", model, "missing.txt", "-o", str(figure)]) == 1
    assert "the file missing.txt does not exist" in capsys.readouterr().err
    file.write_text("b a\n")
    assert main(["attention", model, str(file), "-o", str(figure)]) == 0
