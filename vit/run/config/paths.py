"""The paths that a new run reads are checked before torch is loaded."""

from collections.abc import Mapping
from typing import Any

from vit.exchange.source_names import HUB, TIMM, hint_at_missing_source
from vit.files.missing import hint_at_missing, is_missing
from vit.run.config.overrides import ConfigError

DATA = ("root", "path", "corrections", "leave_out")  # keys of the node whose values are paths of files that are read


def check_paths(config: Mapping[str, Any]) -> None:
    """Checks that the data and the models of a new run exist. A resumed run reads those of its record, and each run of
    a comparison checks its own.

    Raises:
        FileNotFoundError: a file or folder of data, or `model.vectors`, does not exist.
        ConfigError: `init_from` or `distill.teacher` does not exist.
    """
    if config["resume"] or config["compare"]:
        return
    if any(config["data"].get(key) for key in DATA):
        check_data_paths(config["data"])
    if (vectors := config["model"].get("vectors")) and is_missing(str(vectors)):
        raise FileNotFoundError(f"model.vectors: {vectors} does not exist{hint_at_missing(str(vectors))}")
    teacher = (config.get("distill") or {}).get("teacher")  # another primary config may lack it
    for key, name in (("init_from", config["init_from"]), ("distill.teacher", teacher)):
        if name and (hint := hint_at_missing_source(str(name))) is not None:
            raise ConfigError(f"{key}={name}: no such file or folder{hint}; accepted: a run, a saved model, a file of "
                              f"weights, {TIMM}NAME or {HUB}OWNER/NAME")


def check_data_paths(data: Mapping[str, Any]) -> None:
    """Checks that the files and folders of a `data` node exist. Functions of the user may read anything from these
    values, and a download creates its folder.

    Raises:
        FileNotFoundError: one does not exist.
    """
    if not str(data["_target_"]).startswith("vit.data.") or data.get("download"):
        return
    for key in DATA:
        if (path := str(data.get(key) or "")) and "://" not in path and is_missing(path):
            download = "; data.download=true downloads it" if "download" in data else ""
            raise FileNotFoundError(f"data.{key}: {path} does not exist{hint_at_missing(path)}{download}")
