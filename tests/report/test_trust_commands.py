"""Each command about the reliability of a model, on each kind of data: it works, or its error names an alternative.

The table in docs/guides/trust.md states the same.
"""

import json
import os
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from html import escape
from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from PIL import Image

import vit
from tests.run.conftest import ROOT, runs_in_forks, table, write_photos, write_questions  # noqa: F401  fixture
from tests.run.test_multi_label import write_shapes
from vit.cli import main
from vit.data.sets.builtin import CIFAR10

TINY = ["precision=32-true", "logger=csv", "report=false", "trainer.accelerator=cpu", "model.depth=1", "model.dim=32",
        "model.num_heads=2", "recipe.batch_size=16"]
PHOTOS = [*TINY, "data.image_size=16", "data.patch_size=8", "data.audit_seconds=1", "recipe.crop=null",
          "recipe.augment.policy=null"]
PAIRS = [*TINY, "recipe.epochs=1", "task.examples=0"]
COLUMNS = {  # of the table in the guide
    "images, one label": ("digits", "folder", "cifar10", "clothing_small", "real cifar10"),
    "images, several labels": ("labels",),
    "texts, one label": ("texts",),
    "translator": ("translator",),
    "image to text": ("strips",),
}
NO_CLASSES, HOLDS_TEXTS = "task=seq2seq has no classes", "holds texts, but an audit checks images"
GENERATES, NO_FOLDS = "is for classifiers, but this model generates text", "cannot be cross-validated"
REFUSED = {  # command -> kind of data -> part of the error
    "cross-validate": {"translator": NO_FOLDS, "strips": NO_FOLDS},
    "audit": {"texts": HOLDS_TEXTS, "translator": HOLDS_TEXTS},
    "audit --near-copies": {"texts": HOLDS_TEXTS, "translator": HOLDS_TEXTS},
    "audit --labels": {"translator": NO_CLASSES, "strips": NO_CLASSES},
    "next": {"translator": "is not a classifier", "strips": "is not a classifier"},
    "predict --set": {"labels": "--top-k N gives the probabilities", "translator": GENERATES, "strips": GENERATES},
    "predict --abstain": {"labels": "--top-k N gives the probabilities", "translator": GENERATES, "strips": GENERATES},
}


@dataclass(frozen=True)
class Trained:
    """A run, the overrides of its data and of all of it, and inputs without labels."""

    run: Path
    data: list[str]
    overrides: list[str]
    inputs: Path

    @property
    def metrics(self) -> dict:
        return json.loads((self.run / "metrics.json").read_text())


def digits(folder: Path) -> tuple[list[str], list[str]]:
    return ["data=digits"], [*TINY, "recipe.epochs=1"]


def folder_of_photos(folder: Path) -> tuple[list[str], list[str]]:
    """Split folders as those of clothing_small."""
    counts = {f"{split}/{name}": count for split, count in (("train", 30), ("validation", 15), ("test", 15))
              for name in ("dress", "hat", "shoes")}
    return ["data=folder", f"data.root={write_photos(folder / 'photos', counts)}"], [*PHOTOS, "recipe.epochs=3"]


def tables_of_cifar(folder: Path) -> tuple[list[str], list[str]]:
    """Tables as those of CIFAR-10, with a colour for each class."""
    random = np.random.default_rng(0)
    for name, count in (("train", 300), ("test", 60)):
        rows = [{"image": encoded(random.integers(0, 90, (32, 32, 3)) + 16 * np.array([i % 10, i % 5, i % 3])),
                 "label": i % 10} for i in range(count)]
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), folder / f"{name}.parquet")
    (folder / "classes.json").write_text(json.dumps(CIFAR10))
    return ["data=cifar10", f"data.root={folder}", "data.val=100"], [*PHOTOS, "recipe.epochs=3"]


def encoded(pixels: np.ndarray) -> bytes:
    from io import BytesIO

    stream = BytesIO()
    Image.fromarray(pixels.astype(np.uint8)).save(stream, "PNG")
    return stream.getvalue()


def labels(folder: Path) -> tuple[list[str], list[str]]:
    path = write_shapes(folder / "shapes", 150)
    return (["data=table", f"data.path={path}", "data.label_separator='|'", "data.fractions=[0.4,0.2,0.4]"],
            [*PHOTOS, "recipe.epochs=2", "recipe.augment.hflip=null"])


def texts(folder: Path) -> tuple[list[str], list[str]]:
    return ["data=text_table", write_questions(folder / "questions.csv")], [*TINY, "recipe.epochs=1"]


def translator(folder: Path) -> tuple[list[str], list[str]]:
    return (["data=spelled_numbers", "data.limit=100", "data.train=20", "data.val=10", "data.test=60",
             "data.max_target_len=24"], PAIRS)


