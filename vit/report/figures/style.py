"""Common style of all figures. It uses neither pyplot nor global state, so the figures of a notebook do not change."""

import warnings
from collections import Counter, defaultdict
from collections.abc import Sequence
from io import BytesIO
from os import PathLike
from os.path import commonprefix
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from vit.files.atomic import write_output

INK = "#1f2933"  # text
MUTED = "#66727f"  # secondary text, ticks
RULE = "#e3e8ee"  # grid lines and frames
BLUE = "#2f6fb7"  # validation, correct predictions
ORANGE = "#d9622b"  # training, wrong predictions
FONT = ["DejaVu Sans"]  # ships with matplotlib: the same picture on every machine


def new_figure(width: float, height: float, paper: str = "white") -> Figure:
    """A figure of `width` x `height` inches on the colour `paper`, with constrained layout."""
    figure = Figure(figsize=(width, height), dpi=150, layout="constrained", facecolor=paper)
    FigureCanvasAgg(figure)
    return figure


def style_axes(axes: Axes) -> None:
    """A light grid behind the data, no frame, muted ticks."""
    axes.set_axisbelow(True)
    axes.grid(True, color=RULE, linewidth=0.8)
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0, colors=MUTED, labelsize=9)


def set_title(axes: Axes, text: str, note: str = "") -> None:
    """A bold left-aligned title with an optional muted line under it."""
    axes.set_title(text + ("\n" if note else ""), loc="left", fontsize=11, fontweight="bold", color=INK, family=FONT)
    if note:
        axes.annotate(note, (0, 1), xycoords="axes fraction", xytext=(0, 6), textcoords="offset points",
                      fontsize=8.5, color=MUTED, family=FONT)


def literal(text: str) -> str:
    """The text with `$` escaped, which Matplotlib reads as the start of a formula, and control characters replaced."""
    return "".join(letter if letter.isprintable() else "?" for letter in text).replace("$", r"\$")


def shorten(name: str, length: int = 24) -> str:
    """The name as `literal`, shortened to `length` characters by an ellipsis in the middle."""
    return literal(cut_middle(name, length))


def shorten_all(names: Sequence[str], length: int = 24) -> list[str]:
    """The names as `shorten`, but different names remain different: of those that would be equal, the part from their
    first difference on is shown, and where that is not enough, the position in `names`, from 1.
    """
    shown = _distinct_parts(list(dict.fromkeys(names)), length)
    counts = Counter(shown.values())
    for position, name in enumerate(names, 1):
        if counts[shown[name]] > 1:
            mark = f"…({position})"
            shown[name] = shown[name][: max(length - len(mark), 0)] + mark
    return [literal(shown[name]) for name in names]


def _distinct_parts(names: Sequence[str], length: int, start: int = 0) -> dict[str, str]:
    """Name -> a part of at most `length` characters that begins at `start`; names of equal parts begin at their first
    difference.
    """
    groups = defaultdict(list)
    for name in names:
        groups[cut_middle(name, length) if not start else cut_ends(name, start, length)].append(name)
    shown = {}
    for part, group in groups.items():
        difference = len(commonprefix(group))
        if len(group) > 1 and difference > start:
            shown |= _distinct_parts(group, length, difference)
        else:
            shown |= dict.fromkeys(group, part)
    return shown


def cut_middle(name: str, length: int) -> str:
    """At most `length` characters of a name; an ellipsis replaces its middle."""
    return name if len(name) <= length else f"{name[: length - length // 2 - 1]}…{name[-(length // 2):]}"


def cut_ends(name: str, start: int, length: int) -> str:
    """At most `length` characters of a name from `start` on; ellipses replace the rest."""
    part = name[start:] if len(name) - start < length else f"{name[start : start + length - 2]}…"
    return f"…{part}"


def save_figure(figure: Figure, path: str | PathLike[str]) -> Path:
    """Save the figure in the format of the extension; creates the folder if it does not exist.

    Raises:
        CheckpointError: the disk is full; an earlier file is unchanged.
    """
    path = Path(path)
    picture, form = BytesIO(), path.suffix[1:].lower()
    with warnings.catch_warnings():
        for message in ("Glyph .* missing", "Matplotlib currently does not support"):  # drawn as boxes, or unjoined
            warnings.filterwarnings("ignore", message=message)
        if form == "png" and isinstance(figure.canvas, FigureCanvasAgg):
            figure.canvas.print_png(picture)  # draws once, savefig twice
        else:
            figure.savefig(picture, dpi=figure.dpi, format=form or None)
    write_output(path, picture.getvalue())
    return path
