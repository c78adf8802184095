"""Command-line overrides: parsing and formatting of `key=value`, as in Hydra but with literal paths.

Commas, brackets, quotes, spaces and other characters are part of Hydra's grammar. In the value of a key that names a
path they are characters of the path, and `~` is the home folder. Hydra's documented quotes and functions (`'a','b'`,
`choice(...)`), null and interpolations (`${name}`) have their usual meaning, and so have commas between paths with -m.

`checked` reports an error of the code that reads a config node with the key of that node.
"""

import functools
import inspect
import itertools
import logging
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import UnionType
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, QuotedString
from hydra.errors import HydraException

from vit.exchange.private_paths import PATH_KEYS
from vit.messages import did_you_mean, error_message, in_hydra_quotes, nearest_names, on_one_line, override_for_shell

_HYDRA_SYNTAX = re.compile(r"""(?s)(['"]).*\1|(choice|glob|sort|shuffle)\(.*\)|null|""")
_QUOTED = re.compile(r"""(^|,)\s*['"]""")  # one of several values in quotes
_NO_ITEMS = re.compile(r"\[|\w+\(|\$\{")  # the start of a list, a function or an interpolation

UNEXPECTED = re.compile(r"got an unexpected keyword argument '(\w+)'")

TABLES = (".csv", ".tsv", ".parquet", ".jsonl", ".xlsx", ".npz")
LISTS = ("allow_change",)  # keys whose value is a list, which may be given without brackets
FORMER_KEYS = {  # former name of a key -> its name
    "data.masked": "data.mask_ratio",
    "finetune.always": "finetune.always_trainable",
    "finetune.over": "finetune.unfreeze_epochs",
    "finetune.trains": "finetune.trainable",
    "task.decode.views": "task.decode.tta",
}
REMOVED_KEYS = {  # key of an earlier version that nothing reads any more -> why
    "recipe.word_dropout": "the decoder is trained on all target tokens",
    "task.mode": "whether higher or lower is better follows from callbacks.monitor",
}

log = logging.getLogger("vit")


class ConfigError(ValueError):
    """An invalid command line or config; the message is one sentence with the fix."""

    exit_code = 2  # exit code of a command that ends with this error


def parse(overrides: list[str], multirun: bool = False) -> list[Override]:
    """The overrides as Hydra parses them, with literal paths.

    Raises:
        ConfigError: an override without `=`, also as part of a path that contains spaces, or with invalid syntax.
    """
    overrides = as_list(overrides)
    for key, value in itertools.pairwise(overrides):
        if value.startswith("=") and "=" not in key and not key.startswith("-"):
            raise ConfigError(f"{key} {value}: leave out the spaces around =, as in {key}=VALUE")
    for index, override in enumerate(overrides):
        _check_spaces(override, overrides[index + 1:])
    return [_parse_override(override, multirun) for override in overrides]


def _check_spaces(override: str, following: list[str]) -> None:
    """Raises ConfigError for a path that the shell split at its spaces: `data.root=my photos` without quotes."""
    key, _, start = override.partition("=")
    rest = list(itertools.takewhile(lambda each: "=" not in each and not each.startswith("--"), following))
    if rest and key_of(key) in PATH_KEYS:
        path = " ".join([start, *rest])
        if os.path.exists(os.path.expanduser(path)):
            raise ConfigError(f"{key}={path}: quote a path that contains spaces: {override_for_shell(key, path)}")


def as_list(overrides: list[str] | None) -> list[str]:
    """The overrides as a list; raises ConfigError for one string, whose characters would become overrides, and for
    anything else that is not a list of strings.
    """
    if isinstance(overrides, str):
        raise ConfigError(f"the overrides must be a list of strings, not one string: [{overrides!r}]")
    if isinstance(overrides, Mapping):
        pairs = [f"{key}={value}" for key, value in overrides.items()]
        raise ConfigError(f"the overrides must be a list of strings, not a {type(overrides).__name__}: {pairs}")
    if overrides is not None and not isinstance(overrides, Iterable):
        raise ConfigError(f"the overrides must be a list of strings, such as ['recipe.epochs=10'], not {overrides!r}")
    overrides = list(overrides or [])
    if other := [each for each in overrides if not isinstance(each, str)]:
        raise ConfigError(f"the overrides must be a list of strings, such as ['recipe.epochs=10'], but one of them is "
                          f"{other[0]!r}")
    return overrides


