"""Reconstructions of a masked autoencoder beside the original and the masked image."""

from collections.abc import Sequence
from os import PathLike
from pathlib import Path

import numpy as np

from vit.report.figures.style import FONT, INK, MUTED, RULE, literal, new_figure, save_figure

COLUMNS = ("original", "masked", "reconstructed")
GREY = 128  # value of masked patches


def reconstructions_picture(path: str | PathLike[str], originals: Sequence[np.ndarray], masked: Sequence[np.ndarray],
                            reconstructed: Sequence[np.ndarray], heading: str) -> Path:
    """Draw two samples per row, each as three uint8 images (height,width,C)."""
    rows = -(-len(originals) // 2)
    figure = new_figure(1.5 * 6 + 0.4, 1.5 * rows + 0.8)
    figure.suptitle(literal(heading), x=0.01, ha="left", fontsize=11, fontweight="bold", color=INK, family=FONT)
    cells = figure.subplots(rows, 7, squeeze=False, gridspec_kw={"width_ratios": [1, 1, 1, 0.15, 1, 1, 1]})
    for axes in cells.ravel():
        axes.set_axis_off()
    for i, pictures in enumerate(zip(originals, masked, reconstructed, strict=True)):
        for column, picture in enumerate(pictures):
            axes = cells[i // 2, 4 * (i % 2) + column]
            axes.set_axis_on()
            smooth = None if len(picture) >= 64 else "nearest"
            axes.imshow(picture.squeeze(), cmap="gray", vmin=0, vmax=255, interpolation=smooth)
            axes.set(xticks=[], yticks=[])
            axes.spines[:].set_color(RULE)
            if i < 2:
                axes.set_title(COLUMNS[column], loc="left", fontsize=8.5, color=MUTED, family=FONT)
    return save_figure(figure, path)
