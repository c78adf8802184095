"""From overrides to a config, which Hydra composes from conf/ and the user's own folders; a wrong override is an error
that names the nearest valid one. Overrides of Hydra's own settings are passed on to Hydra.
"""

import os
import pathlib
import re
from dataclasses import dataclass

from hydra.core.override_parser.types import Override
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import (
    InterpolationKeyError,
    InterpolationToMissingValueError,
    MissingMandatoryValue,
    OmegaConfBaseException,
)

from vit.exchange.private_paths import PATH_KEYS
from vit.files.strict_json import json_text
from vit.messages import did_you_mean, nearest_names, one_line
from vit.run.config.checked_keys import FREE, check_keys
from vit.run.config.credential_checks import check_written_config
from vit.run.config.groups import FORMER_OPTIONS, check_groups, is_group, log_former_name
from vit.run.config.hydra_interface import (
    compose_with,
    config_folder,
    detach_hydra,
    search_folders,
    search_path_of,
    separate_primary,
    value_of,
)
from vit.run.config.needed_keys import missing_top_level_keys
from vit.run.config.overrides import (
    ConfigError,
    dotted_items,
    key_of,
    override_text,
    parse,
    with_current_key,
    with_current_keys,
)
from vit.run.config.own_keys import OwnFiles, check_own_keys, log_unread_packages
from vit.run.config.value_checks import contradiction, invalid_value

READ_PATHS = tuple(key for key in PATH_KEYS if key not in ("run_dir", "runs"))
NAMES = ("name", "data.name")  # keys of strings that YAML may parse as numbers, such as name=2026
OPTION = re.compile(r"[^\[\]'\", ]+")  # the name of an option, also in a list of them
RUN_FOLDER, MODE = "hydra.run.dir", "hydra.mode"


@dataclass(frozen=True)
class Prepared:
    """Overrides that have been checked, as Hydra takes them.

    Args:
        name: name of the primary config.
        multirun: whether `hydra.mode` selects a sweep, as `-m` does.
        choices: the option that is chosen in each group.
    """

    overrides: list[str]
    name: str
    multirun: bool
    choices: dict[str, str]


@dataclass(frozen=True)
class Groups:
    """The primary config with options of groups, before values are overridden.

    Args:
        keys: the value of every dotted key, nodes included.
        choices: the option that is chosen in each group.
        mode: `hydra.mode`, None unless a config sets it.
        texts: the values of Hydra's own settings that are strings.
        sweeper_params: whether a config sets `hydra.sweeper.params`.
        output_subdir: `hydra.output_subdir`.
    """

    keys: dict
    choices: dict[str, str]
    mode: RunMode | None
    texts: tuple[str, ...]
    sweeper_params: bool
    output_subdir: str | None


def compose(overrides: list[str], strict: bool = True) -> DictConfig:
    """Compose the primary config with overrides such as `data=folder`, `recipe.epochs=10`.

    Args:
        strict: as for `prepare_overrides`.

    Raises:
        ConfigError: an override that names no group, option or key, or a value of the wrong type.
    """
    parsed = parse(overrides)
    prepared = prepare_overrides(parsed, strict)
    config = compose_with(prepared.overrides, prepared.name)
    detach_hydra(config)
    return with_paths(config, value_of(parsed, RUN_FOLDER))


def with_paths(config: DictConfig, folder: object) -> DictConfig:
    """The composed config, in which all paths and names are strings, also those that YAML has parsed as numbers, and
    paths that start with `~` start with the home folder instead.

    Args:
        folder: the value of `hydra.run.dir`, which is the run folder unless `run_dir` is set; None if it is not set.
    """
    if folder:
        config.run_dir = config.run_dir or str(folder)
    values = dict(dotted_items(OmegaConf.to_container(config, resolve=False)))
    for key in (*PATH_KEYS, *NAMES):
        value = values.get(key)
        if isinstance(value, int | float):
            OmegaConf.update(config, key, str(value))
        elif isinstance(value, str) and value.startswith("~") and key in PATH_KEYS:
            OmegaConf.update(config, key, os.path.expanduser(value))
    return config


