"""The report of `vit attention`: attention maps of a saved model for one input, as figures or an HTML page."""

from collections.abc import Sequence
from dataclasses import replace
from os import PathLike
from pathlib import Path

from vit.inference import (
    MaskedTextPredictor,
    MultiLabelPrediction,
    Prediction,
    Seq2SeqPredictor,
    TextPredictor,
)
from vit.messages import ArgumentError, left_to_right
from vit.report.attention.figures import tokens_picture
from vit.report.attention.image_figures import image_picture, image_to_text_picture
from vit.report.attention.maps import ImageMaps, TokenMaps, select_layers
from vit.report.attention.page import image_page, image_to_text_page, tokens_page
from vit.report.attention.positions import positions_picture
from vit.report.attention.recording import (
    AnyPredictor,
    NamedMaps,
    Seq2SeqAttention,
    has_scores,
    image_attention,
    masked_text_attention,
    position_vectors,
    seq2seq_attention,
    text_attention,
    token_similarity,
)
from vit.report.attention.similarity import similarity_picture

FILE_TYPES = (".png", ".svg", ".pdf", ".html")
PAGE_SIDE, FIGURE_SIDE = 1024, 2048  # pixels of a photo in a page and in a figure, at most


def write_attention(
    predictor: AnyPredictor, source: str | None, output: str | PathLike[str],
    layers: Sequence[int] = (), positions: bool = False, dark: bool = False,
    similarity: bool = False,
) -> list[Path]:
    """Write the attention of a model for one input, and return the files.

    Args:
        source: path of an image, or a text, whichever is the model's input; None for the positions alone.
        output: the extension selects the format: .html for an interactive page, .png, .svg or .pdf for figures.
        layers: indices of the layers to show, from the end if negative; all by default.
        positions: also write the similarity of the position embeddings.
        dark: figures for dark slides; a page follows the colour scheme of its reader.
        similarity: also write how similar tokens are after each block, and to what they were before it.

    Raises:
        BadImage: the image cannot be read.
        BadText: the text is longer than the model's limit.
        ValueError: the model is a timm model, the output has another extension or is a page with `dark`, a layer
            does not exist, or there is no source whose similarity could be shown.
    """
    output = Path(output)
    if similarity and source is None:
        raise ArgumentError("similarity=True shows the tokens of one input; pass an image or a text")
    if dark and output.suffix == ".html":
        raise ArgumentError(f"dark=True is for figures, but {output} is a page, which is light or dark as its reader's "
                            f"screen; leave it out, or write {output.with_suffix('.svg').name}")
    if output.suffix not in FILE_TYPES:
        raise ValueError(f"output={output} must end with {', '.join(FILE_TYPES[:-1])} or {FILE_TYPES[-1]}")
    if not hasattr(predictor.model, "embed"):
        raise ValueError(f"{predictor.bundle.path} is a model of kind {predictor.model.config.kind!r}, whose attention "
                         "cannot be recorded; use a vit_... model")
    check_has_attention(predictor, source)
    files = [] if source is None else write_source_attention(predictor, source, output, layers, dark)
    drawn = output.with_suffix(".png") if output.suffix == ".html" else output
    if similarity:
        heading = f"{source if is_text(predictor) else Path(source).name}: what each block changes"
        path = with_suffix_name(drawn, "similarity")
        files.append(similarity_picture(path, token_similarity(predictor, source), heading, dark))
    if positions:
        path = drawn if source is None else with_suffix_name(drawn, "positions")
        files.append(positions_picture(path, *position_vectors(predictor.model), dark=dark))
    return files


def check_has_attention(predictor: AnyPredictor, source: str | None) -> None:
    """Check that there is attention to draw for a source.

    Raises:
        ValueError: a source is given, and the model has neither attention between its tokens nor, for texts, a pooling
            by scores.
    """
    if source is not None and not has_scores(predictor.model):
        raise ValueError(f"{predictor.bundle.path} has mixer={predictor.model.config.mixer} between its tokens, and no "
                         "attention that could be shown; train with model.mixer=attention")


def write_source_attention(
    predictor: AnyPredictor, source: str, output: Path, layers: Sequence[int], dark: bool = False
) -> list[Path]:
    """Write the attention for one input, in the form that fits the kind of model; the title is its prediction,
    or only its name for a model without classes.

    Raises:
        BadImage, BadText, ValueError: as `write_attention`.
    """
    if isinstance(predictor, Seq2SeqPredictor):
        recorded = seq2seq_attention(predictor, source)
        title = generated_title(source if recorded.image is None else Path(source).name, recorded)
        return write_seq2seq(output, recorded, layers, title, dark)
    if isinstance(predictor, MaskedTextPredictor):
        return write_tokens(output, {"text": masked_text_attention(predictor, source)}, layers, source, dark)
    if isinstance(predictor, TextPredictor):
        texts = tuple(source.split("\t"))
        maps = text_attention(predictor, texts)
        title = class_title(source, predictor.predict([texts[0] if len(texts) == 1 else texts])[0])
        return write_tokens(output, {"text": maps}, layers, title, dark)
    side = PAGE_SIDE if output.suffix == ".html" else FIGURE_SIDE
    name = Path(source).name
    title = class_title(name, predictor.predict([source])[0]) if predictor.classes else name
    return [write_image(output, image_attention(predictor, source, side=side), layers, title, dark)]


