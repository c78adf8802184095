"""From overrides to a config, which Hydra composes from conf/ and the user's own folders; a wrong override is an error
that names the nearest valid one.

Overrides of Hydra's own settings are passed on to Hydra. `hydra.searchpath=[FOLDER]` (`--config-dir`) adds a folder of
groups, `hydra.job.config_name=NAME` (`--config-name`) composes another primary config.
"""

import contextlib
import functools
import logging
import os
import pathlib
import threading
from collections.abc import Iterator, Sequence

from hydra import compose as hydra_compose
from hydra import initialize_config_dir
from hydra.core.config_loader import ConfigLoader
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.types import Override
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException

from vit.exchange.private_paths import PATH_KEYS, quoted
from vit.messages import one_line
from vit.run.config.hydra_errors import CONFIG_ERRORS, explained
from vit.run.config.overrides import ConfigError, parse, with_current_key, with_current_keys
from vit.run.config.valid_values import check_type, invalid_value, nearest

log = logging.getLogger("vit")

# nodes to which a command may add keys; the code that reads them rejects unknown ones
EXTENSIBLE = ("data", "model", "recipe.augment", "recipe.mixup", "recipe.optimizer.options", "logger",
        "strategy", "callbacks")

PRIMARY, SEARCH_PATH, RUN_FOLDER = "hydra.job.config_name", "hydra.searchpath", "hydra.run.dir"

COMPOSING = threading.Lock()  # Hydra has the current composition in a global: one thread at a time

FORMER_OPTIONS = {  # group -> former name of an option -> its name; a file of the former name includes the new one
    "data": {"pictures": "unlabelled_images"},
    "model": {"adopt": "pretrained", "reader": "image_to_text"},
    "recipe": {"reading": "image_to_text"},
}
REMOVED = {"task.mode": "whether higher or lower is better follows from callbacks.monitor; leave it out"}


def config_folder() -> pathlib.Path:
    """The folder of Hydra groups: `vit/conf` in a wheel, `conf` beside the package in a checkout or editable install.

    Raises:
        ConfigError: neither exists.
    """
    package = pathlib.Path(__file__).resolve().parents[2]
    for folder in (package / "conf", package.parent / "conf"):
        if (folder / "train.yaml").is_file():
            return folder
    raise ConfigError(f"no conf/train.yaml beside {package}; reinstall the package")


def compose(overrides: list[str]) -> DictConfig:
    """Compose the primary config with overrides such as `data=folder`, `recipe.epochs=10`.

    Raises:
        ConfigError: an override that names no group, option or key, or a value of the wrong type.
    """
    parsed = parse(overrides)
    return with_paths(compose_with(*prepare_overrides(parsed))[0], parsed)


def with_paths(config: DictConfig, parsed: Sequence[Override]) -> DictConfig:
    """The composed config with `hydra.run.dir`, where it is set, as `run_dir`. Paths in it are strings, also where YAML
    parses a number, and `~` is the home folder.
    """
    if folder := _value(parsed, RUN_FOLDER):
        config.run_dir = config.run_dir or str(folder)
    values = dict(_nodes(OmegaConf.to_container(config, resolve=False)))
    for key in PATH_KEYS:
        value = values.get(key)
        if isinstance(value, int | float) or isinstance(value, str) and value.startswith("~"):
            OmegaConf.update(config, key, os.path.expanduser(str(value)))
    return config


def prepare_overrides(parsed: list[Override]) -> tuple[list[str], str]:
    """The overrides for Hydra, each of them checked, and the name of the primary config.

    Raises:
        ConfigError: names the override and, where there is one, the nearest valid name.
    """
    for override in parsed:
        if override.is_sweep_override():
            raise ConfigError(f"{override.input_line} names several values: add -m to run each of them")
    name = str(_value(parsed, PRIMARY) or "train")
    for folder in search_folders(parsed):
        if not folder.is_dir():
            raise ConfigError(f"{SEARCH_PATH} (--config-dir): there is no folder {folder}")
    parsed = [override for override in parsed if override.key_or_group != PRIMARY]
    search = tuple(override.input_line for override in parsed if override.key_or_group == SEARCH_PATH)
    _check_groups(parsed, search)
    groups = [o.input_line for o in parsed if _is_group(o.key_or_group, search)]
    nodes_of = keys_and_choices.__wrapped__ if search else keys_and_choices  # files of a user may change meanwhile
    known, choices = nodes_of((*search, *groups), name, config_folder())
    defaults = defaults_of_init_from(parsed, known.get("task.name"), choices.get("recipe"))
    if defaults:
        known, choices = nodes_of((*search, *defaults, *groups), name, config_folder())
    for group, option in choices.items():
        log_former_name(group, option)
    _check_keys(known, parsed, search)
    return [*defaults, *(_added(override, known) for override in parsed)], name


