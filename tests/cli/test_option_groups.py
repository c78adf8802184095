"""The fields of a dataclass are options of a command, as if they were its parameters."""

from dataclasses import dataclass
from typing import Annotated

import typer
from typer.testing import CliRunner

from vit.cli.option_groups import with_option_groups

Beam = Annotated[int, typer.Option("--beam", "-b", min=1, help="Beam width.")]
Names = Annotated[list[str] | None, typer.Option("--name", help="May be repeated.")]


@dataclass(frozen=True)
class Search:
    beam: Beam = 5
    names: Names = None


@dataclass(frozen=True)
class Task:
    text: Annotated[str, typer.Argument(help="A text.")]


def app_of(command):
    app = typer.Typer()
    app.command("run")(command)
    return app


@with_option_groups
def grouped(task: Task, search: Search, quiet: bool = False) -> None:
    """Search."""
    print(task.text, search.beam, search.names, quiet)


def flat(text: Annotated[str, typer.Argument(help="A text.")], beam: Beam = 5, names: Names = None,
         quiet: bool = False) -> None:
    """Search."""
    print(text, beam, names, quiet)


def test_help_values_and_errors_are_those_of_single_options():
    for line in (["--help"], ["a"], ["-b", "2", "a"], ["a", "--name", "x", "--name", "y", "--quiet"], ["a", "-b", "0"],
                 [], ["a", "--beem", "2"]):
        first, second = (CliRunner().invoke(app_of(command), line) for command in (grouped, flat))
        assert (first.output, first.exit_code) == (second.output, second.exit_code), line
    assert CliRunner().invoke(app_of(grouped), ["-b", "2", "a"]).output == "a 2 None False\n"
