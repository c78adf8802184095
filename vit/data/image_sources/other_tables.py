"""Tables beside the one that data=table reads: those of val and test, and further shards."""

import logging
from collections.abc import Sequence
from pathlib import Path

from vit.data.errors import DataError, printable
from vit.data.formats.delimited import Column, numbered_rows
from vit.data.formats.split_tables import SHARD, split_in_name
from vit.data.splits.names import split_of
from vit.messages import list_names, override_for_shell

log = logging.getLogger("vit")

DELIMITED = (".csv", ".tsv", ".txt")


def warn_about_other_tables(path: Path, labels: Sequence[Column]) -> None:
    """Warn if a table is the training table, judged by its name or the name of its folder, and a table for val or test
    is beside it: train.csv and test.csv, or train/_classes.csv and test/_classes.csv.

    Args:
        labels: the columns of labels; a delimited table without them is not reported.
    """
    found = [other for other in _beside(path) if has_columns(other, labels)]
    if found:
        listed = list_names((printable(str(other.relative_to(path.parent.parent))) for other in found), 5)
        folder = path.parent.parent if split_of(path.parent.name) == "train" else path.parent
        log.warning("%s: the tables beside it that may be the other splits (%s) are not read; %s reads all of them, "
                    "and vit evaluate RUN %s --split all evaluates a run on one of them", path, listed,
                    override_for_shell("data.path", folder), override_for_shell("data.path", found[0]))


def warn_about_shards(path: Path) -> None:
    """A warning about a table that is one of several shards, such as train-00000-of-00002.parquet."""
    shard = SHARD.search(path.stem)
    if shard and int(shard[1]) > 1 and path.suffix.lower() in (".parquet", *DELIMITED, ".json", ".jsonl"):
        folder = path.parent.parent if path.parent.name == "data" else path.parent
        log.warning("%s: is one of %d shards, and the others are not read; %s reads all", path, int(shard[1]),
                    f"data=hub {override_for_shell('data.root', folder)}")


def _beside(path: Path) -> list[Path]:
    """The tables of val and test, if the path is that of train."""
    folder = path.parent
    if split_of(folder.name) == "train":
        others = [other for other in sorted(folder.parent.iterdir()) if split_of(other.name) in ("val", "test")]
        return [other / path.name for other in others if (other / path.name).is_file()]
    name, splits = split_in_name(path.stem)
    if splits != ["train"]:
        return []
    others = [(other, *split_in_name(other.stem)) for other in sorted(folder.iterdir()) if other.suffix == path.suffix]
    return [other for other, rest, found in others if rest == name and found in (["val"], ["test"])]


def has_columns(path: Path, labels: Sequence[Column]) -> bool:
    """Whether a delimited table has these columns; True for files of other kinds, which are not read for it."""
    if path.suffix.lower() not in DELIMITED:
        return True
    try:
        header = {name.strip() for name in next(iter(numbered_rows(path)))[1]}
    except (DataError, OSError, StopIteration):
        return False
    return all(isinstance(name, int) or str(name).strip() in header for name in labels)
