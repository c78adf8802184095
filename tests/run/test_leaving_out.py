"""Unusable samples are an error, or are left out, counted and listed; evaluation covers whole splits."""

import json
import re

import numpy as np
import pytest
from PIL import Image

import vit
from tests.run.conftest import run, table, write_photos
from vit.cli import main
from vit.data import DataError, train_tokenizer
from vit.run.parts.tokenizers import warn_of_lossy_texts

SMALL = ["recipe.epochs=1", "recipe.batch_size=8", "precision=32-true", "logger=csv", "report=false", "calibrate=none"]
SMALL += ["model.dim=16", "model.num_heads=2", "model.depth=1"]
PAIRS = [*SMALL, "data=parallel", "model.decoder_depth=1", "data.fractions=[0.6,0.2,0.2]"]


def write(path, rows):
    path.write_text("".join(f"{row}\n" for row in rows))
    return path


def test_lines_without_text_are_counted_and_all_listed(tmp_path):
    rows = ["en\tde", *(f"a {i}\tb {i}" for i in range(40)), *["c\t"] * 7]
    file = write(tmp_path / "t.tsv", rows)
    overrides = [f"data.root={file}", "data.source=en", "data.target=de", "data.on_empty=skip"]
    run = vit.train([*PAIRS, *overrides, f"run_dir={tmp_path / 'run'}"])
    log = (run.path / "log.txt").read_text()
    assert run.metrics["skipped_sentences"] == 7
    assert "left out t.tsv line 42: de is empty" in log and "left out 2 more, listed in" in log
    listed = (run.path / "splits" / "left_out.tsv").read_text().splitlines()
    assert listed == [f"t.tsv line {i}\tde is empty" for i in range(42, 49)]


FILES = {  # data set -> the key of its file, its first line, the name of a sample
    "parallel": ("root", "en\tde", "pairs"),
    "text_table": ("path", "text\tlabel", "texts"),
    "corpus": ("root", "a sentence", "sentences"),
}


@pytest.mark.parametrize("data", FILES)
def test_nothing_to_validate_on(tmp_path, data):
    override, head, unit = FILES[data]
    file = write(tmp_path / "t.tsv", [head, *(f"a {i}\tb {i % 2}" for i in range(40))])
    overrides = [f"data={data}", f"data.{override}={file}", "data.fractions=[1,0,0]"]
    with pytest.raises(DataError, match=f"0 of its 4[01] {unit} are for validation.*data.fractions"):
        vit.train([*SMALL, *overrides, f"run_dir={tmp_path / 'run'}"])


def test_capitals_that_a_tokenizer_loses_count_as_wrong_in_validation_and_test(tmp_path):
    rows = [f"{'Cat' if i % 2 else 'cat'} {i}" for i in range(60)]
    file = write(tmp_path / "t.tsv", ["en\tde", *(f"{row}\t{row}" for row in rows)])
    overrides = [f"data.root={file}", "data.source=en", "data.target=de", "data.tokenizer.lower=true",
                 "task.examples=12"]
    run = vit.train([*PAIRS, *overrides, f"run_dir={tmp_path / 'run'}"])
    log = (run.path / "log.txt").read_text()
    assert "validation texts cannot be generated exactly and count as wrong, such as 'Cat" in log
    assert "should be: Cat" in log


def test_a_thousand_texts_are_checked_for_what_a_tokenizer_loses(caplog):
    warn_of_lossy_texts(train_tokenizer("byte", ["a"], lower=True), ["A"] * 1200)
    assert "1000 of the first 1,000 validation texts cannot be generated exactly and count as wrong" in caplog.text


def test_of_a_long_text_the_warning_about_tokens_quotes_the_part_that_differs(caplog):
    text = "word " * 500 + "Cat" + " word" * 500
    warn_of_lossy_texts(train_tokenizer("byte", [text], lower=True), [text])
    assert "such as 'word word word word Cat word" in caplog.text and len(caplog.text) < 500


