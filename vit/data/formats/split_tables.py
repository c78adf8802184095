"""The tables of a folder that are the splits of one data set: train.csv and test.csv, or train/a.csv and test/a.csv."""

import os
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

from vit.data.errors import DataError, printable
from vit.data.formats.delimited import Column
from vit.data.splits.names import SPLIT_NAMES, split_of, warn_without_effect
from vit.messages import list_names, override_for_shell

SHARD = re.compile(r"-\d{5}-of-(\d{5})")
Tables = dict[str, list[Path]]  # split -> its tables


def tables_of_folder(
    path: Path, kinds: Sequence[str], stated: Mapping[str, str | None], split: Column | None
) -> dict[str, Path] | None:
    """The tables of a folder as `split_tables` finds them; None if `path` is a file, which is one table.

    A warning reports the options without effect: `split`, the column of splits, of a folder, and `stated` of one table.

    Raises:
        DataError: there is no table of train, or several tables may be that of a split.
        FileNotFoundError: `path` or a stated table does not exist.
    """
    if path.is_dir():
        warn_without_effect({"split": split}, f"{path} is a folder, whose tables are the splits")
        return split_tables(path, kinds, stated)
    warn_without_effect(stated, f"{path} is one table, not a folder of tables")
    if not path.is_file():
        raise FileNotFoundError(f"data.path: the table {path} does not exist")
    return None


def split_tables(folder: Path, kinds: Sequence[str], stated: Mapping[str, str | None]) -> dict[str, Path]:
    """Split -> its table, in the order train, val, test; val and test may be missing.

    The names of the tables differ by a word alone, which denotes the split: train.csv and test.csv, or
    instances_train2017.json and instances_val2017.json. They may also be in a folder of each split.

    Args:
        kinds: the extensions of tables.
        stated: names of tables below the folder that do not follow this rule, by their splits.

    Raises:
        DataError: there is no table of train, or several tables may be that of a split.
        FileNotFoundError: a stated table does not exist.
    """
    patterns = _tables_by_pattern(folder, kinds)
    named = {key: folder / name for key, name in stated.items() if name}
    for key, file in named.items():
        if not file.is_file():
            raise FileNotFoundError(f"data.{key}: the table {file} does not exist")
    if "train" in named:
        chosen = next((each for each in patterns.values() if named["train"] in each["train"]), {})
    else:
        chosen = _with_train(folder, kinds, patterns)
    for key, files in chosen.items():
        if key not in named and len(files) > 1:
            raise _several(folder, key, files)
    found = {key: files[0] for key, files in chosen.items() if files} | named
    return {key: found[key] for key in SPLIT_NAMES if key in found}


def split_in_name(stem: str) -> tuple[str, list[str]]:
    """The name of a file with a star for each word that is the name of a split, and these splits."""
    parts = re.split("([A-Za-z]+)", stem)
    splits = [split_of(part) for part in parts]
    rest = "".join("*" if split else part for part, split in zip(parts, splits, strict=True))
    return rest, [split for split in splits if split]


def _tables_by_pattern(folder: Path, kinds: Sequence[str]) -> dict[str, Tables]:
    found: dict[str, Tables] = defaultdict(lambda: defaultdict(list))
    for entry in sorted(folder.iterdir()):
        if entry.is_dir() and (key := split_of(entry.name)) is not None:
            for file in sorted(entry.iterdir()):
                if (stem := _stem(file, kinds)) is not None:
                    rest, splits = split_in_name(stem)
                    found[f"*/{rest if splits == [key] else stem}"][key].append(file)
        elif (stem := _stem(entry, kinds)) is not None:
            rest, splits = split_in_name(stem)
            if len(splits) == 1:
                found[rest][splits[0]].append(entry)
    return found


def _stem(file: Path, kinds: Sequence[str]) -> str | None:
    """The name of a table without its extension; None for any other file."""
    name = file.name.lower()
    end = next((kind for kind in (*kinds, *(f"{kind}.gz" for kind in kinds)) if name.endswith(kind)), None)
    is_table = end is not None and not name.startswith(".") and file.is_file()
    return file.name[: -len(end)] if is_table else None


def _with_train(folder: Path, kinds: Sequence[str], patterns: Mapping[str, Tables]) -> Tables:
    """The only tables with equal names among which there is one of train."""
    found = [each for each in patterns.values() if each["train"]]
    if len(found) > 1:
        raise _several(folder, "train", [file for each in found for file in each["train"]])
    if found:
        return found[0]
    tables = [entry.name for entry in sorted(folder.iterdir()) if _stem(entry, kinds) is not None]
    if len(tables) == 1:
        fix = f"set {override_for_shell('data.path', folder / tables[0])}, if it is the table of all samples"
    elif tables:
        fix = (f"its tables are {list_names(map(printable, tables), 5)}; set data.path to one of them, or name those "
               "of the splits, such as data.train=FILE data.test=FILE")
    elif arrays := sorted(folder.glob("*.npz")):
        fix = f"arrays are read by {override_for_shell('data.path', arrays[0])}"
    elif inner := [entry for entry in sorted(folder.iterdir()) if entry.is_dir() and has_train(entry, kinds)]:
        fix = f"there is one in its folder {printable(inner[0].name)}: set {override_for_shell('data.path', inner[0])}"
    else:
        fix = f"it has no tables ({', '.join(kinds)}) at all"
    raise DataError(f"data.path: the folder {folder} has no table of the split train, such as train{kinds[0]}; {fix}")


def has_train(folder: Path, kinds: Sequence[str]) -> bool:
    """Whether a folder has tables of these extensions that `split_tables` may take for that of train."""
    return any(each["train"] for each in _tables_by_pattern(folder, kinds).values())


def _several(folder: Path, key: str, files: Sequence[Path]) -> DataError:
    names = [os.path.relpath(file, folder) for file in files]
    all_shards = f"; shards are read by data=hub {override_for_shell('data.root', folder)}"
    shards = all_shards if SHARD.search(names[0]) else ""
    listed = " and ".join(map(printable, names[:3]))
    return DataError(f"{folder}: {listed} may be the table of {key}; select one of them with data.{key}=FILE{shards}")
