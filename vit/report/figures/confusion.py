"""The confusion matrix as a figure; readable, and bounded in memory, for any number of classes."""

from collections.abc import Sequence
from os import PathLike
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap, to_rgb
from matplotlib.figure import Figure
from scipy.sparse import csr_array, sparray

from vit.messages import left_to_right, number_of
from vit.report.figures.style import (
    BLUE,
    FONT,
    INK,
    MUTED,
    ORANGE,
    RULE,
    TITLE,
    fit,
    letters,
    new_figure,
    save_figure,
    set_title,
    shorten_all,
    text_width,
)

MAX_COUNTS = 30  # classes; cells of larger matrices have no counts
MAX_NAMES = 120  # classes; the axes of larger matrices have no class names
NAME, SMALL_NAME, ERROR = 9, 6, 8.5  # points: class names of up to MAX_COUNTS and of more classes, and of errors
PAD = 0.12  # inches between a class name and what is beside it
GAP = 0.5  # inches between the matrix and the list of errors
MAX_CELLS = 1000  # per axis; with more classes a cell is a block of adjacent classes


def confusion_picture(path: str | PathLike[str], confusion: np.ndarray | sparray, classes: Sequence[str],
                      heading: str = "Confusion matrix", unit: str = "images") -> Path:
    """Draw counts `confusion[true, predicted]` (classes,classes): correct blue, wrong orange, and list frequent errors.
    A sparse array takes the memory of its counts above 0. `unit`: images or texts.

    Raises:
        ValueError: the matrix does not have a row and a column per class.
    """
    if confusion.shape != (len(classes), len(classes)):
        raise ValueError(f"confusion has shape {confusion.shape}, but there are {number_of(len(classes), 'class')}")
    confusion = csr_array(confusion)
    names = shorten_all(classes)
    figure, axes, side = _layout(names)
    last = len(classes) - 0.5
    colours = _colours(confusion)
    axes.imshow(colours, interpolation="nearest", aspect="auto", extent=(-0.5, last, last, -0.5))
    right, total = int(confusion.diagonal().sum()), int(confusion.sum())
    share = f"{right:,} of {total:,} correct ({right / max(total, 1):.2%})"
    shown = fit(heading, _matrix_width(names) + GAP - 0.1, TITLE, bold=True)
    set_title(axes, shown, f"{share}, {number_of(len(classes), 'class')}")
    _label(axes, names)
    if len(classes) <= MAX_COUNTS:
        _write_counts(axes, confusion.toarray(), colours)
    _list_errors(side, confusion, names, unit)
    return save_figure(figure, path)


def _layout(names: list[str]) -> tuple[Figure, Axes, Axes]:
    """The figure, the axes of the matrix, and the axes of the list beside it; all sizes in inches."""
    matrix = _matrix_width(names)
    margin = _longest(names, _name_size(names)) + PAD if len(names) <= MAX_NAMES else 0.4
    left, top, bottom = 0.45 + margin, 0.65, 0.5 + (0.2 if _upright(names) else margin)
    list_width = max(3.3, 2 * _longest(names, ERROR) + 0.4)  # two names and an arrow
    width, height = left + matrix + GAP + list_width + 0.2, top + matrix + bottom
    figure = new_figure(width, height)
    figure.set_layout_engine("none")
    axes = figure.add_axes((left / width, bottom / height, matrix / width, matrix / height))
    beside = figure.add_axes(((left + matrix + GAP) / width, bottom / height, list_width / width, matrix / height))
    return figure, axes, beside


def _upright(names: list[str]) -> bool:
    """Whether the names fit below their columns without being turned."""
    return len(names) <= MAX_COUNTS and _longest(names, NAME) + PAD < _matrix_width(names) / max(len(names), 1)


def _name_size(names: list[str]) -> float:
    """The size of class names beside the matrix in points."""
    return NAME if len(names) <= MAX_COUNTS else SMALL_NAME


def _longest(names: list[str], points: float) -> float:
    """The width of the widest name in inches; of many names, those with most letters are measured."""
    most = sorted(names, key=letters)[-MAX_NAMES:]
    return max((text_width(name.replace(r"\$", "$"), points) for name in most), default=0.0)


def _matrix_width(names: list[str]) -> float:
    """The width of the matrix in inches."""
    return min(max((0.42 if len(names) <= MAX_COUNTS else 0.16) * len(names), 3.2), 13.0)


