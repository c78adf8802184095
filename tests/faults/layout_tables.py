"""Unusual tables of images: CSV, Excel, JSON, Parquet, arrays, and data sets of the datasets library."""

import json
from collections.abc import Sequence
from pathlib import Path
from unittest.mock import patch

import numpy as np

from tests.faults.layout_checks import (
    ACCENT,
    ALL,
    ANIMALS,
    PARTS,
    csv_text,
    fill,
    layout,
    listed,
    mapped,
    pairs_of,
    picture,
    png,
    refused,
)
from vit.data import Source, hub, mnist, table

for kind, sign in (("commas", ","), ("semicolons", ";"), ("tabs", "\t")):
    for encoding in ("utf-8", "utf-8-sig", "utf-16"):

        @layout(f"a table with {kind} in {encoding}")
        def _(root: Path, sign: str = sign, encoding: str = encoding) -> None:
            labels = ("cat, big", ACCENT, "x;y")
            rows = listed(root, labels, PARTS[1:])
            (root / "t.csv").write_bytes(csv_text(rows, "path", "label", "split", sign=sign).encode(encoding))
            mapped(table(root / "t.csv"), sorted(labels), {"train": 6, "val": 6, "test": 6})


@layout("a .tsv file")
def _(root: Path) -> None:
    (root / "t.tsv").write_text(csv_text(pairs_of(listed(root)), "file", "class", sign="\t").replace("\r", ""))
    mapped(table(root / "t.tsv", **ALL), ANIMALS, {"train": 6})


@layout("a table without a header")
def _(root: Path) -> None:
    (root / "t.csv").write_text(csv_text(pairs_of(listed(root))))
    refused(lambda: table(root / "t.csv"), "t.csv", "images/0.png", "data.image=0 data.label=1")
    mapped(table(root / "t.csv", image=0, label=1, **ALL), ANIMALS, {"train": 6})


@layout("Windows paths")
def _(root: Path) -> None:
    rows = [(path.replace("/", "\\"), label) for path, label in pairs_of(listed(root))]
    (root / "t.csv").write_text(csv_text(rows, "path", "label"))
    mapped(table(root / "t.csv", **ALL), ANIMALS, {"train": 6})


@layout("absolute paths")
def _(root: Path) -> None:
    (root / "tables").mkdir()
    rows = [(str(root / path), label) for path, label in pairs_of(listed(root))]
    (root / "tables" / "t.csv").write_text(csv_text(rows, "path", "label"))
    mapped(table(root / "tables" / "t.csv", **ALL), ANIMALS, {"train": 6})


@layout("unconventional column names")
def _(root: Path) -> None:
    (root / "t.csv").write_text(csv_text(pairs_of(listed(root)), "picture", "animal"))
    refused(lambda: table(root / "t.csv"), "t.csv", "picture, animal", "data.image")
    refused(lambda: table(root / "t.csv", image="picture"), "t.csv", "picture, animal", "data.label")
    mapped(table(root / "t.csv", image="picture", label="animal", **ALL), ANIMALS, {"train": 6})


@layout("column names with capitals and blanks")
def _(root: Path) -> None:
    (root / "t.csv").write_text(csv_text(pairs_of(listed(root)), " Image", "LABEL "))
    mapped(table(root / "t.csv", **ALL), ANIMALS, {"train": 6})


for name in ("Split", "SPLIT", " split "):

    @layout(f"a split column named {name!r} with values in capitals")
    def _(root: Path, name: str = name) -> None:
        rows = [(path, label, f" {part.upper()}") for path, label, part in listed(root, parts=PARTS[1:])]
        (root / "t.csv").write_text(csv_text(rows, "path", "label", name))
        mapped(table(root / "t.csv"), ANIMALS, {"train": 6, "val": 6, "test": 6})


@layout("two column names that differ by case")
def _(root: Path) -> None:
    rows = [(path, label, "dog") for path, label in pairs_of(listed(root))]
    (root / "t.csv").write_text(csv_text(rows, "path", "Label", "label"))
    refused(lambda: table(root / "t.csv"), "t.csv", "Label", "data.label")
    mapped(table(root / "t.csv", label="Label", **ALL), ANIMALS, {"train": 6})


@layout("an unknown or missing split in a table")
def _(root: Path) -> None:
    rows = listed(root, parts=PARTS[1:])
    for wrong in ("holdout", ""):
        (root / "t.csv").write_text(csv_text([*rows, (rows[0][0], "cat", wrong)], "path", "label", "split"))
        refused(lambda: table(root / "t.csv"), "t.csv", f"split {wrong!r}")


