"""Common style of all figures. It uses neither pyplot nor global state, so the figures of a notebook do not change."""

import logging
import re
import unicodedata
import warnings
from collections import Counter, defaultdict
from collections.abc import Sequence
from functools import cache
from io import BytesIO
from os import PathLike
from os.path import commonprefix
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties, fontManager, get_font
from matplotlib.textpath import text_to_path

from vit.files.outputs import write_output
from vit.messages import is_visible

log = logging.getLogger(__name__)

INK = "#1f2933"  # text
MUTED = "#66727f"  # secondary text, ticks
RULE = "#e3e8ee"  # grid lines and frames
BLUE = "#2f6fb7"  # validation, correct predictions
ORANGE = "#d9622b"  # training, wrong predictions
DARK_ORANGE = "#c04f1b"  # the same as text, which needs a contrast of 4.5 on white
TITLE, NOTE = 11, 8.5  # points: of titles, and of the lines below them
DEJAVU = "DejaVu Sans"  # ships with matplotlib: the same picture on every machine
OTHER_FONTS = (  # for letters that it lacks: Chinese, Japanese and Korean first, then Indian and other scripts
    "Noto Sans CJK SC", "Noto Sans CJK JP", "Source Han Sans SC", "WenQuanYi Zen Hei", "WenQuanYi Micro Hei",
    "Droid Sans Fallback", "Microsoft YaHei", "SimHei", "Yu Gothic", "Malgun Gothic", "PingFang SC",
    "Hiragino Sans GB", "Hiragino Sans", "Apple SD Gothic Neo", "Nirmala UI", "Noto Sans Devanagari", "Noto Sans Thai",
    "Noto Emoji", "Segoe UI Emoji", "Arial Unicode MS", "Unifont",
)
FONT = [DEJAVU, *(name for name in OTHER_FONTS if name in fontManager.get_font_names())]
BOX = "□"  # in place of letters that no font has
POINTS = 72  # per inch


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
    """A bold left-aligned title with optional muted lines under it."""
    lines = note.count("\n") + 1 if note else 0
    axes.set_title(text + "\n" * lines, loc="left", fontsize=TITLE, fontweight="bold", color=INK, family=FONT)
    if note:
        below = axes.annotate(note, (0, 1), xycoords="axes fraction", xytext=(0, 6), textcoords="offset points",
                              fontsize=NOTE, color=MUTED, family=FONT)
        below.set_in_layout(False)  # a long line does not make the axes narrow


def literal(text: str) -> str:
    """The text with `$` escaped, which Matplotlib reads as the start of a formula, and control characters and letters
    that no font has replaced.
    """
    return drawable(text).replace("$", r"\$")


def drawable(text: str) -> str:
    """The text with `?` in place of control characters and a box in place of letters that no font has."""
    text = "".join(" " if unicodedata.category(letter) == "Zs" else letter if is_visible(letter) else "?"
                   for letter in text)
    missing = {letter for letter in text if not has_glyph(letter)}
    if not missing:
        return text
    _report_missing()
    return re.sub(f"[{re.escape(''.join(missing))}]+", BOX, text)


def has_glyph(letter: str) -> bool:
    """Whether a font of the figures has the letter."""
    return any(ord(letter) in _glyphs(name) for name in FONT)


def font_file(text: str, bold: bool = False) -> str:
    """The file of the first font that has most letters of a text, for pictures that are drawn without Matplotlib."""
    font = max(FONT, key=lambda name: sum(ord(letter) in _glyphs(name) for letter in text))
    return fontManager.findfont(FontProperties(family=font, weight="bold" if bold else "normal"))


@cache
def _glyphs(font: str) -> dict[int, int]:
    return get_font(fontManager.findfont(font)).get_charmap()


@cache
def _report_missing() -> None:
    log.warning("no font for figures has all letters of the names, so %s replaces some of them, and names that become "
                "equal have their position, from 1; install a font such as Noto Sans CJK", BOX)


def text_width(text: str, points: float, bold: bool = False) -> float:
    """The width of a line of text in inches; `$` is no formula."""
    font = FontProperties(family=FONT, size=points, weight="bold" if bold else "normal")
    return text_to_path.get_text_width_height_descent(text, font, ismath=False)[0] / POINTS


def fit(text: str, inches: float, points: float, bold: bool = False) -> str:
    """The text as `literal`, shortened in its middle to a width."""
    text = drawable(text)
    length = len(text)
    while length > 1 and text_width(cut_middle(text, length), points, bold) > inches:
        length = max(1, min(length - 1, int(length * inches / text_width(cut_middle(text, length), points, bold))))
    return literal(cut_middle(text, length))


def letters(name: str) -> int:
    """The number of letters of the width of a Latin one; Chinese, Japanese and Korean ones are twice as wide."""
    return len(name) + sum(unicodedata.east_asian_width(letter) in "WF" for letter in name)


def shorten(name: str, length: int = 24) -> str:
    """The name as `literal`, shortened to `length` characters by an ellipsis in the middle."""
    return literal(cut_middle(name, length))


def shorten_all(names: Sequence[str], length: int = 24, all_names: Sequence[str] | None = None) -> list[str]:
    """The names as `shorten`, but different names remain different: of those that would be equal, the part from their
    first difference on is shown, and where that is not enough, the position in `all_names`, from 1.

    Args:
        all_names: the names of all classes where `names` are some of them, so that all figures show the same position;
            `names` by default.
    """
    parts = _distinct_parts(list(dict.fromkeys(map(drawable, names))), length)
    shown = {name: parts[drawable(name)] for name in names}
    counts = Counter(shown.values())
    positions = {name: position for position, name in enumerate(all_names or names, 1)}
    for name in shown:
        if counts[shown[name]] > 1:
            mark = f"…({positions[name]})"
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
