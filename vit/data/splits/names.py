"""The conventional names of the splits in folders, files and table cells."""

import logging
import re
from collections.abc import Iterable, Mapping

from vit.data.errors import DataError

log = logging.getLogger("vit")

SPLIT_NAMES = {"train": ("train", "training"), "val": ("val", "valid", "validation", "dev"),
               "test": ("test", "testing")}


def match_splits(where: object, names: Iterable[str]) -> dict[str, str]:
    """Split → the one of `names` that denotes it, without regard to case; only the splits that are present.

    Raises:
        DataError: two names denote the same split.
    """
    found: dict[str, str] = {}
    for name in names:
        key = next((key for key, conventional in SPLIT_NAMES.items() if name.lower() in conventional), None)
        if key in found:
            raise DataError(f"{where}: both {found[key]} and {name} exist; keep one of them for {key}")
        if key is not None:
            found[key] = name
    return {key: found[key] for key in SPLIT_NAMES if key in found}


def similar_splits(names: Iterable[str]) -> dict[str, str]:
    """Split → the first of `names` that contains one of its names as a word: seg_train, testset, TrainImages."""
    found: dict[str, str] = {}
    for name in names:
        parts = [part.lower().removesuffix("set") for part in re.findall("[A-Z]?[a-z]+|[A-Z]+", name)]
        for key, conventional in SPLIT_NAMES.items():
            if any(part in conventional for part in parts):
                found.setdefault(key, name)
    return found


def split_of(value: object) -> str | None:
    """The split that a table cell denotes, without regard to case and surrounding white space; else None."""
    name = str(value).strip().lower()
    return next((key for key, conventional in SPLIT_NAMES.items() if name in conventional), None)


def warn_about_unused_splits(path: object, columns: Mapping[object, Iterable[object]]) -> None:
    """Warns about columns that hold only names of at least two splits and are not used as the column of splits."""
    for name, values in columns.items():
        found: dict[str, str] = {}
        for value in values:
            if (key := split_of(value)) is None:
                break
            found.setdefault(key, str(value).strip())
        else:
            if len(found) > 1:
                log.warning("%s: the column %r states splits (%s) and is not used; data.split=%s uses it", path, name,
                            ", ".join(found.values()), name)