@layout("a table without training rows")
def _(root: Path) -> None:
    (root / "t.csv").write_text(csv_text(listed(root, parts=PARTS[2:]), "path", "label", "split"))
    refused(lambda: table(root / "t.csv"), "t: there are 0 training images", "test")


@layout("numeric labels with names in classes.json")
def _(root: Path) -> None:
    names = ["elk", "cat", "dog"]
    rows = [(path, str(names.index(label))) for path, label in pairs_of(listed(root, names))]
    (root / "t.csv").write_text(csv_text(rows, "path", "label"))
    (root / "classes.json").write_text(json.dumps(names))
    mapped(table(root / "t.csv", **ALL), names, {"train": 6})
    (root / "classes.json").write_text(json.dumps(names[:2]))
    refused(lambda: table(root / "t.csv"), "t.csv row 4", "label 2", "2 classes")
    mapped(table(root / "t.csv", classes=names, **ALL), names, {"train": 6})


@layout("named labels with an unrelated classes.json")
def _(root: Path) -> None:
    (root / "t.csv").write_text(csv_text(pairs_of(listed(root)), "path", "label"))
    (root / "classes.json").write_text('{"0": "x"}')
    mapped(table(root / "t.csv", **ALL), ANIMALS, {"train": 6})


@layout("labels 1, 2, 10")
def _(root: Path) -> None:
    (root / "t.csv").write_text(csv_text(pairs_of(listed(root, ("10", "2", "1"))), "path", "label"))
    mapped(table(root / "t.csv", **ALL), ["1", "2", "10"], {"train": 6})


@layout("labels true, null, 007")
def _(root: Path) -> None:
    names = sorted(("true", "null", "007", "7", "no", "1e3", "it's"))
    (root / "t.csv").write_text(csv_text(pairs_of(listed(root, names)), "path", "label"))
    mapped(table(root / "t.csv", **ALL), names, {"train": 14})


@layout("white space around labels")
def _(root: Path) -> None:
    rows = [(path, f"{label} " if i % 2 else label) for i, (path, label) in enumerate(pairs_of(listed(root)))]
    (root / "t.csv").write_text(csv_text(rows, "path", "label"))
    mapped(table(root / "t.csv", **ALL), ANIMALS, {"train": 6})


@layout("missing files")
def _(root: Path) -> None:
    (root / "t.csv").write_text(csv_text([("gone.png", "cat"), *pairs_of(listed(root))], "path", "label"))
    refused(lambda: table(root / "t.csv"), "t.csv", "1 of 7", "gone.png")
    mapped(table(root / "t.csv", on_bad_sample="skip", **ALL), ANIMALS, {"train": 6}, {"the file does not exist": 1})


for value in ("", " ", "nan", "NaN"):

    @layout(f"a label that is {value!r}")
    def _(root: Path, value: str = value) -> None:
        rows = pairs_of(listed(root, ("0", "1", "2")))
        (root / "t.csv").write_text(csv_text([*rows, ("images/0.png", value)], "path", "label"))
        refused(lambda: table(root / "t.csv"), "t.csv row 6", "the label is empty")


@layout("a row with a missing field")
def _(root: Path) -> None:
    (root / "t.csv").write_text(csv_text([*pairs_of(listed(root)), ("images/0.png",)], "path", "label"))
    refused(lambda: table(root / "t.csv"), "t.csv line 8", "1 fields")


@layout("JSON and JSONL")
def _(root: Path) -> None:
    rows = [{"file": path, "label": label, "Split": part} for path, label, part in listed(root, parts=PARTS[1:])]
    (root / "t.json").write_text(json.dumps(rows))
    (root / "t.jsonl").write_text("\n".join(map(json.dumps, rows)))
    for name in ("t.json", "t.jsonl"):
        mapped(table(root / name), ANIMALS, {"train": 6, "val": 6, "test": 6})
    (root / "t.jsonl").write_text("\n".join(map(json.dumps, [*rows, {"file": "images/0.png", "label": None}])))
    refused(lambda: table(root / "t.jsonl"), "t.jsonl row 18", "the label is empty")


