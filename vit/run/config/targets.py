"""Which `_target_` a stored config may name: those of a table, of the user's conf folders and of the command.

A run folder, a bundle or a comparison may come from a third party, and a `_target_` can name any program. Nothing
stored is instantiated before `check_stored`.
"""

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import yaml

from vit.files.credentials import is_masked, masked_url
from vit.run.config.hydra_interface import config_folder, search_folders
from vit.run.config.overrides import ConfigError, override_text, parse

TARGET = "_target_"
DATA_SETS = ("cifar10", "cifar100", "corpus", "digit_strips", "digits", "fashion_mnist", "folder", "hub", "image_text",
             "imagenet", "mnist", "number_questions", "number_stories", "parallel", "pictures", "spelled_numbers",
             "table", "text_table", "unlabelled_images")
AUGMENTATIONS = ("ColorJitter", "HorizontalFlip", "PadCrop", "RandAugment", "RandomAffine", "RandomChannelPermutation",
                 "RandomElastic", "RandomErasing", "RandomLineAffine", "RandomStrokeWidth", "ThreeAugment",
                 "TrivialAugment", "VerticalFlip")
PATHS = ("data.root", "data.path", "data.corrections", "data.leave_out", "data.cache_dir")  # may be interpolations
RESOLVER = re.compile(r"\$\{[^}]*:")  # an interpolation that calls a function, such as ${oc.env:NAME}
FOLDERS = ("save_dir", "root_dir", "dir")  # options of loggers that are paths, of one name too
LOGGERS = ("CSVLogger", "MLFlowLogger", "TensorBoardLogger", "WandbLogger")
TARGETS = {  # node of the config -> the targets that are always allowed
    "data": frozenset(f"vit.data.{name}" for name in DATA_SETS),
    "recipe": frozenset(f"vit.data.{name}" for name in AUGMENTATIONS),
    "logger": frozenset(f"pytorch_lightning.loggers.{name}" for name in LOGGERS),
}


def check_stored(config: dict, origin: Path | str, overrides: Iterable[str] = ()) -> None:
    """Checks a stored config before anything is instantiated from it.

    Args:
        config: plain values. Interpolations are refused, because they could compose a `_target_`.
        origin: the file it was read from.
        overrides: those of this command. The targets that they and the conf folders name are trusted.

    Raises:
        ConfigError: a `_target_` that neither the project nor the user names, or a logger that writes elsewhere.
    """
    overrides = list(overrides)
    stated = dict(values_of_overrides(overrides))
    check_cache(config.get("data"), stated, origin)
    trusted = [value for key, value in stated.items() if key.endswith(f".{TARGET}")]
    folders = (config_folder(), *search_folders(parse(overrides)))
    for key, value in values(config):
        node, leaf = key.partition(".")[0], key.rpartition(".")[2]
        if node == "overrides":  # recorded as text and never resolved again
            continue
        if isinstance(value, str) and "${" in value:
            raise ConfigError(f"{origin}: {key}={value} is an interpolation, but a stored config has only values; "
                              "replace it by its value")
        if leaf == TARGET and not is_known(node, value, folders) and value not in trusted:
            raise ConfigError(f"{origin}: {key} names {value!r}, which could be any program; if you trust it, add "
                              f"{target_override(key, value)} to the command")
        given = stated.get(key)
        if isinstance(given, str) and is_masked(value):  # a URL whose credentials the command gives again
            given = value if "${" in given else masked_url(given)
        location = is_location(value) or leaf in FOLDERS and value is not None
        if node == "logger" and leaf != TARGET and location and given != value:
            raise ConfigError(f"{origin}: {key}={value} lets a logger write outside the run folder; to allow it, "
                              f"add {override_text(key, value)} to the command")


def check_cache(data: Any, stated: dict, origin: Path | str) -> None:
    """Checks that the disk cache of a stored config is in the default folder, in a folder that already has a cache, or
    in the one that the command names instead.

    Args:
        data: the stored node.
        stated: values of the command by dotted key.

    Raises:
        ConfigError: it is in another folder.
    """
    folder = data.get("cache_dir") if isinstance(data, dict) else None
    if not isinstance(folder, str) or "${" in folder or stated.get("data.cache", data.get("cache")) != "disk":
        return
    if "data.cache_dir" not in stated and not any(Path(folder).expanduser().glob("*.images")):
        raise ConfigError(f"{origin}: data.cache_dir={folder} has no cache yet, and a stored config may name any "
                          f"folder; add {override_text('data.cache_dir', folder)} to the command to write there, or "
                          "data.cache_dir=null for the default folder")


def is_known(node: str, target: Any, folders: Iterable[Path]) -> bool:
    """Whether the project allows this target for a node of the config, or a file in the conf folders names it."""
    if not isinstance(target, str):
        return False
    if any(target in targets for targets in TARGETS.values()):  # of the project: allowed for its own node only
        return target in TARGETS.get(node, ())
    return target in targets_of_conf(folders)


def target_override(key: str, target: Any) -> str:
    """The override that sets a `_target_`; with `++` outside of `data`, because a callback or logger may be one that no
    option of its group has.
    """
    return f"{'' if key.startswith('data.') else '++'}{override_text(key, str(target))}"


def check_overrides(overrides: list[str], origin: Path | str) -> None:
    """Checks that stored overrides only select and change a data set.

    Raises:
        ConfigError: names the override.
    """
    if not (isinstance(overrides, list) and all(isinstance(each, str) for each in overrides)):
        raise ConfigError(f"{origin}: the data set is not recorded as a list of overrides; name one: data=folder")
    for override in parse(overrides):
        key, package = override.key_or_group, override.package
        if key not in PATHS and RESOLVER.search(override.input_line):
            raise ConfigError(f"{origin} records the override {override.input_line}, whose interpolation could read "
                              "the environment; add the data set to the command: data=folder data.root=photos")
        group = key in ("data", "experiment") and isinstance(override.value(), str)
        if package is not None or not (group or key.startswith("data.")):
            raise ConfigError(f"{origin} records the override {override.input_line}, which does not concern data; "
                              "add the data set to the command: data=folder data.root=photos")


def values(node: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    """(dotted key, value) of all leaves of nested dicts and lists."""
    if isinstance(node, dict | list):
        inner = node.items() if isinstance(node, dict) else enumerate(node)
        for name, value in inner:
            if name == TARGET and isinstance(value, dict | list):  # a target must be a string
                yield f"{key}.{name}", repr(value)[:80]
            yield from values(value, f"{key}.{name}" if key else str(name))
    else:
        yield key, node


def values_of_overrides(overrides: Iterable[str]) -> Iterator[tuple[str, Any]]:
    """(dotted key, value) of the overrides of a command."""
    for override in parse(list(overrides)):
        if not override.is_delete() and not override.is_sweep_override():
            yield from values(override.value(), override.key_or_group)


def targets_of_conf(folders: Iterable[Path]) -> Iterator[str]:
    """Every `_target_` in these conf folders."""
    for file in (file for folder in folders for file in folder.rglob("*.yaml")):
        for key, value in values(yaml.safe_load(file.read_text(encoding="utf-8"))):
            if key.rpartition(".")[2] == TARGET:
                yield value


def is_location(value: Any) -> bool:
    """Whether an option of a logger is a path or an address."""
    return isinstance(value, str) and (value in (".", "..") or any(sign in value for sign in "/\\:~"))
