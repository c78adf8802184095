"""Images and labels as arrays in one .npz file, in the layouts of MedMNIST and Keras."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from vit.data.class_names import encode_labels, labels_are_class_names, parse_class_names
from vit.data.errors import DataError
from vit.data.image_sources.table_labels import only_label, warn_about_one_hot
from vit.data.sample_names import RowNames
from vit.data.source import Source
from vit.data.splits.names import SPLIT_NAMES
from vit.data.splits.split import ReadArray, Split, array_split, typed_labels
from vit.data.splits.splitting import three_ways, validation_fraction, with_validation
from vit.files.machine import total_memory
from vit.files.untrusted import open_zip, read_arrays
from vit.messages import on_one_line

IMAGES = ("images", "image", "x", "data")
LABELS = ("labels", "label", "y", "target", "targets")


def npz(
    path: Path, classes: Sequence[str] | None, fractions: Sequence[float], split_seed: int, one_hot: bool = False
) -> Source:
    """Arrays `train_images` and `train_labels` (likewise `val_`, `test_`), `x_train` and `y_train`, or `images` and
    `labels`, regardless of case. Other arrays are listed in `left_out`.

    Images are (N,H,W), (N,H,W,C) or (N,C,H,W). Labels are (N,), (N,1) or (N,1,1,1), or multi-label
    (N,classes) of 0 and 1, which with `one_hot` state one class per image.

    Raises:
        DataError: the file cannot be read, or its arrays are missing or do not match.
    """
    return array_splits(path, path.stem, _load(path), classes, fractions, split_seed, one_hot)


def array_splits(
    path: Path, name: str, arrays: dict[str, np.ndarray], classes: Sequence[str] | None, fractions: Sequence[float],
    split_seed: int, one_hot: bool = False,
) -> Source:
    """The source of this name with such arrays, from a file or folder at `path`.

    Raises:
        DataError: arrays are missing or do not match.
    """
    found = {key: pair for key, names in SPLIT_NAMES.items() if (pair := _pair(arrays, names))}
    whole = None if found else _pair(arrays, ())
    if whole is None and "train" not in found:
        listed = ", ".join(f"{name} {array.shape}" for name, array in arrays.items())
        raise DataError(f"{path}: needs arrays named images and labels, or train_images and train_labels (likewise "
                        f"val_, test_), but contains {listed or 'no arrays'}; save both in one file, as with "
                        "numpy.savez(FILE, images=..., labels=...)")
    stated, names, splits = parse_class_names(classes), None, {}
    chosen = found or {"train": whole}
    values = _values(arrays, chosen.values())
    if values and labels_are_class_names(values, stated):  # as in a table
        stated, names = None, stated
    for key, (images, labels) in chosen.items():
        names, splits[key] = _split(path, key, arrays[images], arrays[labels], stated, names)
    if splits["train"].labels.ndim == 2:
        all_labels = np.concatenate([split.labels for split in splits.values() if split.labels.ndim == 2])
        if one_hot:
            splits = {key: replace(split, labels=only_label(f"{path} {key}", split.labels))
                      for key, split in splits.items()}
        else:
            warn_about_one_hot(path, all_labels, "data.one_hot=true")
    elif one_hot:
        raise DataError(f"{path}: data.one_hot=true needs labels (N,classes) of 0 and 1, not (N,)")
    used = {name for pair in chosen.values() for name in pair}
    left_out = [(f"{path.name} {array}", "an unused array") for array in arrays if array not in used]
    if whole is not None:
        return Source(name, names, three_ways(splits["train"], fractions, split_seed), left_out)
    fraction = validation_fraction(fractions)
    return Source(name, names, with_validation(splits, None, fraction, split_seed), left_out)


def _values(arrays: dict[str, np.ndarray], pairs: Iterable[tuple[str, str]]) -> list:
    """The labels of all splits with one label per image."""
    found = [arrays[labels] for _, labels in pairs]
    single = [labels for labels in found if labels.ndim == 1 or set(labels.shape[1:]) == {1}]
    return [value for labels in single for value in labels.ravel().tolist()]


def are_image_arrays(names: Iterable[str]) -> bool:
    """Whether arrays have the names of a data set, such as `images`, `x_train` or `test_images`."""
    return any({*name.lower().split("_")} & {*IMAGES} for name in names)


def _load(path: Path) -> dict[str, np.ndarray]:
    try:
        with open_zip(path) as archive:
            size = sum(member.file_size for member in archive.infolist())
        memory = total_memory()
        if size > memory // 2:
            raise DataError(f"{path}: decompresses to {size / 1e9:.1f} GB, over half of the {memory / 1e9:.1f} GB of "
                            "memory; write the images to class folders and use data=folder")
        return read_arrays(path)
    except DataError:
        raise
    except Exception as error:  # many types, of zipfile, zlib and NumPy
        raise DataError(f"{path}: cannot be read as .npz ({on_one_line(error)})") from error


def _pair(arrays: dict[str, np.ndarray], splits: Sequence[str]) -> tuple[str, str] | None:
    """The array names of the images and labels of a split with any of its conventional names; None if there are none.
    """

    def first(names: Sequence[str]) -> str | None:
        candidates = [f"{a}_{b}" for name in names for split in splits for a, b in ((split, name), (name, split))]
        return next((name for requested in (candidates or names) for name in arrays if name.lower() == requested), None)

    images, labels = first(IMAGES), first(LABELS)
    return None if images is None or labels is None else (images, labels)


def _split(
    path: Path, key: str, images: np.ndarray, labels: np.ndarray, stated: list[str] | None, known: list[str] | None
) -> tuple[list[str], Split]:
    """The class names and the samples of one split.

    Args:
        stated: the class names that the user states, which labels may index.
        known: the classes of the training split, None for that split itself.
    """
    if images.ndim == 4 and images.shape[1] in (1, 3) and images.shape[3] not in (1, 3, 4):
        images = np.ascontiguousarray(images.transpose(0, 2, 3, 1))
    labels = labels.reshape(-1) if labels.ndim > 1 and set(labels.shape[1:]) == {1} else labels  # (N,1), (N,1,1,1)
    if images.ndim not in (3, 4) or labels.ndim not in (1, 2) or len(images) != len(labels):
        raise DataError(f"{path}: the {key} images have shape {images.shape} and the labels {labels.shape}; expected "
                        "(N,H,W) or (N,H,W,C), and (N,) or (N,classes)")
    if labels.ndim == 2:
        return _multi_label_split(path, key, images, labels, known or stated)
    names, numbers = encode_labels(path, labels.tolist(), None, stated, known)
    return names, _samples(path, key, images, numbers)


def _multi_label_split(
    path: Path, key: str, images: np.ndarray, labels: np.ndarray, names: list[str] | None
) -> tuple[list[str], Split]:
    names = names or [str(i) for i in range(labels.shape[1])]
    if labels.shape[1] != len(names) or not np.isin(labels, (0, 1)).all():
        raise DataError(f"{path}: the {key} labels have shape {labels.shape}; expected 0 or 1 for each of "
                        f"{len(names)} classes")
    return names, _samples(path, key, images, labels.astype(bool))


def _samples(path: Path, key: str, images: np.ndarray, labels: np.ndarray) -> Split:
    prefix = f"{path.name} {key}"
    if images.dtype == np.uint8:
        return array_split(images, labels, prefix)
    return Split(typed_labels(labels), RowNames(prefix, np.arange(len(labels))), ReadArray(images))
