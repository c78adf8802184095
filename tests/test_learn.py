"""The learning pages: every row of the formulas leads to a function, a test and a picture, and the notebooks run."""

import ast
import importlib.util
import json
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.forking import forks
from vit.models.checks import CHOICES
from vit.run.config.composing import compose

ROOT = Path(__file__).parents[1]
LEARN = ROOT / "docs/learn"
FORMULAS = (LEARN / "formulas.md").read_text(encoding="utf-8")
ROWS = [[cell.strip() for cell in re.split(r"(?<!\\) \| ", line.strip("| "))]
        for line in FORMULAS.splitlines() if line.startswith("| ") and "`" in line]
LINK = re.compile(r"\[`([\w.]+)`\]\(([^)]+)\)")
# those that train or measure
SLOW = {"encoder-decoder", "vision-transformer", "ablations", "cost", "pretraining", "bert", "your-photos"}


def build():
    spec = importlib.util.spec_from_file_location("build_notebooks", LEARN / "build.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def find(name: str, path: Path) -> ast.AST | None:
    """The class or function `name`, with dots for what is inside a class."""
    node = ast.parse(path.read_text(encoding="utf-8"))
    for part in name.split("."):
        node = next((each for each in node.body if getattr(each, "name", None) == part), None)
        if node is None:
            return None
    return node


def test_the_tables_are_read():
    assert len([row for row in ROWS if len(row) == 5]) == len(ROWS) > 70


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0][:60])
def test_a_row_leads_to_function_test_and_picture(row):
    links = LINK.findall(" | ".join(row))
    assert links, row
    for name, path in links:
        assert find(name, LEARN / path) is not None, f"{path} has no {name}"
    if "$" in row[1] and len(links) == 2:  # a formula, not a row of the table of costs
        assert [path.split("/")[2] for _, path in links] == ["vit", "tests"] and links[1][0].startswith("test_")
        pictures = re.findall(r"\]\(([^)]+)\)", row[4])
        assert pictures and all((LEARN / picture).is_file() for picture in pictures), row[4]
        assert all(picture.endswith(".ipynb") or "/formulas/" in picture for picture in pictures), "one that shows it"


def packed(overrides: list[str]) -> list[list[str]]:
    """The overrides of as few runs as possible: those with the same groups and other keys share a run."""
    runs: dict[tuple, list[dict[str, str]]] = {}
    for text in overrides:
        values = dict(override.split("=", 1) for override in text.split())
        groups = {key for key in values if "." not in key}
        found = runs.setdefault(tuple((key, values[key]) for key in sorted(groups)), [])
        run = next((run for run in found if not values.keys() & run.keys() - groups), None)
        if run is None:
            found.append(values)
        else:
            run.update(values)
    return [[f"{key}={value}" for key, value in run.items()] for found in runs.values() for run in found]


def test_the_overrides_of_the_formulas_compose():
    texts = [text for row in ROWS for text in re.findall(r"`([a-z_.]+=[^`]+)`", row[0])]
    assert len(texts) > 60
    for key, value in (override.split("=", 1) for text in texts for override in text.split()):
        choices = CHOICES.get(key.removeprefix("model.")) if key != "model.pool" else None
        assert choices is None or value in (*choices, "relative"), f"{key}={value}"
    for overrides in packed(texts):
        compose(overrides)


