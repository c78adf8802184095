"""The library `datasets`: loading from the Hugging Face hub, its cache or a folder, with errors of one sentence."""

import contextlib
import logging
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from vit.data.errors import DataError
from vit.data.splits.names import SPLIT_NAMES, warn_without_effect
from vit.messages import import_problem, override_for_shell, with_cause

log = logging.getLogger("vit")

MISSING = "data=hub requires the package datasets, which {}: pip install 'vitwright[hub]'"
SAVED = ("dataset_dict.json", "state.json")  # files of save_to_disk
COMMIT = re.compile(r"[0-9a-f]{40}")
TIMEOUT = 10.0  # seconds for the first response of the hub


def import_datasets() -> Any:
    """The module `datasets`.

    Raises:
        DataError: it cannot be imported.
    """
    try:
        import datasets
    except ImportError as error:
        raise DataError(MISSING.format(import_problem(error, "datasets"))) from None
    return datasets


def load_folder(root: Path, subset: str | None) -> Any:
    """The data set in a folder: one of `save_to_disk`, or files that `load_dataset` reads.

    Raises:
        DataError: it cannot be read, or has splits whose names are in capitals.
        FileNotFoundError: there is no such folder.
    """
    datasets = import_datasets()
    if not root.is_dir():
        raise FileNotFoundError(f"data.root: the folder {root} does not exist; set data.repo=OWNER/NAME for the hub")
    with _explain_errors(f"data.root={root}"):
        if any((root / file).is_file() for file in SAVED):
            warn_without_effect({"subset": subset}, f"{root} was saved by save_to_disk, which saves one subset")
            return datasets.load_from_disk(str(root))
        found = datasets.load_dataset(str(root.resolve()), name=subset)
    if list(found) == ["train"]:
        _check_capitals(root)
    return found


def _check_capitals(root: Path) -> None:
    """Raises DataError for splits in capitals: the library recognizes lower case only and would read Testing/ as train.
    """
    conventional = {name for names in SPLIT_NAMES.values() for name in names}
    for path in (path for folder in (root, root / "data") if folder.is_dir() for path in sorted(folder.iterdir())):
        first = re.split(r"[-_.]", path.name)[0]
        split = path.is_file() or any(inside.is_dir() for inside in path.iterdir())
        if split and first != first.lower() and first.lower() in conventional:
            raise DataError(f"data.root={root}: the datasets library does not recognize the split {path.name!r} in "
                            f"capitals; rename it to {path.name.lower()!r}, or read folders of images with data=folder")


def load_from_hub(repo: str, revision: str | None, subset: str | None) -> Any:
    """The data set of the hub; from the cache if the hub does not respond.

    Raises:
        DataError: it can be neither downloaded nor read.
    """
    datasets = import_datasets()
    if Path(repo).exists():
        raise DataError(f"data.repo={repo} is also a local folder; set {override_for_shell('data.root', repo)} to read "
                        "it, or change to another directory to load the data set of the hub")
    connection = contextlib.nullcontext() if _hub_responds(repo, revision) else _offline(datasets)
    with _explain_errors(f"data.repo={repo}" + (f" data.revision={revision}" if revision else "")), connection:
        return datasets.load_dataset(repo, name=subset, revision=revision)


def _hub_responds(repo: str, revision: str | None) -> bool:
    """Whether the hub responds to a request. Without a network, `load_dataset` would retry for half a minute."""
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, OfflineModeIsEnabled

    try:
        HfApi(library_name="vit").dataset_info(repo, revision=revision, timeout=TIMEOUT)
    except (HfHubHTTPError, HFValidationError):  # also a response; `load_dataset` gets the same one and explains it
        return True
    except OfflineModeIsEnabled:
        return False
    except Exception as error:  # errors of the HTTP library, which differs between versions of huggingface_hub
        log.warning("data.repo=%s: the hub cannot be reached (%s), so the cache is read; HF_HUB_OFFLINE=1 reads it "
                    "without asking the hub", repo, with_cause(error, 100))
        return False
    return True


@contextlib.contextmanager
def _offline(datasets: Any) -> Iterator[None]:
    """Within the context the library reads its cache only, as if HF_HUB_OFFLINE=1 had been set before its import."""
    before, datasets.config.HF_HUB_OFFLINE = datasets.config.HF_HUB_OFFLINE, True
    try:
        yield
    finally:
        datasets.config.HF_HUB_OFFLINE = before


def resolve_commit(found: Any, repo: str, revision: str | None) -> str | None:
    """The commit of the files, from the name of their cache folder; logged if no revision was requested.

    Raises:
        DataError: without a network, the library has used another commit of the cache than the requested one.
    """
    rows = next(iter(found.values())) if isinstance(found, dict) else found
    paths = [Path(file["filename"]).parts for file in rows.cache_files]
    commit = next((part for parts in paths for part in parts if COMMIT.fullmatch(part)), revision)
    if revision and COMMIT.fullmatch(revision) and commit != revision:
        raise DataError(f"data.repo={repo}: commit {revision} cannot be downloaded, only {commit} is in the cache; "
                        f"connect to a network, or set data.revision={commit}")
    if commit and commit != revision:
        log.warning("data.repo=%s is commit %s; set data.revision=%s to load the same data again", repo, commit, commit)
    return commit


@contextlib.contextmanager
def _explain_errors(name: str) -> Iterator[None]:
    """Converts errors of the library to a DataError of one sentence."""
    try:
        yield
    except DataError:
        raise
    except ConnectionError as error:
        raise DataError(f"{name} cannot be downloaded and is not in the cache ({with_cause(error)}); download it once "
                        "with a network, or set data.root=FOLDER to a local folder") from None
    except Exception as error:
        raise DataError(f"{name} cannot be loaded: {with_cause(error)}") from None
