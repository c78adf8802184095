"""Unusual image folders, and zip archives of them."""

import contextlib
import io
import json
import os
import unicodedata
import zipfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import torch

from tests.faults.layout_checks import (
    ACCENT,
    ALL,
    ANIMALS,
    CONTRACT,
    Logged,
    class_folders,
    colour,
    fill,
    layout,
    mapped,
    png,
    refused,
)
from vit.cli import main
from vit.data import folder, pictures
from vit.data.quality.audit import audit
from vit.inference import Predictor


@layout("splits in folders")
def _(root: Path) -> None:
    class_folders(root, "train/cat", "train/dog", "val/cat", "val/dog", "test/cat", "test/dog")
    mapped(folder(root), ["cat", "dog"], {"train": 8, "val": 8, "test": 8})


@layout("an empty class folder in train")
def _(root: Path) -> None:
    (class_folders(root, "train/cat", "train/dog") / "train" / "elk").mkdir()
    refused(lambda: folder(root), "no training image", "'elk'")


@layout("an empty class folder in val")
def _(root: Path) -> None:
    (class_folders(root, "train/cat", "train/dog", "val/dog") / "val" / "cat").mkdir()
    mapped(folder(root), ["cat", "dog"], {"train": 8, "val": 4})


@layout("an empty val folder")
def _(root: Path) -> None:
    (class_folders(root, "train/cat", "train/dog") / "val" / "cat").mkdir(parents=True)
    refused(lambda: folder(root), "val", "0 images")


@layout("hidden folders and files")
def _(root: Path) -> None:
    class_folders(root, "cat", "dog", ".ipynb_checkpoints")
    (root / "cat" / "._1.png").write_bytes(png("dog"))
    mapped(folder(root, **ALL), ["cat", "dog"], {"train": 8}, {"hidden": 2})


@layout("val has only some classes of train")
def _(root: Path) -> None:
    class_folders(root, "train/cat", "train/dog", "train/elk", "val/elk", "val/dog", "test/elk")
    mapped(folder(root), ANIMALS, {"train": 12, "val": 8, "test": 4})


@layout("val has a class that is not in train")
def _(root: Path) -> None:
    class_folders(root, "train/cat", "train/dog", "val/cat", "val/ape")
    refused(lambda: folder(root), str(root / "val"), "ape")


@layout("class folders created in another order")
def _(root: Path) -> None:
    class_folders(root, "train/elk", "train/cat", "train/dog", "val/dog", "val/elk", "val/cat")
    mapped(folder(root), ANIMALS, {"train": 12, "val": 12})


@layout("subfolders of class folders")
def _(root: Path) -> None:
    for inner in ("cat/young", "cat/old/grey", "cat", "dog/train", "dog/cat"):
        fill(root / inner, label=inner.split("/")[0], part="")
    mapped(folder(root, **ALL), ["cat", "dog"], {"train": 20})


@layout("class names that differ only by case")
def _(root: Path) -> None:
    with Logged() as log:
        mapped(folder(class_folders(root, "cat", "Cat", "dog"), **ALL), ["Cat", "cat", "dog"], {"train": 12})
    assert "'Cat' and 'cat'" in log.text, log.text


@layout("the same file in two splits")
def _(root: Path) -> None:
    class_folders(root, "train/cat", "train/dog", "test/cat")
    file = next((root / "train" / "dog").iterdir())
    fill(root / "test" / "dog", 0)
    (root / "test" / "dog" / "again.png").write_bytes(file.read_bytes())
    source = folder(root, fractions=(1, 0, 0))
    (group,) = audit(source, CONTRACT, seconds=None).duplicates
    assert group == [("test", "test/dog/again.png"), ("train", str(file.relative_to(root)))], group


@layout("a single class")
def _(root: Path) -> None:
    refused(lambda: folder(class_folders(root, "cat")), "1 class", "'cat'")


@layout("one image")
def _(root: Path) -> None:
    refused(lambda: folder(class_folders(root, "cat", count=1)), "1 class", "'cat'")


@layout("one image per class")
def _(root: Path) -> None:
    mapped(folder(class_folders(root, *ANIMALS, count=1)), ANIMALS, {"train": 3})


@layout("images without folders")
def _(root: Path) -> None:
    fill(root, 3, "cat", "")
    refused(lambda: folder(root), str(root), "no class folders")


