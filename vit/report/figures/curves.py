"""Learning curves of a run: loss, accuracy and learning rate from its metrics.csv, as one figure."""

from os import PathLike
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator, PercentFormatter

from vit.report.figures.style import (
    BLUE,
    FONT,
    INK,
    MUTED,
    ORANGE,
    TITLE,
    fit,
    literal,
    new_figure,
    save_figure,
    set_title,
    style_axes,
)
from vit.report.logged_values import Curve, epoch_text, read_curves

LINES = (("train", ORANGE, "training"), ("val", BLUE, "validation"))


def curves_picture(path: str | PathLike[str], metrics_csv: str | PathLike[str],
                   heading: str = "", note: str = "", best_epoch: int | None = None) -> Path | None:
    """Draw the panels that the log has values for, and a note below; None if it has no values yet.

    Args:
        best_epoch: the epoch whose model was selected, from 1, or 0 for the start; None if it is unknown.
    """
    curves = read_curves(metrics_csv)
    rates = {name: curve for name, curve in curves.items()
             if name.rsplit("/", 1)[-1].startswith("lr") and len(curve.x) > 1}
    losses = _pair(curves, "loss")
    metric = "map" if "val/map" in curves else "accuracy"  # by default it selects the best epoch
    accuracies = _pair(curves, metric)
    panels = [panel for panel in (losses, accuracies, rates) if panel]
    if not panels:
        return None
    last = max(curve.x[-1] for panel in panels for curve in panel.values())
    figure = new_figure(4.6 * len(panels), 3.7)
    for axes, panel in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
        style_axes(axes)
        axes.set_xlabel("epoch", fontsize=9, color=MUTED, family=FONT)
        axes.xaxis.set_major_locator(MaxNLocator(nbins=7, integer=last >= 1))
        axes.set_xlim(0, last * 1.03)
        if panel is rates:
            _draw_rates(axes, panel)
        else:
            name = "Loss" if panel is losses else "mAP" if metric == "map" else "Accuracy"
            _draw_pair(axes, panel, name, best_epoch)
    if heading:
        shown = fit(heading, 0.98 * figure.get_figwidth(), TITLE)
        figure.suptitle(shown, x=0.01, ha="left", fontsize=TITLE, color=MUTED, family=FONT)
    if note:
        figure.supxlabel(literal(note), x=0.01, ha="left", fontsize=7.5, color=MUTED, family=FONT)
    return save_figure(figure, path)


def _pair(curves: dict[str, Curve], name: str) -> dict[str, Curve]:
    """The training and validation curves of one metric, under any of Lightning's names for it."""
    pair = {}
    for stage, _, _ in LINES:
        for key in (f"{stage}/{name}", f"{stage}/{name}_step", f"{stage}/{name}_epoch"):
            if key in curves:
                pair[stage] = curves[key]
                break
    return pair


def _draw_pair(axes: Axes, pair: dict[str, Curve], name: str, best_epoch: int | None) -> None:
    is_loss = name == "Loss"
    for stage, colour, label in LINES:
        if stage not in pair:
            continue
        curve = pair[stage]
        if stage == "train" and len(curve.y) > 60:
            axes.plot(curve.x, curve.y, color=colour, alpha=0.25, linewidth=0.8)
            curve = _smooth(curve)
        marker = "o" if len(curve.x) <= 3 else None
        axes.plot(curve.x, curve.y, color=colour, linewidth=1.8, label=label, marker=marker)
    note = ""
    if "val" in pair and np.isfinite(pair["val"].y).any():
        note = _mark_best(axes, pair["val"], is_loss, best_epoch)
    set_title(axes, name, note)
    _limits(axes, pair, is_loss)
    axes.legend(frameon=False, fontsize=9, labelcolor=INK, loc="best")


def _mark_best(axes: Axes, curve: Curve, is_loss: bool, best_epoch: int | None) -> str:
    """Mark the best value. Among equal ones it is that of the selected epoch; a metric also states the latter if it has
    a worse value, since the start of training is only replaced by an epoch that is clearly better.
    """
    at = curve.best(highest=not is_loss)
    selected = np.flatnonzero(np.isclose(curve.x, best_epoch)) if best_epoch is not None else ()
    if len(selected) and curve.y[selected[0]] == curve.y[at]:
        at = selected[0]
    axes.plot(curve.x[at], curve.y[at], "o", color=BLUE, markersize=6, markeredgecolor="white", zorder=5, clip_on=False)
    value = f"{curve.y[at]:.4g}" if is_loss else f"{curve.y[at]:.2%}"
    note = f"best validation {value} after epoch {epoch_text(curve.x[at])}"
    return note if is_loss or not len(selected) or at == selected[0] else f"{note}; selected: epoch {best_epoch:,}"


def _limits(axes: Axes, pair: dict[str, Curve], is_loss: bool) -> None:
    """Limits without the outliers of the first steps."""
    values = np.concatenate([curve.y[np.isfinite(curve.y)] for curve in pair.values()])
    if not len(values):
        return
    if is_loss:
        high = np.quantile(values, 0.98) if len(values) > 20 else values.max()
        axes.set_ylim(min(1.1 * values.min(), 0), max(high * 1.1, 0) or 1)  # losses of other tasks may be negative
        if not 1e-3 < high < 1e5:
            axes.yaxis.set_major_formatter("{x:g}")  # without a factor above the axis, where the note is
    else:
        low = np.quantile(values, 0.02) if len(values) > 20 else values.min()
        axes.set_ylim(max(0.0, low - 0.05), min(1.0, values.max() + 0.02) + 0.002)
        axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=None))


def _draw_rates(axes: Axes, rates: dict[str, Curve]) -> None:
    """The highest learning rate; parameter groups with the same schedule differ by constant factors only."""
    top = max(rates.values(), key=lambda curve: np.nanmax(curve.y))
    axes.plot(top.x, top.y, color=INK, linewidth=1.8)
    axes.fill_between(top.x, top.y, color=INK, alpha=0.06, linewidth=0)
    axes.set_ylim(0, None)
    axes.yaxis.set_major_formatter("{x:g}")
    set_title(axes, "Learning rate", f"at the end of each epoch, at most {np.nanmax(top.y):.3g}")


def _smooth(curve: Curve) -> Curve:
    """A centred moving average over about a thirtieth of the curve; missing values are ignored."""
    width = max(len(curve.y) // 30, 1) | 1
    kernel = np.ones(width)
    valid = np.isfinite(curve.y)
    total = np.convolve(np.where(valid, curve.y, 0.0), kernel, mode="same")
    count = np.convolve(valid.astype(float), kernel, mode="same")
    return Curve(curve.x, np.where(count > 0, total / np.maximum(count, 1), np.nan))
