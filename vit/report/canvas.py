"""The paper all pictures are drawn on: one look, no pyplot, no global state, so that notebooks are left alone."""

import warnings
from os import PathLike
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

INK = "#1f2933"  # text
MUTED = "#66727f"  # secondary text, ticks
RULE = "#e3e8ee"  # grid and frames
BLUE = "#2f6fb7"  # validation, right answers
ORANGE = "#d9622b"  # training, wrong answers
FONT = ["DejaVu Sans"]  # ships with matplotlib: the same picture on every machine


def new_figure(width: float, height: float) -> Figure:
    """A white figure of `width` x `height` inches whose parts arrange themselves."""
    figure = Figure(figsize=(width, height), dpi=150, layout="constrained", facecolor="white")
    FigureCanvasAgg(figure)
    return figure


def plain_axes(axes: Axes) -> None:
    """Quiet axes: a light grid behind the data, no box, muted ticks."""
    axes.set_axisbelow(True)
    axes.grid(True, color=RULE, linewidth=0.8)
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0, colors=MUTED, labelsize=9)


def title(axes: Axes, text: str, note: str = "") -> None:
    """A bold left-aligned title with a muted line under it."""
    axes.set_title(text + ("\n" if note else ""), loc="left", fontsize=11, fontweight="bold", color=INK, family=FONT)
    if note:
        axes.annotate(note, (0, 1), xycoords="axes fraction", xytext=(0, 6), textcoords="offset points",
                      fontsize=8.5, color=MUTED, family=FONT)


def short(name: str, length: int = 24) -> str:
    """The name, cut in its middle where it is longer than `length`, with `$` and control signs made harmless."""
    name = "".join(letter if letter.isprintable() else "?" for letter in name).replace("$", r"\$")
    if len(name) <= length:
        return name
    return f"{name[: length - length // 2 - 1]}…{name[-(length // 2):]}"


def save(figure: Figure, path: str | PathLike[str]) -> Path:
    """Write the figure as a picture (the ending decides the format), its folder made where missing."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing")  # scripts the font lacks show as boxes
        figure.savefig(path, dpi=figure.dpi)
    return path
