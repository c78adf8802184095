"""Data sets as public ones are distributed: a table for each split, several folders of images, lists of files."""

import json
import shutil
from pathlib import Path

from tests.faults.layout_annotations import coco
from tests.faults.layout_checks import (
    ALL,
    ANIMALS,
    PARTS,
    class_folders,
    csv_text,
    fill,
    layout,
    listed,
    mapped,
    pairs_of,
    refused,
)
from vit.data import folder, table

SIZES = {"train": 6, "val": 6, "test": 6}


def rows_by_split(root: Path) -> dict[str, list[tuple[str, str]]]:
    """Creates images -> the rows (path, label) of the tables of each split."""
    rows = listed(root, parts=PARTS[1:])
    return {key: [(path, label) for path, label, part in rows if part == key] for key in PARTS[1:]}


@layout("train.csv, valid.csv and test.csv, with a test.csv without labels")
def _(root: Path) -> None:
    for key, rows in rows_by_split(root).items():
        (root / f"{key.replace('val', 'valid')}.csv").write_text(csv_text(rows, "path", "label"))
    mapped(table(root), ANIMALS, SIZES)
    (root / "test.csv").write_text("path\nimages/12.png\n")
    mapped(table(root), ANIMALS, {"train": 6, "val": 6}, {"a table without labels": 1})


@layout("_classes.csv in the folder of each split of Roboflow, with a column for each class")
def _(root: Path) -> None:
    for key, rows in rows_by_split(root).items():
        (root / key).mkdir()
        lines = [f"{Path(path).name}, {', '.join(str(int(label == each)) for each in ANIMALS)}" for path, label in rows]
        (root / key / "_classes.csv").write_text("\n".join([f"filename, {', '.join(ANIMALS)}", *lines]))
        for path, _ in rows:
            (root / path).rename(root / key / Path(path).name)
    shutil.rmtree(root / "images")
    refused(lambda: folder(root), f"data=table data.path={root}")
    refused(lambda: table(root), f"'data.label=[{','.join(ANIMALS)}]' data.one_hot=true")
    mapped(table(root, label=list(ANIMALS), one_hot=True), ANIMALS, SIZES)


@layout("annotations and images of COCO 2017")
def _(root: Path) -> None:
    (root / "annotations").mkdir()
    for key, rows in rows_by_split(root).items():
        (root / f"{key}2017").mkdir()
        for path, _ in rows:
            (root / path).rename(root / f"{key}2017" / Path(path).name)
        content = coco([(Path(path).name, [label]) for path, label in rows])
        (root / "annotations" / f"instances_{key}2017.json").write_text(content)
    mapped(table(root / "annotations", root=root), ANIMALS, SIZES)


@layout("images in several folders, and their labels in a table beside these")
def _(root: Path) -> None:
    rows = pairs_of(listed(root))
    for i, (path, _) in enumerate(rows):
        (root / f"part_{i % 2}").mkdir(exist_ok=True)
        (root / path).rename(root / f"part_{i % 2}" / f"ISIC_{i:07}.png")
    names = [(f"lesion_{i // 2}", f"ISIC_{i:07}", label) for i, (_, label) in enumerate(rows)]
    (root / "metadata.csv").write_text(csv_text(names, "lesion_id", "image_id", "label"))
    mapped(table(root / "metadata.csv", **ALL), ANIMALS, {"train": 6})


@layout("the files of each class in train.json and test.json of Food-101")
def _(root: Path) -> None:
    class_folders(root / "images", *ANIMALS)
    files = {name: sorted(f"{name}/{path.stem}" for path in (root / "images" / name).iterdir()) for name in ANIMALS}
    for key, part in (("train", slice(3)), ("test", slice(3, 4))):
        (root / f"{key}.json").write_text(json.dumps({name: names[part] for name, names in files.items()}))
    mapped(table(root, root=root / "images", fractions=(1, 0, 0)), ANIMALS, {"train": 9, "test": 3})


@layout("list.txt of the Oxford pets, with comments, without extensions, and with classes that count from 1")
def _(root: Path) -> None:
    rows = []
    for i, (path, label) in enumerate(pairs_of(listed(root))):
        (root / path).rename(root / "images" / f"pet_{i}.png")
        rows.append(f"pet_{i} {1 + ANIMALS.index(label)} 1 {i}")
    comments = ["#Image CLASS-ID SPECIES BREED ID", "#BREED ID: 1-25:Cat, 1:12:Dog"]
    (root / "list.txt").write_text("\n".join([*comments, *rows]))
    refused(lambda: table(root / "list.txt"), "'pet_0' instead of column names", "data.image=0 data.label=1")
    options = {"image": 0, "label": 1, "root": root / "images", **ALL}
    refused(lambda: table(root / "list.txt", classes=ANIMALS, **options), "count from 1")
    from_0 = [f"{name} {int(number) - 1}" for name, number, *_ in map(str.split, rows)]
    (root / "list.txt").write_text("\n".join([*comments, *from_0]))
    mapped(table(root / "list.txt", classes=ANIMALS, **options), ANIMALS, {"train": 6})


@layout("folders of classes inside folders of groups")
def _(root: Path) -> None:
    names = ("pets/cat", "pets/dog", "wild/elk")
    mapped(folder(class_folders(root / "whole", *names), class_depth=2, **ALL), ANIMALS, {"train": 12})
    for part in ("train", "test"):
        for name in (*names, "wild/cat"):
            fill(root / "set" / part / name, part=part)
    mapped(folder(root / "set", class_depth=2, fractions=(1, 0, 0)), ANIMALS, {"train": 16, "test": 16})
