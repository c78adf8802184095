"""Errors that name the options of a command where the functions that raise them name their arguments."""

import re
import shlex
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import click

ARGUMENTS = {"n_best": "top_k", "layers": "layer"}  # argument of Python -> the name of its option, where they differ
QUOTES = "'\""
VALUE = r"""'[^']*'|"[^"]*"|\([^)]*\)|\[[^\]]*\]|[^\s,;:()]+"""


@dataclass(frozen=True)
class NamedOption:
    """An option as it is typed, such as `--top-k` or `-k`; a flag has no value."""

    name: str
    short: str
    flag: bool

    def with_value(self, value: str) -> str:
        """The option with its value, as in a shell: `--precision bf16-mixed` for `'bf16-mixed'`."""
        if self.flag or not value:
            return self.name
        return f"{self.name} {shlex.quote(value.strip(QUOTES))}"


def with_option_names(text: str, command: "click.Command", arguments: Collection[str]) -> str:
    """An error with the options of a command instead of the arguments of Python: `beam=0` -> `--beam 0`.

    The name of an option that was typed is also replaced without a value where it is no word of a sentence: with an
    underscore, or as the subject of the message. Overrides among the arguments stay as they were typed.
    """
    typed = {each.partition("=")[0] for each in arguments}
    for name, option in named_options(command.params).items():
        overrides = {each for each in arguments if each.startswith(f"{name}=")}

        def assigned(found: re.Match, option: NamedOption = option, overrides: Collection[str] = overrides) -> str:
            return found[0] if found[0] in overrides else option.with_value(found[1])

        text = re.sub(rf"(?<![\w.-]){name}=({VALUE}|)", assigned, text)
        if typed & {option.name, option.short}:
            start = "" if "_" in name else "^"
            text = re.sub(rf"{start}(?<![\w/.'\"-]){name}(?![\w/=.'\"-])", option.name, text)
    return text


def named_options(parameters: "Iterable[click.Parameter]") -> Mapping[str, NamedOption]:
    """The options of a command by the names of their parameters and by their own names in Python."""
    found = {}
    for each in parameters:
        if each.param_type_name == "option":
            long = next(name for name in each.opts if name.startswith("--"))
            option = NamedOption(long, each.opts[-1], bool(getattr(each, "is_flag", False)))
            found |= {each.name: option, long.strip("-").replace("-", "_"): option}
    return found | {name: found[option] for name, option in ARGUMENTS.items() if option in found}