def load_pictures(monkeypatch):
    monkeypatch.syspath_prepend(LEARN)
    spec = importlib.util.spec_from_file_location("formula_pictures", LEARN / "pictures.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_stored_pictures_are_those_that_the_functions_draw(monkeypatch):
    """Up to the last digit of a coordinate, which may differ between processors."""
    module, value = load_pictures(monkeypatch), re.compile(r"-?\d+\.?\d*")
    names = {draw.__name__ for draw in module.PICTURES}
    assert names == {path.stem for path in module.FOLDER.iterdir()} == set(re.findall(r"formulas/(\w+)\.svg", FORMULAS))
    for draw in module.PICTURES:
        stored, drawn = (module.FOLDER / f"{draw.__name__}.svg").read_text(encoding="utf-8"), draw().svg()
        assert value.sub("", stored) == value.sub("", drawn) and len(stored) < 30_000, draw.__name__
        numbers = ([float(each) for each in value.findall(text)] for text in (stored, drawn))
        assert list(next(numbers)) == pytest.approx(list(next(numbers)), abs=0.21), draw.__name__
        ElementTree.fromstring(stored)


def test_the_pictures_of_scores_and_pools_show_their_formulas(monkeypatch):
    module = load_pictures(monkeypatch)
    tokens = module.seeded(1, 6, 8)
    assert module.read(module.Mean(), tokens) == pytest.approx([1 / 6] * 6)
    assert module.read(module.Sum(), tokens) == pytest.approx([1] * 6)
    assert module.read(module.ClassToken(), tokens) == pytest.approx([1, 0, 0, 0, 0, 0])
    steps = ((0, 0), (0, 1), (1, 3), (0, 2), (1, 0))
    assert [module.allowed(*pair) for pair in steps] == [True, True, True, False, False]


def test_formulas_are_latex():
    from latex2mathml.converter import convert

    formulas = re.findall(r"\$([^$\n]+)\$", FORMULAS)
    assert len(formulas) > 90 and "$" not in re.sub(r"\$([^$\n]+)\$", "", FORMULAS)
    for formula in formulas:
        assert "<math" in convert(formula) and "merror" not in convert(formula), formula


def test_an_anchor_is_the_line_of_the_function():
    spec = importlib.util.spec_from_file_location("site_pages", ROOT / "docs/site_pages.py")
    pages = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(pages)
    line = int(pages.line_anchor("Cosine.transform", "vit/nn/scores").rpartition("-")[2])
    lines = (ROOT / "vit/nn/scores.py").read_text(encoding="utf-8").splitlines()
    assert "def transform" in lines[line - 1] and any("class Cosine" in each for each in lines[line - 12 : line])


NOTEBOOKS = sorted(path.stem for path in LEARN.glob("*.ipynb"))


def test_every_source_has_its_notebook_on_the_site():
    site = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    assert build().names() == NOTEBOOKS and len(NOTEBOOKS) >= 2
    assert all(f"learn/{name}.md" in site for name in NOTEBOOKS)
    assert sorted(re.findall(r"\((\S+)\.ipynb\)", (LEARN / "index.md").read_text(encoding="utf-8"))) == NOTEBOOKS


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_a_stored_notebook_is_its_source_executed_and_small(name):
    path = LEARN / f"{name}.ipynb"
    stored = json.loads(path.read_text(encoding="utf-8"))["cells"]
    assert ["".join(cell["source"]) for cell in stored] == [cell.source for cell in build().read(name).cells]
    code = [cell for cell in stored if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in code] == list(range(1, len(code) + 1))
    assert path.stat().st_size < 150_000


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(SLOW))
def test_a_notebook_runs(name, tmp_path):
    executed = build().execute(name, tmp_path)
    assert all(output.output_type != "error" for cell in executed.cells for output in cell.get("outputs", []))


@pytest.mark.parametrize("name", sorted(set(NOTEBOOKS) - SLOW))
def test_the_cells_of_a_notebook_run(name, tmp_path):
    """In a fork, which saves the imports of a kernel."""
    done = forks().run("tests.test_learn:run_cells", name, folder=tmp_path, seconds=300, IPYTHONDIR=str(tmp_path))
    assert done.code == 0, done.output


def run_cells(name):
    """In the fork: the cells in order, in an interactive shell."""
    from IPython.terminal.interactiveshell import TerminalInteractiveShell
    from traitlets.config import Config

    shell = TerminalInteractiveShell.instance(config=Config({"HistoryManager": {"enabled": False}}))
    for cell in build().read(name).cells:
        if cell.cell_type == "code":
            shell.run_cell(cell.source).raise_error()


def test_stored_notebooks_name_no_path_of_a_machine():
    for path in LEARN.glob("*.ipynb"):
        assert not re.search(r"/(home|root|tmp|work|usr|opt)/", path.read_text(encoding="utf-8")), path.name
