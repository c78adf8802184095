"""Comparison of models trained with the same recipe: learning curves, results and costs, as a figure and a table."""

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

from vit.messages import duration, mega
from vit.report.figures.style import (
    BLUE,
    FONT,
    INK,
    MUTED,
    NOTE,
    ORANGE,
    RULE,
    TITLE,
    fit,
    letters,
    new_figure,
    save_figure,
    set_title,
    shorten_all,
    style_axes,
    text_width,
)
from vit.report.logged_values import Curve, epoch_text

COLOURS = (BLUE, ORANGE, "#3d8b5f", "#8a5fb0", "#b58a1b", "#5b6b7a")
DASHES = ("-", "--", ":", "-.")  # of the curves of the first models, of the next ones with the same colours, ...
STYLES = tuple((colour, dashes) for dashes in DASHES for colour in COLOURS)
FAINT = "#c3ccd6"  # models without a colour
NOTE_WIDTH = 5.0  # inches, below the title of the curves
MIN_NAME = 12  # characters of a model's name that a narrow terminal shows on one line
# those that a narrow terminal leaves out, in this order
DROPPED = ("MFLOPs per sample", "trained parameters", "parameters", "peak memory", "training samples/s")
MAX_COLUMNS = 3  # models; the table of more models has a row per model instead of a column, the figure a row of bars


@dataclass(frozen=True)
class ComparedModel:
    """One model of a comparison with the numbers of its run.

    Args:
        curve: validation metric over the epochs.
        accuracy: the metric named `measure` of the final model on `split`.
        flops: forward pass of one sample.
        trained: number of trained parameters, all by default.
        memory: peak in bytes, 0 if unknown.
    """

    name: str
    model: str
    curve: Curve | None
    split: str
    accuracy: float
    parameters: int
    flops: int
    per_second: float | None
    seconds: float
    trained: int | None = None
    memory: int = 0
    measure: str = "accuracy"


# heading, value, format of the value, whether higher is better (None: neither)
Fact = tuple[str, Callable[[ComparedModel], float], Callable[[float], str], bool | None]


def facts(models: Sequence[ComparedModel]) -> list[Fact]:
    """The rows of a comparison: the result, the sizes that differ between the models, and the costs."""
    first, whole = models[0], lambda v: f"{v:,.0f}"
    result = f"{first.split} {first.measure.replace('_', ' ')}"
    sizes: list[Fact] = [
        ("parameters", lambda c: c.parameters, whole, None),
        ("trained parameters", trained, whole, None),
        ("MFLOPs per sample", lambda c: c.flops, mega, None),
    ]
    partly = any(trained(c) < c.parameters for c in models)
    sizes = [fact for fact in sizes if len({fact[1](c) for c in models}) > 1 and (partly or fact[1] is not trained)]
    costs: list[Fact] = [
        ("training samples/s", lambda c: c.per_second, whole, True),
        ("training time", lambda c: c.seconds, duration, False),
        ("peak memory", lambda c: c.memory, lambda v: f"{v / 1e6:,.0f} MB", False),
    ]
    unknown = {name for name, value, *_ in costs if name != "training time" and not all(map(value, models))}
    costs = [cost for cost in costs if cost[0] not in unknown]
    return [(result, lambda c: c.accuracy, lambda v: f"{v:.2%}", True), *sizes, *costs]


def trained(entry: ComparedModel) -> int:
    """The number of trained parameters."""
    return entry.parameters if entry.trained is None else entry.trained