def _colours(confusion: csr_array) -> np.ndarray:
    """(cells,cells,3) uint8: colour by the share of the true class's images; errors on a steeper scale.

    A block on the diagonal is blue by its correct predictions, or orange by its errors if none is correct.
    """
    classes = confusion.shape[0]
    size = -(-classes // MAX_CELLS)
    starts = np.arange(0, classes, size)
    cells, side = confusion.tocoo(), len(starts)
    blocks = np.bincount(cells.row // size * side + cells.col // size, cells.data, side * side).reshape(side, side)
    right = np.add.reduceat(confusion.diagonal(), starts)
    totals = np.maximum(blocks.sum(axis=1), 1)
    steep = 0.5 if classes <= MAX_COUNTS else 0.3  # a single error stays visible among a thousand classes
    colours = _ramp(ORANGE)((blocks / totals[:, None]) ** steep, bytes=True)[..., :3]
    diagonal = np.eye(len(blocks), dtype=bool)
    if size > 1:
        diagonal[diagonal] = right > 0
        right = right[right > 0]
    colours[diagonal] = _ramp(BLUE)(right / totals[diagonal.any(axis=1)], bytes=True)[..., :3]
    return colours


def _ramp(colour: str) -> LinearSegmentedColormap:
    return LinearSegmentedColormap.from_list("ramp", ["#fbfcfd", to_rgb(colour)])


def _label(axes: Axes, names: list[str]) -> None:
    axes.spines[:].set_color(RULE)
    axes.tick_params(length=0, colors=MUTED)
    numbers = " (number of the class, from 0)" if len(names) > MAX_NAMES else ""
    axes.set_xlabel(f"predicted{numbers}", fontsize=10, color=INK, family=FONT)
    axes.set_ylabel(f"true{numbers}", fontsize=10, color=INK, family=FONT)
    if numbers:
        return
    style = {"fontsize": _name_size(names), "color": INK, "family": FONT}
    axes.set_xticks(range(len(names)), names, rotation=0 if _upright(names) else 90, **style)
    axes.set_yticks(range(len(names)), names, **style)


def _write_counts(axes: Axes, confusion: np.ndarray, colours: np.ndarray) -> None:
    room = 0.85 * axes.get_position().width * axes.figure.get_figwidth() / len(confusion)
    size = min(8.5, 8.5 * room / text_width(f"{int(confusion.max()):,}", 8.5))  # the same in all cells
    for row, column in zip(*np.nonzero(confusion), strict=True):
        axes.text(column, row, f"{int(confusion[row, column]):,}", ha="center", va="center", family=FONT, fontsize=size,
                  color=_readable(colours[row, column]))


def _readable(colour: np.ndarray) -> str:
    """White or ink, whichever has the higher contrast (WCAG 2) on a colour (3,) uint8."""
    white, ink = (contrast(colour / 255, np.array(to_rgb(each))) for each in ("white", INK))
    return "white" if white > ink else INK


def contrast(one: np.ndarray, other: np.ndarray) -> float:
    """The contrast ratio of two colours (3,) in [0,1], from 1 to 21, as WCAG 2 defines it."""
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def luminance(colour: np.ndarray) -> float:
    """The relative luminance of an sRGB colour (3,) in [0,1], as WCAG 2 defines it."""
    linear = np.where(colour <= 0.04045, colour / 12.92, ((colour + 0.055) / 1.055) ** 2.4)
    return float(linear @ (0.2126, 0.7152, 0.0722))


def _list_errors(side: Axes, confusion: csr_array, names: list[str], unit: str) -> None:
    """Bars of the most frequent wrong (true → predicted) pairs, as many as fit."""
    rows = int(side.get_position().height * side.figure.get_figheight() / 0.36)
    pairs = most_frequent_errors(confusion, rows)
    side.set_axis_off()
    set_title(side, "Most frequent errors" if pairs else "No errors", f"true → predicted, {unit}" if pairs else "")
    counts = [int(confusion[pair]) for pair in pairs]
    side.barh(range(len(pairs)), counts, height=0.24, color=ORANGE, align="edge")
    style = {"fontsize": ERROR, "family": FONT}
    for row, ((true, predicted), count) in enumerate(zip(pairs, counts, strict=True)):
        side.text(0, row - 0.08, left_to_right(names[true], " → ", names[predicted]), color=INK, va="bottom", **style)
        side.annotate(f"{count:,}", (count, row + 0.12), xytext=(4, 0), textcoords="offset points", color=MUTED,
                      va="center", **style)
    side.set_xlim(0, max(counts, default=1) * 1.2)
    side.set_ylim(rows - 0.6, -0.6)


def most_frequent_errors(confusion: sparray, count: int) -> list[tuple[int, int]]:
    """The (true, predicted) pairs with the most errors, in the order of the classes among equals."""
    cells = confusion.tocoo()
    wrong = np.flatnonzero((cells.row != cells.col) & (cells.data > 0))
    true, predicted = cells.row[wrong], cells.col[wrong]
    best = np.lexsort((predicted, true, -cells.data[wrong]))[:count]
    return list(zip(true[best].tolist(), predicted[best].tolist(), strict=True))
