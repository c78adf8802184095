"""The reliability diagram of a classifier, and its risk-coverage curve (arXiv 1705.08500)."""

from os import PathLike
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import PercentFormatter

from vit.evaluation import Evaluation
from vit.evaluation.calibration.reliability import calibration_error, reliability, risks
from vit.report.figures.style import (
    BLUE,
    FONT,
    INK,
    MUTED,
    ORANGE,
    RULE,
    TITLE,
    fit,
    new_figure,
    save_figure,
    set_title,
    style_axes,
)

HEADING = 4.3  # inches of the heading above the diagram


def reliability_picture(path: str | PathLike[str], evaluation: Evaluation, heading: str = "Reliability") -> Path:
    """Draw accuracy over probability, without and with calibration, beside the risk-coverage curve."""
    right = evaluation.predictions[:, 0] == evaluation.labels
    highest = evaluation.probabilities[:, 0].astype(np.float64)
    lines = [("calibrated" if evaluation.calibrated else "as trained", BLUE, highest)]
    if evaluation.calibrated:
        lines.insert(0, ("as trained", ORANGE, evaluation.uncalibrated.astype(np.float64)))
    figure = new_figure(9.2, 4.2)
    diagram, risk = figure.subplots(1, 2)
    draw_reliability(diagram, lines, right)
    set_title(diagram, fit(heading, HEADING, TITLE, bold=True),
              "accuracy of the predictions with a probability; on the diagonal both agree")
    draw_risk(risk, highest, right)
    set_title(risk, "Risk-coverage curve", "errors if the model abstains for the least certain inputs")
    return save_figure(figure, path)


def draw_reliability(axes: Axes, lines: list[tuple[str, str, np.ndarray]], right: np.ndarray) -> None:
    """A line per (name, colour, probabilities (N,)), with a point per bin whose size grows with its samples."""
    style_axes(axes)
    axes.plot([0, 1], [0, 1], color=RULE, linewidth=2)
    for name, colour, probabilities in lines:
        parts = np.array(reliability(probabilities, right))  # (bins,3)
        label = f"{name}: calibration error {calibration_error(probabilities, right):.3f}"
        axes.plot(parts[:, 1], parts[:, 2], color=colour, linewidth=1.5, label=label)
        axes.scatter(parts[:, 1], parts[:, 2], s=12 + 180 * parts[:, 0] / len(right), color=colour, alpha=0.7)
    axes.set(xlim=(-0.03, 1.03), ylim=(-0.03, 1.03))
    axes.set_xlabel("probability of the prediction", fontsize=9, color=MUTED, family=FONT)
    axes.set_ylabel("accuracy", fontsize=9, color=MUTED, family=FONT)
    axes.legend(frameon=False, fontsize=8.5, labelcolor=INK, loc="upper center", bbox_to_anchor=(0.5, -0.16))


def draw_risk(axes: Axes, probabilities: np.ndarray, right: np.ndarray) -> None:
    """The error rate of the most certain predictions (risk), over their share of all inputs (coverage)."""
    style_axes(axes)
    count = len(probabilities)
    axes.plot(np.arange(1, count + 1) / count, risks(probabilities, right), color=BLUE, linewidth=1.5,
              marker="o" if count == 1 else None)
    axes.set(xlim=(-0.02, 1.02))
    axes.set_ylim(bottom=0)
    axes.xaxis.set_major_formatter(PercentFormatter(1))
    axes.yaxis.set_major_formatter(PercentFormatter(1, decimals=1))
    axes.set_xlabel("coverage: inputs without abstention", fontsize=9, color=MUTED, family=FONT)
    axes.set_ylabel("risk: error rate", fontsize=9, color=MUTED, family=FONT)