def test_unreadable_test_images_are_left_out_named_and_counted(tmp_path, capsys):
    rows = ["file,text,split"]
    for i in range(60):
        Image.fromarray(np.random.default_rng(i).integers(0, 255, (32, 48, 3), dtype=np.uint8)).save(
            tmp_path / f"{i:02d}.png"
        )
        rows.append(f"{i:02d}.png,{i % 7},{'test' if i >= 50 else 'val' if i >= 40 else 'train'}")
    (tmp_path / "50.png").write_bytes(b"no image at all")  # found by its header
    whole = (tmp_path / "51.png").read_bytes()
    (tmp_path / "51.png").write_bytes(whole[: len(whole) // 2])  # found by decoding only
    file = write(tmp_path / "labels.csv", rows)
    overrides = ["data=image_text", f"data.path={file}", "data.on_bad_sample=skip", "model.decoder_depth=1"]
    run = vit.train([*SMALL, *overrides, "data.split=split", f"run_dir={tmp_path / 'run'}"])
    log = (run.path / "log.txt").read_text()
    assert run.metrics["skipped_images"] == 2 and run.metrics["test/images"] == 8
    table_of_run = capsys.readouterr().out
    assert re.search(r"test exact match +\d+\.\d+% of 8 images", table_of_run)
    assert re.search(r"chrF +\d+\.\d+%", table_of_run) and "BLEU" not in table_of_run  # no text has four words
    assert log.count("left out 50.png") == log.count("left out 51.png") == 1
    predicted = table(run.path / "predictions.csv")
    assert [row["name"] for row in predicted] == [f"{i}.png" for i in range(52, 60)]
    assert len(list((run.path / "samples").iterdir())) == 6  # of the first eight
    assert main(["evaluate", str(run.path), "--json", str(tmp_path / "again.json")]) == 0
    found = json.loads((tmp_path / "again.json").read_text())
    assert found["pairs"] == 8 and len(found["unreadable"]) == 2 and found["test/cer"] == run.metrics["test/cer"]


@pytest.mark.parametrize("strategy", ["single", "ddp"])
def test_a_batch_of_unreadable_images_does_not_end_the_run(tmp_path, strategy):
    """Of 20 pictures for training 14 are cut, so that many batches of two, or of one on each of two devices, are."""
    root = write_photos(tmp_path / "photos", {"train/cat": 10, "train/dog": 10, "val/cat": 3, "val/dog": 3})
    spoilt = [path for i, path in enumerate(sorted((root / "train").rglob("*.png"))) if i % 10 > 2]
    for path in spoilt:
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    overrides = ["data=folder", f"data.root={root}", "data.image_size=16", "data.patch_size=8", "model=micro",
                 "data.audit_seconds=0", "data.on_bad_sample=skip",
                 "recipe.batch_size=2", "recipe.epochs=2", "recipe.crop=null", "precision=32-true", "logger=csv",
                 "run_dir=run", f"strategy={strategy}", f"trainer.devices={1 + (strategy == 'ddp')}",
                 "trainer.accelerator=cpu"]
    code, out, err = run(overrides, tmp_path)
    assert code == 0, err
    metrics = json.loads((tmp_path / "run" / "metrics.json").read_text())
    assert metrics["steps"] == 20 and metrics["epochs"] == 2
    assert metrics["skipped_images"] == out.count("left out") == len(spoilt) == 14, "of all processes"
    assert all(np.isfinite(float(row["train/loss"])) for row in table(tmp_path / "run" / "metrics.csv"))


@pytest.mark.parametrize(("strategy", "split"), [("single", "train"), ("ddp", "train"), ("ddp", "val")])
def test_a_split_without_readable_images_ends_the_run_in_its_first_epoch(tmp_path, strategy, split):
    """Two processes trained to the end, on a loss of 0, because each had skipped only half of the images."""
    root = write_photos(tmp_path / "photos", {"train/cat": 5, "train/dog": 5, "val/cat": 3, "val/dog": 3})
    for path in (root / split).rglob("*.png"):
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    overrides = ["data=folder", f"data.root={root}", "data.image_size=16", "data.patch_size=8", "model=micro",
                 "data.audit_seconds=0", "data.cache=none", "data.workers=0", "data.on_bad_sample=skip",
                 "data.preprocessing.mean=[0.5,0.5,0.5]", "data.preprocessing.std=[0.5,0.5,0.5]",
                 "recipe.batch_size=2", "recipe.epochs=2", "precision=32-true", "logger=csv", "run_dir=run",
                 f"strategy={strategy}", f"trainer.devices={1 + (strategy == 'ddp')}", "trainer.accelerator=cpu"]
    code, out, err = run(overrides, tmp_path)
    count = {"train": 10, "val": 6}[split]
    assert code == 1 and f"all {count} images are unreadable; copy or download the data again" in err, out + err
    assert "epoch 2/2" not in out


def test_a_test_text_that_is_too_long_is_an_error_before_training_or_cut(tmp_path):
    rows = [f"a {i},{i % 2},{'test' if i >= 50 else 'val' if i >= 40 else 'train'}" for i in range(60)]
    file = write(tmp_path / "t.csv", ["text,label,split", *rows, f"{'long ' * 40},1,test"])
    overrides = [*SMALL, "data=text_table", f"data.path={file}", "data.split=split", "data.max_len=12"]
    with pytest.raises(DataError, match="t.csv line 62"):
        vit.train([*overrides, f"run_dir={tmp_path / 'none'}"])
    assert not (tmp_path / "none").exists()
    with file.open("a") as table_of_texts:
        table_of_texts.write(f"{'long ' * 40},0,train\n")
    run = vit.train([*overrides, "data.on_long=skip", f"run_dir={tmp_path / 'run'}"])
    assert run.metrics["skipped_sentences"] == 1 and len(table(run.path / "predictions.csv")) == 11
    assert "1 text of test is cut, such as t.csv line 62" in (run.path / "log.txt").read_text()
