"""Tiny runs, in this process or as real commands, and small image folders for them."""

import csv
import subprocess
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

from tests import commands
from vit.data.sets.number_stories import number_questions, number_stories
from vit.run.processes import launcher, separate_process

ROOT = Path(__file__).parents[2]
QUICK = ["recipe.epochs=2", "precision=32-true", "logger=csv", "report=false"]
SMALL = ["data.image_size=16", "data.patch_size=8", "model=micro", "recipe.batch_size=8", "data.audit_seconds=1"]


def write_photos(root: Path, tree: dict[str, int], size: tuple[int, int] = (20, 24)) -> Path:
    """PNGs whose colour depends on their class, as something to learn: {"cat": 10} -> root/cat/000.png ..."""
    rng = np.random.default_rng(0)
    for number, (folder, count) in enumerate(tree.items()):
        (root / folder).mkdir(parents=True, exist_ok=True)
        for i in range(count):
            pixels = rng.integers(0, 60, (*size, 3)) + np.array([40, 100, 160])[np.roll([0, 1, 2], number)]
            Image.fromarray(pixels.astype(np.uint8)).save(root / folder / f"{i:03}.png")
    return root


def write_stories(folder: Path) -> str:
    """A small corpus of the generated stories: 300, 30 and 60 documents."""
    for name, split in number_stories(300, 30, 60).splits.items():
        rows = zip(split.texts, split.document, [*split.document[1:], -1], strict=True)
        text = "".join(f"{line}\n" if one == following else f"{line}\n\n" for line, one, following in rows)
        (folder / f"{name}.txt").write_text(text)
    return f"data.root={folder}"


def write_questions(file: Path) -> str:
    """A small table of the generated questions, with their words."""
    source = number_questions(pairs=False, train=400, val=50, test=100)
    rows = [f"{split.texts[0][i]},{source.classes[split.labels[i]]},{name}\n"
            for name, split in source.splits.items() for i in range(len(split))]
    file.write_text("".join(["text,label,split\n", *rows]))
    return f"data.path={file}"


def table(path: Path) -> list[dict[str, str]]:
    """The rows of a CSV file."""
    with open(path, newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


@pytest.fixture
def photos(tmp_path):
    """Three classes of 16, 14 and 12 pictures."""
    return write_photos(tmp_path / "photos", {"cat": 16, "dog": 14, "emu": 12})


@pytest.fixture(scope="session", autouse=True)
def runs_in_forks():
    """The runs of a comparison, a sweep or a cross-validation, each of which has a process of its own, and the ranks of
    a distributed run are forks.
    """
    forks = SimpleNamespace(Popen=commands.popen, DEVNULL=subprocess.DEVNULL)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(separate_process, "subprocess", forks)
        patch.setattr(launcher, "subprocess", forks)
        yield


def start(overrides, cwd, **environment):
    """`python train.py OVERRIDES` as a command of its own, with the interface of `subprocess.Popen`."""
    return commands.start(commands.TRAIN, overrides, cwd, **environment)


def run(overrides, cwd, **environment):
    """(exit code, standard output, standard error) of a whole command."""
    return commands.run(commands.TRAIN, overrides, cwd, **environment)
