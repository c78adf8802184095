"""`vit predict --explain`: the search of each generated text as a tree."""

import os
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

import typer

from vit.cli.prediction.options import STDIN, Request
from vit.cli.prediction.prediction_rows import generation_settings, image_paths, read_lines
from vit.cli.terminal import print_written

if TYPE_CHECKING:
    from vit.inference import MaskedTextPredictor, Predictor, Seq2SeqPredictor, TextPredictor


def show_searches(
    predictor: "Predictor | TextPredictor | MaskedTextPredictor | Seq2SeqPredictor", request: Request,
    options: dict, dark: bool,
) -> None:
    """Print the search of each source as a tree. With `--output`, also draw the tree of a single source. The sources
    are texts and files with one text per line; for image-to-text models, images and folders of images.

    Args:
        options: settings of generation that differ from the saved ones.

    Raises:
        BadParameter: the model does not generate text, an option cannot be used with a tree, or there are several
            sources for one figure.
        BadImage, BadText: a source cannot be read.
    """
    from rich.console import Console

    from vit.inference import Seq2SeqPredictor
    from vit.report.figures.search_tree import check_file, search_lines, write_search

    if not isinstance(predictor, Seq2SeqPredictor):
        raise typer.BadParameter("--explain shows how a text is generated, but this model generates no text; "
                                 "vit attention shows what it attends to")
    if request.format is not None or options.get("sample"):
        option = "--sample draws tokens" if options.get("sample") else "--format is for tables"
        raise typer.BadParameter(f"{option}, but --explain shows the tree of a search; leave one of them out")
    if request.augmentations:
        options = options | {"tta": request.augmentations}
    settings, output = generation_settings(predictor, request, options), request.output
    if output is not None:
        check_file(output)
    sources = list(named_sources(predictor, request))
    if output is not None and len(sources) != 1:
        raise typer.BadParameter(f"a figure shows the search of one source, but there are {len(sources)}; pass one, "
                                 "or leave --output out")
    console = Console(highlight=False)
    for name, source in sources:
        search = predictor.search(source, settings, name)
        for line in search_lines(search):
            console.print(line, soft_wrap=True)
        if output is not None:
            print_written(str(write_search(output, search, dark)))


def named_sources(predictor: "Seq2SeqPredictor", request: Request) -> Iterator[tuple[str, object]]:
    """The name and the text or image file of every source."""
    if predictor.is_image_to_text:
        from vit.inference import named_images

        yield from named_images(image_paths(request)[0])
        return
    for argument in request.inputs or [STDIN]:
        if argument == STDIN or os.path.exists(argument):
            yield from ((line.name, line.text) for line in read_lines(replace(request, inputs=[argument])))
        else:
            yield "the text", argument
