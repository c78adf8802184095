"""Several models under one recipe: how they learnt, what they reached, what they cost: a picture and a table."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator, PercentFormatter
from rich.box import SIMPLE_HEAD
from rich.markup import escape
from rich.table import Table

from vit.report.canvas import BLUE, FONT, INK, MUTED, ORANGE, RULE, new_figure, plain_axes, save, short, title
from vit.report.curves import Curve

COLOURS = (BLUE, ORANGE, "#3d8b5f", "#8a5fb0", "#b58a1b", "#5b6b7a")


@dataclass(frozen=True)
class Contender:
    """One model of a comparison with the numbers of its run; `flops` are those of one sample's forward pass.

    `curve` is its validation accuracy over the epochs, `accuracy` that of the finished model on the `split`.
    """

    name: str
    model: str
    curve: Curve | None
    split: str
    accuracy: float
    parameters: int
    flops: int
    per_second: float
    seconds: float


# heading, number, its text, whether the higher one is better (None: neither)
Fact = tuple[str, Callable[[Contender], float], Callable[[float], str], bool | None]


def facts(split: str) -> list[Fact]:
    """What a comparison tells of each model beside its name."""
    return [
        (f"{split} accuracy", lambda c: c.accuracy, lambda v: f"{v:.2%}", True),
        ("parameters", lambda c: c.parameters, lambda v: f"{v:,.0f}", None),
        ("MFLOPs per sample", lambda c: c.flops / 1e6, lambda v: f"{v:,.3g}" if v < 1000 else f"{v:,.0f}", None),
        ("training samples/s", lambda c: c.per_second, lambda v: f"{v:,.0f}", True),
        ("training time", lambda c: c.seconds, duration, False),
    ]


def comparison_table(contenders: Sequence[Contender], heading: str = "") -> Table:
    """A column per model, a row per fact, the better number bold."""
    table = Table(title=escape(heading) or None, title_justify="left", title_style="bold", box=SIMPLE_HEAD,
                  padding=(0, 1))
    table.add_column()
    for contender in contenders:
        table.add_column(escape(contender.name), justify="right", overflow="fold")
    table.add_row("[dim]model[/]", *(escape(contender.model) for contender in contenders))
    for name, number, text, higher in facts(contenders[0].split):
        values = [number(contender) for contender in contenders]
        best = None if higher is None else max(values) if higher else min(values)
        cells = [f"[bold]{text(value)}[/]" if value == best else text(value) for value in values]
        table.add_row(f"[dim]{name}[/]", *cells)
    return table


def comparison_picture(path: str | PathLike[str], contenders: Sequence[Contender], heading: str = "") -> Path:
    """Left the validation accuracy over the epochs, right a bar per model for each fact."""
    rows = facts(contenders[0].split)
    figure = new_figure(10.4, max(4.4, 0.34 * len(rows) * (len(contenders) + 1)))
    left, right = figure.subfigures(1, 2, width_ratios=(1.45, 1))
    _draw_curves(left.subplots(), contenders)
    for axes, fact in zip(right.subplots(len(rows), 1), rows, strict=True):
        _draw_bars(axes, contenders, fact)
    if heading:
        figure.suptitle(heading, x=0.01, ha="left", fontsize=11, color=MUTED, family=FONT)
    return save(figure, path)


def _draw_curves(axes: Axes, contenders: Sequence[Contender]) -> None:
    plain_axes(axes)
    drawn = [(c, colour) for c, colour in zip(contenders, _colours(contenders), strict=True) if c.curve is not None]
    notes = []
    for contender, colour in drawn:
        curve, at = contender.curve, contender.curve.best(highest=True)
        axes.plot(curve.x, curve.y, color=colour, linewidth=1.8, label=short(contender.name),
                  marker="o" if len(curve.x) <= 3 else None)
        axes.plot(curve.x[at], curve.y[at], "o", color=colour, markersize=6, markeredgecolor="white", zorder=5)
        notes.append(f"{short(contender.name)} {curve.y[at]:.2%} after epoch {curve.x[at]:.3g}")
    title(axes, "Validation accuracy", "best: " + ", ".join(notes) if 0 < len(notes) <= 3 else "")
    axes.set_xlabel("epoch", fontsize=9, color=MUTED, family=FONT)
    if drawn:
        _limits(axes, [contender.curve for contender, _ in drawn])
        axes.legend(frameon=False, fontsize=9, labelcolor=INK, loc="lower right")


def _limits(axes: Axes, curves: Sequence[Curve]) -> None:
    """The first tenth of the training may leave the panel, so that the part where models differ fills it."""
    last = max(curve.x[-1] for curve in curves)
    settled = np.concatenate([curve.y[curve.x >= last / 10] for curve in curves])
    low, high = np.nanmin(settled), np.nanmax(settled)
    room = max(0.08 * (high - low), 0.002)
    axes.set_ylim(max(0.0, low - room), min(high + room, 1.004))
    axes.set_xlim(0, last * 1.03)
    axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=None))
    axes.xaxis.set_major_locator(MaxNLocator(nbins=7, integer=last > 1.5))


def _draw_bars(axes: Axes, contenders: Sequence[Contender], fact: Fact) -> None:
    name, number, text, _ = fact
    values = [number(contender) for contender in contenders]
    top, places = max(values) or 1.0, range(len(contenders))
    axes.barh(places, [top] * len(values), color=RULE, alpha=0.45, height=0.6)
    axes.barh(places, values, color=_colours(contenders), height=0.6)
    for place, value in zip(places, values, strict=True):
        axes.annotate(text(value), (1, place), xycoords=("axes fraction", "data"), xytext=(6, 0),
                      textcoords="offset points", va="center", fontsize=8.5, color=INK, family=FONT,
                      annotation_clip=False)
    axes.set_title(name, loc="left", fontsize=9, color=MUTED, family=FONT, pad=3)
    names = [short(contender.name, 16) for contender in contenders]
    axes.set_yticks(places, names, fontsize=8.5, color=INK, family=FONT)
    axes.set_xticks([])
    axes.set_xlim(0, top)
    axes.invert_yaxis()
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)


def _colours(contenders: Sequence[Contender]) -> list[str]:
    return [COLOURS[i % len(COLOURS)] for i in range(len(contenders))]


def duration(seconds: float) -> str:
    """`42 s`, `3 min 05 s`, `2 h 07 min`."""
    minutes, rest = divmod(round(seconds), 60)
    if minutes >= 60:
        return f"{minutes // 60} h {minutes % 60:02d} min"
    return f"{minutes} min {rest:02d} s" if minutes else f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.1f} s"
