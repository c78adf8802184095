"""Command-line overrides: `key=value` as Hydra reads it, but with paths taken literally; and how to print one.

Hydra gives a meaning to commas, brackets, quotes, spaces and more. In the value of a key that names a path they are
characters of the path, and `~` is the home folder. What is quoted as Hydra documents (`'a','b'`, `choice(...)`), null
and interpolations (`${name}`) are still Hydra's; so is the comma between paths under -m.
"""

import itertools
import os
import re
import shlex

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, QuotedString
from hydra.errors import HydraException

from vit.exchange.places import PLACES

_HYDRAS = re.compile(r"""(?s)(['"]).*\1|(choice|glob|sort|shuffle)\(.*\)|null|""")

LISTS = ("allow_change",)  # keys whose value is a list, with or without brackets


class ConfigError(ValueError):
    """A command line or config that cannot run; the text is one sentence with the fix."""


def parse(overrides: list[str], multirun: bool = False) -> list[Override]:
    """The overrides as Hydra understands them, paths taken literally; one without `=` is an error that shows the form.
    """
    return [_parsed(override, multirun) for override in as_list(overrides)]


def as_list(overrides: list[str] | None) -> list[str]:
    if isinstance(overrides, str):
        raise ConfigError(f"the overrides must be a list of strings, not one string: [{overrides!r}]")
    return list(overrides or [])


def sweep(overrides: list[str]) -> list[list[str]]:
    """Every combination of the values that comma lists and ranges name, as one list of overrides per run."""
    choices = []
    for override in parse(overrides, multirun=True):
        if not override.is_sweep_override():
            choices.append([override.input_line])
        elif override.is_interval_sweep():  # of a sweeper that draws numbers from it
            choices.append([f"{override.get_key_element()}={override.value().start}"])
        elif is_path(override.key_or_group):
            choices.append([override_text(override.get_key_element(), _text(v)) for v in override.sweep_iterator()])
        else:
            choices.append([f"{override.get_key_element()}={value}" for value in override.sweep_string_iterator()])
    return [list(overrides) for overrides in itertools.product(*choices)]


def is_path(key: str) -> bool:
    return key in PLACES


def override_text(key: str, value: str) -> str:
    """`key=value` as `parse` reads it, quoted where the plain value would be read as something else."""
    plain = f"{key}={value}"
    if "${" not in value and _reads_as(_literal(plain, False), value):
        return plain
    escaped = re.sub(r"(\\*)\$\{", lambda found: found[1] * 2 + r"\${", value)  # no interpolation
    return f"{key}={quoted(escaped)}"


def shown(key: str, value: object) -> str:
    """`key=value` for a sentence: what stands there can be pasted into a shell."""
    return shlex.quote(override_text(key, str(value)))


def _parsed(override: str, multirun: bool) -> Override:
    if "=" not in override and not override.startswith("~"):
        raise ConfigError(f"{override!r} is not of the form key=value, such as data=digits or recipe.epochs=10")
    try:
        return OverridesParser.create().parse_override(_literal(_bracketed(override), multirun))
    except HydraException as error:
        reason = " ".join(str(error).split()).partition(" See https")[0][:300]
        raise ConfigError(
            f"{override}: {reason} (a value with special characters must be quoted: 'key=\"a=b\"')"
        ) from None


def _bracketed(override: str) -> str:
    """`allow_change=a,b` as the list that it is; Hydra reads the comma of other keys as a sweep."""
    key, _, value = override.partition("=")
    return f"{key}=[{value}]" if key in LISTS and not value.startswith("[") else override


def _literal(override: str, multirun: bool) -> str:
    """The override with its path quoted, where it has one that Hydra would read as something else."""
    key, _, value = override.partition("=")
    if not is_path(key.lstrip("+")) or _reads_as(override, value) and not value.startswith("~"):
        return override
    if _HYDRAS.fullmatch(value) and _reads_as(override, None):
        return override
    values = value.split(",") if multirun else [value]
    return f"{key}={','.join(quoted(os.path.expanduser(each)) for each in values)}"


def _reads_as(override: str, value: str | None) -> bool:
    """Whether Hydra reads this value in an override; None: whether it reads it at all."""
    try:
        found = OverridesParser.create().parse_override(override).value()
    except HydraException:
        return False
    return value is None or isinstance(found, str) and found == value


def quoted(value: str) -> str:
    """In Hydra's quotes, where a backslash means something only before a quote."""
    return "'" + re.sub(r"(\\*)('|$)", lambda found: found[1] * 2 + ("\\'" if found[2] else ""), value) + "'"


def _text(value: object) -> str:
    return value.text if isinstance(value, QuotedString) else str(value)