def paths_of_origin(config: DictConfig, origin: str) -> list[str]:
    """Overrides that make relative paths absolute, for a job that Hydra has started in another working directory than
    the command (`hydra.job.chdir`). They are all paths of data, and the paths of models that exist; other models may be
    names on a hub. `run_dir` and `runs` remain relative to the new working directory.

    Args:
        origin: the working directory of the command.
    """
    overrides = []
    for key in READ_PATHS:
        try:
            value = OmegaConf.select(config, key)
        except OmegaConfBaseException:  # refers to a value that is not given; resolving the config reports it
            continue
        if not isinstance(value, str) or value in ("", "auto") or os.path.isabs(value):
            continue
        path = os.path.join(origin, value)
        if key.startswith("data.") and "://" not in value or os.path.exists(path):
            overrides.append(override_text(key, path))
    return overrides


def prepare_overrides(parsed: list[Override], strict: bool = True) -> Prepared:
    """The overrides for Hydra, each of them checked.

    The config is composed for the check with the options of groups only: it has all keys and the types of their
    defaults, and torch is not loaded yet.

    Args:
        strict: whether a misspelled key in a file of the user is an error; without it, and for a resumed run, which
            keeps its recorded config, such keys are logged.

    Raises:
        ConfigError: names the override and the nearest valid name, if there is one.
    """
    for override in parsed:
        if override.is_sweep_override():
            raise ConfigError(f"{override.input_line} names several values: add -m to run each of them")
    name, parsed = separate_primary(parsed)
    search = search_path_of(parsed)
    check_groups(parsed, search)
    groups = [o.input_line for o in parsed if is_group(o.key_or_group, search)]
    found = groups_of([*search, *groups], name)
    defaults = []
    if value_of(parsed, "init_from"):
        defaults = defaults_of_init_from(parsed, found.keys.get("task.name"), found.choices.get("recipe"))
    if defaults:
        found = groups_of([*search, *defaults, *groups], name)
    for group, option in found.choices.items():
        if option in FORMER_OPTIONS.get(group, ()):
            log_former_name(group, option)
    if folders := search_folders(parsed):
        texts = [*found.texts, *(str(override.value()) for override in parsed)]
        check_own_keys(found.keys, OwnFiles(folders, [*chosen_files(found.choices), name]), FREE, texts,
                       strict and not value_of(parsed, "resume"))
    check_keys(parsed, found.keys, found.choices, search)
    if any(override.package for override in parsed):
        log_unread_packages(parsed, FREE, [*map(str, found.keys.values()), *(str(each.value()) for each in parsed)])
    params = next((each.input_line for each in parsed if each.key_or_group.startswith("hydra.sweeper.params")), None)
    if params and not found.sweeper_params and not any(each.key_or_group == "hydra/sweeper" for each in parsed):
        raise ConfigError(f"{params}: Hydra takes hydra.sweeper.params from a config; in a command the values follow "
                          "the keys themselves, as in -m seed=0,1")
    check_written_config(value_of(parsed, "hydra.output_subdir", found.output_subdir), parsed, found.keys)
    mode = value_of(parsed, MODE) or found.mode
    return Prepared([*defaults, *(_added(override, found.keys) for override in parsed)], name,
                    mode in (RunMode.MULTIRUN, RunMode.MULTIRUN.name), found.choices)


def chosen_files(choices: dict[str, str]) -> list[str]:
    """The files of the options that are chosen, such as `experiment/mine`, below a folder of groups."""
    return [f"{group}/{each}" for group, option in choices.items() for each in OPTION.findall(str(option))]


def keys_of_own_files(overrides: list[str]) -> dict[str, pathlib.Path]:
    """The dotted keys that the chosen files in the user's own folders, and the experiment, set -> the file."""
    parsed = parse(overrides)
    prepared = prepare_overrides(parsed, strict=False)
    chosen = chosen_files(prepared.choices)
    experiments = OwnFiles([config_folder()], [each for each in chosen if each.startswith("experiment/")])
    return experiments.keys() | OwnFiles(search_folders(parsed), [prepared.name, *chosen]).keys()


def groups_of(overrides: list[str], name: str) -> Groups:
    """The primary config with these options of groups."""
    config = compose_with(overrides, name)
    hydra = detach_hydra(config)
    settings = OmegaConf.to_container(hydra, resolve=False)
    texts = tuple(value for _, value in dotted_items(settings) if isinstance(value, str))
    keys = dict(dotted_items(OmegaConf.to_container(config, resolve=False)))
    return Groups(keys, dict(hydra.runtime.choices), hydra.mode, texts,
                  OmegaConf.select(hydra, "sweeper.params") is not None, hydra.output_subdir)


