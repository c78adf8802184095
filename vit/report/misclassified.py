"""The wrong predictions with the highest probability, as a figure."""

from collections.abc import Sequence
from os import PathLike
from pathlib import Path

import numpy as np

from vit.report.figures import FONT, INK, MUTED, ORANGE, RULE, new_figure, save_figure, shorten


def misclassified_picture(path: str | PathLike[str], images: Sequence[np.ndarray], truths: Sequence[str],
                          predictions: Sequence[str], probabilities: Sequence[float], names: Sequence[str]) -> Path:
    """A grid of uint8 images (height,width,C), each with its true label, prediction, probability and file name."""
    tallest = max((image.shape[0] / image.shape[1] for image in images), default=1.0)
    max_columns, width = (6, 1.9) if tallest > 0.5 else (4, 2.9)  # images of text lines are wide
    columns = min(max(len(images), 1), max_columns)
    rows = max(-(-len(images) // columns), 1)
    figure = new_figure(width * columns, rows * (width * min(tallest, 2.0) + 0.55) + 0.6)
    figure.suptitle("Wrong predictions, most confident first" if len(images) else "No wrong predictions", x=0.01,
                    ha="left", fontsize=12, fontweight="bold", color=INK, family=FONT)
    cells = figure.subplots(rows, columns, squeeze=False).ravel()
    for axes in cells:
        axes.set_axis_off()
    samples = zip(images, truths, predictions, probabilities, names, strict=True)
    for axes, (image, truth, prediction, probability, name) in zip(cells, samples, strict=False):
        smooth = None if len(image) >= 64 else "nearest"
        axes.imshow(image.squeeze(), cmap="gray", vmin=0, vmax=255, interpolation=smooth)
        axes.set_axis_on()
        axes.set(xticks=[], yticks=[])
        axes.spines[:].set_color(RULE)
        axes.set_title(f"pred: {shorten(prediction, 14)}, {probability:.0%}", loc="left", fontsize=8.5, color=ORANGE,
                       family=FONT, pad=14)
        axes.annotate(f"true: {shorten(truth, 20)}", (0, 1), xycoords="axes fraction", xytext=(0, 4), fontsize=8.5,
                      textcoords="offset points", color=INK, family=FONT)
        axes.set_xlabel(shorten(Path(name).name, 22), fontsize=6.5, color=MUTED, loc="left", family=FONT)
    return save_figure(figure, path)