def comparison_table(models: Sequence[ComparedModel], heading: str = "", width: int = 80) -> Table:
    """A column per model and a row per fact, transposed for many models; the best value is bold.

    Args:
        width: characters of the terminal. Where it is too narrow for many models, facts are left out, as the caption
            states.
    """
    many, differ = len(models) > MAX_COLUMNS, len({entry.model for entry in models}) > 1
    shown, dropped = fitting_facts(models, width) if many else (facts(models), [])
    notes = [list_models(models) if many and differ else describe_shared(models),
             f"a wider terminal and comparison.csv also have {', '.join(dropped)}" if dropped else None]
    table = Table(title=escape(heading) or None, title_justify="left", title_style="bold", box=SIMPLE_HEAD,
                  padding=(0, 1), caption="\n".join(filter(None, notes)) or None, caption_justify="left",
                  pad_edge=not many)
    lines = [(f"[dim]{fact[0]}[/]", *cells(models, fact)) for fact in shown]
    if differ and not many:
        lines = [("[dim]model[/]", *(escape(entry.model) for entry in models)), *lines]
    names = ("", *(escape(entry.name) for entry in models))
    heads, *rows = zip(names, *lines, strict=True) if many else (names, *lines)
    for i, head in enumerate(heads):
        narrow = head.replace(" ", "\n") if many else head
        names = many != bool(i)  # the headings of models or, if they are in a column, this column
        table.add_column(narrow, justify="right" if i else "left", overflow="fold", no_wrap=not names)
    for row in rows:
        table.add_row(*row)
    return table


def fitting_facts(models: Sequence[ComparedModel], width: int) -> tuple[list[Fact], list[str]]:
    """The facts that fit beside the names of the models in a table of `width` characters, and the names of the others.
    """
    shown, dropped = facts(models), []
    room = width - min(MIN_NAME, max(letters(entry.name) for entry in models)) - 2
    for name in DROPPED:
        sizes = [max(map(len, (*head.split(), *(text(value(entry)) for entry in models))))
                 for head, value, text, _ in shown]
        if sum(sizes) + 3 * len(sizes) > room and name in [head for head, *_ in shown]:
            shown = [fact for fact in shown if fact[0] != name]
            dropped.append(name)
    return shown, dropped


def list_models(models: Sequence[ComparedModel]) -> str:
    return escape("\n".join(f"{entry.name}: {entry.model}" for entry in models))


def cells(models: Sequence[ComparedModel], fact: Fact) -> list[str]:
    """The values of one fact for all models, the best one in bold."""
    _, number, text, higher = fact
    values = [number(entry) for entry in models]
    best = None
    if higher is not None:
        best = max(values) if higher else min(values)
    return [f"[bold]{text(value)}[/]" if value == best else text(value) for value in values]


def describe_shared(models: Sequence[ComparedModel]) -> str | None:
    """Name and size of the model, if all models have the same one."""
    first = models[0]
    if any((each.model, each.parameters) != (first.model, first.parameters) for each in models):
        return None
    return escape(f"{first.model}, {first.parameters:,} parameters, {mega(first.flops)} MFLOPs per sample")


def comparison_picture(path: str | PathLike[str], models: Sequence[ComparedModel], heading: str = "") -> Path:
    """The validation metric over the epochs, and a bar per model for each fact: on the right, or below the curves in
    columns with common names if there are many models.
    """
    rows, many = facts(models), len(models) > MAX_COLUMNS
    if many:
        heights = max(4.2, 0.2 * min(len(models), len(STYLES)) + 0.9), 0.6 + 0.22 * len(models)
        figure = new_figure(max(10.4, 1.7 * len(rows) + 1.6), sum(heights))
        left, right = figure.subfigures(2, 1, height_ratios=heights)
    else:
        figure = new_figure(10.4, max(4.4, 0.34 * len(rows) * (len(models) + 1)))
        left, right = figure.subfigures(1, 2, width_ratios=(1.45, 1))
    styles = line_styles(models)
    _draw_curves(left.subplots(), models, styles)
    if many and any(axes.get_legend_handles_labels()[1] for axes in left.axes):
        left.legend(frameon=False, fontsize=9, labelcolor=INK, loc="outside right upper")
    panels = right.subplots(*((1, len(rows)) if many else (len(rows), 1)), squeeze=False).flatten()
    for number, (axes, fact) in enumerate(zip(panels, rows, strict=True)):
        _draw_bars(axes, models, fact, [colour for colour, _ in styles], named=not (many and number))
    if heading:
        shown = fit(heading, 0.98 * figure.get_figwidth(), TITLE)
        figure.suptitle(shown, x=0.01, ha="left", fontsize=TITLE, color=MUTED, family=FONT)
    return save_figure(figure, path)