def sweep(overrides: list[str]) -> list[list[str]]:
    """All combinations of the values of comma-separated lists and ranges: a list of overrides per run."""
    choices = []
    for override in parse(overrides, multirun=True):
        if not override.is_sweep_override():
            choices.append([override.input_line])
        elif override.is_interval_sweep():  # an interval of an optimizing sweeper
            choices.append([f"{override.get_key_element()}={override.value().start}"])
        elif override.key_or_group in PATH_KEYS:
            choices.append([path_override(override.get_key_element(), each) for each in override.sweep_iterator()])
        else:
            choices.append([f"{override.get_key_element()}={value}" for value in override.sweep_string_iterator()])
    return [list(overrides) for overrides in itertools.product(*choices)]


def first_of_sweep(overrides: list[str]) -> list[str]:
    """The first combination of `sweep`: one list of values after the other is reduced to its first value."""
    return [sweep([override])[0][0] for override in overrides]


def override_text(key: str, value: str) -> str:
    """`key=value` for `parse`, quoted where the bare value would be parsed as something else."""
    unquoted = f"{key}={value}"
    if "${" not in value and _parses_to(_literal(unquoted, False), value):
        return unquoted
    return f"{key}={in_hydra_quotes(value)}"


def yaml_text(value: object) -> str:
    """A value of a config for a message: `null`, `true`, `[8, 16]`."""
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def key_of(override: str) -> str:
    """The key of an override, without a prefix: `data.root` of `++data.root=photos` and of `~data.root`."""
    return override.partition("=")[0].lstrip("+~")


