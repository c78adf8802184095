"""Replacement of argument names in the errors of functions by the options of the command that called them."""

import re
import shlex
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
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

    A name without `=VALUE` may be an ordinary word. It is replaced only if its option was typed, and if it contains an
    underscore or is the first word of the message. Overrides among the arguments stay as they were typed.
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


def with_path_option(text: str, command: "click.Command", arguments: Sequence[str]) -> str:
    """An error about a path with the option under which it was typed: `x: there is no such model` ->
    `--ensemble x: there is no such model`.

    An error that has the option already or begins with another one, and a path that is also typed elsewhere, remain
    as they are.
    """
    if re.match(r"--[a-z]", text):  # the subject is another option; a short path may be one of its words
        return text
    named = set(re.findall(r"(?<![\w-])--?[a-z][\w-]*", text))
    options = [each for each in command.params if each.param_type_name == "option" and takes_path(each)]
    for option in (each for each in options if not named & set(each.opts)):
        for value, others in typed_values(option.opts, arguments):
            paths = forms(value)
            found = next(filter(None, (named_in(path, text) for path in paths)), None)
            if found and not any(named_in(path, other) for path in paths for other in others):
                is_start = found.start() == 0 and not found["below"]
                return f"{long_name(option)} {'' if is_start else f'{shlex.quote(value)}: '}{text}"
    return text


def takes_path(parameter: "click.Parameter") -> bool:
    """Whether the value of an option is a path, for the parameters of click and those of typer without click."""
    if (kind := getattr(parameter, "type", None)) is not None:
        return kind.name in ("path", "file", "directory")
    return "Path" in str(parameter.type_descriptor.annotation)


def typed_values(names: Collection[str], arguments: Sequence[str]) -> Iterator[tuple[str, list[str]]]:
    """Each value of an option among the arguments of a command, and the other arguments."""
    for i, each in enumerate(arguments):
        name, is_joined, value = each.partition("=")
        if each in names and i + 1 < len(arguments):
            yield arguments[i + 1], [*arguments[:i], *arguments[i + 2 :]]
        elif name in names and is_joined:
            yield value, [*arguments[:i], *arguments[i + 1 :]]


def forms(path: str) -> list[str]:
    """The forms that a path may have in an error: as typed, as `Path` prints it, with `~` expanded, and absolute. The
    working directory, ".", is left out.
    """
    found = Path(path).expanduser()
    return [each for each in dict.fromkeys([path, str(Path(path)), str(found), str(found.absolute())]) if each != "."]


def named_in(path: str, text: str) -> re.Match | None:
    """The match of a path in a text; its group `below` is the rest of the path of a file below it."""
    return re.search(rf"(?<![\w/.~-]){re.escape(path)}(?P<below>/[^\s:;,]*|)(?![\w-]|\.\w)", text) if path else None


def long_name(option: "click.Parameter") -> str:
    """The name of an option with two dashes."""
    return next(name for name in option.opts if name.startswith("--"))


def named_options(parameters: "Iterable[click.Parameter]") -> Mapping[str, NamedOption]:
    """The options of a command by the names of their parameters and by their own names in Python."""
    found = {}
    for each in parameters:
        if each.param_type_name == "option":
            long = long_name(each)
            option = NamedOption(long, each.opts[-1], bool(getattr(each, "is_flag", False)))
            found |= {each.name: option, long.strip("-").replace("-", "_"): option}
    return found | {name: found[option] for name, option in ARGUMENTS.items() if option in found}