def strips(folder: Path) -> tuple[list[str], list[str]]:
    return ["data=digit_strips", "data.digits=2", "data.train=60", "data.val=20", "data.test=50"], PAIRS


def real_data(name: str) -> Path:
    if not os.environ.get("VIT_TEST_DATA"):
        pytest.skip("VIT_TEST_DATA is not set")
    return Path(os.environ["VIT_TEST_DATA"]) / name


def clothing_small(folder: Path) -> tuple[list[str], list[str]]:
    return (["data=folder", f"data.root={real_data('clothing_small')}"],
            [*PHOTOS, "recipe.epochs=3", "data.image_size=32"])


def real_cifar10(folder: Path) -> tuple[list[str], list[str]]:
    """The first images of both tables."""
    root = real_data("cifar10")
    for name, count in (("train", 2500), ("test", 500)):
        rows = pyarrow.parquet.read_table(root / f"{name}.parquet").slice(0, count)
        pyarrow.parquet.write_table(rows, folder / f"{name}.parquet")
    shutil.copy(root / "classes.json", folder)
    return ["data=cifar10", f"data.root={folder}", "data.val=500"], [*PHOTOS, "recipe.epochs=3", "data.image_size=32"]


KINDS: dict[str, Callable[[Path], tuple[list[str], list[str]]]] = {
    "digits": digits, "folder": folder_of_photos, "cifar10": tables_of_cifar, "labels": labels,
    "translator": translator, "texts": texts, "strips": strips, "clothing_small": clothing_small,
    "real cifar10": real_cifar10,
}
SLOW = ("texts", "strips", "clothing_small", "real cifar10")  # kinds of the long tests


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A function that trains a small model of a kind of data, once."""
    found: dict[str, Trained] = {}

    def train(kind: str) -> Trained:
        if kind not in found:
            root = tmp_path_factory.mktemp(kind.replace(" ", "_"))
            data, settings = KINDS[kind](root)
            run = vit.train([*data, *settings, f"run_dir={root / 'runs' / 'first'}"]).path
            found[kind] = Trained(run, data, [*data, *settings], inputs_of(kind, root, run))
        return found[kind]

    return train


def inputs_of(kind: str, root: Path, run: Path) -> Path:
    """Images or lines of text to predict."""
    if kind in ("texts", "translator"):
        (root / "lines.txt").write_text("".join(f"{i}\n" for i in range(20, 40)))
        return root / "lines.txt"
    return run / "samples"


def evaluate(model: Trained, folder: Path) -> None:
    assert main(["evaluate", str(model.run), "--json", str(folder / "n.json")]) == 0
    found, metrics = json.loads((folder / "n.json").read_text()), model.metrics
    assert {key: found[key] for key in metrics if key in found} == pytest.approx(
        {key: metrics[key] for key in metrics if key in found}) and any(key.startswith("test/") for key in found)


def report(model: Trained, folder: Path) -> None:
    assert main(["report", str(model.run), "--attention", "1", "-o", str(folder / "page.html")]) == 0
    found = json.loads((folder / "page.json").read_text())
    assert len(re.findall("<section id=", (folder / "page.html").read_text())) == len(found) >= 7
    assert str(model.run) in found["header"]["model"]


def compare(model: Trained, folder: Path) -> None:
    assert main(["compare", str(model.run), str(model.run), "--json", str(folder / "n.json")]) == 0
    (found,) = json.loads((folder / "n.json").read_text())["compared"].values()
    for each in [found] if "difference" in found else found.values():  # one label, or a row per metric
        change = each.get("difference", each)
        assert change["low"] == change["value"] == change["high"] == 0 and each["p_value"] == 1


def cross_validate(model: Trained, folder: Path) -> None:
    assert main(["cross-validate", *model.overrides, "folds=2", f"run_dir={folder / 'folds'}"]) == 0
    found = json.loads((folder / "folds" / "cross_validation.json").read_text())
    rows = table(folder / "folds" / "out_of_fold.csv")
    assert len({row["name"] for row in rows}) == len(rows) == found["out_of_fold"]["samples"]
    assert {row["fold"] for row in rows} == {"1/2", "2/2"}
    assert main(["audit", "--labels", str(folder / "folds"), "--limit", "5"]) == 0
    assert len(table(folder / "folds" / "label_errors.csv")) == 5


def audit(model: Trained, folder: Path, *options: str) -> dict:
    assert main(["audit", *model.data, *options, "--json", str(folder / "n.json")]) == 0
    found = json.loads((folder / "n.json").read_text())
    assert found["complete"] and not found["unreadable"] and found["total"] >= model.metrics["test/images"]
    return found


def near_copies(model: Trained, folder: Path) -> None:
    page = folder / "copies.html"
    pairs = audit(model, folder, "--near-copies", "--html", str(page))["near_copies"]
    assert page.read_text().count("<figure>") == min(len(pairs), 150)
    assert page.read_text().count("<img ") == 2 * min(len(pairs), 150)


def label_errors(model: Trained, folder: Path) -> None:
    files = folder / "errors.csv", folder / "errors.html"
    assert main(["audit", "--labels", str(model.run), "--limit", "5", "--csv", str(files[0]), "--html",
                 str(files[1])]) == 0
    rows, page = table(files[0]), files[1].read_text()
    assert len(rows) == page.count("<figure>") == page.count("<img ") + page.count("<blockquote>") == 5
    assert all(escape(row["name"]) in page for row in rows)


def choose_next(model: Trained, folder: Path) -> None:
    assert main(["next", str(model.run), str(model.inputs), "--count", "5", "-o", str(folder / "next")]) == 0
    rows = table(folder / "next" / "next.csv")
    assert [row["rank"] for row in rows] == list("12345")
    assert (folder / "next" / "next.html").read_text().count("<figure>") in (0, 5)  # texts are in a table


def runs(model: Trained, folder: Path) -> None:
    assert main(["runs", str(model.run.parent), "--csv", str(folder / "runs.csv"), "--html",
                 str(folder / "runs.html")]) == 0
    (row,) = table(folder / "runs.csv")
    assert row["state"] == "finished" and float(row["test"]) == pytest.approx(model.metrics[f"test/{row['metric']}"])
    page = (folder / "runs.html").read_text()
    assert page.count("<svg ") <= 1 and f"<h1>Runs in {model.run.parent.name}</h1>" in page


def prediction_sets(model: Trained, folder: Path) -> None:
    assert main(["predict", str(model.run), str(model.inputs), "--set", "0.9", "-o", str(folder / "p.csv")]) == 0
    rows, classes = table(folder / "p.csv"), set(vit.load(model.run).bundle.classes)
    assert rows and all(set(filter(None, row["set"].split("|"))) <= classes for row in rows)
    assert any(row["set"] for row in rows)


def abstention(model: Trained, folder: Path) -> None:
    assert main(["predict", str(model.run), str(model.inputs), "--abstain", "0.9", "-o", str(folder / "p.csv")]) == 0
    rows, classes = table(folder / "p.csv"), set(vit.load(model.run).bundle.classes)
    assert rows and all((row["label"] == "unsure") == bool(row["unsure"]) for row in rows)
    assert {row["label"] for row in rows} <= {*classes, "unsure"}


COMMANDS: dict[str, Callable[[Trained, Path], object]] = {
    "evaluate": evaluate, "report": report, "compare": compare, "cross-validate": cross_validate, "audit": audit,
    "audit --near-copies": near_copies, "audit --labels": label_errors, "next": choose_next, "runs": runs,
    "predict --set": prediction_sets, "predict --abstain": abstention,
}


def is_slow(kind: str, command: str) -> bool:
    """All commands on real data are long tests, and cross-validation, which trains two models."""
    return kind in SLOW or (command == "cross-validate" and kind not in REFUSED[command])


@pytest.mark.parametrize(("kind", "command"), [
    pytest.param(kind, command, marks=[pytest.mark.slow] if is_slow(kind, command) else [])
    for kind in KINDS for command in COMMANDS])
def test_a_command_on_a_kind_of_data(kind, command, trained, tmp_path, capsys):
    if "--labels" in command or command == "cross-validate":
        pytest.importorskip("cleanlab")
    model, expected = trained(kind), REFUSED.get(command, {}).get(kind)
    if expected is None:
        COMMANDS[command](model, tmp_path)
        return
    with pytest.raises(AssertionError):  # of its exit code
        COMMANDS[command](model, tmp_path)
    error = capsys.readouterr().err
    assert expected in " ".join(error.split()) and error.count("\n") == 1 and not list(tmp_path.iterdir())
    assert re.search("vit (train|predict|report)|training checks|--top-k", error)  # what to use instead


def test_the_table_of_the_guide():
    text = (ROOT / "docs" / "guides" / "trust.md").read_text(encoding="utf-8")
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines()
            if re.match(r"\| (Command|`vit [a-z])", line)]
    head, stated = rows[0], {re.sub(r"^`vit |`| MODEL| FOLDER| [\d.]+", "", row[0]): row[1:] for row in rows[1:]}
    assert head[1:] == list(COLUMNS) and list(stated) == list(COMMANDS)
    for command, cells in stated.items():
        for cell, kinds in zip(cells, COLUMNS.values(), strict=True):
            assert all((cell == "yes") == (kind not in REFUSED.get(command, {})) for kind in kinds), (command, cell)