@functools.lru_cache(maxsize=256)
def keys_and_choices(overrides: tuple[str, ...], name: str, folder: pathlib.Path) -> tuple[dict, dict[str, str]]:
    """The values of all keys and nodes in the primary config with these options of groups, and the chosen options.

    Args:
        folder: the folder of groups (`config_folder`), part of the key of the cache.
    """
    config, choices = compose_with(list(overrides), name)
    return dict(_nodes(OmegaConf.to_container(config, resolve=False))), choices


@functools.cache
def log_former_name(group: str, option: str) -> None:
    """Once per process."""
    if name := FORMER_OPTIONS.get(group, {}).get(option):
        log.warning("%s=%s is the former name of %s=%s", group, option, group, name)


def defaults_of_init_from(parsed: list[Override], task: str | None, recipe: str | None) -> list[str]:
    """`model=pretrained` and `recipe=finetune` where an image classifier starts from `init_from` and the overrides name
    no model or recipe; jobs on texts take the architecture of `init_from` themselves.

    Args:
        recipe: the option of the group without these defaults, None for a primary config without the group. Only
            `scratch` is replaced: some data sets select a recipe of their own.
    """
    values = {override.key_or_group: override.value() for override in parsed}
    if not values.get("init_from") or task != "classification" or "experiment" in values:
        return []
    defaults = {"model": "pretrained"} | ({"recipe": "finetune"} if recipe == "scratch" else {})
    return [f"{group}={option}" for group, option in defaults.items() if group not in values]


def chosen_option(overrides: list[str], group: str) -> str | None:
    """The option of a group in the config that these overrides compose; None if the config has no such group."""
    return compose_with(*prepare_overrides(parse(overrides)))[1].get(group)


def stated(overrides: list[str], node: str) -> set[str]:
    """The keys of a node that overrides set: `model.dim=64` sets `dim`."""
    keys = (with_current_key(override).lstrip("+~").partition("=")[0] for override in overrides)
    return {key.removeprefix(f"{node}.") for key in keys if key.startswith(f"{node}.")}


def options(group: str, search: tuple[str, ...] = ()) -> list[str]:
    """The options of a group, such as `digits, folder, mnist` for `data`; empty for what is not a group.

    Args:
        search: overrides of the search path.
    """
    return _options(group, search, config_folder())


@functools.cache
def _options(group: str, search: tuple[str, ...], folder: pathlib.Path) -> list[str]:
    try:
        found = _loader(folder).get_group_options(group, overrides=list(search))
    except CONFIG_ERRORS as error:
        raise ConfigError(one_line(error)) from None
    return sorted(name for name in found if not name.startswith("_") and name not in FORMER_OPTIONS.get(group, ()))


@functools.cache
def _loader(folder: pathlib.Path) -> ConfigLoader:
    """Hydra's config loader over a folder, which lists options without being Hydra's current one."""
    with _initialized(folder) as loader:
        return loader


def resolve(config: DictConfig) -> dict:
    """The config as plain dicts, lists, strings and numbers, with all interpolations resolved.

    Raises:
        ConfigError: a missing or invalid value.
    """
    try:
        found = with_current_keys(OmegaConf.to_container(config, resolve=True, throw_on_missing=True))
    except OmegaConfBaseException as error:
        key = getattr(error, "full_key", None) or "a value"
        raise ConfigError(f"{key} must be given: add {key}=VALUE to the command") from None
    if problem := invalid_value(found):
        raise ConfigError(problem)
    return found


@contextlib.contextmanager
def _initialized(folder: pathlib.Path | None = None) -> Iterator[ConfigLoader]:
    """Hydra's config loader over conf/ or another folder; restores the state of an enclosing `hydra.main`."""
    with COMPOSING:
        running, GlobalHydra.instance().hydra = GlobalHydra.instance().hydra, None
        try:
            with initialize_config_dir(version_base="1.3", config_dir=str((folder or config_folder()).resolve())):
                yield GlobalHydra.instance().config_loader()
        except CONFIG_ERRORS as error:
            raise ConfigError(explained(error)) from None
        finally:
            GlobalHydra.instance().hydra = running


