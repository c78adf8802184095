"""The values that a run logged in its metrics.csv, over the epochs."""

import csv
import itertools
import math
from dataclasses import dataclass
from os import PathLike

import numpy as np


@dataclass(frozen=True)
class Curve:
    """One logged value over training: fractional epochs `x` and values `y`, (points,) each."""

    x: np.ndarray
    y: np.ndarray

    def best(self, highest: bool) -> int:
        """The index of the highest or the lowest value; 0 if none is a number."""
        if np.isnan(self.y).all():
            return 0
        return int(np.nanargmax(self.y) if highest else np.nanargmin(self.y))


def epoch_text(epoch: float) -> str:
    """An epoch for people, with at most two decimals: 3, 0.67, 2,984"""
    return f"{epoch:,.2f}".rstrip("0").rstrip(".")


def read_curves(path: str | PathLike[str]) -> dict[str, Curve]:
    """The numeric columns of a CSV log with `epoch` and `step` columns, without empty cells."""
    with open(path, newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    timing = _steps_per_epoch(rows)
    names = [name for name in (rows[0] if rows else {}) if name not in ("epoch", "step", None)]
    curves = {name: _curve(rows, name, *timing) for name in names}
    return {name: curve for name, curve in curves.items() if len(curve.x)}


def _steps_per_epoch(rows: list[dict]) -> tuple[float, float]:
    """(steps per epoch, step offset): with both, an epoch ends at an integer whether steps count from 0 or from 1."""
    ends: dict[int, float] = {}
    for row in rows:
        if row.get("step") and row.get("epoch"):
            epoch = int(float(row["epoch"]))
            ends[epoch] = max(float(row["step"]), ends.get(epoch, 0.0))
    epochs = sorted(ends)
    if len(epochs) < 2:
        return max([*ends.values(), 0.0]) + 1, 1.0
    steps = float(np.median([(ends[b] - ends[a]) / (b - a) for a, b in itertools.pairwise(epochs)])) or 1.0
    first = epochs[0] + (ends.get(0, 0) > 0)  # Lightning and older runs count from 0; epoch 0 at step 0 is the start
    return steps, steps * first - ends[epochs[0]]


def _curve(rows: list[dict], name: str, steps_per_epoch: float, offset: float) -> Curve:
    points = {}
    for row in rows:
        try:
            value, step = float(row[name]), float(row["step"])
        except (KeyError, TypeError, ValueError):
            continue
        points[(step + offset) / steps_per_epoch] = value if math.isfinite(value) else math.nan
    return Curve(np.array(sorted(points)), np.array([points[x] for x in sorted(points)]))
