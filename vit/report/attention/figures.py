"""Attention between tokens as figures: all layers and heads, and what they amount to."""

from os import PathLike
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes

from vit.report.attention.cells import (
    caption,
    colour_scale,
    map_caption,
    name_tokens,
    set_heading,
    small_multiples,
    type_size,
)
from vit.report.attention.maps import TokenMaps, head_entropy, rollout
from vit.report.figures.style import new_figure, save_figure, shorten
from vit.report.figures.theme import Theme, theme

MIN_SPACING = 0.13  # inches between tokens; below it they are not labelled
SCALE = "attention; the maximum (≤) of each map is above it"


def tokens_picture(path: str | PathLike[str], maps: TokenMaps, heading: str = "Attention", dark: bool = False) -> Path:
    """Queries by row, keys by column: on the left the mean over all maps and the rollout, then a row per layer and a
    column per head.

    A map ranges from 0, the background, to its maximum, which is above it, beside the entropy of its head in bits.
    """
    colours, names = theme(dark), [shorten(name, 12) for name in (*maps.queries, *maps.keys)]
    tokens, heads = max(len(maps.queries), len(maps.keys)), max(len(weights) for weights in maps.layers.values())
    side = min(max(0.19 * tokens, 1.4), 4.0, max(24 / heads, 1.4))
    big, margin = max(1.6 * side, 3.4), 0.1 * max(map(len, names))
    both = maps.is_self_attention
    width = big + margin + (1 + heads) * (side + 0.1) + margin + 1.0
    figure = new_figure(width, max(len(maps.layers) * (side + 0.4) + margin, (1 + both) * (big + margin) + 0.6) + 1.1,
                        colours.paper)
    left, right = figure.subfigures(1, 2, width_ratios=(big + margin, (1 + heads) * (side + 0.1) + margin + 0.6))
    _draw_summary(left, maps, type_size(11, width), tokens * MIN_SPACING <= big, colours)
    _draw_grid(right, maps, width, tokens * MIN_SPACING <= side, colours)
    set_heading(figure, heading, type_size(16, width), colours)
    return save_figure(figure, path)


def _draw_summary(figure, maps: TokenMaps, points: float, named: bool, colours: Theme) -> None:
    """The mean over all maps and, of self-attention, the rollout, large and with the names of the tokens."""
    shown = list(maps.layers)
    drawn = {f"mean of {shown[0] if len(shown) == 1 else f'{len(shown)} layers'}, all heads": maps.mean()}
    if maps.is_self_attention:
        drawn["rollout of the first layer" if len(shown) == 1 else f"rollout over {len(shown)} layers"] = rollout(
            list(maps.layers.values()))
    cells = figure.subplots(len(drawn), 1, squeeze=False)[:, 0]
    for axes, (name, weights) in zip(cells, drawn.items(), strict=True):
        _draw_weights(axes, weights, f"{name}, {map_caption(weights)}", points, colours)
        if named:
            name_tokens(axes, maps.queries, maps.keys, min(points, 11), colours)
    colour_scale(figure, cells[-1], colours.weights, SCALE, points, colours)


def _draw_grid(figure, maps: TokenMaps, width: float, named: bool, colours: Theme) -> None:
    points = type_size(9, width)
    counts = {name: len(weights) for name, weights in maps.layers.items()}
    for row, (name, cells) in enumerate(small_multiples(figure, counts, "mean", type_size(12, width), colours).items()):
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
