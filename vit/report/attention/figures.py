"""Attention between tokens as figures: all layers and heads, and what they amount to."""

from collections.abc import Sequence
from dataclasses import replace
from os import PathLike
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import SubFigure

from vit.messages import number_of
from vit.report.attention.cells import (
    caption,
    colour_scale,
    map_caption,
    name_tokens,
    set_heading,
    small_multiples,
    type_size,
)
from vit.report.attention.maps import Layers, TokenMaps, head_entropy
from vit.report.figures.style import new_figure, save_figure, shorten
from vit.report.figures.theme import Theme, theme

MIN_SPACING = 0.13  # inches between tokens; below it they are not labelled
BARS = 1.1  # inches of the bars of a pooling
POOLED = {"pooling": "share in the pooled vector", "rollout": "the same by rollout"}
SCALE = "attention of a row to a column;\nthe maximum (≤) of each\nmap is above it"


def tokens_picture(path: str | PathLike[str], maps: TokenMaps, heading: str = "Attention", dark: bool = False,
                   shown: Sequence[str] | None = None) -> Path:
    """Queries by row, keys by column: on the left the mean over all maps, the rollout and, of a classifier, the share
    of each token in the pooled vector; then a row per layer and a column per head.

    A map ranges from 0, the background, to its maximum, which is above it, beside the entropy of its head in bits.
    Without a layer that has attention only the pooling is drawn.

    Args:
        shown: names of the layers to draw, all by default; the rollout is always over all layers.
    """
    if not maps.layers:
        return _pooling_picture(path, maps.pooled(), heading, theme(dark))
    colours, names = theme(dark), [shorten(name, 12) for name in (*maps.queries, *maps.keys)]
    drawn = {name: weights for name, weights in maps.layers.items() if shown is None or name in shown}
    tokens, heads = max(len(maps.queries), len(maps.keys)), max(len(weights) for weights in drawn.values())
    side = min(max(0.19 * tokens, 1.4), 4.0, max(24 / heads, 1.4))
    big, margin = max(1.6 * side, 3.4), 0.1 * max(map(len, names))
    heights = [big + margin] * (1 + maps.is_self_attention) + [BARS, BARS + margin] * (maps.pooling is not None)
    width = big + margin + (1 + heads) * (side + 0.1) + margin + 1.0
    figure = new_figure(width, max(len(drawn) * (side + 0.4) + margin, sum(heights) + 0.6) + 1.1, colours.paper)
    left, right = figure.subfigures(1, 2, width_ratios=(big + margin, (1 + heads) * (side + 0.1) + margin + 0.6))
    cells = left.subplots(len(heights), 1, squeeze=False, height_ratios=heights)[:, 0]
    points, named = type_size(11, width), tokens * MIN_SPACING <= big
    _draw_summary(cells, maps, drawn, points, named, colours)
    colour_scale(left, cells[int(maps.is_self_attention)], colours.weights, SCALE, points, colours)
    if maps.pooling is not None:
        _draw_pooling(cells[-2:], maps.pooled(), points, named, colours)
    _draw_grid(right, replace(maps, layers=drawn), width, tokens * MIN_SPACING <= side, colours)
    set_heading(figure, heading, type_size(16, width), colours)
    return save_figure(figure, path)


def _draw_summary(cells: Sequence[Axes], maps: TokenMaps, shown: Layers, points: float, named: bool, colours: Theme
                  ) -> None:
    """The mean over the shown layers and, of self-attention, the rollout, large and with the names of the tokens."""
    mean = next(iter(shown)) if len(shown) == 1 else f"{number_of(len(shown), 'layer')}"
    drawn = {f"mean of {mean}, all heads": replace(maps, layers=shown).mean()}
    if maps.is_self_attention:
        drawn[f"rollout over {number_of(len(maps.layers), 'layer')}"] = maps.rollout()
    for axes, (name, weights) in zip(cells, drawn.items(), strict=False):  # the last cells may be of the pooling
        _draw_weights(axes, weights, f"{name}, {map_caption(weights)}", points, colours)
        if named:
            name_tokens(axes, maps.queries, maps.keys, min(points, 11), colours)


def _pooling_picture(path: str | PathLike[str], pooled: TokenMaps, heading: str, colours: Theme) -> Path:
    """The shares of the tokens in the pooled vector, as bars that fill the figure."""
    width = min(max(0.24 * len(pooled.keys), 5.0), 13.0)
    figure = new_figure(width, 2.2 + 0.1 * max(len(shorten(name, 12)) for name in pooled.keys), colours.paper)
    _draw_pooling([figure.subplots()], pooled, 11, len(pooled.keys) * MIN_SPACING <= width, colours)
    set_heading(figure, heading, 14, colours)
    return save_figure(figure, path)


def _draw_pooling(cells: Sequence[Axes], pooled: TokenMaps, points: float, named: bool, colours: Theme) -> None:
    """Bars of the share of each token in the pooled vector, a row of them per layer of `pooled`."""
    for axes, (name, weights) in zip(cells, pooled.layers.items(), strict=True):
        axes.bar(range(len(pooled.keys)), weights[0, 0], color=colours.blue)
        axes.set_facecolor(colours.paper)
        axes.set(xlim=(-0.5, len(pooled.keys) - 0.5), xticks=[], yticks=[])
        axes.spines[["left", "top", "right"]].set_visible(False)
        axes.spines["bottom"].set_color(colours.rule)
        caption(axes, f"{POOLED[name]}, {map_caption(weights)}", points, colours)
    if named:
        name_tokens(cells[-1], (), pooled.keys, min(points, 11), colours)


def _draw_grid(figure: SubFigure, maps: TokenMaps, width: float, named: bool, colours: Theme) -> None:
    points = type_size(9, width)
    counts = {name: len(weights) for name, weights in maps.layers.items()}
    for row, (name, cells) in enumerate(small_multiples(figure, counts, type_size(12, width), colours).items()):
        weights = maps.layers[name]
        labels = [map_caption(weights.mean(0)), *(map_caption(*each) for each in zip(weights, head_entropy(weights),
                                                                                     strict=True))]
        for j, (axes, drawn, label) in enumerate(zip(cells, [weights.mean(0), *weights], labels, strict=True)):
            _draw_weights(axes, drawn, label, points, colours)
            if named:
                last = row == len(counts) - 1
                name_tokens(axes, maps.queries if j == 0 else (), maps.keys if last else (), 8, colours)


def _draw_weights(axes: Axes, weights: np.ndarray, name: str, points: float, colours: Theme) -> None:
    axes.imshow(weights, vmin=0, vmax=max(weights.max(), 1e-12), cmap=colours.weights, interpolation="nearest")
    axes.spines[:].set(visible=True, color=colours.rule)
    axes.set(xticks=[], yticks=[])
    caption(axes, name, points, colours)
