"""Progress, warnings and errors of the commands on standard error."""

import itertools
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vit.messages import did_you_mean, error_message, nearest_names, number_of, shell_quoted, visible
from vit.run.processes.separate_process import is_of_another_command
from vit.training.fault_tolerance.interrupts import Terminated

if TYPE_CHECKING:
    import click
    from rich.console import Console

    from vit.data.image_sources.files import LeftOut
    from vit.inference import BadInput

TRAINING = ("cross-validate", "compare-finetuning")  # commands that train with the overrides of a run


def check_classes(predictor: Any) -> None:
    """Check that a classifier has classes; a model that was saved without its head has none.

    Raises:
        ValueError: it has none.
    """
    from vit.inference.images import check_has_classes

    if hasattr(predictor, "classes"):
        check_has_classes(predictor.bundle)


def print_without_effect(text: str) -> None:
    """Print that an option of the command has no effect."""
    stderr().print(visible(text), style="yellow", markup=False, highlight=False, soft_wrap=True)


def print_table_as_lines(path: str | Path) -> None:
    """Print that a table is read line by line, where a file of texts is expected; the two texts of a pair in a line of
    TSV are meant so.
    """
    if str(path).lower().removesuffix(".gz").endswith((".csv", ".jsonl", ".ndjson", ".json")):
        print_without_effect(f"{path} is read as lines, each of which is one text with all its columns, the header "
                             "too; write the column of texts to a file of its own, one text per line")


def write_json(values: dict, file: Path | None) -> None:
    """Write values to a JSON file, if there is one."""
    from vit.files.outputs import write_output
    from vit.files.strict_json import json_text

    if file is not None:
        write_output(file, f"{json_text(values)}\n".encode())


def print_unreadable(unreadable: Sequence["BadInput"], total: int, unit: str = "file", limit: int = 100) -> None:
    """Print how many of `total` inputs could not be read, and the first `limit` of them with the reason."""
    if not unreadable:
        return
    console = stderr()
    console.print(f"{len(unreadable)} of {number_of(total, unit)} could not be read:", style="yellow", markup=False)
    for error in unreadable[:limit]:
        console.print(visible(f"  {error}"), markup=False, highlight=False, soft_wrap=True)
    if len(unreadable) > limit:
        console.print(f"  and {len(unreadable) - limit} more", markup=False, highlight=False)


def print_left_out(left_out: Sequence["LeftOut"], used: int) -> None:
    """Print how many files in the folders are not inputs, by reason, with an example."""
    if not left_out:
        return
    from vit.data.errors import printable
    from vit.data.image_sources.files import summary

    text = f"left out {len(left_out)} of {number_of(used + len(left_out), 'file')}: {summary(left_out)}, "
    stderr().print(visible(f"{text}such as {printable(left_out[0][0])}"), markup=False, highlight=False, soft_wrap=True)


def print_skipped(
    unreadable: Sequence["BadInput"], left_out: Sequence["LeftOut"], total: int, unit: str = "file"
) -> None:
    """Print which of `total` inputs could not be read, and how many other files of the folders are not inputs."""
    print_unreadable(unreadable, total, unit)
    print_left_out(left_out, total)


def print_written(text: str) -> None:
    """Print what was written to which file, on one line that is never wrapped."""
    stderr().print(visible(f"wrote {text}"), markup=False, highlight=False, soft_wrap=True)


def stderr() -> "Console":
    from rich.console import Console

    return Console(stderr=True)


@contextmanager
def print_user_warnings() -> Iterator[None]:
    """Within the context, a UserWarning is printed as its message alone, without file and line of the code."""
    with warnings.catch_warnings():
        default = warnings.showwarning

        def print_warning(message: Warning | str, category: type[Warning], *location: object, **more: object) -> None:
            if category is UserWarning:
                stderr().print(visible(str(message)), style="yellow", markup=False, highlight=False, soft_wrap=True)
            else:
                default(message, category, *location, **more)

        warnings.showwarning = print_warning
        yield


@contextmanager
def counted(description: str, total: int | None) -> Iterator[Callable[[int], None]]:
    """A progress bar over `total` samples on standard error; yields the function that advances it."""
    from vit.run.console import progress_bar

    with progress_bar(stderr()) as bar:
        task = bar.add_task(description, total=total)
        yield lambda count: bar.advance(task, count)


