"""What commands share: arguments they all take, progress and errors on standard error."""

import os
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from vit.messages import error_message

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress

    from vit.data.images.files import LeftOut
    from vit.inference import Bad


class Precision(StrEnum):
    full = "32-true"
    bf16 = "bf16-mixed"
    fp16 = "16-mixed"


Model = Annotated[Path, typer.Argument(help="A saved model's folder, or a run folder.", show_default=False)]
Words = Annotated[list[str] | None, typer.Argument(
    metavar="[KEY=VALUE]...", help="Config words, such as data=folder data.root=photos.", show_default=False)]
ConfigDir = Annotated[str | None, typer.Option(
    "--config-dir", "-cd", help="A folder of config groups of your own, besides those of vit.", show_default=False)]
Device = Annotated[str | None, typer.Option(help="cpu, cuda, cuda:1, ...; the GPU where there is one by default.")]


def check_writable(file: Path | None) -> None:
    """Say before the long work, not after it, that the result could not be written."""
    if file is None:
        return
    if file.is_dir():
        raise ValueError(f"{file} is a folder; give the name of a file")
    if not file.absolute().parent.is_dir():
        raise ValueError(f"{file.parent} is not a folder; make it first, or choose another place for {file.name}")
    if not os.access(file if file.exists() else file.absolute().parent, os.W_OK):
        raise ValueError(f"{file} cannot be written: no permission; choose another place")


def list_unreadable(unreadable: Sequence["Bad"], total: int, unit: str = "files", limit: int = 100) -> None:
    if not unreadable:
        return
    console = stderr()
    console.print(f"{len(unreadable)} of {total} {unit} could not be read:", style="yellow", markup=False)
    for error in unreadable[:limit]:
        console.print(f"  {error}", markup=False, highlight=False, soft_wrap=True)
    if len(unreadable) > limit:
        console.print(f"  and {len(unreadable) - limit} more", markup=False, highlight=False)


def list_left_out(left_out: Sequence["LeftOut"], used: int) -> None:
    """What folders hold besides the files that were used: how many for each reason, and an example."""
    if not left_out:
        return
    from vit.data.errors import printable
    from vit.data.images.files import summary

    text = f"left out {len(left_out)} of {used + len(left_out)} found: {summary(left_out)}, "
    stderr().print(f"{text}such as {printable(left_out[0][0])}", markup=False, highlight=False, soft_wrap=True)


def stderr() -> "Console":
    from rich.console import Console

    return Console(stderr=True)


@contextmanager
def plain_warnings() -> Iterator[None]:
    """Warnings for users in their own words alone, without the place in the code that Python puts around them."""
    with warnings.catch_warnings():
        usual = warnings.showwarning

        def show(message: Warning | str, category: type[Warning], *place: object, **more: object) -> None:
            if category is UserWarning:
                stderr().print(str(message), style="yellow", markup=False, highlight=False, soft_wrap=True)
            else:
                usual(message, category, *place, **more)

        warnings.showwarning = show
        yield


def progress() -> "Progress":
    """A bar on standard error with rate and time left; nothing where that is no terminal."""
    from vit.report.bar import progress_bar

    return progress_bar(stderr())


def failed(text: str, code: int) -> int:
    console = stderr()
    console.print("error: ", style="bold red", end="")
    console.print(text, style="red", markup=False, highlight=False, soft_wrap=True)
    return code


def error_text(error: Exception) -> str:
    """The line that is printed about an error; errors of the command line also name the command that lists options."""
    if hasattr(error, "format_message"):
        return f"{' '.join(error.format_message().split())} (vit --help lists the commands and options)"
    return error_message(error)
