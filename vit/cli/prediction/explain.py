"""`vit explain`: the architecture of a model, with shapes, parameters and floating point operations."""

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from vit.cli.file_checks import check_writable
from vit.cli.shared_options import check_model
from vit.cli.terminal import print_without_effect, print_written
from vit.messages import on_one_line

if TYPE_CHECKING:
    from torch import nn

Model = Annotated[str, typer.Argument(
    help="Folder of a saved model or of a run, weights that vit convert reads, or a name such as vit_small or "
         "timm:resnet18.", show_default=False,
    callback=lambda name: check_model(name) if "/" in name else name)]
Values = Annotated[list[str] | None, typer.Argument(
    metavar="KEY=VALUE", help="Values for a model given by name, such as image_size=32.", show_default=False)]
Output = Annotated[Path | None, typer.Option("--output", "-o", help="Also draw the model into this file (.svg).")]
Tokens = Annotated[int | None, typer.Option(
    min=1, help="Models of texts: number of tokens for which operations are counted; by default 32, or the model's "
                "limit if it is lower.", show_default=False)]
TOKENS = 32
EXPONENT = re.compile(r"[+-]?\d+(\.\d*)?[eE][+-]?\d+")  # a number for Python and Hydra; a string in YAML 1.1


def explain(model: Model, values: Values = None, output: Output = None, tokens: Tokens = None) -> None:
    """Show the parts of a model with their output shapes, parameters and floating point operations."""
    from vit.report.figures.architecture import architecture_table, check_svg, write_architecture

    check_svg(output)
    check_writable(output)
    from rich.console import Console

    from vit.models.explanation import explain as traced

    network = opened(model, values or [])
    longest = getattr(network.config, "max_len", None)
    if longest is None and tokens is not None:
        print_without_effect(f"--tokens has no effect: {model} reads no texts")
    explanation = traced(network, tokens or min(TOKENS, longest or TOKENS))
    console, table = Console(), architecture_table(explanation)
    if not console.is_terminal:  # a file or a pipe has no width
        console.width = console.measure(table, options=console.options.update(width=1000)).maximum
    console.print(table)
    if output is not None:
        print_written(str(write_architecture(explanation, output)))


def opened(name: str, values: list[str]) -> "nn.Module":
    """The model of a folder, of weights, or of a name.

    Raises:
        ValueError: an unknown name or value, or values for a model that exists already.
        SourceError, BundleError: the source cannot be read.
    """
    from vit.exchange.opening import open_model
    from vit.exchange.source_names import HUB
    from vit.models import create_model

    is_path = Path(name).exists() or ("/" in name and not name.startswith("timm"))
    if not is_path and not name.startswith(HUB):
        options = dict(map(parsed, values))
        if "name" in options:
            raise ValueError(f"name={options['name']}: the model is named by {name}; leave name= out")
        return create_model(name, **options)
    if values:
        raise ValueError(f"{name} is not the name of a new model, so it takes no values; leave out {values[0]}")
    return open_model(name, features_only=True).model


def parsed(value: str) -> tuple[str, object]:
    """`image_size=32` as a name and a value.

    Raises:
        ValueError: there is no `=`, or the value is not YAML.
    """
    import yaml

    key, equals, text = value.partition("=")
    if not equals:
        raise ValueError(f"{value!r} must have the form KEY=VALUE, such as image_size=32")
    try:
        return key, float(text) if EXPONENT.fullmatch(text) else yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ValueError(f"{text!r}, the value of {key}, cannot be read: {on_one_line(error)}") from error
