"""Arguments that repeat the user's own config folders, primary config and targets in the commands that a run prints,
because neither runs nor models record them.
"""

import os
from collections.abc import Sequence

from vit.run.config.hydra_interface import PRIMARY, SEARCH_PATH, value_of
from vit.run.config.overrides import parse
from vit.run.config.targets import TARGET, TARGETS, target_override, values_of_overrides


def own_configs(overrides: Sequence[str], subcommand: str = "train") -> list[str]:
    """The arguments that add the folders of the user's own groups, select the user's primary config, and repeat every
    `_target_` that is not one of the project, because a stored config may only name it if the command does.

    Args:
        subcommand: subcommand of `vit`. `report` needs no primary config: it only reads the data, and models record the
            values of the data. Other subcommands than `train` select a primary config by an override, because they have
            no option `--config-name`.
    """
    if subcommand == "report":
        return [*own_folders(overrides), *own_targets(overrides, ("data",))]
    name = value_of(parse([each for each in overrides if each.startswith(PRIMARY)]), PRIMARY)
    primary = []
    if name is not None:
        primary = ["--config-name", str(name)] if subcommand == "train" else [f"{PRIMARY}={name}"]
    return [*own_folders(overrides), *primary, *own_targets(overrides)]


def trusted_overrides(overrides: Sequence[str]) -> list[str]:
    """The overrides by which the stored config of a run of this command may name targets of the user."""
    return [*(each for each in overrides if each.startswith(SEARCH_PATH)), *own_targets(overrides)]


def own_folders(overrides: Sequence[str]) -> list[str]:
    """The arguments that add the folders of the user's own groups to another command; paths below the current folder
    are relative.
    """
    search = [each for each in overrides if each.startswith(SEARCH_PATH)]
    folders = value_of(parse(search), SEARCH_PATH)
    if not isinstance(folders, list) or len(folders) != 1 or "://" in str(folders[0]):
        return search
    path = os.path.relpath(folders[0])
    return ["--config-dir", str(folders[0]) if path.startswith(os.pardir) else path]


def own_targets(overrides: Sequence[str], nodes: Sequence[str] = ()) -> list[str]:
    """The overrides of the command that set a `_target_` which is not one of the project.

    Args:
        nodes: config nodes whose targets are returned; empty for all.
    """
    found = []
    for key, value in values_of_overrides(overrides):
        node = key.partition(".")[0]
        if key.endswith(f".{TARGET}") and value not in TARGETS.get(node, ()) and (not nodes or node in nodes):
            found.append(target_override(key, value))
    return found
