"""`vit convert`: convert a model between the formats of vit, timm, transformers and torchvision, or to a program."""

import re
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from vit.cli.shared_options import check_model, current_value, former_option


class Target(StrEnum):
    timm = "timm"
    transformers = "transformers"
    torchvision = "torchvision"
    bundle = "bundle"
    onnx = "onnx"
    torch_export = "torch_export"


def convert(
    source: Annotated[str, typer.Argument(
        help="A file, a folder, a run, timm:NAME or hub:OWNER/NAME.", show_default=False, callback=check_model)],
    dest: Annotated[Path, typer.Argument(
        help="A new folder; a new file for torchvision, onnx (.onnx) and torch_export (.pt2).", show_default=False)],
    to: Annotated[Target, typer.Option(
        help="Library that loads the result, or bundle for the format of vit. onnx and torch_export are programs from "
             "pixels to probabilities, which run without vit.")],
    num_heads: Annotated[int | None, typer.Option(
        help="Number of heads; only needed if it cannot be inferred from the source.", show_default=False)] = None,
    activation: Annotated[str | None, typer.Option(
        help="gelu, gelu_tanh, quick_gelu, ...; only needed if it cannot be inferred from the source.",
        show_default=False)] = None,
    act: Annotated[str | None, former_option("--act", "--activation")] = None,
    image_size: Annotated[str | None, typer.Option(
        metavar="SIZE", help="New image size in pixels, 384 or 384x256 (height x width): resamples positions.")] = None,
    patch_size: Annotated[str | None, typer.Option(
        metavar="SIZE", help="New patch size in pixels, 8 or 8x16: resamples the patch projection.")] = None,
    in_chans: Annotated[int | None, typer.Option(help="New number of input channels.")] = None,
    num_classes: Annotated[int | None, typer.Option(
        help="New number of classes: initializes a new head; 0 removes the head.")] = None,
    strict: Annotated[bool, typer.Option(
        help="Fail if a tensor of the source is unused or a tensor of the model is missing.")] = True,
) -> None:
    """Convert a model for timm, transformers, torchvision, vit, ONNX or torch.export; report on every tensor."""
    activation = current_value(activation, act, "--activation", "--act")
    from vit.exchange.convert import convert as write

    report = write(source, dest, str(to), num_heads=num_heads, activation=activation,
                   image_size=parse_size("--image-size", image_size), patch_size=parse_size("--patch-size", patch_size),
                   in_chans=in_chans, num_classes=num_classes, strict=strict)
    typer.echo(report.table())
    typer.echo(f"wrote {dest} for {to}")


def parse_size(option: str, text: str | None) -> int | tuple[int, ...] | None:
    """384, or 384x256 for (height, width).

    Raises:
        BadParameter: the text is of another form.
    """
    if text is None:
        return None
    if not re.fullmatch(r"\d+(x\d+)?", text):
        raise typer.BadParameter(f"{option} {text} must be a number of pixels, such as 384, or height x width: 384x256")
    sizes = tuple(int(size) for size in text.split("x"))
    return sizes if len(sizes) == 2 else sizes[0]