@layout("an Excel file")
def _(root: Path) -> None:
    import openpyxl

    book = openpyxl.Workbook()
    for row in [("Path", "Label", "Split"), *listed(root, parts=PARTS[1:])]:
        book.active.append(row)
    book.save(root / "t.xlsx")
    mapped(table(root / "t.xlsx"), ANIMALS, {"train": 6, "val": 6, "test": 6})


# Parquet


def parquet(path: Path, labels: Sequence[object], part: str = "", truth: Sequence[str] | None = None,
            names: dict[str, Sequence[str]] | None = None, **columns: Sequence[object]) -> Path:
    """Encoded images with labels; `truth` are the class names of the images, `names` those stored for columns."""
    import pyarrow
    import pyarrow.parquet

    truth = list(map(str, labels)) if truth is None else truth
    images = [{"bytes": png(label, part, i), "path": None} for i, label in enumerate(truth)]
    data = pyarrow.table({**columns, "image": images, "label": labels})
    if names:
        features = {column: {"names": list(each), "_type": "ClassLabel"} for column, each in names.items()}
        data = data.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})
    pyarrow.parquet.write_table(data, path)
    return path


def numbered(path: Path, names: Sequence[str], part: str = "", count: int = 2, **columns: Sequence[object]) -> Path:
    numbers = [i for i in range(len(names)) for _ in range(count)]
    return parquet(path, numbers, part, [names[i] for i in numbers], {"label": names}, **columns)


@layout("Parquet with two columns of class labels")
def _(root: Path) -> None:
    names = {"coarse": ["wild", "tame"], "label": ["elk", "cat", "dog"]}
    parquet(root / "t.parquet", [0, 1, 2, 2, 0], "", ["elk", "cat", "dog", "dog", "elk"], names,
            coarse=[0, 1, 1, 1, 0])
    mapped(table(root / "t.parquet", **ALL), ["elk", "cat", "dog"], {"train": 5})


@layout("Parquet splits with class names in different orders")
def _(root: Path) -> None:
    numbered(root / "train.parquet", ["elk", "cat", "dog"], "", 4)
    numbered(root / "test.parquet", ["dog", "elk", "cat"], "test")
    mapped(mnist(root, val=3), ["elk", "cat", "dog"], {"train": 9, "val": 3, "test": 6})


@layout("Parquet files of one split with class names in different orders")
def _(root: Path) -> None:
    numbered(root / "train-0.parquet", ["elk", "cat"]), numbered(root / "train-1.parquet", ["cat", "elk"])
    refused(lambda: mnist(root, val=1), "train-1.parquet", "'label'", "same class names")


for train, test in (("Train.parquet", "Test.parquet"), ("TRAIN-0.PARQUET", "Testing.Parquet")):

    @layout(f"Parquet splits named {train} and {test}")
    def _(root: Path, train: str = train, test: str = test) -> None:
        numbered(root / train, ["elk", "cat", "dog"], "", 4)
        numbered(root / test, ["elk", "cat", "dog"], "test")
        mapped(mnist(root, val=3), ["elk", "cat", "dog"], {"train": 9, "val": 3, "test": 6})


for first, second in (("Train.parquet", "train.parquet"), ("val.parquet", "validation.parquet")):

    @layout(f"a Parquet split with two names: {first} and {second}")
    def _(root: Path, names: Sequence[str] = (first, second)) -> None:
        for name in {"train.parquet", *names}:
            numbered(root / name, ["elk", "cat"])
        refused(lambda: mnist(root, val=1), f"both {Path(names[0]).stem} and {Path(names[1]).stem}")


@layout("Parquet with a split column in capitals")
def _(root: Path) -> None:
    parquet(root / "t.parquet", ["cat", "dog"] * 3, "train", **{"Split": ["Train"] * 6})
    mapped(table(root / "t.parquet", fractions=(1, 0, 0)), ["cat", "dog"], {"train": 6})


@layout("Parquet with NaN and null labels")
def _(root: Path) -> None:
    for missing in (float("nan"), None):
        parquet(root / "t.parquet", [0.0, 1.0, missing], truth=["0", "1", "0"])
        refused(lambda: table(root / "t.parquet"), "t.parquet row 2", "the label is empty")
    parquet(root / "t.parquet", [0.0, 1.0, 10.0], truth=["0", "1", "10"])
    mapped(table(root / "t.parquet", **ALL), ["0", "1", "10"], {"train": 3})


# Arrays


