"""`vit train | predict | evaluate | convert | probe | compare-finetuning | attention | audit | models | card | push`.

Heavy imports stand inside the commands, so that help and typing errors are answered at once.
"""

import os
import sys
from typing import Annotated

import typer

from vit.cli.comparing import compare_finetuning
from vit.cli.converting import convert
from vit.cli.evaluating import evaluate
from vit.cli.inspecting import audit, models
from vit.cli.predicting import predict
from vit.cli.probing import probe
from vit.cli.sharing import card, push
from vit.cli.terminal import error_text, failed, plain_warnings
from vit.cli.watching import attention

app = typer.Typer(
    help="Vision Transformers to train, fine-tune, understand and use.",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
EVERYTHING = {"ignore_unknown_options": True, "allow_extra_args": True, "help_option_names": []}


def main(argv: list[str] | None = None) -> int:
    """Run one command and return its exit code: 0 done, 1 failed, 2 not understood, 130 interrupted."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    debug = "--debug" in arguments or os.environ.get("VIT_DEBUG", "0") not in ("", "0")
    arguments = [word for word in arguments if word != "--debug"]
    try:
        with plain_warnings():
            return app(arguments, prog_name="vit", standalone_mode=False, obj={"debug": debug}) or 0
    except KeyboardInterrupt:
        return failed("interrupted", 130)
    except typer.Abort:
        return failed("interrupted", 130)
    except BrokenPipeError:  # the reader of a pipe went away, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except Exception as error:
        if debug:
            raise
        return failed(error_text(error), getattr(error, "exit_code", 1))


@app.callback(invoke_without_command=True)
def about(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Show the version and exit.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error (also VIT_DEBUG=1).")] = False,
) -> None:
    if version:
        from vit import __version__

        typer.echo(f"vit {__version__}")
    elif context.invoked_subcommand is None:
        typer.echo(context.get_help())


@app.command(context_settings=EVERYTHING)
def train(context: typer.Context) -> None:
    """Train a model: vit train data=folder data.root=photos model=small."""
    from vit.run import main as launch

    raise typer.Exit(launch([*context.args, *(["--debug"] if context.obj["debug"] else [])]) or 0)


for command in (predict, convert, evaluate, attention, audit, models, probe, compare_finetuning, card, push):
    app.command()(command)