@layout("an accent as one character in train, as two in val")
def _(root: Path) -> None:
    one, two = (unicodedata.normalize(form, ACCENT) for form in ("NFC", "NFD"))
    class_folders(root, f"train/{one}", "train/dog", f"val/{two}", "val/dog")
    mapped(folder(root), [one, "dog"], {"train": 8, "val": 8})


@layout("an accent as one character and as two in the same split")
def _(root: Path) -> None:
    one, two = (unicodedata.normalize(form, ACCENT) for form in ("NFC", "NFD"))
    mapped(folder(class_folders(root, one, two, "dog"), **ALL), [one, "dog"], {"train": 12})


@layout("a class folder with a name that is not UTF-8")
def _(root: Path) -> None:
    class_folders(root, "cat", "dog")
    os.rename(root / "dog", os.fsdecode(os.fsencode(root) + b"/caf\xe9"))
    refused(lambda: folder(root), str(root), "caf")


@layout("a link to a file")
def _(root: Path) -> None:
    class_folders(root / "set", "cat", "dog")
    (root / "far.png").write_bytes(png("dog", number=1))
    (root / "set" / "dog" / "link.png").symlink_to(root / "far.png")
    mapped(folder(root / "set", **ALL), ["cat", "dog"], {"train": 9})


@layout("a link to a class folder")
def _(root: Path) -> None:
    class_folders(root / "set", "cat", "dog")
    fill(root / "far", label="elk")
    (root / "set" / "elk").symlink_to(root / "far")
    mapped(folder(root / "set", **ALL), ANIMALS, {"train": 12})


@layout("a split that is a link to another split")
def _(root: Path) -> None:
    class_folders(root / "set", "train/cat", "train/dog")
    (root / "set" / "val").symlink_to(root / "set" / "train")
    refused(lambda: folder(root / "set"), "val", "a link to a folder that has already been read")


@layout("links in a loop")
def _(root: Path) -> None:
    class_folders(root, "cat", "dog")
    (root / "cat" / "up").symlink_to(root)
    (root / "dog" / "self").symlink_to(root / "dog")
    left_out = folder(root, **ALL).left_out
    assert sorted(name for name, _ in left_out) == ["cat/up", "dog/self"], left_out
    mapped(folder(root, **ALL), ["cat", "dog"], {"train": 8}, Counter(reason for _, reason in left_out))


@layout("a dangling link")
def _(root: Path) -> None:
    class_folders(root, "cat", "dog")
    (root / "cat" / "gone.png").symlink_to(root / "nowhere.png")
    report = audit(folder(root, **ALL), CONTRACT, seconds=None)
    assert [bad.name for bad in report.unreadable] == ["cat/gone.png"], report.unreadable


for names in (("Training", "Testing", "Validation"), ("TRAIN", "TEST", "VAL"), ("Train", "tEst", "Valid")):

    @layout(f"splits named {', '.join(names)}")
    def _(root: Path, names: Sequence[str] = names) -> None:
        for name, part in zip(names, ("train", "test", "val"), strict=True):
            for label in ("cat", "dog"):
                fill(root / name / label, part=part)
        mapped(folder(root), ["cat", "dog"], {"train": 8, "test": 8, "val": 8})
        sizes = {key: len(split) for key, split in pictures(root).splits.items()}
        assert sizes == {"train": 8, "test": 8, "val": 8}, sizes


for first, second in (("Train", "train"), ("val", "validation"), ("Test", "testing")):

    @layout(f"a split with two names: {first} and {second}")
    def _(root: Path, names: Sequence[str] = (first, second)) -> None:
        for name in {"train", *names}:
            fill(root / name / "cat"), fill(root / name / "dog")
        refused(lambda: folder(root), f"both {names[0]} and {names[1]}")


@layout("classes named train and test")
def _(root: Path) -> None:
    mapped(folder(class_folders(root, "train", "test", "bus"), **ALL), ["bus", "test", "train"], {"train": 12})


@layout("a class named train with a hidden folder")
def _(root: Path) -> None:
    class_folders(root, "train", "bus")
    (root / "train" / ".ipynb_checkpoints").mkdir()
    mapped(folder(root, **ALL), ["bus", "train"], {"train": 8}, {"hidden": 1})


@layout("val and test without train")
def _(root: Path) -> None:
    refused(lambda: folder(class_folders(root, "val/cat", "test/cat")), str(root), "val, test", "no train folder")


