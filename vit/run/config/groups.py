"""The groups of the config, their options, which may be files of the user, and the check of the options that a command
chooses.
"""

import functools
import logging
import pathlib

from hydra.core.override_parser.types import Override, ValueType

from vit.messages import one_line, override_for_shell
from vit.other_names import OPTIONS, RUN
from vit.run.config.hydra_interface import CONFIG_ERRORS, config_folder, hydra_over, is_hydra_key, search_path_of
from vit.run.config.name_hints import nearest
from vit.run.config.overrides import ConfigError, overrides_of_path, parse

log = logging.getLogger("vit")

FORMER_OPTIONS = {  # group -> former name of an option -> its name; a file of the former name includes the new one
    "data": {"pictures": "unlabelled_images"},
    "model": {"adopt": "pretrained", "reader": "image_to_text"},
    "recipe": {"reading": "image_to_text"},
}
OPTIONAL_GROUPS = ("augment", "experiment")  # whose files set keys of other nodes


def options(group: str, search: tuple[str, ...] = ()) -> list[str]:
    """The options of a group, such as `digits, folder, mnist` for `data`; empty for what is not a group.

    Args:
        search: overrides of the search path.
    """
    return sorted(name for name in _files(group, search, config_folder())
                  if not name.startswith("_") and name not in FORMER_OPTIONS.get(group, ()))


@functools.cache
def _files(group: str, search: tuple[str, ...], folder: pathlib.Path) -> list[str]:
    """All files of a group, also those of former names and those that only other files include."""
    loader = hydra_over(folder).config_loader
    try:  # with overrides the loader copies its repository
        return (loader.get_group_options(group, overrides=list(search)) if search
                else loader.repository.get_group_options(group))
    except CONFIG_ERRORS as error:
        raise ConfigError(one_line(error)) from None


def with_names_of_globs(overrides: list[str]) -> list[str]:
    """The overrides of a sweep, with the options that each `glob(...)` matches: `model=glob(m*)` -> `model=mae,micro`.

    Raises:
        ConfigError: a glob that matches nothing.
    """
    parsed = parse(overrides, multirun=True)
    search = search_path_of(parsed)
    lines = []
    for override in parsed:
        if override.value_type is ValueType.GLOB_CHOICE_SWEEP:
            group = override.key_or_group
            known = options(group, search)
            names = override.value().filter(known)
            if not names:
                kind = f"{group} may be {', '.join(known)}" if known else f"{group} is not a group"
                raise ConfigError(f"{override.input_line} matches no option ({kind})")
            lines.append(f"{override.get_key_element()}={','.join(names)}")
        else:
            lines.append(override.input_line)
    return lines


@functools.cache
def log_former_name(group: str, option: str) -> None:
    """Log the present name of an option that was given by its former name, once per process."""
    log.warning("%s=%s is the former name of %s=%s", group, option, group, FORMER_OPTIONS[group][option])


def is_group(key: str, search: tuple[str, ...]) -> bool:
    """Whether the key of an override names a group."""
    return "." not in key and not is_hydra_key(key) and bool(options(key, search))


def check_groups(parsed: list[Override], search: tuple[str, ...]) -> None:
    """Checks the options that overrides choose.

    Raises:
        ConfigError: a group has no such option.
    """
    for override in parsed:
        group, chosen = override.key_or_group, override.value()
        if not is_group(group, search):
            continue
        known = options(group, search)
        if override.is_delete() or chosen == [] and group in OPTIONAL_GROUPS:
            continue
        if not (chosen or chosen == {}) or not isinstance(chosen, str | list | dict):
            none = f", or write {group}=[] for none" if group in OPTIONAL_GROUPS else ""
            raise ConfigError(f"{override.input_line}: must be one of {', '.join(known)}; leave it out for the "
                              f"default{none}")
        if not isinstance(chosen, dict):
            for each in chosen if isinstance(chosen, list) else [chosen]:
                _check_option(group, str(each), known, search, listed=isinstance(chosen, list))


def _check_option(group: str, chosen: str, known: list[str], search: tuple[str, ...], listed: bool) -> None:
    """Checks one option of a group, which may lie in a folder of it, such as `experiment=paper/first`.

    Args:
        listed: whether it is in a list of options, where files that start with _ may be named, too.
    """
    *folders, name = chosen.split("/")
    inside = not {"", ".", ".."} & {*folders}
    if inside and name in _files("/".join([group, *folders]), search, config_folder()) and (listed or name[:1] != "_"):
        return
    if hint := OPTIONS.get(f"{group}={chosen}"):
        raise ConfigError(f"{group}={chosen}: no such {group}; {hint}")
    near = nearest(chosen, known)
    own = "" if near else "; --config-dir FOLDER adds groups of your own"
    if group == "model" and not near:
        near = f"; for a network of timm, write model=timm {override_for_shell('model.name', chosen)}"
    if group == "data" and (fix := overrides_of_path(chosen)):
        raise ConfigError(f"data={chosen}: is a path, but data selects how data is read; write {fix}")
    raise ConfigError(f"{group}={chosen}: no such {group}{near} ({group} may be {', '.join(known)}{own})")


def options_with(key: str, known: dict, search: tuple[str, ...]) -> tuple[str, list[str]]:
    """The name of a key in its group, and the options of the group whose files have this key: `root` and `folder, ...`
    for `data.root`.

    `RUN` translates names of other libraries, such as `data.dir`. If the translated key is already known, the list of
    options is empty.
    """
    group, _, name = key.partition(".")
    if not name or not is_group(group, search) or RUN.get(name) in known:
        return name, []
    repository = hydra_over(config_folder()).config_loader.repository
    keys = {option: loaded.config.keys() for option in options(group, search)
            if (loaded := repository.load_config(f"{group}/{option}")) is not None}
    called = name if any(name in each for each in keys.values()) else RUN.get(name, "").removeprefix(f"{group}.")
    return called, [option for option, each in keys.items() if called in each]