def is_text(predictor: AnyPredictor) -> bool:
    """Whether the model reads texts; otherwise it reads images."""
    return getattr(predictor, "preprocessing", None) is None


def class_title(name: str, prediction: Prediction) -> str:
    """The input, and the predicted class with its probability, or the predicted labels with theirs."""
    if isinstance(prediction, MultiLabelPrediction):
        labels = list(zip(prediction.names, prediction.probabilities, strict=True))
        parts = [part for label, value in labels for part in (label, f" {value:.1%}, ")]
        return left_to_right(name, " → ", *(parts or ["no label"])).removesuffix(", ")
    return left_to_right(name, " → ", prediction.label, f" {prediction.probability:.1%}")


def generated_title(name: str, recorded: Seq2SeqAttention) -> str:
    """The source, and the generated text with its probability."""
    probability = "" if recorded.probability is None else f" {recorded.probability:.1%}"
    return left_to_right(name, " → ", recorded.text, probability)


def write_image(output: Path, maps: ImageMaps, layers: Sequence[int] = (), heading: str = "Attention",
                dark: bool = False) -> Path:
    """A page or a figure of the selected layers; the rollout is always over all layers.

    Raises:
        ValueError: a layer does not exist.
    """
    shown = list(select_layers(maps.layers, layers))
    if output.suffix == ".html":
        return image_page(output, maps, shown, heading)
    return image_picture(output, maps, shown, heading, dark)


def write_tokens(output: Path, maps: NamedMaps, layers: Sequence[int] = (), heading: str = "Attention",
                 dark: bool = False) -> list[Path]:
    """A page with all kinds of attention, or a figure for each; the first figure has the name of the output. The
    rollout is always over all layers.

    Raises:
        ValueError: a layer does not exist.
    """
    shown = {name: select_layers(each.layers, layers) for name, each in maps.items()}
    if output.suffix == ".html":
        panels = {name: replace(each, layers=shown[name]) for name, each in maps.items()}
        panels |= {f"{name}: pooling": each.pooled() for name, each in maps.items() if each.pooling is not None}
        return [tokens_page(output, {name: each for name, each in panels.items() if each.layers}, heading)]
    paths = [output, *(with_suffix_name(output, name) for name in list(maps)[1:])]
    return [tokens_picture(path, each, f"{heading}: {name}" if len(maps) > 1 else heading, dark, list(shown[name]))
            for path, (name, each) in zip(paths, maps.items(), strict=True)]


def with_suffix_name(path: Path, name: str) -> Path:
    """`a.png` and `target to source` -> `a-target-to-source.png`."""
    return path.with_name(f"{path.stem}-{name.replace(' ', '-')}{path.suffix}")


def write_seq2seq(output: Path, recorded: Seq2SeqAttention, layers: Sequence[int] = (), heading: str = "Attention",
                  dark: bool = False) -> list[Path]:
    """The attention of an encoder-decoder, over an image or between tokens; the first file is the cross-attention.

    Raises:
        ValueError: a layer does not exist.
    """
    if recorded.image is not None:
        return write_image_to_text(output, recorded, layers, heading, dark)
    return write_tokens(output, recorded.maps, layers, heading, dark)


def write_image_to_text(output: Path, recorded: Seq2SeqAttention, layers: Sequence[int] = (),
                        heading: str = "Attention", dark: bool = False) -> list[Path]:
    """A page, or two figures: the mean cross-attention of each token over the image, and that of each layer and head
    along the columns of the image.

    Raises:
        ValueError: a layer does not exist.
    """
    cross = recorded.maps["target to source"]
    selected = select_layers(cross.layers, layers).items()
    cross = TokenMaps({name: weights[:, :, recorded.prefix :] for name, weights in selected}, cross.queries,
                      cross.keys[recorded.prefix :])
    if output.suffix == ".html":
        others = {name: replace(maps, layers=select_layers(maps.layers, layers))
                  for name, maps in recorded.maps.items() if name == "target"}  # none in a recurrent decoder
        return [image_to_text_page(output, recorded.image, recorded.grid, cross, others, heading)]
    columns = TokenMaps({name: weights.reshape(*weights.shape[:2], *recorded.grid).sum(axis=2)
                         for name, weights in cross.layers.items()}, cross.queries,
                        [f"column {i}" for i in range(recorded.grid[1])])
    return [image_to_text_picture(output, recorded.image, cross, recorded.grid, heading, dark),
            tokens_picture(with_suffix_name(output, "heads"), columns, heading, dark)]