@layout("a test folder without class folders")
def _(root: Path) -> None:
    class_folders(root, "train/cat", "train/dog", "val/cat")
    fill(root / "test", 3, "cat", "")
    mapped(folder(root), ["cat", "dog"], {"train": 8, "val": 4}, {"outside the split folders": 3})


@layout("a val folder without class folders")
def _(root: Path) -> None:
    class_folders(root, "train/cat", "train/dog", "test/cat")
    fill(root / "Valid", 3, "cat", "")
    refused(lambda: folder(root), str(root / "Valid"), "3 images but no class folders", "Valid/CLASS")


for first, second in (("seg_train", "seg_test"), ("training_set", "test_set"), ("TrainImages", "val images")):

    @layout(f"splits in folders named {first} and {second}")
    def _(root: Path, names: Sequence[str] = (first, second)) -> None:
        class_folders(root, *(f"{name}/{label}" for name in names for label in ("cat", "dog")))
        refused(lambda: folder(root), *names, "look like splits")


@layout("classes whose names contain the names of splits")
def _(root: Path) -> None:
    names = ["bus", "dog training", "elk", "pregnancy test", "yak"]
    mapped(folder(class_folders(root, *names), **ALL), names, {"train": 20})


@layout("splits without class folders")
def _(root: Path) -> None:
    refused(lambda: folder(class_folders(root, "train", "test")), "train and test", "look like splits", "data=table")


@layout("shards, and a table beside images, instead of class folders")
def _(root: Path) -> None:
    (root / "train-000.tar").write_bytes(b"x")
    refused(lambda: folder(root), "holds no class folders", "1 not an image (.tar)", f"data=hub data.root={root}")
    (root / "train-000.tar").rename(root / "labels.csv"), fill(root, 2, "cat")
    refused(lambda: folder(root), "holds no class folders", f"data=table data.path={root / 'labels.csv'}")


@layout("splits inside the class folders")
def _(root: Path) -> None:
    class_folders(root, "cat/train", "cat/test", "dog/train", "dog/test")
    refused(lambda: folder(root), str(root / "cat"), "test and train", "train/cat")


@layout("a linked folder beside the splits")
def _(root: Path) -> None:
    class_folders(root, "train/cat", "train/dog", "test/cat", "test/dog")
    class_folders(root, "more", count=2)
    (root / "train" / "elk").symlink_to(root / "more", target_is_directory=True)
    source = folder(root, fractions=(1, 0, 0))
    assert source.counts("train").tolist() == [4, 4, 2] and not source.left_out


@layout("thumbnails of a storage device, and folders of operating systems")
def _(root: Path) -> None:
    class_folders(root, "cat", "dog", "__MACOSX/cat", "@eaDir/1.png", "$RECYCLE.BIN")
    class_folders(root / "cat", "@eaDir/1.png")
    mapped(folder(root, **ALL), ["cat", "dog"], {"train": 8}, {"hidden": 4})


@layout("files outside class folders")
def _(root: Path) -> None:
    class_folders(root, "cat", "dog")
    (root / "stray.png").write_bytes(png("elk"))
    (root / "labels.csv").write_text("x"), (root / "cat" / "Thumbs.db").write_text("x")
    mapped(folder(root, **ALL), ["cat", "dog"], {"train": 8}, {
        "outside any class folder": 1, "not an image (.csv)": 1, "not an image (.db)": 1})


@layout("class folders named 1, 2, 10")
def _(root: Path) -> None:
    names = ("1", "2", "10")
    class_folders(root, *(f"train/{name}" for name in names), "val/2", "val/10")
    mapped(folder(root), ["1", "10", "2"], {"train": 12, "val": 8})


@layout("class folders named true, null, 007")
def _(root: Path) -> None:
    names = sorted(("true", "null", "007", "7", "nan", "1e3", "no", "-1", "a,b|c", "it's", "🐱", "x.png"))
    mapped(folder(class_folders(root, *names, count=1), **ALL), names, {"train": len(names)})


@layout("trailing white space in a class name of one split")
def _(root: Path) -> None:
    refused(lambda: folder(class_folders(root, "train/cat", "train/dog", "val/cat ")), str(root / "val"), "cat ")


