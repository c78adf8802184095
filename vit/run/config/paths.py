"""The paths that a new run reads are checked before torch is loaded."""

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from vit.exchange.source_names import HUB, TIMM, hint_at_missing_source
from vit.files.missing import hint_at_missing, is_missing
from vit.run.config.overrides import ConfigError

DATA = ("root", "path", "corrections", "leave_out")  # keys of the node whose values are paths of files that are read


def check_paths_of_runs(configs: Collection[Mapping[str, Any]], folders: Collection[str | Path]) -> None:
    """`check_paths` of several runs before the first one starts. Paths below their own folders may be the output of an
    earlier one, so that only the run itself checks them.

    Args:
        folders: folders of the runs besides their `runs` and `run_dir`.
    """
    written = [*folders, *(each[key] for each in configs for key in ("runs", "run_dir") if each[key])]
    for config in configs:
        check_paths(config, [Path(folder).absolute() for folder in written])


def check_paths(config: Mapping[str, Any], written: Collection[Path] = ()) -> None:
    """Checks that the data and the models of a new run exist. A resumed run reads those of its record, and each run of
    a comparison checks its own.

    Args:
        written: absolute folders, which may contain what does not exist yet.

    Raises:
        FileNotFoundError: a file or folder of data, or `model.vectors`, does not exist.
        ConfigError: `init_from` or `distill.teacher` does not exist.
    """
    if config["resume"] or config["compare"]:
        return
    if any(config["data"].get(key) for key in DATA):
        check_data_paths(config["data"], written)
    vectors = config["model"].get("vectors")
    if vectors and not _is_below(vectors, written) and is_missing(str(vectors)):
        raise FileNotFoundError(f"model.vectors: {vectors} does not exist{hint_at_missing(str(vectors))}")
    teacher = (config.get("distill") or {}).get("teacher")  # another primary config may lack it
    for key, name in (("init_from", config["init_from"]), ("distill.teacher", teacher)):
        if name and not _is_below(name, written) and (hint := hint_at_missing_source(str(name))) is not None:
            raise ConfigError(f"{key}={name}: no such file or folder{hint} (accepted: a run, a saved model, a file of "
                              f"weights, {TIMM}NAME or {HUB}OWNER/NAME)")


def check_data_paths(data: Mapping[str, Any], written: Collection[Path] = ()) -> None:
    """Checks that the files and folders of a `data` node exist. Functions of the user may read anything from these
    values, and a download creates its folder.

    Args:
        written: as for `check_paths`.

    Raises:
        FileNotFoundError: one does not exist.
    """
    if not str(data["_target_"]).startswith("vit.data.") or data.get("download"):
        return
    for key in DATA:
        path = str(data.get(key) or "")
        if path and "://" not in path and not _is_below(path, written) and is_missing(path):
            download = " (data.download=true downloads it)" if "download" in data else ""
            raise FileNotFoundError(f"data.{key}: {path} does not exist{hint_at_missing(path)}{download}")


def _is_below(path: str, folders: Collection[Path]) -> bool:
    return any(Path(path).expanduser().absolute().is_relative_to(folder) for folder in folders)
