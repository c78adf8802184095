"""`vit predict --explain`: the trees on the terminal and in a figure, for texts and images."""

import numpy as np
import pytest
from PIL import Image

import vit
from vit.cli import main


@pytest.fixture(scope="module", autouse=True)
def blank_pictures():
    """Figures are drawn."""


@pytest.fixture(scope="module")
def line(tmp_path_factory):
    """The path of an image."""
    path = tmp_path_factory.mktemp("line") / "line.png"
    Image.fromarray(np.random.default_rng(0).integers(0, 255, (20, 30, 3), np.uint8)).save(path)
    return path


def test_the_search_of_a_text_is_printed_and_drawn(models, tmp_path, capfd):
    output = tmp_path / "tree.svg"
    options = ["--explain", "--beam", "3", "-k", "2", "--dark", "-o", str(output)]
    assert main(["predict", str(models / "translator"), "ab", *options]) == 0
    printed = capfd.readouterr()
    predictor = vit.load(models / "translator")
    settings = predictor.changed_settings(beam=3, n_best=2)
    search, (generated,) = predictor.search("ab", settings), predictor.predict(["ab"], settings)
    assert search.generated == generated and [search.tree.score(i) for i in search.nodes] == list(generated.scores)
    assert printed.out.startswith(f"ab → {generated.text}   score {generated.score:.4f}, beam 3, ")
    assert f"score {generated.scores[1]:.4f}, text 2" in printed.out
    assert printed.err == f"wrote {output}\n" and "<svg" in output.read_text()


def test_an_empty_text_has_a_tree_without_steps(models, tmp_path, capfd):
    output = tmp_path / "tree.png"
    assert main(["predict", str(models / "translator"), "", "--explain", "-o", str(output)]) == 0
    assert "0 steps, 0 hypotheses" in capfd.readouterr().out and output.stat().st_size > 1000


def test_lines_of_files_and_images_have_trees(models, line, tmp_path, capfd):
    lines = tmp_path / "lines.txt"
    lines.write_text("ab\ncd\n")
    assert main(["predict", str(models / "translator"), str(lines), "--explain"]) == 0
    headings = [line for line in capfd.readouterr().out.splitlines() if " hypotheses" in line]
    assert [line.split(" → ")[0] for line in headings] == ["ab", "cd"]
    image, output = str(line), tmp_path / "tree.png"
    assert main(["predict", str(models / "image_to_text"), image, "--explain", "-o", str(output)]) == 0
    assert capfd.readouterr().out.startswith(f"{image} → ") and output.stat().st_size > 10_000


@pytest.mark.parametrize(("arguments", "code", "message"), [
    (["{classifier}", "{image}", "--explain"], 2, "generates no text; vit attention shows what it attends to"),
    (["{translator}", "ab", "--explain", "--sample"], 2, "--sample draws tokens"),
    (["{translator}", "ab", "--explain", "--format", "csv"], 2, "--format is for tables"),
    (["{translator}", "ab", "cd", "--explain", "-o", "{folder}/a.png"], 2, "of one source, but there are 2"),
    (["{translator}", "ab", "--explain", "-o", "{folder}/a.csv"], 1, "must end with .png, .svg or .pdf"),
    (["{translator}", "ab", "--dark"], 2, "--dark belongs to --explain"),
    (["{translator}", "a" * 20, "--explain"], 1, "the text: has 21 tokens, but the model reads at most 9"),
])
def test_what_has_no_tree_is_an_error(models, line, tmp_path, capfd, arguments, code, message):
    names = {"translator": models / "translator", "classifier": models / "classifier", "image": line,
             "folder": tmp_path}
    assert main(["predict", *(argument.format(**names) for argument in arguments)]) == code
    error = capfd.readouterr().err
    assert message in error and error.count("\n") == 1 and not list(tmp_path.iterdir())
