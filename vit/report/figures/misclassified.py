"""The wrong predictions with the highest probability, as a figure."""

from collections.abc import Sequence
from os import PathLike
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from vit.messages import left_to_right
from vit.report.figures.style import (
    DARK_ORANGE,
    FONT,
    INK,
    MUTED,
    RULE,
    new_figure,
    save_figure,
    shorten,
    shorten_all,
)

ABOVE, BELOW, GAP, MARGIN = 0.42, 0.22, 0.2, 0.1  # inches around an image: for two lines, for its name, between columns
HEADING = 0.45  # inches


def misclassified_picture(path: str | PathLike[str], images: Sequence[np.ndarray], truths: Sequence[str],
                          predictions: Sequence[str], probabilities: Sequence[float], names: Sequence[str],
                          classes: Sequence[str] | None = None) -> Path:
    """A grid of uint8 images (height,width,C), each with its true label, prediction, probability and file name. The
    labels are names of `classes`, if there are classes.

    All images are drawn on one pair of axes in inches: an axes object per image takes ten times as long.
    """
    tallest = max((image.shape[0] / image.shape[1] for image in images), default=1.0)
    max_columns, width = (6, 1.7) if tallest > 0.5 else (4, 2.7)  # images of text lines are wide
    height = width * min(tallest, 2.0)
    columns = min(max(len(images), 1), max_columns)
    rows = max(-(-len(images) // columns), 1)
    size = (max((width + GAP) * columns, 3.6), HEADING + rows * (height + ABOVE + BELOW))
    figure = new_figure(*size)
    figure.set_layout_engine("none")
    axes = figure.add_axes((0, 0, 1, 1), xlim=(0, size[0]), ylim=(size[1], 0), autoscale_on=False)
    axes.set_axis_off()
    axes.text(MARGIN, HEADING / 2, "Wrong predictions, most confident first" if len(images) else "No wrong predictions",
              va="center", fontsize=12, fontweight="bold", color=INK, family=FONT)
    labels = list(dict.fromkeys([*predictions, *truths]))
    predicted, true = (dict(zip(labels, shorten_all(labels, length, classes), strict=True)) for length in (14, 19))
    samples = zip(images, truths, predictions, probabilities, names, strict=True)
    for number, (image, truth, prediction, probability, name) in enumerate(samples):
        left = MARGIN + (number % columns) * (width + GAP)
        top = HEADING + ABOVE + (number // columns) * (height + ABOVE + BELOW)
        bottom = draw_image(axes, image, left, top, width, height)
        text = left_to_right("pred: ", predicted[prediction], f", {probability:.0%}")
        axes.text(left, top - 0.2, text, color=DARK_ORANGE, fontsize=8, family=FONT)
        axes.text(left, top - 0.05, f"true: {true[truth]}", color=INK, fontsize=8, family=FONT)
        axes.text(left, bottom + 0.04, shorten(Path(name).name, 22), color=MUTED, fontsize=6.5, family=FONT, va="top")
    return save_figure(figure, path)


def draw_image(axes: Axes, image: np.ndarray, left: float, top: float, width: float, height: float) -> float:
    """Draw uint8 pixels (height,width,C) as large as they fit, with a frame; returns the lower edge."""
    scale = min(width / image.shape[1], height / image.shape[0])
    right, bottom = left + scale * image.shape[1], top + scale * image.shape[0]
    smooth = None if len(image) >= 64 else "nearest"
    axes.imshow(image.squeeze(), cmap="gray", vmin=0, vmax=255, interpolation=smooth, aspect="auto",
                extent=(left, right, bottom, top))
    axes.add_patch(Rectangle((left, top), right - left, bottom - top, fill=False, edgecolor=RULE, linewidth=0.8))
    return bottom
