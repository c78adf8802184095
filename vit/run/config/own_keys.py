"""The check for keys in the user's own config files that no code reads: usually misspelled keys, or the keys of an
experiment whose first line is not `# @package _global_`.

Nodes whose keys are checked elsewhere (`data`, `model`, `callbacks`, ...) are skipped here. A key that an interpolation
uses is a variable of the user.
"""

import functools
import logging
import os
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from hydra.core.override_parser.types import Override

from vit.run.config.hydra_interface import config_folder
from vit.run.config.name_hints import nearest, without_key
from vit.run.config.overrides import FORMER_KEYS, REMOVED_KEYS, ConfigError, dotted_items, yaml_text
from vit.run.config.valid_values import VALID_VALUES, valid_values

CHECKED = ("task", "recipe", "finetune", "distill")  # groups whose nodes have no further keys
PACKAGES = {"experiment": "_global_", "augment": "recipe.augment"}  # group -> where the keys of its files belong
PACKAGE = re.compile(r"^#\s*@package\s+(\S+)", re.MULTILINE)
INTERPOLATION = re.compile(r"\$\{[^}]*\}?")
ALIKE = 0.8  # an unknown key at least this similar to a known one is an error; others are logged

log = logging.getLogger("vit")


@dataclass(frozen=True)
class OwnFiles:
    """The user's config files.

    Args:
        folders: the folders that contain them.
        chosen: the files that the command selects, such as `experiment/mine`, without the files that they include.
    """

    folders: list[Path]
    chosen: list[str]

    def keys(self) -> dict[str, Path]:
        """The dotted keys that the selected files set -> the file."""
        files = [(folder / f"{name}.yaml", folder) for folder in self.folders for name in self.chosen]
        return {key: file for file, folder in files if file.is_file() for key in sorted(keys_of(file, folder))}

    def setting(self, key: str) -> str:
        """The selected files that set a key; if there are none, all files that set it; if there are none, the folders.
        """
        files = [(file, folder) for folder in self.folders for file in sorted(folder.rglob("*.yaml"))]
        found = [(file, folder) for file, folder in files if key in keys_of(file, folder)]
        chosen = [file for file, folder in found if file.relative_to(folder).with_suffix("").as_posix() in self.chosen]
        return ", ".join(map(str, (chosen or [file for file, _ in found] or self.folders)[:3]))


def check_own_keys(found: Mapping[str, Any], files: OwnFiles, free: Collection[str], texts: Iterable[str],
                   strict: bool) -> None:
    """Checks a composed config for keys that the project does not have. An unknown key that is similar to a known one
    is an error, any other unknown key is logged.

    Args:
        found: the value of every dotted key, nodes included, before interpolations are resolved.
        free: keys that are allowed, and nodes that may have any key.
        texts: further texts whose interpolations may use a key, such as overrides.
        strict: False logs unknown keys that are similar to a known one, too.

    Raises:
        ConfigError: names the key, its file and the nearest key.
    """
    known = known_keys(config_folder())
    texts = [text for text in (*found.values(), *texts) if isinstance(text, str)]
    for key in unknown_keys(found, known, free):
        if is_used(key.rpartition(".")[2], texts):
            continue
        removed = REMOVED_KEYS.get(key)
        near, why = "" if removed else nearest(key, sorted(known), ALIKE), removed or without_key(key)
        if key in PACKAGES:
            text = (f"Hydra places the keys of this file below {key}, where nothing reads them; begin the file with "
                    f"the line '# @package {PACKAGES[key]}'")
        else:
            value = "" if isinstance(found[key], dict | list) else f"={yaml_text(found[key])}"
            text = f"{key}{value} has no effect, because there is no such key{f'; {why}' if why else near}"
        if strict and (near or key in PACKAGES):
            raise ConfigError(f"{files.setting(key)}: {text}")
        if "LOCAL_RANK" not in os.environ:  # the process that starts the ranks logs it
            log_once(f"{files.setting(key)}: {text}")