def dotted_items(config: dict, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """(dotted key, value) of every key of nested nodes, the nodes included."""
    for key, value in config.items():
        yield f"{prefix}{key}", value
        if isinstance(value, dict):
            yield from dotted_items(value, f"{prefix}{key}.")


def override_items(overrides: list[str]) -> Iterator[tuple[str, Any]]:
    """(key, value) of each override, and of all keys below one that is a node."""
    for override in parse(overrides):
        value = override.value()
        yield override.key_or_group, value
        if isinstance(value, dict):
            yield from dotted_items(value, f"{override.key_or_group}.")


def overrides_of_path(path: str) -> str | None:
    """The overrides that select an existing path as data; None where it is not data, such as the folder of a run."""
    path = os.path.expanduser(path)
    if os.path.isdir(path):
        is_run = any(os.path.exists(os.path.join(path, name)) for name in ("config.yaml", "config.json"))
        return None if is_run else f"data=folder {override_for_shell('data.root', path)}"
    suffix = os.path.splitext(path)[1].lower() if os.path.isfile(path) else ""
    if suffix == ".zip":
        return f"data=folder {override_for_shell('data.root', path)}"
    return f"data=table {override_for_shell('data.path', path)}" if suffix in TABLES else None


def _parse_override(override: str, multirun: bool) -> Override:
    if override.startswith("-"):
        raise ConfigError(f"{override!r} is an option of the command, not an override; in their place write "
                          "hydra.searchpath=[FOLDER] for --config-dir, hydra.job.config_name=NAME for --config-name")
    if "=" not in override and not override.startswith("~"):
        fix = overrides_of_path(override)
        raise ConfigError(f"{override!r} is not of the form key=value" + (
            f"; for the data in it write {fix}" if fix else ", such as data=digits or recipe.epochs=10"))
    override = with_current_key(override)
    key, _, value = override.partition("=")
    if not key.strip("+~"):
        raise ConfigError(f"{override!r} has no key before =, as in data=digits or recipe.epochs=10")
    if key in LISTS and not _NO_ITEMS.match(value):
        override = f"{key}=[{value}]"  # for Hydra a comma without brackets is a sweep
    try:
        return OverridesParser.create().parse_override(_literal(override, multirun))
    except HydraException as error:
        reason = on_one_line(error).partition(" See https")[0].partition(" expecting {")[0][:300]
        raise ConfigError(f"{override}: {reason} ({_fix_of_syntax(key, value)})") from None


def _fix_of_syntax(key: str, value: str) -> str:
    """What to write for an override that Hydra cannot parse."""
    if key != key.strip():
        return f"leave out the space before =: {key.strip()}={value}"
    if value.endswith(","):
        return f"leave out the space after the comma, or quote all of it: '{key}={value} ...'"
    shown = f"'{key}=\"a=b\"'" if set(value) & set("{[(,'\"") else override_for_shell(key, value)
    return f"a value with special characters must be quoted: {shown}"


def with_current_key(override: str) -> str:
    """The override with the present name of its key; a former name is logged once."""
    key = key_of(override)
    name = FORMER_KEYS.get(key)
    if name is None:
        return override
    log_former_key(key)
    return override.replace(key, name, 1)


def with_current_keys(config: dict, stored: bool = False) -> dict:
    """A config with the present names of its keys; former names are logged once, unless the config is `stored` in a run
    folder or checkpoint, where the user cannot change them.
    """
    values = dict(dotted_items(config))
    for former, name in FORMER_KEYS.items():
        if former in values:
            if not stored:
                log_former_key(former)
            node, _, leaf = former.rpartition(".")
            values[node][name.rpartition(".")[2]] = values[node].pop(leaf)
    return config


@functools.cache
def log_former_key(key: str) -> None:
    """Log the present name of a key that was given by its former name, once per process."""
    log.warning("%s is the former name of %s", key, FORMER_KEYS[key])


def _literal(override: str, multirun: bool) -> str:
    """The override with its path quoted, where Hydra would parse the bare path as something else."""
    key, _, value = override.partition("=")
    if key.lstrip("+") not in PATH_KEYS or _parses_to(override, value) and not value.startswith("~"):
        return override
    if _HYDRA_SYNTAX.fullmatch(value) and _parses_to(override, None):
        return override
    if not multirun:
        return f"{key}={in_hydra_quotes(os.path.expanduser(value))}"
    if _QUOTED.search(value) and _parses_to(override, None):
        return override
    return f"{key}={','.join(map(_literal_path, value.split(',')))}"


def _literal_path(path: str) -> str:
    """One of several paths in quotes, unless it is null or has an interpolation."""
    if path == "null" or "${" in path and _parses_to(f"key={path}", path):
        return path
    return in_hydra_quotes(os.path.expanduser(path))


def _parses_to(override: str, value: str | None) -> bool:
    """Whether Hydra parses an override to this value; with None, whether it can parse it."""
    try:
        found = OverridesParser.create().parse_override(override).value()
    except HydraException:
        return False
    return value is None or isinstance(found, str) and found == value


def path_override(key: str, value: object) -> str:
    """The override of one of several values of a path, as Hydra has parsed it."""
    if isinstance(value, QuotedString):
        return f"{key}={value.with_quotes()}" if "${" in value.text else override_text(key, value.text)
    if value is None or "${" in str(value):
        return f"{key}={yaml_text(value)}"
    return override_text(key, str(value))


def checked(key: str, build: Callable, values: Any, unpack: bool = False, names: Iterable[str] = ()) -> Any:
    """`build(values)`, or `build(**values)` with `unpack`.

    Args:
        names: further keys of the node that may occur in a message, besides those of the values.

    Raises:
        ConfigError: `build` rejected the values; the message has their keys in full, or starts with `key`.
        DataError, OSError, MemoryError: as `build` raised them.
    """
    try:
        return build(**values) if unpack else build(values)
    except (TypeError, ValueError, HydraException) as error:
        from vit.data import DataError  # loads torch

        cause = error.__cause__ or error  # Hydra's `instantiate` wraps what its target raises
        if isinstance(cause, DataError | OSError | MemoryError):
            raise cause from None
        message = on_one_line(cause)
        if not isinstance(cause, TypeError | ValueError | HydraException):  # a fault in a function of the user
            raise ConfigError(f"{key}: {error_message(cause)}") from cause
        if isinstance(cause, TypeError) and (found := UNEXPECTED.search(message)) and found[1] in values:
            known = list(inspect.signature(build).parameters) if unpack else []
            raise ConfigError(f"{key}.{found[1]}: there is no such key{did_you_mean(nearest_names(found[1], known))}"
                              ) from None
        whole = full_keys(message, key, {*names, *(values if isinstance(values, Mapping) else ())})
        raise ConfigError(f"{key}: {message}" if whole == message else whole) from cause


def check_kind(key: str, made: object, kind: type | UnionType, name: str, node: Mapping) -> None:
    """Raises ConfigError unless the `_target_` of a node has returned an instance of a class.

    Args:
        name: the name under which the class is imported.
    """
    if not isinstance(made, kind):
        fix = "leave out _partial_" if node.get("_partial_") else f"it must return an instance of {name}"
        returned = "None" if made is None else f"an object of the class {type(made).__name__}"
        raise ConfigError(f"{key}: {node['_target_']} returned {returned}; {fix}")


def full_keys(message: str, node: str, names: Iterable[str]) -> str:
    """The message with the full key in each `name=value` of it: `mixer=lstm` -> `model.mixer=lstm`."""
    for name in names:
        message = re.sub(rf"(?<![\w.]){re.escape(name)}=", f"{node}.{name}=", message)
    return message