@layout("two class names that differ by trailing white space")
def _(root: Path) -> None:
    with Logged() as log:
        source = folder(class_folders(root, "cat", "cat ", "dog"), **ALL)
    mapped(source, ["cat", "cat ", "dog"], {"train": 12})
    assert "'cat' and 'cat '" in log.text, log.text


@layout("suffixes in capitals")
def _(root: Path) -> None:
    class_folders(root, "cat", "dog")
    (root / "dog" / "X.PNG").write_bytes(png("dog", number=1))
    mapped(folder(root, **ALL), ["cat", "dog"], {"train": 9})


class Colours(torch.nn.Module):
    """Classifies an image by its colour."""

    def __init__(self, classes: Sequence[str]) -> None:
        super().__init__()
        self.colours = torch.nn.Parameter(CONTRACT.normalize(
            torch.tensor([colour(name) for name in classes], dtype=torch.uint8)[:, :, None, None])[:, :, 0, 0])

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return -torch.cdist(images[:, :, 0, 0], self.colours)


@layout("predict and audit use the same files as training")
def _(root: Path) -> None:
    class_folders(root, "cat", "dog", ".hidden")
    (root / "cat" / "up").symlink_to(root), (root / "dog" / "notes.txt").write_text("x")
    source = folder(root, **ALL)
    bundle = SimpleNamespace(model=Colours(source.classes), classes=source.classes, preprocessing=CONTRACT,
                             calibration=None)
    predictions = Predictor(bundle, "cpu").predict(root)
    assert {str(Path(a.source).relative_to(root)): a.label for a in predictions} == dict(source.split_lists()["train"])
    report = audit(source, CONTRACT, seconds=None)
    assert report.left_out == source.left_out and len(predictions.left_out) == len(source.left_out) == 3
    assert report.counts == {"train": {"cat": 4, "dog": 4}} and not report.unreadable


@layout("the audit command with unusual folders")
def _(root: Path) -> None:
    for name, part in (("Training", "train"), ("TEST", "test")):
        for label in ("1", "10", "2"):
            fill(root / "set" / name / label, part=part)
    (root / "set" / "Training" / "2" / "up").symlink_to(root / "set")
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        code = main(["audit", "data=folder", f"data.root={root / 'set'}", "data.fractions=[1,0,0]",
                     "--json", str(root / "audit.json")])
    report = json.loads((root / "audit.json").read_text())
    assert code == 0 and report["counts"] == {key: {"1": 4, "10": 4, "2": 4} for key in ("train", "test")}, report
    assert "left out: 1 (1 a link to a folder" in printed.getvalue(), printed.getvalue()


# Archives


def zipped(path: Path, root: Path, above: str = "") -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        for file in sorted(root.rglob("*")):
            if file.is_file():
                archive.write(file, above + str(file.relative_to(root)))
    return path


@layout("a zip archive of splits in a folder, as macOS creates it")
def _(root: Path) -> None:
    for name, part in (("Train", "train"), ("Test", "test")):
        for label in ("cat", "dog"):
            fill(root / "a" / name / label, part=part)
    zipped(root / "a.zip", root / "a", "data/")
    with zipfile.ZipFile(root / "a.zip", "a") as archive:
        archive.writestr("__MACOSX/data/Train/cat/._1.png", b"x")
        archive.writestr("data/Train/.DS_Store", b"x")
    mapped(folder(root / "a.zip", fractions=(1, 0, 0)), ["cat", "dog"], {"train": 8, "test": 8}, {"hidden": 1})


@layout("a zip archive of class folders")
def _(root: Path) -> None:
    class_folders(root / "a", "1", "2", "10")
    (root / "a" / "2" / "notes.txt").write_text("x")
    mapped(folder(zipped(root / "a.zip", root / "a"), **ALL), ["1", "10", "2"], {"train": 12},
           {"not an image (.txt)": 1})


@layout("a zip archive with backslashes")
def _(root: Path) -> None:
    with zipfile.ZipFile(root / "a.zip", "w") as archive:
        for label in ("cat", "dog"):
            archive.writestr(f"{label}\\1.png", png(label))
    refused(lambda: folder(root / "a.zip"), "a.zip", "no class folders", "2 a name with backslashes as separators")


@layout("a file instead of a folder")
def _(root: Path) -> None:
    (root / "t.csv").write_text("path,label\n")
    refused(lambda: folder(root / "t.csv"), "t.csv", "data=table")
