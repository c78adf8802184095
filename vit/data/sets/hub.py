"""Data sets of the Hugging Face hub by name and commit, or local folders that the library `datasets` reads.

Only encoded bytes come from the library: decoding, EXIF and resizing are those of every other source.
"""

import contextlib
import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from vit.data.class_names import labelled
from vit.data.errors import DataError
from vit.data.images.tables import IMAGE_COLUMNS, LABEL_COLUMNS
from vit.data.sample_names import Names, RowNames
from vit.data.source import Source
from vit.data.split import Raw, Split
from vit.data.split_names import SPLIT_NAMES, named_splits
from vit.data.splitting import three_ways, with_validation
from vit.files.untrusted import read_bytes

log = logging.getLogger("vit")

MISSING = "data=hub needs the package datasets, which is not installed: pip install 'vitwright[hub]'"
SAVED = ("dataset_dict.json", "state.json")  # what save_to_disk leaves
COMMIT = re.compile(r"[0-9a-f]{40}")


@dataclass(frozen=True)
class ReadRow:
    """Encoded images in a column of a data set: its struct of {bytes, path}, or bytes."""

    rows: Any
    column: str

    def __call__(self, i: int) -> Raw:
        location = self.location(i)
        return read_bytes(location) if isinstance(location, Path) else location

    def location(self, i: int) -> Raw | Path:
        value = self.rows[int(i)][self.column]
        if isinstance(value, dict):
            value = value["bytes"] if value["bytes"] is not None else Path(value["path"]) if value["path"] else b""
        return value or b""


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
    """`repo` OWNER/NAME of the hub at a `revision`, or the folder `root`: of save_to_disk, Parquet, class folders, ...

    The columns `image` and `label` are found if they are the only ones of their kind. Class names and their order are
    those of the data set. `splits` assigns its splits to train, val and test if their names do not.
    """
    if (root is None) == (repo is None):
        raise DataError("data=hub: give data.repo=OWNER/NAME for a data set of the hub, or data.root=FOLDER, not both")
    name = repo or str(root)
    found = from_folder(Path(root).expanduser(), subset) if root else from_hub(repo, revision, subset)
    pinned = {} if root else {"revision": commit_of(found, repo, revision)}
    title = repo.split("/")[-1] if repo else Path(root).expanduser().resolve().name
    parts, left_out = chosen(name, found, splits)
    classes, made = None, {}
    for key, rows in parts.items():
        columns = image_column(name, rows, image), label_column(name, rows, label)
        labels = rows[columns[1]][:]
        if classes is not None and key != "train" and labels_are_secret(labels):
            left_out.append((f"split {key}", f"all of its {len(labels)} labels are -1, which hides them"))
            continue
        stored = stored_names(rows.features[columns[1]])
        classes, numbers = labelled(f"{name} {key}", labels, label_separator, stored, classes)  # order of train
        made[key] = samples(rows, columns[0], numbers, key, Path(root).expanduser() if root else None)
    if list(made) == ["train"]:
        return Source(title, classes, three_ways(made["train"], fractions, split_seed), left_out, pinned)
    share = fractions[1] / max(fractions[0] + fractions[1], 1e-9)
    return Source(title, classes, with_validation(made, None, share, split_seed), left_out, pinned)


def library() -> Any:
    try:
        import datasets
    except ImportError:
        raise DataError(MISSING) from None
    return datasets


def from_folder(root: Path, subset: str | None) -> Any:
    datasets = library()
    if not root.is_dir():
        raise FileNotFoundError(f"data.root: the folder {root} does not exist; data.repo=OWNER/NAME is for the hub")
    with explained(f"data.root={root}"):
        if any((root / file).is_file() for file in SAVED):
            return datasets.load_from_disk(str(root))
        found = datasets.load_dataset(str(root.resolve()), name=subset)
    if list(found) == ["train"]:
        _check_capitals(root)
    return found


def _check_capitals(root: Path) -> None:
    """The library recognizes splits in lower case only and would read Testing/ as train.

    Raises:
        DataError: a file or folder is named like a split but for its case.
    """
    usual = {name for names in SPLIT_NAMES.values() for name in names}
    for path in (path for folder in (root, root / "data") if folder.is_dir() for path in sorted(folder.iterdir())):
        first = re.split(r"[-_.]", path.name)[0]
        split = path.is_file() or any(inside.is_dir() for inside in path.iterdir())
        if split and first != first.lower() and first.lower() in usual:
            raise DataError(f"data.root={root}: the datasets library does not recognise the split {path.name!r} in "
                            f"capitals; rename it to {path.name.lower()!r}, or read folders of images with data=folder")


def from_hub(repo: str, revision: str | None, subset: str | None) -> Any:
    datasets = library()
    if Path(repo).exists():
        raise DataError(f"data.repo={repo} is also a folder here: data.root={repo} reads the folder; to have the one "
                        "of the hub go to another directory")
    with explained(f"data.repo={repo}" + (f" data.revision={revision}" if revision else "")):
        return datasets.load_dataset(repo, name=subset, revision=revision)


