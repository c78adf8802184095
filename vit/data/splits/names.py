"""The conventional names of the splits in folders, files and table cells."""

import logging
import re
from collections.abc import Iterable, Mapping

from vit.data.errors import DataError
from vit.messages import override_for_shell

log = logging.getLogger("vit")

SPLIT_NAMES = {"train": ("train", "training"), "val": ("val", "valid", "validation", "dev"),
               "test": ("test", "testing")}

MARK = re.compile(r"is[_ ]?([a-z]+)")  # a column of booleans, such as is_valid
WORDS = re.compile(r"[A-Za-z]+([ _-]?[A-Za-z]+)?")  # values that may name a split
MAX_SPLIT_NAMES = 6  # different names in a column of splits
TRUE, FALSE = ("true", "1", "1.0"), ("false", "0", "0.0")


def split_of(value: object, column: object = None) -> str | None:
    """The split that a cell denotes, without regard to case; None for any other text.

    In a column such as fastai's `is_valid`, true and 1 denote the split in its name, false and 0 denote train. In a
    column `is_train`, false and 0 denote test.
    """
    name = str(value).strip().lower()
    marked = MARK.fullmatch(str(column).strip().lower())
    key = _conventional(marked[1]) if marked else None
    if key is not None and name in TRUE:
        return key
    if key is not None and name in FALSE:
        return "test" if key == "train" else "train"
    return _conventional(name)


def _conventional(name: str) -> str | None:
    return next((key for key, conventional in SPLIT_NAMES.items() if name in conventional), None)


def is_split_name(name: str) -> bool:
    """Whether a name denotes a split, without regard to case."""
    return _conventional(name.lower()) is not None


def match_splits(where: object, names: Iterable[str]) -> dict[str, str]:
    """The name that denotes each split, without regard to case, for the splits that `names` contain.

    Raises:
        DataError: two names denote the same split.
    """
    matched: dict[str, str] = {}
    for name in names:
        key = _conventional(name.lower())
        if key in matched:
            raise DataError(f"{where}: both {matched[key]} and {name} exist; keep one of them for {key}")
        if key is not None:
            matched[key] = name
    return {key: matched[key] for key in SPLIT_NAMES if key in matched}


def warn_without_effect(options: Mapping[str, object], reason: str) -> None:
    """Warns about options of the data that are set, but have no effect for this `reason`."""
    if given := [f"data.{key}={value}" for key, value in options.items() if value is not None]:
        log.warning("%s %s no effect, because %s", ", ".join(given), "has" if len(given) == 1 else "have", reason)


def similar_splits(names: Iterable[str]) -> dict[str, str]:
    """For each split, the first of `names` that contains a name of it as a word: seg_train, testset, TrainImages."""
    similar: dict[str, str] = {}
    for name in names:
        parts = [part.lower().removesuffix("set") for part in re.findall("[A-Z]?[a-z]+|[A-Z]+", name)]
        for key, conventional in SPLIT_NAMES.items():
            if any(part in conventional for part in parts):
                similar.setdefault(key, name)
    return similar


class UnusedSplits:
    """Columns that are not used as the column of splits, but look like one: all their values are names of splits, or
    they are a few names that contain one, such as PublicTest.
    """

    def __init__(self, columns: Iterable[object]) -> None:
        self.found: dict[object, dict[str, str]] = {column: {} for column in columns}  # column → name → its split
        self.similar: set[object] = set()  # columns with other names than those of splits

    def add(self, column: object, values: Iterable[object]) -> None:
        """Adds values of a column until one is not the name of a split."""
        if (found := self.found.get(column)) is None:
            return
        for value in values:
            name = str(value).strip()
            if name in found:
                continue
            key = split_of(name, column)
            if key is None:
                key = next(iter(similar_splits([name])), None) if WORDS.fullmatch(name) else None
                self.similar.add(column)
            if key is None or column in self.similar and len(found) == MAX_SPLIT_NAMES:
                del self.found[column]
                return
            found[name] = key

    def warn(self, path: object) -> None:
        """Warns about columns that distinguish at least two splits."""
        for column, found in self.found.items():
            if len({*found.values()}) < 2:
                continue
            override = override_for_shell("data.split", column)
            if column in self.similar:
                log.warning("%s: the column %r seems to state splits (%s) and is not used; if it does, write train, "
                            "val or test in its cells and set %s", path, column, ", ".join(found), override)
            else:
                log.warning("%s: the column %r states splits (%s) and is not used; %s uses it", path, column,
                            ", ".join(found), override)