def arrays(part: str, names: Sequence[str], count: int = 4) -> tuple[np.ndarray, np.ndarray]:
    numbers = np.arange(len(names) * count) % len(names)
    return np.stack([picture(names[n], part, i) for i, n in enumerate(numbers)]), numbers


for images, labels, names in (("{}_images", "{}_labels", ("train", "val", "test")),
                              ("x_{}", "y_{}", ("train", "valid", "test")),
                              ("X_{}", "Y_{}", ("Train", "Validation", "Test")),
                              ("images_{}", "labels_{}", ("training", "validation", "testing"))):

    @layout(f"arrays named {images.format(names[0])}, {images.format(names[1])}")
    def _(root: Path, images: str = images, labels: str = labels, names: Sequence[str] = names) -> None:
        found = {}
        for name, part in zip(names, ("train", "val", "test"), strict=True):
            found[images.format(name)], found[labels.format(name)] = arrays(part, ANIMALS)
        np.savez(root / "a.npz", **found)
        mapped(table(root / "a.npz", classes=ANIMALS), ANIMALS, {"train": 12, "val": 12, "test": 12})


@layout("arrays of test images without labels")
def _(root: Path) -> None:
    images, labels = arrays("", ANIMALS)
    np.savez(root / "a.npz", x_train=images, y_train=labels, x_test=images)
    mapped(table(root / "a.npz", classes=ANIMALS, fractions=(1, 0, 0)), ANIMALS, {"train": 12},
           {"an unused array": 1})


@layout("arrays of different lengths, or with labels out of range")
def _(root: Path) -> None:
    images, labels = arrays("", ANIMALS)
    np.savez(root / "a.npz", images=images, labels=labels[1:])
    refused(lambda: table(root / "a.npz"), "a.npz", "(12, 4, 4, 3)", "(11,)")
    np.savez(root / "a.npz", images=images, labels=labels)
    refused(lambda: table(root / "a.npz", classes=ANIMALS[:2]), "a.npz", "label 2", "2 classes")
    np.savez(root / "a.npz", images=images, labels=np.where(labels == 2, np.nan, labels))
    refused(lambda: table(root / "a.npz"), "a.npz row 2", "the label is empty")


# Data sets of the datasets library


def saved(root: Path, **parts: Sequence[str]) -> Path:
    """A folder of save_to_disk with splits → class names in the order of their indices."""
    import datasets

    datasets.disable_progress_bars()
    made = {}
    for split, names in parts.items():
        features = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=list(names))})
        part = {"train": "train", "training": "train", "test": "test"}[split.lower()]
        images = [{"bytes": png(name, part, i), "path": None} for i, name in enumerate(names)]
        made[split] = datasets.Dataset.from_dict({"image": images, "label": list(range(len(names)))}, features)
    datasets.DatasetDict(made).save_to_disk(root / "saved")
    return root / "saved"


@layout("data sets with class names in different orders")
def _(root: Path) -> None:
    found = hub(saved(root, train=["elk", "cat", "dog"], test=["dog", "elk", "cat"]), fractions=(1, 0, 0))
    mapped(found, ["elk", "cat", "dog"], {"train": 3, "test": 3})


@layout("data sets with splits in capitals")
def _(root: Path) -> None:
    found = hub(saved(root, Training=["elk", "cat", "dog"], Test=["elk", "cat", "dog"]), fractions=(1, 0, 0))
    mapped(found, ["elk", "cat", "dog"], {"train": 3, "test": 3})


def read_by_the_library(root: Path, train: str, test: str) -> Source:
    import datasets

    datasets.disable_progress_bars()
    for name, part in ((train, "train"), (test, "test")):
        for label in ("cat", "dog"):
            fill(root / "set" / name / label, part=part)
    with patch.object(datasets.config, "HF_DATASETS_CACHE", root / "cache"):
        return hub(root / "set", fractions=(1, 0, 0))


@layout("class folders read by the datasets library")
def _(root: Path) -> None:
    mapped(read_by_the_library(root, "train", "test"), ["cat", "dog"], {"train": 8, "test": 8})


@layout("class folders read by the datasets library, with splits in capitals")
def _(root: Path) -> None:
    refused(lambda: read_by_the_library(root, "Training", "Testing"), str(root / "set"), "'Testing'", "rename it")


@layout("data sets with a class that is not in train")
def _(root: Path) -> None:
    refused(lambda: hub(saved(root, train=["elk", "cat"], test=["elk", "ape"])), "saved test", "ape")
