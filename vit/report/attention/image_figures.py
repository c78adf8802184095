"""Attention over an image as figures: heat maps of all layers and heads, or of each generated token."""

from collections.abc import Sequence
from os import PathLike
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap, to_rgba
from PIL import Image

from vit.messages import left_to_right, number_of
from vit.report.attention.cells import (
    caption,
    colour_scale,
    map_caption,
    set_heading,
    small_multiples,
    type_size,
)
from vit.report.attention.figures import SCALE
from vit.report.attention.maps import ImageMaps, TokenMaps, head_entropy
from vit.report.figures.style import ORANGE, new_figure, save_figure, shorten
from vit.report.figures.theme import Theme, theme

HEAT = LinearSegmentedColormap.from_list("heat", [to_rgba(ORANGE, 0.0), to_rgba(ORANGE, 0.55), to_rgba("#ffe04d", 0.9)])
HEAT_ON_GREY = LinearSegmentedColormap.from_list("heat on grey", ["#4d4d4d", "#9a5638", "#f0d350"])  # of the scale
CELL, LARGE_CELL, BIG = 1.4, 2.4, 4.2  # inches: minimum and maximum width of a head's map, and width of the image
SMALL = 400  # maximum side of the image under a head's map, in pixels


def image_picture(path: str | PathLike[str], maps: ImageMaps, shown: Sequence[str] | None = None,
                  heading: str = "Attention", dark: bool = False) -> Path:
    """On the left the image and its rollout, then a row per layer with the mean over the heads and each head.

    The maps show the attention of the pooled output to the patches. The colours of a map range from transparent for 0
    to its maximum. The text above a map has this maximum and the entropy of the head in bits, averaged over all tokens.

    Args:
        shown: names of the layers to draw, all by default; the rollout is always over all layers.
    """
    colours = theme(dark)
    pooled = {name: heads for name, heads in maps.pooled_layers().items() if shown is None or name in shown}
    columns = 1 + max(map(len, pooled.values()))
    ratio = min(max(maps.image.shape[0] / maps.image.shape[1], 0.4), 2.0)
    cell = max(min(LARGE_CELL, 2 * BIG / len(pooled), 12 / columns), CELL)
    width = BIG + columns * cell + 0.9
    height = max(len(pooled) * (cell * ratio + 0.35) + 0.5, 2 * (BIG * ratio + 0.3) + 0.7) + 0.6
    figure = new_figure(width, height, colours.paper)
    left, right = figure.subfigures(1, 2, width_ratios=(BIG, width - BIG))
    points = type_size(11, width)
    cells = left.subplots(2, 1)
    _draw_image(cells[0], maps.image)
    caption(cells[0], "image", points, colours)
    label = f"rollout over {number_of(len(maps.layers), 'layer')},"
    _draw_heat(cells[1], dimmed(maps.image), maps.pooled_rollout(), label, points, colours)
    colour_scale(left, cells[1], HEAT_ON_GREY, SCALE, points, colours)
    grey = dimmed(maps.image, SMALL)
    counts, small = {name: len(heads) for name, heads in pooled.items()}, type_size(9, width)
    for name, row in small_multiples(right, counts, type_size(12, width), colours).items():
        heads, bits = pooled[name], [None, *head_entropy(maps.layers[name])]
        for axes, weights, entropy in zip(row, [heads.mean(axis=0), *heads], bits, strict=True):
            _draw_heat(axes, grey, weights, "", small, colours, entropy)
    set_heading(figure, heading, type_size(16, width), colours)
    return save_figure(figure, path)


def image_to_text_picture(path: str | PathLike[str], image: np.ndarray, maps: TokenMaps, grid: tuple[int, int],
                          heading: str = "Cross-attention of each token", dark: bool = False) -> Path:
    """Cross-attention of each generated token over the image, averaged over layers and heads.

    Args:
        maps: attention of the tokens (queries) to the patches (keys) in row-major order, without prefix tokens.
    """
    colours, (height, width) = theme(dark), image.shape[:2]
    columns = max(1, min(len(maps.queries), round(10 / max(2.0, 2.0 * width / height))))
    rows = -(-len(maps.queries) // columns)
    figure = new_figure(10.0, rows * (10.0 / columns * height / width + 0.36) + 0.7, colours.paper)
    cells, grey = figure.subplots(rows, columns, squeeze=False).ravel(), dimmed(image)
    for axes in cells:
        axes.set_axis_off()
    for axes, token, weights in zip(cells, maps.queries, maps.mean(), strict=False):  # the last cells may be empty
        _draw_heat(axes, grey, weights.reshape(grid), shorten(token, 16), 11, colours)
    set_heading(figure, heading, 14, colours)
    return save_figure(figure, path)


def dimmed(image: np.ndarray, side: int | None = None) -> np.ndarray:
    """uint8 (H,W,C) -> the image in dark grey (H,W), so that colours on it are visible; at most `side` pixels"""
    grey = (image.astype(np.float32).mean(axis=-1) * 0.6).astype(np.uint8)
    if side is None or max(grey.shape) <= side:
        return grey
    small = Image.fromarray(grey)
    small.thumbnail((side, side))
    return np.asarray(small)


def _draw_image(axes: Axes, image: np.ndarray) -> None:
    height, width = image.shape[:2]
    axes.imshow(image.squeeze(-1) if image.shape[2:] == (1,) else image, cmap="gray", vmin=0, vmax=255,
                interpolation="nearest" if height < 64 else None, extent=(0, width, height, 0))
    axes.set(xticks=[], yticks=[])
    axes.spines[:].set_visible(False)


def _draw_heat(axes: Axes, grey: np.ndarray, weights: np.ndarray, name: str, points: float, colours: Theme,
               bits: float | None = None) -> None:
    """Draw the heat map over the dimmed image (H,W); each weight covers its patch, without interpolation."""
    _draw_image(axes, grey)
    height, width = grey.shape
    axes.imshow(weights, vmin=0, vmax=max(weights.max(), 1e-12), cmap=HEAT, interpolation="nearest",
                extent=(0, width, height, 0))
    text = map_caption(weights, bits)
    caption(axes, left_to_right(name, f"  {text}") if name else text, points, colours)
