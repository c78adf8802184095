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
MANY = 3  # more models than these stand below one another in the table


@dataclass(frozen=True)
class Contender:
    """One model of a comparison with the numbers of its run; `flops` are those of one sample's forward pass.

    `curve` is its validation accuracy over the epochs, `accuracy` that of the finished model on the `split`; `measure`
    says what takes the place of accuracy where there is none. `trained` parameters, all by default; `memory` in bytes
    at the most, 0 where it is not known.
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
    trained: int | None = None
    memory: int = 0
    measure: str = "accuracy"


# heading, number, its text, whether the higher one is better (None: neither)
Fact = tuple[str, Callable[[Contender], float], Callable[[float], str], bool | None]


def facts(contenders: Sequence[Contender]) -> list[Fact]:
    """What a comparison tells of each model beside its name: the result, what differs, and the costs."""
    first, whole = contenders[0], lambda v: f"{v:,.0f}"
    result = f"{first.split} {first.measure.replace('_', ' ')}"
    made: list[Fact] = [
        ("parameters", lambda c: c.parameters, whole, None),
        ("trained parameters", trained, whole, None),
        ("MFLOPs per sample", lambda c: c.flops / 1e6, lambda v: f"{v:,.3g}" if v < 1000 else f"{v:,.0f}", None),
    ]
    partly = any(trained(c) < c.parameters for c in contenders)
    made = [fact for fact in made if len({fact[1](c) for c in contenders}) > 1 and (partly or fact[1] is not trained)]
    costs: list[Fact] = [
        ("training samples/s", lambda c: c.per_second, whole, True),
        ("training time", lambda c: c.seconds, duration, False),
        ("peak memory", lambda c: c.memory, lambda v: f"{v / 1e6:,.0f} MB", False),
    ]
    known = all(c.memory for c in contenders)
    return [(result, lambda c: c.accuracy, lambda v: f"{v:.2%}", True), *made, *(costs if known else costs[:-1])]


def trained(contender: Contender) -> int:
    return contender.parameters if contender.trained is None else contender.trained


def comparison_table(contenders: Sequence[Contender], heading: str = "") -> Table:
    """A column per model, a row per fact, the better number bold; of many models a row each, described below it."""
    many, differ = len(contenders) > MANY, len({contender.model for contender in contenders}) > 1
    table = Table(title=escape(heading) or None, title_justify="left", title_style="bold", box=SIMPLE_HEAD,
                  padding=(0, 1), caption=described(contenders) if many and differ else shared(contenders),
                  caption_justify="left", pad_edge=not many)
    lines = [(f"[dim]{fact[0]}[/]", *cells(contenders, fact)) for fact in facts(contenders)]
    if differ and not many:
        lines = [("[dim]model[/]", *(escape(contender.model) for contender in contenders)), *lines]
    names = ("", *(escape(contender.name) for contender in contenders))
    heads, *rows = zip(names, *lines, strict=True) if many else (names, *lines)
    for i, head in enumerate(heads):
        narrow = head.replace(" ", "\n") if many else head
        table.add_column(narrow, justify="right" if i else "left", overflow="fold", no_wrap=many or not i)
    for row in rows:
        table.add_row(*row)
    return table


def described(contenders: Sequence[Contender]) -> str:
    return escape("\n".join(f"{contender.name}: {contender.model}" for contender in contenders))


def cells(contenders: Sequence[Contender], fact: Fact) -> list[str]:
    _, number, text, higher = fact
    values = [number(contender) for contender in contenders]
    best = None if higher is None else max(values) if higher else min(values)
    return [f"[bold]{text(value)}[/]" if value == best else text(value) for value in values]


def shared(contenders: Sequence[Contender]) -> str | None:
    """What all have in common, if they are one model: its name and size."""
    first = contenders[0]
    if any((each.model, each.parameters) != (first.model, first.parameters) for each in contenders):
        return None
    return escape(f"{first.model}, {first.parameters:,} parameters, {first.flops / 1e6:,.3g} MFLOPs per sample")


def comparison_picture(path: str | PathLike[str], contenders: Sequence[Contender], heading: str = "") -> Path:
    """Left the validation accuracy over the epochs, right a bar per model for each fact."""
    rows = facts(contenders)
    line = 0.34 if len(contenders) <= MANY else 0.26
    figure = new_figure(10.4, max(4.4, line * len(rows) * (len(contenders) + 1)))
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
    judged = contenders[0].measure.replace("_", " ")
    title(axes, f"Validation {judged}", "best: " + ", ".join(notes) if 0 < len(notes) <= 3 else "")
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