def commit_of(found: Any, repo: str, revision: str | None) -> str | None:
    """The commit of the files, after which the library names its folder; logged if no revision was requested.

    Raises:
        DataError: it is not the requested one; without a network the library uses any cached commit.
    """
    rows = next(iter(found.values())) if isinstance(found, dict) else found
    paths = [Path(file["filename"]).parts for file in rows.cache_files]
    commit = next((part for parts in paths for part in parts if COMMIT.fullmatch(part)), revision)
    if revision and COMMIT.fullmatch(revision) and commit != revision:
        raise DataError(f"data.repo={repo}: commit {revision} cannot be fetched, only {commit} is in the cache; fetch "
                        f"it with a network, or say data.revision={commit}")
    if commit and commit != revision:
        log.warning("data.repo=%s is commit %s; to get the same again: data.revision=%s", repo, commit, commit)
    return commit


def chosen(name: str, found: Any, splits: Mapping[str, str] | None) -> tuple[dict[str, Any], list[tuple[str, str]]]:
    """train, val and test as far as they exist, train first, and the splits that are none of them."""
    if not isinstance(found, dict):
        return {"train": found}, []
    there = ", ".join(found)
    if splits:
        for key, split in splits.items():
            if key not in SPLIT_NAMES or split not in found:
                raise DataError(f"{name}: data.splits={{{key}: {split}}} must name one of its splits ({there}) for "
                                "train, val or test")
        wanted = {key: splits[key] for key in SPLIT_NAMES if key in splits}
    else:
        wanted = named_splits(name, found)
    if "train" not in wanted:
        only = next(iter(found)) if len(found) == 1 else "NAME"
        raise DataError(f"{name}: none of its splits ({there}) is called train; say data.splits={{train: {only}}}")
    left_out = [(f"split {split}", "neither train, val nor test") for split in found if split not in wanted.values()]
    return {key: found[split] for key, split in wanted.items()}, left_out


def image_column(name: str, rows: Any, wanted: str | None) -> str:
    """The column of images: the named one, the only one, or of several the one with a conventional name."""
    kinds = {column: type(feature).__name__ for column, feature in rows.features.items()}
    encoded = [column for column, feature in rows.features.items()
               if kinds[column] == "Image" or getattr(feature, "dtype", "") in ("binary", "large_binary")]
    if wanted is not None:
        _check_column(name, rows, wanted, "image")
        if wanted not in encoded:
            raise DataError(f"{name}: the column {wanted!r} holds {kinds[wanted]}, not images; data.image may be "
                            f"{', '.join(encoded) or 'none of its columns'}")
        return wanted
    return _only(name, rows, "image", encoded, [c for c in encoded if kinds[c] == "Image"], IMAGE_COLUMNS)


def label_column(name: str, rows: Any, wanted: str | None) -> str:
    """The column of labels: the named one, the only one of class labels, or the one with a conventional name."""
    if wanted is not None:
        _check_column(name, rows, wanted, "label")
        return wanted
    named = [column for column, feature in rows.features.items() if _label_feature(feature) is not None]
    return _only(name, rows, "label", list(rows.features), named, LABEL_COLUMNS)


def _only(name: str, rows: Any, what: str, possible: list[str], best: list[str], usual: Sequence[str]) -> str:
    if len(best) == 1:
        return best[0]
    found = next((column for column in usual if column in (best or possible)), None)
    if found is None:
        seen = f"{', '.join(best)} may all be the {what} column" if best else (
            f"no {what} column found among {', '.join(rows.features)}")
        raise DataError(f"{name}: {seen}; name it with data.{what}=COLUMN")
    return found


def _check_column(name: str, rows: Any, wanted: str, what: str) -> None:
    if wanted not in rows.features:
        listed = ", ".join(rows.features)
        raise DataError(f"{name}: has no column {wanted!r} for data.{what}; its columns are {listed}")


def _label_feature(feature: Any) -> Any:
    """The class labels of a column, or of the lists in it."""
    inner = getattr(feature, "feature", feature)
    return inner if type(inner).__name__ == "ClassLabel" else None


def stored_names(feature: Any) -> list[str] | None:
    """Class names in the data set's own order, where it has names."""
    names = getattr(_label_feature(feature), "names", None)
    return [str(name) for name in names] if names else None


def labels_are_secret(labels: Sequence[Any]) -> bool:
    """Whether a split has no labels, as test splits of competitions."""
    return len(labels) > 0 and all(label == -1 for label in labels)


def samples(rows: Any, column: str, labels: np.ndarray, key: str, root: Path | None) -> Split:
    """A split whose images are read on request; those that are files have their paths as names."""
    rows = rows.select_columns([column])
    if type(rows.features[column]).__name__ == "Image":
        rows = rows.cast_column(column, library().Image(decode=False))
    first = rows[0][column] if len(rows) else None
    names: Sequence[str] = RowNames(key, np.arange(len(labels)))
    if isinstance(first, dict) and first["bytes"] is None and first["path"]:
        names = Names([_short(value["path"] or "", root) for value in rows[column][:]])
    return Split(labels, names, ReadRow(rows, column))


def _short(path: str, root: Path | None) -> str:
    """A file's name below the folder of the data set, else with the folder it lies in."""
    file = Path(path)
    if root is not None and file.is_relative_to(root.resolve()):
        return str(file.relative_to(root.resolve()))
    return str(Path(*file.parts[-2:]))


@contextlib.contextmanager
def explained(name: str) -> Iterator[None]:
    """Turns errors of the library into one sentence."""
    try:
        yield
    except DataError:
        raise
    except ConnectionError as error:
        raise DataError(f"{name} cannot be fetched and is not in the cache ({_line(error)}); fetch it once with a "
                        "network, or give a folder of this machine: data.root=FOLDER") from None
    except Exception as error:
        raise DataError(f"{name} cannot be loaded: {_line(error)}") from None


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:300] or type(error).__name__
