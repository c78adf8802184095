"""Arguments and options that several commands share."""

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vit.cli.terminal import stderr
from vit.messages import did_you_mean, nearest_names

if TYPE_CHECKING:
    from typer.models import OptionInfo


SPLITS = ("train", "val", "test", "all")
MAX_COUNT = 2**31 - 1  # samples; itertools and NumPy accept no number above 2**63


class Precision(StrEnum):
    """Precision of the computation, by Lightning's names."""

    full = "32-true"
    bf16 = "bf16-mixed"
    fp16 = "16-mixed"


class ClassesToRank(StrEnum):
    """The classes among which a classifier chooses when it is evaluated: all of the model, or those in the data."""

    model = "model"
    data = "data"


def check_overrides(context: typer.Context, overrides: list[str] | None) -> list[str] | None:
    """The overrides, after a check of their syntax, of the options of groups and of the paths of data, before torch is
    loaded. With folders of the user's own groups only the syntax is checked.

    Raises:
        ConfigError: names the override.
        FileNotFoundError: the data does not exist.
    """
    if overrides:
        from vit.run.config.groups import check_groups
        from vit.run.config.hydra_interface import SEARCH_PATH
        from vit.run.config.overrides import parse
        from vit.run.config.paths import check_data_paths

        single = [override for override in parse(overrides) if not override.is_sweep_override()]
        arguments = (context.find_root().obj or {}).get("arguments", [])
        if not any(each.startswith(("--config-dir", "-cd", SEARCH_PATH)) for each in arguments):
            check_groups(single, ())
            data = {each.key_or_group.removeprefix("data."): each.value() for each in single
                    if each.key_or_group.startswith("data") and "${" not in each.input_line}
            if "data" in data:  # otherwise the model records which function reads the data
                check_data_paths({"_target_": f"vit.data.{data['data']}", **data})
    return overrides


def check_model(models: Any) -> Any:
    """The value of an argument or option that names one or several models, which exist; names of timm and the hub are
    looked up when they are opened.

    Raises:
        FileNotFoundError: there is no such path.
    """
    from vit.exchange.source_names import HUB, TIMM, hint_at_missing_source

    for model in listed_values(models):
        if (hint := hint_at_missing_source(str(model))) is not None:
            raise FileNotFoundError(f"{model}: there is no such model{hint} (accepted: a run folder, a model folder, a "
                                    f"file of weights, {TIMM}NAME or {HUB}OWNER/NAME)")
    return models


def listed_values(value: Any) -> list:
    """The values of an argument or option that may be repeated; none if it is not given."""
    if value is None:
        return []
    return value if isinstance(value, list) else [value]


def check_inputs(paths: Any) -> Any:
    """The value of an argument or option that names one or several files or folders, which exist.

    Raises:
        FileNotFoundError: one does not.
    """
    from vit.files.missing import hint_at_missing, is_missing

    for path in listed_values(paths):
        if is_missing(path):
            raise FileNotFoundError(f"{path} does not exist{hint_at_missing(path)}")
    return paths


def check_split(split: str | None) -> str | None:
    """The name of a split.

    Raises:
        BadParameter: it is not one of those that a data set may have.
    """
    if split is not None and split not in SPLITS:
        near = {"validation": "val", "valid": "val", "dev": "val"}.get(split.lower())
        hint = did_you_mean([near] if near else nearest_names(split, SPLITS))
        raise typer.BadParameter(f"{split!r} is not one of {', '.join(SPLITS)}{hint}")
    return split


Model = Annotated[Path, typer.Argument(
    help="A run folder, a model folder, weights that vit convert reads, timm:NAME or hub:OWNER/NAME.",
    show_default=False, callback=check_model)]
ModelFolder = Annotated[Path, typer.Argument(
    help="Folder of a saved model or of a run.", show_default=False, callback=check_model)]
Overrides = Annotated[list[str] | None, typer.Argument(
    metavar="KEY=VALUE", help="Config overrides, such as data=folder data.root=photos.", show_default=False,
    callback=check_overrides)]
ConfigDir = Annotated[str | None, typer.Option(
    "--config-dir", "-cd", help="Additional folder with your own config groups.", show_default=False)]
Device = Annotated[str | None, typer.Option(
    help="Device to compute on: cpu, cuda, cuda:1, ...; by default the GPU if there is one.", show_default=False)]
BatchSize = Annotated[int, typer.Option(min=1, max=MAX_COUNT, help="Number of inputs per forward pass.")]
ForwardPrecision = Annotated[Precision, typer.Option(help="Numerical precision of the forward pass.")]
EvaluatedSplit = Annotated[str | None, typer.Option(
    help="Split to evaluate: train, val or test; all evaluates every split of data that the model was not trained on. "
         "By default test, or val if there is no test split.", show_default=False, callback=check_split)]
EvaluationBatchSize = Annotated[int | None, typer.Option(
    min=1, max=MAX_COUNT, help="Number of samples per forward pass; by default as in the test after training, or 64.",
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