def log_unread_packages(overrides: Iterable[Override], free: Collection[str], texts: Iterable[str]) -> None:
    """Log the overrides that add an option of a group where nothing reads it, such as `+model@teacher=tiny`.

    Args:
        free, texts: as for `check_own_keys`.
    """
    texts = list(texts)
    for override in overrides:
        package = override.package
        if not package or package.startswith("_") or not unknown_keys([package], known_keys(config_folder()), free):
            continue
        if not is_used(package, texts) and "LOCAL_RANK" not in os.environ:
            log_once(f"{override.input_line} has no effect, because nothing reads a node {package}")


def is_own(key: str, free: Collection[str]) -> bool:
    """Whether a key is the user's and not one of the project: a variable, or an option of a callback, data set or other
    node of the user, of which Hydra alone decides what a command may do with it.

    Args:
        free: as for `check_own_keys`.
    """
    known, node = known_keys(config_folder()), key.partition(".")[0]
    if node not in known:
        return True
    inside = key.startswith(tuple(f"{each}." for each in free))
    return inside and key not in known and valid_values(key) is None and key not in keys_of_group(node)


def is_referred(key: str, texts: Iterable[str]) -> bool:
    """Whether an interpolation in a text names the whole key, or a node above or below it: `${width}`, but not
    `${model.width}`, for `width`.
    """
    names = [rf"{re.escape(key)}(?!\w)", *(rf"{re.escape(node)}(?![\w.])" for node in parents(key)[:-1])]
    name = re.compile(rf"(?<![\w.])(?:{'|'.join(names)})")
    return any(name.search(part) for text in texts for part in INTERPOLATION.findall(text))


def is_used(name: str, texts: Iterable[str]) -> bool:
    """Whether an interpolation in one of the texts has this name, such as `width` in `${eval:2*width}`."""
    word = re.compile(rf"(?<!\w){re.escape(name)}(?!\w)")
    return any(word.search(part) for text in texts for part in INTERPOLATION.findall(text))


def unknown_keys(found: Iterable[str], known: Collection[str], free: Collection[str]) -> list[str]:
    """The keys that are neither known nor free, without keys below another unknown key."""
    unknown: list[str] = []
    for key in found:
        inner = key.startswith(tuple(f"{node}." for node in (*free, *unknown)))
        if key not in known and key not in free and not inner:
            unknown.append(key)
    return unknown


@functools.cache
def known_keys(folder: Path) -> frozenset[str]:
    """The dotted keys of the project's config, nodes included, with those of all options of `CHECKED`."""
    files = [folder / "train.yaml", *(file for group in CHECKED for file in (folder / group).glob("*.yaml"))]
    groups = {each.name for each in folder.iterdir() if each.is_dir()} - PACKAGES.keys()
    keys = {key for file in files for key in keys_of(file, folder)} | groups
    return frozenset(part for key in keys | {*VALID_VALUES, *FORMER_KEYS} for part in parents(key))


@functools.cache
def keys_of_group(group: str) -> frozenset[str]:
    """The dotted keys of all options of a group of the project."""
    folder = config_folder()
    return frozenset(key for file in (folder / group).glob("*.yaml") for key in keys_of(file, folder))


def parents(key: str) -> list[str]:
    """A dotted key and all nodes above it."""
    parts = key.split(".")
    return [".".join(parts[:count]) for count in range(1, len(parts) + 1)]


def keys_of(file: Path, folder: Path) -> set[str]:
    """The dotted keys that a config file sets, in the package of its header, or else of its group."""
    try:
        text = file.read_text(encoding="utf-8")
        content = yaml.safe_load(text)
    except (OSError, ValueError, yaml.YAMLError):  # Hydra reports the error if it reads this file
        return set()
    if not isinstance(content, dict):
        return set()
    stated = PACKAGE.search(text)
    package = stated[1] if stated else ".".join(file.relative_to(folder).parent.parts)
    prefix = "" if package in ("_global_", "") else f"{package}."
    values = {str(key): value for key, value in content.items() if key not in ("defaults", "hydra")}
    return {part for key, _ in dotted_items(values, prefix) for part in parents(key)}


@functools.cache
def log_once(text: str) -> None:
    log.warning("%s", text)
