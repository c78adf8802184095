"""Parquet files of encoded images whose names begin with the split, as in data sets of Hugging Face."""

import re
from collections import defaultdict
from pathlib import Path

from vit.data.class_names import encode_labels, parse_class_names
from vit.data.formats.parquet import read_parquet
from vit.data.image_sources.table_columns import IMAGE_COLUMNS, LABEL_COLUMNS, select_column, values_of
from vit.data.image_sources.table_samples import table_samples
from vit.data.splits.names import SPLIT_NAMES, match_splits
from vit.data.splits.split import Split


def parquet_splits(root: Path, classes: list[str] | None) -> tuple[list[str], dict[str, Split]] | None:
    """Class names and splits of train*.parquet, val*.parquet and test*.parquet in root or root/data, regardless of
    case; None if there is no train file.
    """
    files = next((found for directory in (root, root / "data") if "train" in (found := _split_files(directory))), None)
    if files is None:
        return None
    tables = {key: read_parquet(paths) for key, paths in files.items()}
    splits, known = {}, None
    for key, (columns, names) in tables.items():
        path = files[key][0]
        image = select_column(path, columns, None, IMAGE_COLUMNS, "image")
        label = select_column(path, columns, None, LABEL_COLUMNS, "label")
        others = (found.get(label) for _, found in tables.values())
        stored = names.get(label) or next((found for found in others if found), None) or parse_class_names(classes)
        known, labels = encode_labels(path, values_of(path, columns, label), None, stored, known)
        splits[key], _ = table_samples(path, path.parent, columns[image], labels)
    return known, splits


def _split_files(directory: Path) -> dict[str, list[Path]]:
    """The Parquet files of each split, whose names begin with the split: val.parquet, val-00000-of-00001.parquet."""
    found, names = defaultdict(list), {name for names in SPLIT_NAMES.values() for name in names}
    for path in sorted(directory.iterdir()) if directory.is_dir() else ():
        prefix = re.match("[A-Za-z]*", path.name)[0]
        if prefix.lower() in names and path.suffix.lower() == ".parquet":
            found[prefix].append(path)
    return {key: found[name] for key, name in match_splits(directory, found).items()}
