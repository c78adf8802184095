"""The film of a training run: attention and predictions of a few samples after each epoch, as an animated GIF."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from os import PathLike
from pathlib import Path

import numpy as np
from PIL import Image, ImageColor, ImageDraw, ImageFont

from vit.files.atomic import write_atomically
from vit.messages import left_to_right
from vit.report.attention.heat import enlarged, heat_picture
from vit.report.figures.style import BLUE, DARK_ORANGE, INK, MUTED, ORANGE, RULE, cut_middle, drawable, font_file

SIDE, GAP, TEXT, TOP = 160, 16, 62, 52  # pixels: image side, gap between images, text below each, title on top
WIDEST = 1600  # maximum width of a frame of stacked pictures, in pixels
SECONDS, LAST = 0.4, 2.5  # duration of a frame, and of the last one
COLOURS = 96  # number of colours of a frame
EXACT = ("white", INK, MUTED, RULE, BLUE, ORANGE, DARK_ORANGE)  # of text and bars, which the palette would lose


@dataclass(frozen=True)
class FilmSample:
    """An image and its prediction after an epoch.

    Args:
        image: uint8 (height,width,C), the input of the model.
        rollout: (rows,columns), the share of each patch in the pooled output; None for a model without attention.
        label, predicted: the true and the predicted class.
        probability: probability of the predicted class, in [0,1].
    """

    image: np.ndarray
    rollout: np.ndarray | None
    label: str
    predicted: str
    probability: float


def film_frame(samples: Sequence[FilmSample], title: str) -> Image.Image:
    """The images in rows of four, each with a bar for the probability, blue if the prediction is correct and orange
    if not, the predicted class and, if that is wrong, the true one.
    """
    columns = min(len(samples), 4)
    rows = -(-len(samples) // columns)
    frame = Image.new("RGB", (GAP + columns * (SIDE + GAP), TOP + rows * (SIDE + TEXT)), "white")
    draw = ImageDraw.Draw(frame)
    draw.text((GAP, 12), title, INK, font(title, 22, True))
    for index, sample in enumerate(samples):
        row, column = divmod(index, columns)
        draw_sample(frame, draw, sample, GAP + column * (SIDE + GAP), TOP + row * (SIDE + TEXT))
    return frame


def stacked_frame(pictures: Sequence[Image.Image], title: str) -> Image.Image:
    """Pictures one below the other, scaled down by a common factor if one is wider than `WIDEST`."""
    scale = min(WIDEST / max(picture.width for picture in pictures), 1.0)
    sizes = [(round(picture.width * scale), round(picture.height * scale)) for picture in pictures]
    frame = Image.new("RGB", (max(width for width, _ in sizes), TOP + sum(height for _, height in sizes)), "white")
    ImageDraw.Draw(frame).text((GAP, 12), title, INK, font(title, 22, True))
    y = TOP
    for picture, size in zip(pictures, sizes, strict=True):
        frame.paste(picture.resize(size, Image.Resampling.LANCZOS), (0, y))
        y += size[1]
    return frame


def draw_sample(frame: Image.Image, draw: ImageDraw.ImageDraw, sample: FilmSample, x: int, y: int) -> None:
    """Draw the image with its rollout at (x, y), and its prediction below."""
    image, rollout = sample.image, sample.rollout
    picture = enlarged(image) if rollout is None else Image.fromarray(heat_picture(image, rollout))
    picture = picture.convert("RGB")
    scale = SIDE / max(picture.size)
    size = max(round(picture.width * scale), 1), max(round(picture.height * scale), 1)
    frame.paste(picture.resize(size, Image.Resampling.NEAREST if scale >= 1 else Image.Resampling.BILINEAR), (x, y))
    right = sample.predicted == sample.label
    draw.rectangle((x, y + SIDE + 5, x + SIDE - 1, y + SIDE + 9), RULE)
    if (length := round(SIDE * sample.probability)) > 0:
        draw.rectangle((x, y + SIDE + 5, x + length - 1, y + SIDE + 9), BLUE if right else ORANGE)
    colour = INK if right else DARK_ORANGE
    write_name(draw, (x, y + SIDE + 13), "", sample.predicted, f" {sample.probability:.0%}", colour, 16, right)
    if not right:
        write_name(draw, (x, y + SIDE + 34), "not ", sample.label, "", MUTED, 13)


def write_name(draw: ImageDraw.ImageDraw, position: tuple[int, int], before: str, name: str, after: str, colour: str,
               size: int, bold: bool = False) -> None:
    """A name between two texts, shortened in its middle to the width of an image."""
    name = drawable(name)
    for length in range(len(name), 0, -1):
        text = left_to_right(before, cut_middle(name, length), after)
        face = font(text, size, bold)
        if draw.textlength(text, face) <= SIDE:
            break
    draw.text(position, text, colour, face)


def font(text: str, size: int, bold: bool = False) -> ImageFont.FreeTypeFont:
    """The font of the figures that has the letters of a text."""
    return load_font(font_file(text, bold), size)


load_font = cache(ImageFont.truetype)


def with_palette(frame: Image.Image) -> Image.Image:
    """A frame with `COLOURS` colours, among them those of `EXACT`."""
    chosen = frame.quantize(COLOURS - len(EXACT), dither=Image.Dither.NONE).getpalette()
    palette = Image.new("P", (1, 1))
    palette.putpalette([value for name in EXACT for value in ImageColor.getrgb(name)] + chosen)
    return frame.quantize(palette=palette, dither=Image.Dither.NONE)


def write_film(path: str | PathLike[str], frames: Sequence[str | PathLike[str]]) -> Path:
    """Join the pictures of the frames, in order, to an animated GIF that repeats.

    Raises:
        CheckpointError: the file cannot be written.
        ValueError: there are no frames.
    """
    path = Path(path)
    if not frames:
        raise ValueError(f"{path} needs at least one frame, but there are none")
    first, *others = [with_palette(Image.open(each).convert("RGB")) for each in frames]
    durations = [round(1000 * SECONDS)] * len(others) + [round(1000 * LAST)]
    options = {"save_all": True, "append_images": others, "duration": durations, "loop": 0}
    write_atomically(path, lambda file: first.save(file, "GIF", **options))
    return path
