"""`vit attention`: attention maps of a saved model for one input."""

import os
import re
from itertools import islice
from pathlib import Path
from typing import Annotated

import typer

from vit.cli.file_checks import TABLE_ENDINGS, check_not_an_input, check_order, check_writable, files_of_model
from vit.cli.shared_options import Device, Model
from vit.cli.terminal import print_without_effect, print_written

Source = Annotated[str | None, typer.Argument(help="An image file, or for a model of texts a text or a file with one.",
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
FIGURES = (".png", ".svg", ".pdf", ".html")


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
    if source is None and similarity:
        raise typer.BadParameter("--similarity shows the tokens of one input; pass an image or a text")
    check_writable(output)
    inputs = [] if source is None else [source]
    check_not_an_input(output, [*inputs, *files_of_model(model)])
    check_order(model, inputs)
    if output.suffix not in FIGURES:
        raise typer.BadParameter(f"--output {output} must end with {', '.join(FIGURES[:-1])} or {FIGURES[-1]}")
    if dark and output.suffix == ".html":
        raise typer.BadParameter("--dark is for figures, but a page is light or dark as its reader's screen; leave it "
                                 "out, or write a figure, such as .svg")
    from vit.inference import load
    from vit.report.attention.report import write_attention

    predictor = load(model, device)
    if source is None and layer:
        print_without_effect("--layer has no effect: it selects layers of the attention for an image or a text, and "
                             "neither is given")
    if source is not None and getattr(predictor, "preprocessing", None) is None:
        source = text_of(source)
    for file in write_attention(predictor, source, output, layer or [], positions, dark, similarity):
        print_written(str(file))


def text_of(source: str) -> str:
    """The text of an argument, or the only one of a file.

    Raises:
        FileNotFoundError: the argument is the name of a text file that does not exist.
        ValueError: it is a folder, or a file with another number of texts.
    """
    from vit.data.formats.delimited import iterate_lines
    from vit.messages import number_of

    path = Path(source)
    if not os.path.exists(source):  # Path.exists raises for long texts
        if not re.search(r"\s", source) and source.lower().endswith((".txt", *TABLE_ENDINGS)):
            raise FileNotFoundError(f"the file {source} does not exist; this model reads texts, so pass a text, or a "
                                    "file with one")
        return source
    if path.is_dir():
        raise ValueError(f"{source} is a folder, but this model reads texts; pass a text, or a file with one")
    lines = list(islice((line.text for line in iterate_lines(path) if line.text.strip()), 2))
    if len(lines) != 1:
        found = "no text" if not lines else f"more than {number_of(1, 'text')}"
        raise ValueError(f"{source} holds {found}, but attention is shown for one; pass the text itself")
    return lines[0]
