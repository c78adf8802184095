"""Data sets of annotation tools: read where they state labels of whole images, else recognized."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.faults.layout_checks import ALL, ANIMALS, class_folders, fill, layout, listed, mapped, png, refused
from tests.faults.layout_folders import zipped
from vit.data import folder, table

COCO = "in the format of COCO"


def coco(images: Sequence[tuple[str, Sequence[str]]]) -> str:
    """COCO's JSON of images with the categories of their objects; Roboflow adds a category without objects."""
    names = ["animals", *ANIMALS[::-1]]
    objects = [(i, label) for i, (_, labels) in enumerate(images) for label in labels]
    return json.dumps({
        "info": {}, "images": [{"id": 7 + i, "file_name": name} for i, (name, _) in enumerate(images)],
        "annotations": [{"id": n, "image_id": 7 + i, "category_id": names.index(label), "bbox": [0, 0, 2, 2]}
                        for n, (i, label) in enumerate(objects)],
        "categories": [{"id": i, "name": name} for i, name in enumerate(names)]})


@layout("COCO with one category per image")
def _(root: Path) -> None:
    rows = listed(root)
    (root / "annotations").mkdir()
    path = root / "annotations" / "instances.json"
    path.write_text(coco([(Path(name).name, [label, label]) for name, label, _ in rows]))
    refused(lambda: table(path), "6 of 6 files do not exist", "set data.root")
    mapped(table(path, root=root / "images", **ALL), ANIMALS, {"train": 6})
    refused(lambda: folder(root), f"annotations/instances.json states labels {COCO}", f"data.path={path}",
            f"data.root={root / 'images'}")
    zipped(root / "a.zip", root)
    refused(lambda: folder(root / "a.zip"), COCO, "after extracting the archive")
    path.write_text(coco([(Path(name).name, [label] * (label != "dog")) for name, label, _ in rows]))
    refused(lambda: table(path, root=root / "images"), "2 of 6 images have no annotation, first '2.png'")


@layout("COCO with several categories per image")
def _(root: Path) -> None:
    listed(root)
    (root / "images" / "c.json").write_text(coco([("0.png", ["cat", "elk", "cat"]), ("1.png", []), ("2.png", ["dog"])]))
    source = table(root / "images" / "c.json", **ALL)
    assert source.split_lists()["train"] == [("0.png", "cat|elk"), ("1.png", ""), ("2.png", "dog")]
    refused(lambda: folder(root / "images"), COCO, f"set data=table data.path={root / 'images' / 'c.json'}, or")


@layout("damaged COCO")
def _(root: Path) -> None:
    whole = json.loads(coco([(name, [label]) for name, label, _ in listed(root)]))
    for key, change, parts in (("categories", [{"id": 9, "name": "ape"}], ("annotation 0", "category_id=3")),
                               ("images", [{"id": 7}], ("COCO", "'file_name'")), ("annotations", [3], ("COCO",))):
        (root / "c.json").write_text(json.dumps({**whole, key: change}))
        refused(lambda: table(root / "c.json"), "c.json", *parts)
        refused(lambda: folder(root), COCO)
    for key, name in (("categories", "name"), ("images", "file_name")):
        double = [*whole[key], {**whole[key][0], name: "another"}]
        (root / "c.json").write_text(json.dumps({**whole, key: double}))
        refused(lambda: table(root / "c.json"), "c.json", f"two of its {key}", "'another'")


@layout("splits of Roboflow, and images in batches, with COCO's JSON")
def _(root: Path) -> None:
    for part in ("train", "valid", "test"):
        rows = listed(root, parts=("",))
        (root / "images").rename(root / part)
        labels = [(Path(name).name, [label]) for name, label, _ in rows]
        (root / part / "_annotations.coco.json").write_text(coco(labels))
    path = root / "train" / "_annotations.coco.json"
    refused(lambda: folder(root), "(as 2 more)", COCO, f"set data=table data.path={root}, or")
    mapped(table(path, **ALL), ANIMALS, {"train": 6})
    for part in ("valid", "test"):
        (root / part).rename(root / f"batch {part}")
    refused(lambda: folder(root), COCO)
    for each in root.rglob("*.json"):
        each.unlink()
    large = '{"images": [{"id": 0, "file_name": "2.png"}' + ", 0" * 2_000_001 + "]}"  # which is not parsed here
    (root / "large.json").write_text(large)
    refused(lambda: folder(root), f"large.json states labels {COCO}", f"'data.root={root / 'batch test'}'")
    class_folders(root / "set", "cat", "dog")
    (root / "set" / "large.json").write_text(large.replace("images", "other"))
    mapped(folder(root / "set", **ALL), ["cat", "dog"], {"train": 8}, {"not an image (.json)": 1})


@layout("class folders beside COCO's JSON")
def _(root: Path) -> None:
    class_folders(root, "cat", "dog")
    names = [str(path.relative_to(root)) for path in sorted(root.rglob("*.png"))]
    (root / "boxes.json").write_text(coco([(name, [name.split("/")[0]]) for name in names]))
    mapped(folder(root, **ALL), ["cat", "dog"], {"train": 8}, {"not an image (.json)": 1})
    (root / "boxes.json").write_text(coco([(name, ["elk"]) for name in names]))
    refused(lambda: folder(root), COCO, "if the folders are classes, move it out")
    class_folders(root / "set", "train/cat", "train/dog", "val/cat")
    (root / "boxes.json").rename(root / "set" / "boxes.json")
    mapped(folder(root / "set"), ["cat", "dog"], {"train": 8, "val": 4}, {"outside the split folders": 1})