def compose_with(overrides: list[str], name: str) -> tuple[DictConfig, dict[str, str]]:
    """The primary config with checked overrides, and the option that is chosen in each group.

    Hydra looks for the primary config in its first folder only: the user's own, if the config is there.
    """
    parsed = parse(overrides)
    home = next((folder for folder in search_folders(parsed) if (folder / f"{name}.yaml").is_file()), None)
    if home is not None:
        search = [*(_value(parsed, SEARCH_PATH) or []), config_folder()]
        overrides = [o.input_line for o in parsed if o.key_or_group != SEARCH_PATH] + [search_path(search)]
    with _initialized(home):
        config = hydra_compose(name, overrides=overrides, return_hydra_config=True)
    options = dict(config.hydra.runtime.choices)
    with open_dict(config):
        del config.hydra
    return config, options


def search_path(folders: Sequence[object]) -> str:
    return f"{SEARCH_PATH}=[{','.join(quoted(str(folder)) for folder in folders)}]"


def search_folders(parsed: Sequence[Override]) -> list[pathlib.Path]:
    """The folders that the user adds to conf/, without packages (`pkg://`)."""
    entries = [str(entry) for entry in _value(parsed, SEARCH_PATH) or []]
    return [pathlib.Path(entry.removeprefix("file://")) for entry in entries if not entry.startswith("pkg://")]


def with_config_dir(overrides: list[str], folder: str | pathlib.Path | None) -> list[str]:
    """The overrides, with a folder of the user's own groups added to the search path (`--config-dir`)."""
    if not folder:
        return overrides
    earlier = [each for each in overrides if each.startswith(SEARCH_PATH)]
    folders = [*search_folders(parse(earlier)), os.path.abspath(os.path.expanduser(folder))]
    return [*(each for each in overrides if each not in earlier), search_path(folders)]


def _value(parsed: Sequence[Override], key: str) -> object:
    return next((override.value() for override in reversed(parsed) if override.key_or_group == key), None)


def is_hydra_key(key: str) -> bool:
    """Whether this is one of Hydra's own settings, which Hydra itself checks."""
    return key.startswith(("hydra.", "hydra/"))


def hydra_overrides(overrides: Sequence[str]) -> list[str]:
    """The overrides of Hydra's own settings, which apply to one command and are never recorded."""
    return [override for override in overrides if is_hydra_key(override.lstrip("+~"))]


def _is_group(key: str, search: tuple[str, ...]) -> bool:
    return "." not in key and not is_hydra_key(key) and bool(options(key, search))


def _check_groups(parsed: list[Override], search: tuple[str, ...]) -> None:
    for override in parsed:
        group, chosen = override.key_or_group, override.value()
        if not isinstance(chosen, str) or not _is_group(group, search):
            continue
        known = options(group, search)
        if chosen not in known and chosen not in FORMER_OPTIONS.get(group, ()):
            raise ConfigError(
                f"{group}={chosen}: no such {group}{nearest(chosen, known)} ({group} may be {', '.join(known)})"
            )


def _added(override: Override, known: dict) -> str:
    """The override with `++` for an option of the model that its file does not list; the model checks it."""
    is_option = override.key_or_group.startswith("model.") and override.key_or_group not in known
    return f"++{override.input_line.lstrip('+')}" if is_option else override.input_line


def _check_keys(known: dict, parsed: list[Override], search: tuple[str, ...]) -> None:
    """Checks that every key is in the composed config, or is added to a node that accepts further keys.

    Raises:
        ConfigError: names the nearest valid key.
    """
    for override in parsed:
        key, is_group = override.key_or_group, _is_group(override.key_or_group, search)
        if is_hydra_key(key):
            continue
        added = override.is_add() or override.is_force_add() or key.startswith("model.")
        if override.is_delete() and key in known:
            raise ConfigError(f"~{key}: keys cannot be removed; write {key}=null")
        if key in known and not is_group:
            check_type(override, known[key])
        if is_group or key in known or added and key.startswith(tuple(f"{node}." for node in EXTENSIBLE)):
            continue
        if known.get(key.rpartition(".")[0]) == {}:
            raise ConfigError(f"{key} is a new key: write +{override.input_line}")
        if key in REMOVED:
            raise ConfigError(f"{key} is no longer a key: {REMOVED[key]}")
        raise ConfigError(f"unknown key {key}{nearest(key, list(known))} (see all of them with: --cfg job)")


def _nodes(config: dict, prefix: str = ""):
    """Every (dotted key, value), including nodes."""
    for key, value in config.items():
        yield prefix + key, value
        if isinstance(value, dict):
            yield from _nodes(value, f"{prefix}{key}.")
