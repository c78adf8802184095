"""`vit convert`: a model of anybody written as somebody else opens it."""

import re
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer


class Target(StrEnum):
    timm = "timm"
    transformers = "transformers"
    torchvision = "torchvision"
    bundle = "bundle"


def convert(
    source: Annotated[str, typer.Argument(
        help="A file, a folder, a run, timm:NAME or hub:OWNER/NAME.", show_default=False)],
    dest: Annotated[Path, typer.Argument(help="A new folder; for torchvision a new file.", show_default=False)],
    to: Annotated[Target, typer.Option(help="Who is to open it; a bundle is this program's own folder.")],
    num_heads: Annotated[int | None, typer.Option(help="Where neither the source's config nor its size tells.")] = None,
    act: Annotated[str | None, typer.Option(help="gelu, gelu_tanh, quick_gelu, ...: likewise.")] = None,
    image_size: Annotated[str | None, typer.Option(
        metavar="SIZE", help="Another resolution, 384 or 384x256 (height x width): positions are resampled.")] = None,
    patch_size: Annotated[str | None, typer.Option(
        metavar="SIZE", help="Other patches, 8 or 8x16: their projection is resampled.")] = None,
    in_chans: Annotated[int | None, typer.Option(help="Another number of channels.")] = None,
    num_classes: Annotated[int | None, typer.Option(help="Another number: the head is new; 0 for none.")] = None,
    strict: Annotated[bool, typer.Option(help="Every tensor must be used and every one filled.")] = True,
) -> None:
    """Write a model for timm, transformers, torchvision or this program, and account for every tensor."""
    from vit.exchange.convert import convert as write

    report = write(source, dest, str(to), num_heads=num_heads, act=act, image_size=edges("--image-size", image_size),
                   patch_size=edges("--patch-size", patch_size), in_chans=in_chans, num_classes=num_classes,
                   strict=strict)
    typer.echo(report.table())
    typer.echo(f"wrote {dest} for {to}")


def edges(option: str, text: str | None) -> int | tuple[int, ...] | None:
    """384, or 384x256 for height and width."""
    if text is None:
        return None
    if not re.fullmatch(r"\d+(x\d+)?", text):
        raise typer.BadParameter(f"{option} {text} must be a number of pixels, such as 384, or height x width: 384x256")
    sizes = tuple(int(edge) for edge in text.split("x"))
    return sizes if len(sizes) == 2 else sizes[0]