def data_of_primary(overrides: list[str]) -> list[str]:
    """Overrides that select the data of the user's primary config in a command whose primary config is conf/train.yaml,
    without the keys that `overrides` set. Runs and models record them, because they do not record the primary config.
    """
    name, parsed = separate_primary(parse(overrides))
    if name == "train":
        return []
    search = search_path_of(parsed)
    groups = [each.input_line for each in parsed if is_group(each.key_or_group, search)]
    found = groups_of([*search, *groups], name)
    option, stated_keys = found.choices.get("data"), {each.key_or_group for each in parsed}
    if not option:
        return []
    chosen = [] if "data" in stated_keys else [f"data={option}"]
    default = groups_of([*search, *groups, *chosen], "train").keys
    values = {key: value for key, value in found.keys.items() if key.startswith("data.") and key not in stated_keys
              and (not isinstance(value, dict) or not value) and value != "???"}
    return [*chosen, *(_as_override(key, value, key in default) for key, value in values.items()
                       if key not in default or default[key] != value)]


def _as_override(key: str, value: object, known: bool) -> str:
    sign = "" if known else "+"
    if isinstance(value, str):
        return f"{sign}{key}={value}" if "${" in value else override_text(f"{sign}{key}", value)
    return f"{sign}{key}={json_text(value, indent=None)}"


def defaults_of_init_from(parsed: list[Override], task: str | None, recipe: str | None) -> list[str]:
    """`model=pretrained` and `recipe=finetune` where an image classifier starts from `init_from` and the overrides name
    no model or recipe; jobs on texts take the architecture of `init_from` themselves.

    Args:
        recipe: the option of the group without these defaults, None for a primary config without the group. Only
            `scratch` is replaced: some data sets select a recipe of their own.
    """
    overridden = {override.key_or_group for override in parsed}
    if task != "classification" or "experiment" in overridden:
        return []
    defaults = {"model": "pretrained"} | ({"recipe": "finetune"} if recipe == "scratch" else {})
    return [f"{group}={option}" for group, option in defaults.items() if group not in overridden]


def chosen_option(overrides: list[str], group: str) -> str | None:
    """The option of a group in the config that these overrides compose; None if the config has no such group."""
    return prepare_overrides(parse(overrides)).choices.get(group)


def stated(overrides: list[str], node: str) -> set[str]:
    """The keys of a node that overrides set: `model.dim=64` sets `dim`."""
    keys = (key_of(with_current_key(override)) for override in overrides)
    return {key.removeprefix(f"{node}.") for key in keys if key.startswith(f"{node}.")}


def resolve(config: DictConfig) -> dict:
    """The config as plain dicts, lists, strings and numbers, with all interpolations resolved.

    Raises:
        ConfigError: a missing key, a missing or invalid value, or two values that do not fit together.
    """
    if problem := missing_top_level_keys(config.keys()):  # `in` is false for ??? too
        raise ConfigError(problem)
    try:
        found = with_current_keys(OmegaConf.to_container(config, resolve=True, throw_on_missing=True))
    except OmegaConfBaseException as error:
        key = getattr(error, "full_key", None) or "a value"
        if isinstance(error, MissingMandatoryValue | InterpolationToMissingValueError):
            raise ConfigError(f"{key} must be given: add {key}=VALUE to the command") from None
        fix = fix_of_interpolation(config, str(error)) if isinstance(error, InterpolationKeyError) else ""
        raise ConfigError(f"{key}: {one_line(error).partition(' full_key:')[0]}{fix}") from None
    if problem := invalid_value(found) or contradiction(found):
        raise ConfigError(problem)
    return found


def fix_of_interpolation(config: DictConfig, message: str) -> str:
    """The hint of an error about an interpolation of a key that the config does not have."""
    found = re.search(r"Interpolation key '(.*?)' not found", message)
    key = found[1] if found else ""
    values = OmegaConf.to_container(config, resolve=False)
    known = [each for each, _ in dotted_items(values) if each.rpartition(".")[0] == key.rpartition(".")[0]]
    return did_you_mean(nearest_names(key, known, cutoff=0.8)) or "; add that key to the file of its node"


def _added(override: Override, known: dict) -> str:
    """The override with `++` for an option of the model that its file does not list; the model checks it."""
    is_option = override.key_or_group.startswith("model.") and override.key_or_group not in known
    return f"++{override.input_line.lstrip('+')}" if is_option else override.input_line
