"""Small multiples of attention: a row per layer and a column per head, in type that is legible on a slide."""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Colormap
from matplotlib.figure import Figure, SubFigure

from vit.report.figures.style import FONT, fit, shorten
from vit.report.figures.theme import Theme

SLIDE = 13.3  # inches, the width of a slide; type of a wider figure grows with it


def type_size(points: float, width: float) -> float:
    """Points that have the given size on a slide, of a figure of `width` inches."""
    return points * min(max(width / SLIDE, 1.0), 2.0)


def small_multiples(
    figure: SubFigure, layers: Mapping[str, int], points: float, colours: Theme
) -> dict[str, list[Axes]]:
    """Axes by layer: the first one for the mean, then one per head; the rest of a row stays empty.

    Args:
        layers: name -> number of heads.
    """
    heads = max(layers.values())
    cells = figure.subplots(len(layers), 1 + heads, squeeze=False)
    style = {"fontsize": points, "color": colours.ink, "family": FONT}
    for column, name in enumerate(["mean", *(f"head {j}" for j in range(heads))]):
        cells[0, column].annotate(name, (0, 1), xycoords="axes fraction", xytext=(0, 2.2 * points),
                                  textcoords="offset points", fontweight="bold", **style)
    for row, (name, count) in zip(cells, layers.items(), strict=True):
        row[0].set_ylabel(name, labelpad=6, **style)
        for axes in row:
            axes.set(xticks=[], yticks=[])
            axes.spines[:].set_visible(False)
        for axes in row[1 + count :]:
            axes.set_axis_off()
    return {name: list(row[: 1 + count]) for row, (name, count) in zip(cells, layers.items(), strict=True)}


def caption(axes: Axes, text: str, points: float, colours: Theme) -> None:
    """Text above a map."""
    axes.set_title(text, loc="left", fontsize=points, color=colours.muted, family=FONT, pad=3)


def map_caption(weights: np.ndarray, bits: float | None = None) -> str:
    """The maximum of a map, which is the end of its colour scale, and the entropy of its head."""
    return f"≤ {weights.max():.2g}" + ("" if bits is None else f", {bits:.1f} bit")


def colour_scale(figure: Figure | SubFigure, axes: Axes, colormap: Colormap, label: str, points: float, colours: Theme
                 ) -> None:
    """A colour bar below the axes, from 0 to the maximum of a map."""
    bar = figure.colorbar(ScalarMappable(cmap=colormap), ax=axes, location="bottom", shrink=0.8, aspect=30, pad=0.03)
    bar.set_ticks([0, 1], labels=["0", "maximum"])
    bar.set_label(label, fontsize=points, color=colours.muted, family=FONT)
    bar.outline.set_edgecolor(colours.rule)
    bar.ax.tick_params(length=0, labelsize=points, colors=colours.muted)


def name_tokens(axes: Axes, queries: Sequence[str], keys: Sequence[str], points: float, colours: Theme) -> None:
    """Tokens along the axes: queries at the left, keys below."""
    style = {"fontsize": points, "color": colours.ink, "family": FONT}
    if queries:
        axes.set_yticks(range(len(queries)), [shorten(name, 12) for name in queries], **style)
    if keys:
        axes.set_xticks(range(len(keys)), [shorten(name, 12) for name in keys], rotation=90, **style)
    axes.tick_params(length=0)


def set_heading(figure: Figure, text: str, points: float, colours: Theme) -> None:
    """The title of a figure, at the left, shortened to its width."""
    shown = fit(text, 0.97 * figure.get_figwidth(), points, bold=True)
    figure.suptitle(shown, x=0.01, ha="left", fontsize=points, fontweight="bold", color=colours.ink, family=FONT)
