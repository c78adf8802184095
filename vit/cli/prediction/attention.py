"""`vit attention`: attention maps of a saved model for one input."""

from pathlib import Path
from typing import Annotated

import typer

from vit.cli.shared_options import Device, Model
from vit.cli.terminal import check_not_an_input, check_writable, files_of_model, print_without_effect, print_written

Source = Annotated[str | None, typer.Argument(help="An image file, or a text if the model reads texts.",
                                              show_default=False)]
Output = Annotated[Path, typer.Option(
    "--output", "-o", help="Figure (.png, .svg, .pdf) or HTML page (.html) to write.")]
Layers = Annotated[list[int] | None, typer.Option(
    "--layer", help="Index of a layer to show, from 0, or -1 for the last; may be repeated. By default all layers.",
    show_default=False)]
Positions = Annotated[bool, typer.Option("--positions", help="Also show the similarity of the position embeddings.")]
Similar = Annotated[bool, typer.Option(
    "--similarity", help="Also show what each block changes: how similar the tokens are to each other after the block, "
                         "and how similar each token is to itself before the block.")]
Dark = Annotated[bool, typer.Option("--dark", help="Draw the figure for dark slides.")]


def attention(
    model: Model,
    source: Source = None,
    output: Output = Path("attention.png"),
    layer: Layers = None,
    positions: Positions = False,
    similarity: Similar = False,
    dark: Dark = False,
    device: Device = None,
) -> None:
    """Show the attention of a model for one input: each layer and head with its entropy, and the attention rollout.

    The title is the prediction with its probability.
    """
    if source is None and not positions:
        raise typer.BadParameter("pass an image or a text, or add --positions")
    check_writable(output)
    check_not_an_input(output, [*([] if source is None else [source]), *files_of_model(model)])
    from vit.inference import load
    from vit.report.attention.report import write_attention

    predictor = load(model, device)
    if source is None and layer:
        print_without_effect("--layer has no effect: it selects layers of the attention for an image or a text, and "
                             "neither is given")
    for file in write_attention(predictor, source, output, layer or [], positions, dark, similarity):
        print_written(str(file))
