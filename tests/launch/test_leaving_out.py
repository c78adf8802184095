"""What cannot be used is an error in words, or is left out, counted and listed; nothing that is measured goes unseen."""

import pytest

import vit
from vit.data import DataError

SMALL = ["recipe.epochs=1", "recipe.batch_size=8", "precision=32-true", "logger=csv"]
SMALL += ["model.dim=16", "model.num_heads=2", "model.depth=1"]
PAIRS = [*SMALL, "data=parallel", "model.decoder_depth=1", "data.fractions=[0.6,0.2,0.2]"]


def write(path, rows):
    path.write_text("".join(f"{row}\n" for row in rows))
    return path


def test_lines_without_text_are_counted_and_all_listed(tmp_path):
    rows = ["en\tde", *(f"a {i}\tb {i}" for i in range(40)), *["c\t"] * 7]
    file = write(tmp_path / "t.tsv", rows)
    words = [f"data.root={file}", "data.source=en", "data.target=de", "data.on_empty=skip"]
    run = vit.train([*PAIRS, *words, f"run_dir={tmp_path / 'run'}"])
    log = (run.path / "log.txt").read_text()
    assert run.metrics["skipped_sentences"] == 7
    assert "left out t.tsv line 42: de is empty" in log and "left out 2 more, listed in" in log
    listed = (run.path / "splits" / "left_out.tsv").read_text().splitlines()
    assert listed == [f"t.tsv line {i}\tde is empty" for i in range(42, 49)]


FILES = {  # data set -> the word for its file, its first line, what a sample is called
    "parallel": ("root", "en\tde", "pairs"),
    "text_table": ("path", "text\tlabel", "texts"),
    "corpus": ("root", "a sentence", "sentences"),
}


@pytest.mark.parametrize("data", FILES)
def test_nothing_to_validate_on(tmp_path, data):
    word, head, unit = FILES[data]
    file = write(tmp_path / "t.tsv", [head, *(f"a {i}\tb {i % 2}" for i in range(40))])
    words = [f"data={data}", f"data.{word}={file}", "data.fractions=[1,0,0]"]
    with pytest.raises(DataError, match=f"0 of its 4[01] {unit} are for validation.*data.fractions"):
        vit.train([*SMALL, *words, f"run_dir={tmp_path / 'run'}"])


def test_capitals_that_cannot_be_written_count_as_wrong_in_validation_and_test_alike(tmp_path):
    rows = [f"{'Cat' if i % 2 else 'cat'} {i}" for i in range(60)]
    file = write(tmp_path / "t.tsv", ["en\tde", *(f"{row}\t{row}" for row in rows)])
    words = [f"data.root={file}", "data.source=en", "data.target=de", "data.tokenizer.lower=true", "task.examples=12"]
    run = vit.train([*PAIRS, *words, f"run_dir={tmp_path / 'run'}"])
    log = (run.path / "log.txt").read_text()
    assert "validation texts cannot be written as they are and count as wrong, such as 'Cat" in log
    assert "should be: Cat" in log
