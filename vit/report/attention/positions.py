"""Similarity of position embeddings: the cosine between each two positions."""

import math
from os import PathLike
from pathlib import Path

import numpy as np

from vit.report.figures.style import FONT, literal, new_figure, save_figure
from vit.report.figures.theme import theme

MAX_MAPS = 16  # per axis; of a larger grid every second, third, ... position is shown


def similarity(table: np.ndarray) -> np.ndarray:
    """vectors (N,D), one per position -> cosines (N,N)"""
    table = table.astype(np.float64)
    unit = table / np.maximum(np.linalg.norm(table, axis=1, keepdims=True), 1e-12)
    return unit @ unit.T


def positions_picture(path: str | PathLike[str], table: np.ndarray, grid: tuple[int, ...],
                      heading: str = "Similarity of position embeddings", dark: bool = False) -> Path:
    """Vectors (N,D) of a sequence, grid (N,), as one matrix; of an image grid (rows, columns), as one map per position.

    The map of a position shows the cosine to each position of the grid.

    Raises:
        ValueError: the number of vectors is not that of the grid.
    """
    if math.prod(grid) != len(table):
        raise ValueError(f"the table has {len(table)} positions, but the grid {grid} has {math.prod(grid)}; "
                         "remove the rows of class token and registers")
    if len(grid) == 1:
        cells, ticks = similarity(table), None
    else:
        cells, ticks = _mosaic(similarity(table), *grid)
    height, width = cells.shape
    unit = max(min(7.5 / max(height, width), 0.4), 4.0 / max(height, width))
    colours = theme(dark)
    figure = new_figure(unit * width + 1.5, unit * height + 0.9, colours.paper)
    axes = figure.subplots()
    image = axes.imshow(cells, vmin=-1, vmax=1, cmap="RdBu_r", interpolation="nearest")
    axes.set_facecolor(colours.paper)
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0, colors=colours.muted, labelsize=10)
    if ticks is not None:
        axes.set_yticks(*ticks[0])
        axes.set_xticks(*ticks[1])
    axes.set_xlabel("column" if ticks else "position", fontsize=11, color=colours.muted, family=FONT)
    axes.set_ylabel("row" if ticks else "position", fontsize=11, color=colours.muted, family=FONT)
    bar = figure.colorbar(image, ax=axes, shrink=0.7, aspect=30)
    bar.outline.set_visible(False)
    bar.ax.tick_params(length=0, labelsize=10, colors=colours.muted)
    figure.suptitle(literal(heading), x=0.01, ha="left", fontsize=13, fontweight="bold", color=colours.ink, family=FONT)
    return save_figure(figure, path)


def _mosaic(cosines: np.ndarray, rows: int, columns: int) -> tuple[np.ndarray, list[tuple[list[float], list[int]]]]:
    """The maps side by side with a blank line between them, and the ticks (positions, labels) of both axes."""
    i, j = (np.arange(0, n, math.ceil(n / MAX_MAPS)) for n in (rows, columns))
    maps = cosines.reshape(rows, columns, rows, columns)[i][:, j]  # (shown rows,shown columns,rows,columns)
    maps = np.pad(maps, ((0, 0), (0, 0), (0, 1), (0, 1)), constant_values=np.nan)
    ticks = [([k * (n + 1) + (n - 1) / 2 for k in range(len(shown))], shown.tolist())
             for n, shown in ((rows, i), (columns, j))]
    return maps.transpose(0, 2, 1, 3).reshape(len(i) * (rows + 1), len(j) * (columns + 1))[:-1, :-1], ticks
