"""`vit attention`: what a saved model looks at."""

from pathlib import Path
from typing import Annotated

import typer

from vit.cli.terminal import Device, Model, check_writable, stderr

Source = Annotated[str | None, typer.Argument(help="An image file, or a text, as the model takes them.",
                                              show_default=False)]
Output = Annotated[Path, typer.Option("--output", "-o", help="Pictures (.png, .svg, .pdf) or a page (.html).")]
Layers = Annotated[list[int] | None, typer.Option(
    "--layer", help="A layer to show, from 0, or from -1 backwards; again for more. All by default.")]
Positions = Annotated[bool, typer.Option("--positions", help="Also how alike the position encodings are.")]


def attention(
    model: Model,
    source: Source = None,
    output: Output = Path("attention.png"),
    layer: Layers = None,
    positions: Positions = False,
    device: Device = None,
) -> None:
    """Show what a model looks at: the attention of every layer and head, and its rollout over an image."""
    if source is None and not positions:
        raise typer.BadParameter("name an image or a text, or say --positions")
    check_writable(output)
    from vit.inference import load
    from vit.report.watch import watch

    for file in watch(load(model, device), source, output, layer or [], positions):
        stderr().print(f"wrote {file}", markup=False, soft_wrap=True)