def task(number: int, image: str, *answers: Sequence[str] | None, control: str = "label") -> dict[str, Any]:
    """A task of Label Studio with the choices of its annotators; None is a skipped one."""
    return {"id": number, "data": {"image": image, "rank": number}, "annotations": [
        {"was_cancelled": each is None, "result": [{"type": "choices", "from_name": control, "to_name": "image",
                                                    "value": {"choices": list(each)}}] if each else []}
        for each in answers], "predictions": []}


@layout("exports of Label Studio")
def _(root: Path) -> None:
    rows = listed(root)
    (root / "images" / "5.png").rename(root / "images" / "0123abcd-5.png")
    address = ["/data/upload/3/89abcdef-{}", "/data/local-files/?d=images/{}", "{}"]
    addresses = [address[i % 3 if i < 5 else 0].format(Path(name).name) for i, (name, _, _) in enumerate(rows)]
    addresses[2], addresses[5] = rows[2][0], "/data/upload/3/0123abcd-5.png"
    for i in (0, 3, 5):
        (root / Path(addresses[i]).name.split("-")[-1]).write_bytes(png(rows[i][1]))
    (root / "images" / "0123abcd-5.png").rename(root / "0123abcd-5.png"), (root / "5.png").unlink()
    path = root / "project.json"
    tasks = [task(i, addresses[i], None, [label], [label]) for i, (_, label, _) in enumerate(rows)]
    path.write_text(json.dumps(tasks))
    mapped(table(path, **ALL), ANIMALS, {"train": 6})
    least = [{"image": each, "choice": label, "annotator": 1}
             for each, (_, label, _) in zip(addresses, rows, strict=True)]
    (root / "least.json").write_text(json.dumps(least))
    mapped(table(root / "least.json", **ALL), ANIMALS, {"train": 6})
    for wrong, *parts in ((task(9, "0.png"), "task 9", "has not been annotated"),
                          (task(9, "0.png", ["cat"], ["elk"]), "task 9", "disagree (['cat'] and ['elk'])"),
                          (task(9, "0.png", []), "1 of 7 images have no choice, first 'task 9'"),
                          (task(9, "0.png", ["x"], control="colour"), "several choices, colour and label"),
                          ({"id": 9, "data": {}, "annotations": [{}]}, "Label Studio", "no 'result'")):
        path.write_text(json.dumps([*tasks, wrong]))
        refused(lambda: table(path), "project.json", *parts)
    path.write_text(json.dumps([task(0, "0.png", ["cat", "dog"]), task(1, "3.png", []), task(2, "0.png", ["elk"])]))
    assert [label for _, label in table(path, **ALL).split_lists()["train"]] == ["cat|dog", "", "elk"]
    refused(lambda: folder(root), "project.json states labels in the format of Label Studio")
    path.write_text(json.dumps([task(0, "0.png", [])]))
    refused(lambda: table(path), "no task has choices")


@layout("boxes of YOLO")
def _(root: Path) -> None:
    for top in ("train/{}", "val/{}"):
        class_folders(root / "one", top.format("images"), count=2)
        (root / "one" / top.format("labels")).mkdir()
        (root / "one" / top.format("labels") / "0.txt").write_text("0 .5 .5 .2 .2\n")
        class_folders(root / "two", "images/train", "images/val", count=2)
        label = root / "two" / "labels" / top.split("/")[0]
        label.mkdir(parents=True)
        (label / "0.txt").write_text("0 .5 .5 .2 .2\n")
    refused(lambda: folder(root / "one"), "train/labels/0.txt is in the format of YOLO", "image and label, and set")
    refused(lambda: folder(root / "two"), "labels/train/0.txt is in the format of YOLO")


@layout("boxes of Pascal VOC")
def _(root: Path) -> None:
    class_folders(root / "voc", "JPEGImages", "SegmentationClass")
    class_folders(root / "pets", "images", "annotations/trimaps")
    for name in ("voc/Annotations/1.xml", "pets/annotations/xmls/1.xml"):
        (root / name).parent.mkdir()
        (root / name).write_text("<annotation><object><name>cat</name></object></annotation>")
    refused(lambda: folder(root / "voc"), "Annotations/1.xml is in the format of Pascal VOC", "image and label")
    refused(lambda: folder(root / "pets"), "annotations/xmls/1.xml is in the format of Pascal VOC")


@layout("boxes in class folders")
def _(root: Path) -> None:
    for label in ("cat", "dog"):
        fill(root / label / "images", label=label)
        for name, text in (("labels/0.txt", "0 .5 .5 .2 .2"), ("boxes/0.xml", "<annotation/>"),
                           ("0.xml", "<annotation/>"), ("c.json", coco([("images/0.png", [label])]))):
            (root / label / name).parent.mkdir(exist_ok=True)
            (root / label / name).write_text(text)
    left_out = {"not an image (.xml)": 4, "not an image (.txt)": 2, "not an image (.json)": 2}
    mapped(folder(root, **ALL), ["cat", "dog"], {"train": 8}, left_out)


@layout("a table beside a single folder of images")
def _(root: Path) -> None:
    listed(root)
    (root / "labels.csv").write_text("x")
    refused(lambda: folder(root), "a single class folder, images", f"data=table data.path={root / 'labels.csv'}")