def line_styles(models: Sequence[ComparedModel]) -> list[tuple[str, str]]:
    """The colour and the dashes of each model, all different; of more models than that, those of the best results only.
    """
    if len(models) <= len(STYLES):
        return list(STYLES[: len(models)])
    styles = [(FAINT, "-")] * len(models)
    ranked = sorted(range(len(models)), key=lambda i: -np.nan_to_num(models[i].accuracy, nan=-np.inf))
    for i, style in zip(ranked, STYLES[: len(COLOURS)], strict=False):
        styles[i] = style
    return styles


def _draw_curves(axes: Axes, models: Sequence[ComparedModel], styles: Sequence[tuple[str, str]]) -> None:
    style_axes(axes)
    drawn = [(entry, *style) for entry, style in zip(models, styles, strict=True)
             if entry.curve is not None and np.isfinite(entry.curve.y).any()]
    notes = []
    names = shorten_all([entry.name for entry, *_ in drawn])
    for (entry, colour, dashes), name in zip(drawn, names, strict=True):
        curve, at = entry.curve, entry.curve.best(highest=True)
        label, front = (None, 1) if colour == FAINT else (name, 2)
        axes.plot(curve.x, curve.y, dashes, color=colour, linewidth=1.8, label=label, zorder=front,
                  marker="o" if len(curve.x) <= 3 else None)
        axes.plot(curve.x[at], curve.y[at], "o", color=colour, markersize=6, markeredgecolor="white", zorder=front + 3)
        notes.append(f"{name} {curve.y[at]:.2%} after epoch {epoch_text(curve.x[at])}")
    measure = models[0].measure.replace("_", " ")
    line = ", ".join(notes)
    best = line if text_width(f"best: {line}", NOTE) < NOTE_WIDTH else ",\n".join(notes)
    note = f"best: {best}" if 0 < len(notes) <= 3 else ""
    if len(models) > len(STYLES):
        note = f"of {len(models):,} models, those with the best results have a colour"
    set_title(axes, f"Validation {measure}", note)
    axes.set_xlabel("epoch", fontsize=9, color=MUTED, family=FONT)
    if drawn:
        _limits(axes, [entry.curve for entry, *_ in drawn])
    if drawn and len(models) <= MAX_COLUMNS:
        axes.legend(frameon=False, fontsize=9, labelcolor=INK, loc="best")


def _limits(axes: Axes, curves: Sequence[Curve]) -> None:
    """Limits from the epochs after the first tenth, so that differences between the models are visible."""
    last = max(curve.x[-1] for curve in curves)
    settled = np.concatenate([curve.y[curve.x >= last / 10] for curve in curves])
    low, high = np.nanmin(settled), np.nanmax(settled)
    margin = max(0.08 * (high - low), 0.002)
    axes.set_ylim(max(0.0, low - margin), min(high + margin, 1.004))
    axes.set_xlim(-last * 0.015, last * 1.03)  # a marker at epoch 0 is whole
    axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=None))
    axes.xaxis.set_major_locator(MaxNLocator(nbins=7, integer=last >= 1))


def _draw_bars(axes: Axes, models: Sequence[ComparedModel], fact: Fact, colours: Sequence[str], named: bool) -> None:
    name, number, text, _ = fact
    values = [number(entry) for entry in models]
    top, positions = max(values) or 1.0, range(len(models))
    axes.barh(positions, [top] * len(values), color=RULE, alpha=0.45, height=0.6)
    axes.barh(positions, values, color=colours, height=0.6)
    for position, value in zip(positions, values, strict=True):
        axes.annotate(text(value), (1, position), xycoords=("axes fraction", "data"), xytext=(6, 0),
                      textcoords="offset points", va="center", fontsize=8.5, color=INK, family=FONT,
                      annotation_clip=False)
    axes.set_title(name, loc="left", fontsize=9, color=MUTED, family=FONT, pad=3)
    names = shorten_all([entry.name for entry in models], 16) if named else [""] * len(models)
    axes.set_yticks(positions, names, fontsize=8.5, color=INK, family=FONT)
    axes.set_xticks([])
    axes.set_xlim(0, top)
    axes.set_ylim(len(models) - 0.5, -0.5)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
