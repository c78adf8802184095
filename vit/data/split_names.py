"""The names that folders, files and table cells use for the splits."""

from collections.abc import Iterable

from vit.data.errors import DataError

SPLIT_NAMES = {"train": ("train", "training"), "val": ("val", "valid", "validation", "dev"),
               "test": ("test", "testing")}


def named_splits(where: object, names: Iterable[str]) -> dict[str, str]:
    """Split → which of the names means it, in capitals or not; as far as there.

    Raises:
        DataError: two names mean the same split.
    """
    found: dict[str, str] = {}
    for name in names:
        key = next((key for key, usual in SPLIT_NAMES.items() if name.lower() in usual), None)
        if key in found:
            raise DataError(f"{where}: both {found[key]} and {name} are there, keep one of them for {key}")
        if key is not None:
            found[key] = name
    return {key: found[key] for key in SPLIT_NAMES if key in found}
