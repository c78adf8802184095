"""The worst mistakes of an evaluation as a picture: what the model was surest of and wrong about."""

from collections.abc import Sequence
from os import PathLike
from pathlib import Path

import numpy as np

from vit.report.canvas import FONT, INK, MUTED, ORANGE, RULE, new_figure, save, short


def mistakes_picture(path: str | PathLike[str], images: Sequence[np.ndarray], truths: Sequence[str],
                     answers: Sequence[str], probabilities: Sequence[float], names: Sequence[str]) -> Path:
    """A grid of uint8 images (H, W, C), each with its true class, the answer, how sure the model was, and its file."""
    tallest = max((image.shape[0] / image.shape[1] for image in images), default=1.0)
    most, width = (6, 1.9) if tallest > 0.5 else (4, 2.9)  # lines of writing are wide
    columns = min(max(len(images), 1), most)
    rows = max(-(-len(images) // columns), 1)
    figure = new_figure(width * columns, rows * (width * min(tallest, 2.0) + 0.55) + 0.6)
    figure.suptitle("Worst mistakes: most certain first" if len(images) else "No mistakes", x=0.01, ha="left",
                    fontsize=12, fontweight="bold", color=INK, family=FONT)
    cells = figure.subplots(rows, columns, squeeze=False).ravel()
    for axes in cells:
        axes.set_axis_off()
    samples = zip(images, truths, answers, probabilities, names, strict=True)
    for axes, (image, truth, answer, sure, name) in zip(cells, samples, strict=False):  # the last cells may stay empty
        smooth = None if len(image) >= 64 else "nearest"
        axes.imshow(image.squeeze(), cmap="gray", vmin=0, vmax=255, interpolation=smooth)
        axes.set_axis_on()
        axes.set(xticks=[], yticks=[])
        axes.spines[:].set_color(RULE)
        said = f"said {short(answer, 14)}, {sure:.0%}"
        axes.set_title(said, loc="left", fontsize=8.5, color=ORANGE, family=FONT, pad=14)
        axes.annotate(f"is {short(truth, 20)}", (0, 1), xycoords="axes fraction", xytext=(0, 4), fontsize=8.5,
                      textcoords="offset points", color=INK, family=FONT)
        axes.set_xlabel(short(Path(name).name, 22), fontsize=6.5, color=MUTED, loc="left", family=FONT)
    return save(figure, path)