@contextmanager
def staged(description: str = "") -> Iterator[Callable[[str, int, int | None], None]]:
    """A progress bar over several stages on standard error, as `stage_bar`; yields `update(stage, done, total)`."""
    from vit.run.console import stage_bar

    with stage_bar(stderr(), description) as progress:
        yield progress


def print_error(text: str, code: int) -> int:
    """Print an error and return its exit code."""
    console = stderr()
    console.print("error: ", style="bold red", end="")
    console.print(visible(text), style="red", markup=False, highlight=False, soft_wrap=True)
    return code


def print_interrupt(interrupt: BaseException, note: str = "") -> int:
    """Print that a command was interrupted, or by which other stop signal, and return its exit code. A run that has not
    begun leaves the message to the comparison or sweep that starts it.
    """
    cause = interrupt if isinstance(interrupt, KeyboardInterrupt) else interrupt.__cause__
    text, code = ("interrupted", 130) if not isinstance(cause, Terminated) else (
        f"stopped by {cause.signal.name}", 128 + cause.signal)
    return code if is_of_another_command() else print_error(f"{text}{note}", code)


def error_text(error: Exception) -> str:
    """The printed line of an error; usage errors also name the command that shows the usage."""
    if not hasattr(error, "format_message"):
        return error_message(error)
    text = error.format_message() if getattr(error, "param", None) or not error.message else error.message
    text = _value_text(error) or text
    if option := getattr(error, "option_name", None):  # an unknown one; click names no other in `message`
        near = nearest_names(option, getattr(error, "possibilities", None) or [])
        text += _hint_of_override(option, error.ctx) or did_you_mean(near)
    context = getattr(error, "ctx", None)  # None where a command itself rejects a value
    command = context.command_path if context else "vit"
    return f"{' '.join(text.split())} ({command} --help shows the usage)"


def _value_text(error: Exception) -> str:
    """`--top-k 0: must be at least 1`, for a value that is no number, outside its range or none of the choices; empty
    for another error.
    """
    param, cause = getattr(error, "param", None), error.__cause__
    if param is None or not hasattr(cause, "errors"):
        return ""
    found = cause.errors()[0]
    limits, kind = found.get("ctx") or {}, found["type"]
    rules = {"greater_than_equal": f"must be at least {limits.get('ge')}",
             "less_than_equal": f"must be at most {limits.get('le')}",
             "int_parsing": "must be a whole number", "int_parsing_size": "is too large",
             "int_from_float": "must be a whole number", "float_parsing": "must be a number"}
    names = [each for each in param.opts if each.startswith("--")] or [param.human_readable_name]
    typed = found.get("input")
    if kind in rules:
        return f"{names[0]} {typed}: {rules[kind]}"
    choices = getattr(getattr(param, "type_descriptor", None), "choices", None)
    if not choices:
        return ""
    return f"{names[0]} {typed}: must be one of {', '.join(choices)}{did_you_mean(nearest_names(typed, choices))}"


def _hint_of_override(option: str, context: "click.Context | None") -> str:
    """`; write data=digits, without dashes` for an option that is a key of the config, in a command with overrides."""
    if context is None or "overrides" not in [each.name for each in context.command.params]:
        return ""
    from vit.other_names import RUN
    from vit.run.config.composing import groups_of
    from vit.run.config.overrides import overrides_of_path

    name, keys = option.lstrip("-").replace("-", "_"), [*groups_of([], "train").keys, "data.root", "data.path"]
    if context.command.name not in TRAINING:
        keys = [key for key in keys if key.partition(".")[0] == "data"]
    candidates = [name, *(key for key in keys if key.endswith(f".{name}")), RUN.get(name)]
    key = next((each for each in candidates if each in keys), None)
    if key is None:
        return ""
    typed = (context.find_root().obj or {}).get("arguments", [])
    values = [value for each, value in itertools.pairwise(typed) if each == option and not value.startswith("-")]
    values += [each.partition("=")[2] for each in typed if each.startswith(f"{option}=")]
    of_path = overrides_of_path(values[0]) if values and key in ("data", "data.root", "data.path") else None
    override = of_path or shell_quoted(f"{key}={values[0] if values else 'VALUE'}")
    return f"; write {override}, without dashes"
