"""Data sets of the Hugging Face hub by name and commit, or local folders that the library `datasets` reads.

The library returns only encoded bytes: decoding, EXIF orientation and resizing are the same as for all other sources.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from vit.data.class_names import encode_labels, labels_are_withheld, warn_about_one_label, withheld_reason
from vit.data.errors import DataError
from vit.data.image_sources.table_columns import IMAGE_COLUMNS, LABEL_COLUMNS
from vit.data.sample_names import PackedStrings, RowNames
from vit.data.sets.hub_loading import import_datasets, load_folder, load_from_hub, resolve_commit
from vit.data.source import Source
from vit.data.splits.names import SPLIT_NAMES, match_splits
from vit.data.splits.split import Raw, ReadLocation, Split
from vit.data.splits.splitting import three_ways, validation_fraction, with_validation
from vit.messages import override_for_shell


@dataclass(frozen=True)
class ReadRow(ReadLocation):
    """Reads encoded images from a column of a data set: structs {bytes, path}, or bytes."""

    rows: Any
    column: str

    def location(self, i: int) -> Raw | Path:
        value = self.rows[int(i)][self.column]
        if not isinstance(value, dict):
            return value or b""
        if value["bytes"] is None and value["path"]:
            return Path(value["path"])
        return value["bytes"] or b""


def hub(
    root: str | Path | None = None,
    repo: str | None = None,
    revision: str | None = None,
    subset: str | None = None,
    image: str | None = None,
    label: str | None = None,
    splits: Mapping[str, str] | None = None,
    label_separator: str | None = None,
    fractions: Sequence[float] = (0.8, 0.1, 0.1),
    split_seed: int = 0,
) -> Source:
    """A data set of the hub, `repo` OWNER/NAME at a `revision`, or of a folder `root` (save_to_disk, Parquet, ...).

    The columns `image` and `label` are inferred if they are unambiguous. Class names and their order are those of the
    data set. `splits` maps train, val and test to its splits if their names are not conventional.

    Raises:
        DataError: the data set cannot be loaded, or has no training split, image column or label column.
        FileNotFoundError: the folder does not exist.
    """
    if (root is None) == (repo is None):
        raise DataError("data=hub: set either data.repo=OWNER/NAME for a data set of the hub, or data.root=FOLDER")
    name = repo or str(root)
    found = load_folder(Path(root).expanduser(), subset) if root else load_from_hub(repo, revision, subset)
    pinned = {} if root else {"revision": resolve_commit(found, repo, revision)}
    title = repo.split("/")[-1] if repo else Path(root).expanduser().resolve().name
    parts, left_out = _select_splits(name, found, splits)
    classes, splits_of_source = None, {}
    for key, rows in parts.items():
        columns = _find_image_column(name, rows, image), _find_label_column(name, rows, label)
        labels = _values_of(rows, columns[1])
        if classes is not None and key != "train" and labels_are_withheld(labels, classes):
            left_out.append((f"split {key}", withheld_reason(labels)))
            continue
        # val and test are matched with the classes of train, in their order
        stored = _class_names(_feature_of(rows, columns[1]))
        classes, numbers = encode_labels(f"{name} {key}", labels, label_separator, stored, classes)
        if key != "train":
            warn_about_one_label(name, key, numbers, classes)
        splits_of_source[key] = _make_split(rows, columns[0], numbers, key, Path(root).expanduser() if root else None)
    if list(splits_of_source) == ["train"]:
        return Source(title, classes, three_ways(splits_of_source["train"], fractions, split_seed), left_out, pinned)
    fraction = validation_fraction(fractions)
    return Source(title, classes, with_validation(splits_of_source, None, fraction, split_seed), left_out, pinned)


def _select_splits(
    name: str, found: Any, splits: Mapping[str, str] | None
) -> tuple[dict[str, Any], list[tuple[str, str]]]:
    """The existing splits among train, val and test, in this order, and the other splits as left out."""
    if not isinstance(found, dict):
        return {"train": found}, []
    stated = ", ".join(found)
    if splits:
        for key, split in splits.items():
            if key not in SPLIT_NAMES or split not in found:
                raise DataError(f"{name}: {override_for_shell('data.splits', {key: split})} must name one of its "
                                f"splits ({stated}) for train, val or test")
        selected = {key: splits[key] for key in SPLIT_NAMES if key in splits}
    else:
        selected = match_splits(name, found)
    if "train" not in selected:
        only = next(iter(found)) if len(found) == 1 else "NAME"
        raise DataError(f"{name}: none of its splits ({stated}) is called train; set "
                        f"{override_for_shell('data.splits', {'train': only})}")
    left_out = [(f"split {split}", "neither train, val nor test") for split in found if split not in selected.values()]
    return {key: found[split] for key, split in selected.items()}, left_out


def _find_image_column(name: str, rows: Any, requested: str | None) -> str:
    """The column of images: the requested column; otherwise the only one; otherwise one with a conventional name."""
    kinds = {column: type(feature).__name__ for column, feature in rows.features.items()}
    encoded = [column for column, feature in rows.features.items() if kinds[column] == "Image" or _is_binary(feature)]
    if requested is not None:
        _check_column(name, rows, requested, "image")
        if requested not in encoded:
            raise DataError(f"{name}: the column {requested!r} has the type {kinds[requested]}, not images; "
                            f"data.image can be {', '.join(encoded) or 'none of its columns'}")
        return requested
    images = [column for column in encoded if kinds[column] == "Image"]
    return _only(name, rows, "image", encoded, images or encoded, IMAGE_COLUMNS)


def _is_binary(feature: Any) -> bool:
    """Whether cells are bytes, or structs with bytes, in which Parquet files without metadata store images."""
    inner = feature.get("bytes") if isinstance(feature, dict) else feature
    return getattr(inner, "dtype", "") in ("binary", "large_binary")


def _find_label_column(name: str, rows: Any, requested: str | None) -> str:
    """The column of labels: the requested column; otherwise the only one of the type ClassLabel; otherwise one with a
    conventional name. A dot selects a key of objects, as in "json.label" of a WebDataset.
    """
    if requested is not None:
        if isinstance(feature := _feature_of(rows, requested), dict):
            keys = ", ".join(f"{requested}.{key}" for key in feature)
            raise DataError(f"{name}: the column {requested!r} has objects; data.label can be {keys}")
        if feature is None:
            _check_column(name, rows, requested, "label")
        return requested
    named = [column for column, feature in rows.features.items() if _label_feature(feature) is not None]
    return _only(name, rows, "label", list(rows.features), named, LABEL_COLUMNS)


def _only(name: str, rows: Any, what: str, possible: list[str], best: list[str], conventional: Sequence[str]) -> str:
    if len(best) == 1:
        return best[0]
    found = next((column for column in conventional if column in (best or possible)), None)
    if found is None:
        listed = _all_columns(rows)
        seen = f"{', '.join(best)} could each be the {what} column" if best else (
            f"no {what} column found among {', '.join(listed)}")
        inside = [column for column in listed if "." in column and column.rpartition(".")[2] in conventional]
        fix = inside[0] if what == "label" and not best and inside else "COLUMN"
        raise DataError(f"{name}: {seen}; set data.{what}={fix}")
    return found


def _check_column(name: str, rows: Any, requested: str, what: str) -> None:
    if requested not in rows.features:
        listed = ", ".join(_all_columns(rows) if what == "label" else rows.features)
        raise DataError(f"{name}: has no column {requested!r} for data.{what}; its columns are {listed}")


def _all_columns(rows: Any) -> list[str]:
    """The names of the columns, with the keys of objects, such as "json.label", in place of their columns."""
    return [name for column, feature in rows.features.items()
            for name in ([f"{column}.{key}" for key in feature] if _are_objects(feature) else [column])]


def _are_objects(feature: Any) -> bool:
    """Whether cells are objects, other than the structs of images."""
    return isinstance(feature, dict) and not _is_binary(feature)


def _feature_of(rows: Any, column: str) -> Any:
    """The feature of a column, or of a key of objects, such as "json.label"; None if there is none."""
    if column in rows.features:
        return rows.features[column]
    first, *keys = column.split(".")
    feature = rows.features.get(first)
    for key in keys:
        feature = feature.get(key) if isinstance(feature, dict) else None
    return feature


def _values_of(rows: Any, column: str) -> list[Any]:
    """The values of a column, or of a key of objects."""
    if column in rows.features:
        return rows[column][:]
    first, *keys = column.split(".")
    values = rows[first][:]
    for key in keys:
        values = [None if value is None else value[key] for value in values]
    return values


def _label_feature(feature: Any) -> Any:
    """The ClassLabel feature of a column, or of the lists in it; None if there is none."""
    inner = getattr(feature, "feature", feature)
    return inner if type(inner).__name__ == "ClassLabel" else None


def _class_names(feature: Any) -> list[str] | None:
    """Class names in the order of the data set; None if it states none."""
    names = getattr(_label_feature(feature), "names", None)
    return [str(name) for name in names] if names else None


def _make_split(rows: Any, column: str, labels: np.ndarray, key: str, root: Path | None) -> Split:
    """A split whose images are read on request; images that are files are named by their paths."""
    rows = rows.select_columns([column])
    if type(rows.features[column]).__name__ == "Image":
        rows = rows.cast_column(column, import_datasets().Image(decode=False))
    first = rows[0][column] if len(rows) else None
    names: Sequence[str] = RowNames(key, np.arange(len(labels)))
    if isinstance(first, dict) and first["bytes"] is None and first["path"]:
        paths = [value and value["path"] for value in rows[column][:]]
        names = PackedStrings([_short(path, root) if path else names[i] for i, path in enumerate(paths)])
    return Split(labels, names, ReadRow(rows, column))


def _short(path: str, root: Path | None) -> str:
    """A file's path below the folder of the data set, else its name with its parent folder."""
    file = Path(path)
    if root is not None and file.is_relative_to(root.resolve()):
        return str(file.relative_to(root.resolve()))
    return str(Path(*file.parts[-2:]))
