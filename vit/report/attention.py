"""Pictures of attention: every layer and head, tokens on both axes or maps laid over the image."""

from collections.abc import Sequence
from os import PathLike
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap, to_rgba
from matplotlib.figure import Figure, SubFigure

from vit.report.canvas import BLUE, FONT, INK, MUTED, ORANGE, RULE, new_figure, save, short
from vit.report.maps import ImageMaps, TokenMaps

LETTER = 0.1  # inches: tokens closer together than that are not named
WEIGHT = LinearSegmentedColormap.from_list("weight", ["white", BLUE, "#12304f"])
HEAT = LinearSegmentedColormap.from_list("heat", [to_rgba(ORANGE, 0.0), to_rgba(ORANGE, 0.55), to_rgba("#ffe04d", 0.9)])


def tokens_picture(path: str | PathLike[str], maps: TokenMaps, heading: str = "Attention") -> Path:
    """Queries downwards, keys to the right: left the mean of all, then a row per layer, a column per head.

    Each map goes from white, 0, to its own largest weight, which stands above it.
    """
    tokens, heads = max(len(maps.queries), len(maps.keys)), max(len(weights) for weights in maps.layers.values())
    side = min(max(0.14 * tokens, 1.3), 4.0, max(24 / heads, 1.3))
    room = 0.07 * max(len(short(name, 12)) for name in (*maps.queries, *maps.keys))
    big = max(1.6 * side, 3.0)
    figure = new_figure(big + room + heads * (side + 0.1) + room + 0.6,
                        max(len(maps.layers) * (side + 0.35) + room, big + room) + 0.5)
    left, right = figure.subfigures(1, 2, width_ratios=(big + room, heads * (side + 0.1) + room + 0.4))
    axes = left.subplots()
    _draw_weights(axes, maps.mean(), "all layers and heads")
    if tokens * LETTER <= big:
        _name_tokens(axes, maps.queries, maps.keys)
    _draw_grid(right, maps, heads, tokens * LETTER <= side)
    _heading(figure, heading)
    return save(figure, path)


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
        axes.set_yticks(range(len(queries)), [short(name, 12) for name in queries], **style)
    if keys:
        axes.set_xticks(range(len(keys)), [short(name, 12) for name in keys], rotation=90, **style)
    axes.tick_params(length=0)


def image_picture(path: str | PathLike[str], maps: ImageMaps, shown: Sequence[str] | None = None,
                  heading: str = "Attention") -> Path:
    """The image, its rollout and the mean of each layer; below, a row per layer: how the answer looks, head by head.

    Each map goes from nothing, 0, to its own largest weight, which stands above it.

    Args:
        shown: names of the layers to draw, all by default; the rollout is always that of all.
    """
    answers = {name: heads for name, heads in maps.answers().items() if shown is None or name in shown}
    columns = max(2 + len(answers), *(1 + len(heads) for heads in answers.values()))
    height, width = maps.image.shape[:2]
    tall = min(max(1.25 * height / width, 0.5), 3.0)
    figure = new_figure(1.3 * columns + 0.2, (tall + 0.28) * (1 + len(answers)) + 0.5)
    cells = figure.subplots(1 + len(answers), columns, squeeze=False)
    for axes in cells.ravel():
        axes.set_axis_off()
    _draw_image(cells[0, 0], maps.image, "image")
    _draw_heat(cells[0, 1], maps.image, maps.rollout(), "rollout")
    for i, (name, heads) in enumerate(answers.items()):
        _draw_heat(cells[0, 2 + i], maps.image, heads.mean(axis=0), f"{name}, mean")
        for j, head in enumerate(heads):
            _draw_heat(cells[1 + i, j], maps.image, head, f"{name}, head {j}")
    _heading(figure, heading)
    return save(figure, path)


def reading_picture(path: str | PathLike[str], image: np.ndarray, maps: TokenMaps, grid: tuple[int, int],
                    heading: str = "Where each token was read") -> Path:
    """An image that became a text: for each token the mean over layers and heads, laid over the image.

    Args:
        maps: cross-attention of the tokens (queries) to the patches (keys), row by row of the grid, without any prefix.
    """
    height, width = image.shape[:2]
    columns = max(1, min(len(maps.queries), round(9 / max(1.5, 1.5 * width / height))))
    rows = -(-len(maps.queries) // columns)
    figure = new_figure(9.0, rows * (9.0 / columns * height / width + 0.28) + 0.5)
    cells = figure.subplots(rows, columns, squeeze=False).ravel()
    for axes in cells:
        axes.set_axis_off()
    for axes, token, weights in zip(cells, maps.queries, maps.mean(), strict=False):  # the last cells may stay empty
        _draw_heat(axes, image, weights.reshape(grid), short(token, 16))
    _heading(figure, heading)
    return save(figure, path)


def _draw_image(axes: Axes, image: np.ndarray, name: str) -> None:
    grey = image.squeeze() if image.shape[-1] == 1 else image
    height, width = image.shape[:2]
    axes.imshow(grey, cmap="gray", vmin=0, vmax=255, interpolation="nearest" if height < 64 else None,
                extent=(0, width, height, 0))
    axes.set_title(name, loc="left", fontsize=7.5, color=MUTED, family=FONT, pad=3)


def _draw_heat(axes: Axes, image: np.ndarray, weights: np.ndarray, name: str) -> None:
    """The image in dim grey, so that all colour is attention's; each weight on its patch, not smoothed."""
    grey = image.astype(np.float32).mean(axis=-1, keepdims=True) * 0.6
    _draw_image(axes, grey.astype(np.uint8), f"{name}, ≤ {weights.max():.2g}")
    height, width = image.shape[:2]
    axes.imshow(weights, vmin=0, vmax=max(weights.max(), 1e-12), cmap=HEAT, interpolation="nearest",
                extent=(0, width, height, 0))


def _heading(figure: Figure, text: str) -> None:
    figure.suptitle(short(text, 90), x=0.01, ha="left", fontsize=11, fontweight="bold", color=INK, family=FONT)
