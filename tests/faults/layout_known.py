"""The layouts of TinyImageNet and ImageNet, in which a file states the classes of the validation images."""

import shutil
import struct
import zlib
from pathlib import Path

import numpy as np
from scipy.io import savemat

from tests.faults.layout_checks import class_folders, fill, layout, mapped, png, refused
from tests.faults.layout_folders import zipped
from vit.data import folder, imagenet

WORDNET = ["n01443537", "n01629819", "n02085620"]
PATTERN = "ILSVRC2012_val_{:08}"


def flat(folder: Path, pattern: str, count: int = 6) -> list[tuple[str, str]]:
    """Creates validation images side by side → their names without suffix, and their classes."""
    folder.mkdir(parents=True)
    found = [(pattern.format(i + 1), WORDNET[2 - i % 3]) for i in range(count)]
    for i, (name, label) in enumerate(found):
        (folder / f"{name}.JPEG").write_bytes(png(label, "val", i))
    return found


def tiny_imagenet(root: Path) -> Path:
    for name in WORDNET:
        fill(root / "train" / name / "images", label=name, part="train")
        (root / "train" / name / f"{name}_boxes.txt").write_text("x")
    rows = flat(root / "val" / "images", "val_{}")
    text = "".join(f"{name}.JPEG\t{label}\t0\t32\t44\t62\n" for name, label in rows)
    (root / "val" / "val_annotations.txt").write_text(text)
    (root / "wnids.txt").write_text("\n".join(WORDNET)), (root / "words.txt").write_text("n00001740\tentity\n")
    fill(root / "test" / "images", 3, "cat", "test")
    return root


@layout("TinyImageNet as a folder and as an archive")
def _(root: Path) -> None:
    tiny_imagenet(root / "tiny")
    zipped(root / "tiny.zip", root / "tiny", "tiny-imagenet-200/")
    left_out = {"not an image (.txt)": 4, "outside the split folders": 5}
    for name in ("tiny", "tiny.zip"):
        mapped(folder(root / name), WORDNET, {"train": 12, "val": 6}, left_out)
    refused(lambda: folder(root), str(root), "its folder tiny", f"set data.root={root / 'tiny'}")


@layout("TinyImageNet with other images, labels and classes in val")
def _(root: Path) -> None:
    tiny_imagenet(root), shutil.rmtree(root / "test")
    (root / "val" / "images" / "more.png").write_bytes(png("cat"))
    (root / "val" / "images" / "val_2.JPEG").unlink()
    mapped(folder(root), WORDNET, {"train": 12, "val": 5}, {
        "not an image (.txt)": 4, "outside the split folders": 2, "without a label in val_annotations.txt": 1,
        "the file does not exist": 1})
    for path in (root / "val" / "images").glob("val_*"):
        path.rename(path.with_name(f"x{path.name}"))
    refused(lambda: folder(root), "val_annotations.txt", "none of the 6 images", "val/images")
    for path in (root / "val" / "images").glob("xval_*"):
        path.rename(path.with_name(path.name[1:]))
    shutil.rmtree(root / "train" / WORDNET[0])
    refused(lambda: folder(root), "val_annotations.txt", "1 class of", f"({WORDNET[0]})", "2 of train")
    (root / "val" / "val_annotations.txt").write_text("val_1.JPEG n01443537\n")
    refused(lambda: folder(root), "val_annotations.txt line 1", "a tab and a class")


@layout("TinyImageNet with class folders in val")
def _(root: Path) -> None:
    tiny_imagenet(root), shutil.rmtree(root / "val" / "images"), shutil.rmtree(root / "test")
    class_folders(root, *(f"val/{name}" for name in WORDNET))
    mapped(folder(root), WORDNET, {"train": 12, "val": 12}, {"not an image (.txt)": 4, "outside the split folders": 2})


def development_kit(kit: Path, rows: list[tuple[str, str]]) -> None:
    """The files of ImageNet's development kit; ILSVRC2012_ID is not the order of the folders."""
    numbers = {name: number for number, name in enumerate(reversed([*WORDNET, "n00001740"]), 1)}
    synsets = np.array([[(float(number), name, "words", 0)] for name, number in numbers.items()],
                       [(key, object) for key in ("ILSVRC2012_ID", "WNID", "words", "num_children")])
    kit.mkdir(parents=True)
    savemat(kit / "meta.mat", {"synsets": synsets}, do_compression=True)
    text = "".join(f"{numbers[label]}\n" for _, label in rows)
    (kit / "ILSVRC2012_validation_ground_truth.txt").write_text(text)


@layout("ImageNet with the development kit")
def _(root: Path) -> None:
    class_folders(root / "set", *(f"train/{name}" for name in WORDNET))
    rows = flat(root / "set" / "val", PATTERN)
    kit = root / "ILSVRC2012_devkit_t12" / "data"
    refused(lambda: folder(root / "set"), str(root / "set" / "val"), "6 images but no class folders",
            "ILSVRC2012_devkit_t12/data or LOC_val_solution.csv beside it states the classes")
    development_kit(kit, rows)
    zipped(root / "set.zip", root / "set")
    for name in ("set", "set.zip"):
        mapped(folder(root / name), WORDNET, {"train": 12, "val": 6})
    found = imagenet(root / "set", val=0.25).split_lists()["test"]
    assert found == [(f"val/{name}.JPEG", label) for name, label in rows], found
    (kit / "ILSVRC2012_validation_ground_truth.txt").write_text("1\n7\n")
    refused(lambda: folder(root / "set"), "ground_truth.txt line 2", "'7'", "4 classes")
    bomb = zlib.compress(bytes(2**26))
    bomb = bytes(126) + b"IM" + struct.pack("<II", 15, len(bomb)) + bomb
    for wrong in (b"MATLAB", (kit / "meta.mat").read_bytes()[:-20], bomb):
        (kit / "meta.mat").write_bytes(wrong)
        refused(lambda: folder(root / "set"), "meta.mat", "cannot be read")
    (kit / "meta.mat").unlink()
    refused(lambda: folder(root / "set"), "ground_truth.txt", "ILSVRC2012_ID", "meta.mat")


@layout("ImageNet as Kaggle distributes it")
def _(root: Path) -> None:
    inner = root / "ILSVRC" / "Data" / "CLS-LOC"
    class_folders(inner, *(f"train/{name}" for name in WORDNET))
    (root / "ILSVRC" / "Annotations" / "CLS-LOC" / "train").mkdir(parents=True)
    rows = flat(inner / "val", PATTERN)
    fill(inner / "test", 2, "cat", "test")
    text = "".join(f"{name},{label} 1 2 3 4 {label} 5 6 7 8 \n" for name, label in rows)
    (root / "LOC_val_solution.csv").write_text(f"ImageId,PredictionString\n{text}")
    mapped(folder(inner), WORDNET, {"train": 12, "val": 6}, {"outside the split folders": 2})
    refused(lambda: folder(root), str(root), f"set data.root={inner}")
    (root / "LOC_val_solution.csv").write_text("ImageId,PredictionString\nILSVRC2012_val_00000001\n")
    refused(lambda: folder(inner), "LOC_val_solution.csv line 2", "a class and a box")
