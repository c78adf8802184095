"""The `vit` command and its subcommands.

Heavy imports are inside the commands, so that help and usage errors take no time.
"""

import contextlib
import os
import re
import sys
from collections.abc import Iterator
from typing import Annotated, Any

import typer
import typer.core

from vit.cli.data.audit import audit
from vit.cli.data.next import choose_next
from vit.cli.evaluation.calibrate import calibrate
from vit.cli.evaluation.compare import compare
from vit.cli.evaluation.evaluate import evaluate
from vit.cli.evaluation.report import report
from vit.cli.exchange.convert import convert
from vit.cli.exchange.hub import card, push
from vit.cli.exchange.models import models
from vit.cli.help import help_of, load_help
from vit.cli.option_names import takes_path, typed_values, with_option_names, with_path_option
from vit.cli.prediction.attention import attention
from vit.cli.prediction.explain import explain
from vit.cli.prediction.predict import predict
from vit.cli.prediction.probe import probe
from vit.cli.terminal import TRAINING, error_text, print_error, print_interrupt, print_user_warnings
from vit.cli.training.bench import bench
from vit.cli.training.compare_finetuning import compare_finetuning
from vit.cli.training.cross_validate import cross_validate
from vit.cli.training.runs import runs
from vit.files.machine import discard_output, keep_freed_memory, limit_threads
from vit.run.deferred_modules import DeferredCompiler, defer
from vit.training.fault_tolerance.interrupts import stop_signals_as_interrupts


class Interrupted(Exception):
    """Raised from a KeyboardInterrupt, of Ctrl-C or another stop signal, which typer would turn into an exit code
    without a message.
    """


@contextlib.contextmanager
def interrupts_raised() -> Iterator[None]:
    """Within this context an interrupt is raised as `Interrupted`."""
    try:
        yield
    except KeyboardInterrupt as interrupt:
        raise Interrupted from interrupt


class Commands(typer.core.TyperGroup):
    """The commands; an interrupt reaches `main`, both while the arguments are read and while a command runs."""

    def make_context(self, *arguments: Any, **options: Any) -> typer.Context:
        with interrupts_raised():
            return super().make_context(*arguments, **options)

    def invoke(self, ctx: typer.Context) -> object:
        with interrupts_raised():
            return super().invoke(ctx)


app = typer.Typer(
    cls=Commands,
    help="Train, fine-tune, evaluate, explain and use Vision Transformers.",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
PATHS = ("model", "inputs", "runs", "folder", "dest")  # arguments that are paths, of one or more commands
PASS_THROUGH = {"ignore_unknown_options": True, "allow_extra_args": True, "help_option_names": []}


def main(argv: list[str] | None = None) -> int:
    """Run one command and return its exit code: 0 success, 1 failure, 2 invalid usage, 130 interrupted, or 128 + the
    number of another stop signal.

    `predict` also returns 3 if some of its inputs could not be read.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    debug = "--debug" in arguments or os.environ.get("VIT_DEBUG", "0") not in ("", "0")
    arguments = [argument for argument in arguments if argument != "--debug"]
    if not arguments or {"-h", "--help"} & set(arguments):
        load_help()
    defer(DeferredCompiler())  # timm imports it through torchvision
    try:
        with print_user_warnings(), stop_signals_as_interrupts():
            shared = {"debug": debug, "arguments": arguments}
            check_no_empty_path(arguments)
            with results_alone(arguments):
                return app(arguments, prog_name="vit", standalone_mode=False, obj=shared) or 0
    except (KeyboardInterrupt, Interrupted, typer.Abort) as interrupt:
        return print_interrupt(interrupt)
    except BrokenPipeError:  # the other end of a pipe has closed, as `head` does
        discard_output()
        return 1
    except Exception as error:
        if debug:
            raise
        return print_error(text_of(error, arguments), getattr(error, "exit_code", 1))


def command_of(arguments: list[str]) -> Any:
    """The command of a command line; None if there is none of this name."""
    return typer.main.get_command(app).commands.get(arguments[0]) if arguments else None


def check_no_empty_path(arguments: list[str]) -> None:
    """Check that no path is empty, as that of a variable of the shell that is not set: it would mean the current
    folder. With --explain an argument may be a text.

    Raises:
        BadParameter: an option or argument is empty, whose value is a path.
    """
    command = command_of(arguments)
    if command is None or "" not in arguments or command.name == "train":
        return
    options = [each for each in command.params if each.param_type_name == "option"]
    for option in filter(takes_path, options):
        if any(not value for value, _ in typed_values(option.opts, arguments)):
            raise typer.BadParameter(f"{option.opts[0]}: the path is empty")
    with_value = {name for each in options if not getattr(each, "is_flag", False) for name in each.opts}
    empty = [i for i, each in enumerate(arguments) if not each and arguments[i - 1] not in with_value]
    is_text = "--explain" in arguments
    if empty and not is_text and any(each.param_type_name == "argument" and each.name in PATHS
                                     for each in command.params):
        raise typer.BadParameter("an argument is empty; pass a path")


def results_alone(arguments: list[str]) -> contextlib.AbstractContextManager:
    """A context within which what is meant for people goes to standard error, if a file of the results is standard
    output, so that a pipe gets valid JSON or CSV only.
    """
    command = command_of(arguments)
    options = [] if command is None else [each for each in command.params if each.param_type_name == "option"]
    values = [value for each in options if takes_path(each) for value, _ in typed_values(each.opts, arguments)]
    is_stdout = any(value in ("/dev/stdout", "/dev/fd/1", "/proc/self/fd/1") for value in values)
    return contextlib.redirect_stdout(sys.stderr) if is_stdout else contextlib.nullcontext()


def text_of(error: Exception, arguments: list[str]) -> str:
    """The printed line of an error, which names the options of the command; keys of the config remain as they are."""
    from vit.run.config.overrides import ConfigError

    command = command_of(arguments)
    text = error_text(error)
    if arguments[0] in TRAINING and (option := re.search(r"No such option: (--config-name|-c)\b", text)):
        return f"{option[0]}; the primary config is chosen by hydra.job.config_name=NAME here"
    if command is None or isinstance(error, ConfigError):
        return text
    return with_path_option(with_option_names(text, command, arguments), command, arguments)


@app.callback(invoke_without_command=True)
def root(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Show the version and exit.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error (also VIT_DEBUG=1).")] = False,
) -> None:
    if version:
        from vit import __version__

        typer.echo(f"vit {__version__}")
    elif context.invoked_subcommand is None:
        typer.echo(context.get_help())
    else:
        limit_threads()
        keep_freed_memory()


@app.command(context_settings=PASS_THROUGH)
def train(context: typer.Context) -> None:
    """Train a model, e.g. vit train data=folder data.root=photos model=small; options: vit train --help."""
    from vit.run import main as run_training

    raise typer.Exit(run_training([*context.args, *(["--debug"] if context.obj["debug"] else [])]) or 0)


COMMANDS = (predict, convert, evaluate, report, compare, calibrate, attention, explain, audit, models, probe,
            compare_finetuning, cross_validate, runs, card, push, bench)
for command in COMMANDS:
    app.command(help=help_of(command))(command)
app.command("next", help=help_of(choose_next))(choose_next)
