"""Arguments and options that several commands share."""

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vit.cli.terminal import stderr

if TYPE_CHECKING:
    from typer.models import OptionInfo


class Precision(StrEnum):
    """Precision of the computation, by Lightning's names."""

    full = "32-true"
    bf16 = "bf16-mixed"
    fp16 = "16-mixed"


def check_overrides(context: typer.Context, overrides: list[str] | None) -> list[str] | None:
    """The overrides, whose syntax and options of groups are checked before torch is loaded; with folders of the user's
    own groups only their syntax.

    Raises:
        ConfigError: names the override.
    """
    if overrides:
        from vit.run.config.groups import check_groups
        from vit.run.config.hydra_interface import SEARCH_PATH
        from vit.run.config.overrides import parse

        single = [override for override in parse(overrides) if not override.is_sweep_override()]
        arguments = (context.find_root().obj or {}).get("arguments", [])
        if not any(each.startswith(("--config-dir", "-cd", SEARCH_PATH)) for each in arguments):
            check_groups(single, ())
    return overrides


Model = Annotated[Path, typer.Argument(
    help="A run folder, a model folder, weights that vit convert reads, timm:NAME or hub:OWNER/NAME.",
    show_default=False)]
ModelFolder = Annotated[Path, typer.Argument(help="Folder of a saved model or of a run.", show_default=False)]
Overrides = Annotated[list[str] | None, typer.Argument(
    metavar="[KEY=VALUE]...", help="Config overrides, such as data=folder data.root=photos.", show_default=False,
    callback=check_overrides)]
ConfigDir = Annotated[str | None, typer.Option(
    "--config-dir", "-cd", help="Additional folder with your own config groups.", show_default=False)]
Device = Annotated[str | None, typer.Option(
    help="Device to compute on: cpu, cuda, cuda:1, ...; by default the GPU if there is one.", show_default=False)]
BatchSize = Annotated[int, typer.Option(min=1, help="Number of inputs per forward pass.")]
ForwardPrecision = Annotated[Precision, typer.Option(help="Numerical precision of the forward pass.")]
EvaluatedSplit = Annotated[str | None, typer.Option(
    help="Split to evaluate: train, val or test; all evaluates every split of data that the model was not trained on. "
         "By default test, or val if there is no test split.", show_default=False)]
EvaluationBatchSize = Annotated[int | None, typer.Option(
    min=1, help="Number of samples per forward pass; by default as in the test after training, or 64.",
    show_default=False)]
EvaluationPrecision = Annotated[Precision | None, typer.Option(
    help="Numerical precision of the forward pass; by default as in the test after training, or 32-true.",
    show_default=False)]


def former_option(old: str, new: str) -> "OptionInfo":
    """A hidden option with the former name of another one; its use prints the new name."""

    def print_new_name(value: object) -> object:
        if value is not None:
            stderr().print(f"{old} is now called {new}", style="yellow", markup=False, highlight=False)
        return value

    return typer.Option(old, hidden=True, callback=print_new_name)


def current_value(value: Any, former: Any, new: str, old: str) -> Any:
    """The value of an option under its present or its former name.

    Raises:
        BadParameter: both are given.
    """
    if value is not None and former is not None:
        raise typer.BadParameter(f"{old} is the former name of {new}; give one of them")
    return former if value is None else value
