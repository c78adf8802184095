"""Figures of attention: all layers and heads, as matrices of tokens or as heat maps over the image."""

from collections.abc import Sequence
from os import PathLike
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap, to_rgba
from matplotlib.figure import Figure, SubFigure

from vit.report.attention.maps import ImageMaps, TokenMaps
from vit.report.figures.style import BLUE, FONT, INK, MUTED, ORANGE, RULE, new_figure, save_figure, shorten

MIN_SPACING = 0.1  # inches between tokens; below it they are not labelled
WEIGHT = LinearSegmentedColormap.from_list("weight", ["white", BLUE, "#12304f"])
HEAT = LinearSegmentedColormap.from_list("heat", [to_rgba(ORANGE, 0.0), to_rgba(ORANGE, 0.55), to_rgba("#ffe04d", 0.9)])


def tokens_picture(path: str | PathLike[str], maps: TokenMaps, heading: str = "Attention") -> Path:
    """Queries by row, keys by column: on the left the mean over all maps, then a row per layer and a column per head.

    The color scale of a map ranges from 0 (white) to its maximum, which its title names.
    """
    tokens, heads = max(len(maps.queries), len(maps.keys)), max(len(weights) for weights in maps.layers.values())
    side = min(max(0.14 * tokens, 1.3), 4.0, max(24 / heads, 1.3))
    margin = 0.07 * max(len(shorten(name, 12)) for name in (*maps.queries, *maps.keys))
    big = max(1.6 * side, 3.0)
    figure = new_figure(big + margin + heads * (side + 0.1) + margin + 0.6,
                        max(len(maps.layers) * (side + 0.35) + margin, big + margin) + 0.5)
    left, right = figure.subfigures(1, 2, width_ratios=(big + margin, heads * (side + 0.1) + margin + 0.4))
    axes = left.subplots()
    shown = list(maps.layers)
    _draw_weights(axes, maps.mean(), f"mean of {shown[0] if len(shown) == 1 else f'{len(shown)} layers'}, all heads")
    if tokens * MIN_SPACING <= big:
        _name_tokens(axes, maps.queries, maps.keys)
    _draw_grid(right, maps, heads, tokens * MIN_SPACING <= side)
    _heading(figure, heading)
    return save_figure(figure, path)


def _draw_grid(figure: SubFigure, maps: TokenMaps, heads: int, named: bool) -> None:
    cells = figure.subplots(len(maps.layers), heads, squeeze=False)
    for i, (name, weights) in enumerate(maps.layers.items()):
        for axes in cells[i, len(weights):]:
            axes.set_axis_off()
        for j, head in enumerate(weights):
            _draw_weights(cells[i, j], head, f"{name}, head {j}")
            last = i == len(maps.layers) - 1
            if named:
                _name_tokens(cells[i, j], maps.queries if j == 0 else (), maps.keys if last else ())


def _draw_weights(axes: Axes, weights: np.ndarray, name: str) -> None:
    axes.imshow(weights, vmin=0, vmax=max(weights.max(), 1e-12), cmap=WEIGHT, interpolation="nearest")
    axes.spines[:].set_color(RULE)
    axes.set(xticks=[], yticks=[])
    axes.set_title(f"{name}, ≤ {weights.max():.2f}", loc="left", fontsize=7.5, color=MUTED, family=FONT, pad=3)


def _name_tokens(axes: Axes, queries: Sequence[str], keys: Sequence[str]) -> None:
    style = {"fontsize": 7, "color": INK, "family": FONT}
    if queries:
        axes.set_yticks(range(len(queries)), [shorten(name, 12) for name in queries], **style)
    if keys:
        axes.set_xticks(range(len(keys)), [shorten(name, 12) for name in keys], rotation=90, **style)
    axes.tick_params(length=0)


def image_picture(path: str | PathLike[str], maps: ImageMaps, shown: Sequence[str] | None = None,
                  heading: str = "Attention") -> Path:
    """The image, its rollout and the mean of each layer; below, a row per layer with the attention of each head.

    Attention is that of the pooled output to the patches. The color scale of a map ranges from 0 (transparent) to its
    maximum, which its title names.

    Args:
        shown: names of the layers to draw, all by default; the rollout is always over all layers.
    """
    pooled = {name: heads for name, heads in maps.pooled_layers().items() if shown is None or name in shown}
    columns = max(2 + len(pooled), *(1 + len(heads) for heads in pooled.values()))
    height, width = maps.image.shape[:2]
    tall = min(max(1.25 * height / width, 0.5), 3.0)
    figure = new_figure(1.3 * columns + 0.2, (tall + 0.28) * (1 + len(pooled)) + 0.5)
    cells = figure.subplots(1 + len(pooled), columns, squeeze=False)
    for axes in cells.ravel():
        axes.set_axis_off()
    _draw_image(cells[0, 0], maps.image, "image")
    _draw_heat(cells[0, 1], maps.image, maps.pooled_rollout(), "rollout")
    for i, (name, heads) in enumerate(pooled.items()):
        _draw_heat(cells[0, 2 + i], maps.image, heads.mean(axis=0), f"{name}, mean")
        for j, head in enumerate(heads):
            _draw_heat(cells[1 + i, j], maps.image, head, f"{name}, head {j}")
    _heading(figure, heading)
    return save_figure(figure, path)


def image_to_text_picture(path: str | PathLike[str], image: np.ndarray, maps: TokenMaps, grid: tuple[int, int],
                          heading: str = "Cross-attention of each token") -> Path:
    """Cross-attention of each generated token over the image, averaged over layers and heads.

    Args:
        maps: attention of the tokens (queries) to the patches (keys) in row-major order, without prefix tokens.
    """
    height, width = image.shape[:2]
    columns = max(1, min(len(maps.queries), round(9 / max(1.5, 1.5 * width / height))))
    rows = -(-len(maps.queries) // columns)
    figure = new_figure(9.0, rows * (9.0 / columns * height / width + 0.28) + 0.5)
    cells = figure.subplots(rows, columns, squeeze=False).ravel()
    for axes in cells:
        axes.set_axis_off()
    for axes, token, weights in zip(cells, maps.queries, maps.mean(), strict=False):  # the last cells may be empty
        _draw_heat(axes, image, weights.reshape(grid), shorten(token, 16))
    _heading(figure, heading)
    return save_figure(figure, path)


def _draw_image(axes: Axes, image: np.ndarray, name: str) -> None:
    grey = image.squeeze() if image.shape[-1] == 1 else image
    height, width = image.shape[:2]
    axes.imshow(grey, cmap="gray", vmin=0, vmax=255, interpolation="nearest" if height < 64 else None,
                extent=(0, width, height, 0))
    axes.set_title(name, loc="left", fontsize=7.5, color=MUTED, family=FONT, pad=3)


def _draw_heat(axes: Axes, image: np.ndarray, weights: np.ndarray, name: str) -> None:
    """The image in dark grey under the heat map; each weight covers its patch, without interpolation."""
    grey = image.astype(np.float32).mean(axis=-1, keepdims=True) * 0.6
    _draw_image(axes, grey.astype(np.uint8), f"{name}, ≤ {weights.max():.2g}")
    height, width = image.shape[:2]
    axes.imshow(weights, vmin=0, vmax=max(weights.max(), 1e-12), cmap=HEAT, interpolation="nearest",
                extent=(0, width, height, 0))


def _heading(figure: Figure, text: str) -> None:
    figure.suptitle(shorten(text, 90), x=0.01, ha="left", fontsize=11, fontweight="bold", color=INK, family=FONT)
