"""The files of a multi-label evaluation: predictions.csv, labels.png and mistakes.png."""

from collections.abc import Sequence
from os import PathLike
from pathlib import Path

import numpy as np
from rich.markup import escape
from rich.table import Table

from vit.data import Preprocessing, Split
from vit.evaluation import LabelScore, MultiLabelEvaluation
from vit.messages import left_to_right, visible
from vit.report.figures.misclassified import misclassified_picture
from vit.report.figures.style import (
    BLUE,
    FONT,
    INK,
    MUTED,
    ORANGE,
    TITLE,
    fit,
    new_figure,
    save_figure,
    set_title,
    shorten_all,
    style_axes,
)
from vit.report.summary import number, score_table, select_worst
from vit.report.tables import join_cell, open_table

DIGITS = "{:.9g}"  # of probabilities in predictions.csv


def write_multi_label_evaluation(folder: str | PathLike[str], evaluation: MultiLabelEvaluation, split: Split,
                                 preprocessing: Preprocessing, heading: str = "Test split") -> None:
    """Write all three files of an evaluation of `split`."""
    folder = Path(folder)
    write_predictions(folder / "predictions.csv", evaluation, split)
    labels_picture(folder / "labels.png", evaluation.class_scores(), heading)
    write_misclassified(folder / "mistakes.png", evaluation, split, preprocessing)


def write_predictions(path: str | PathLike[str], evaluation: MultiLabelEvaluation, split: Split) -> Path:
    """Write a row per image: file, true and predicted labels, whether all are right, loss, and each probability, with
    the digits that distinguish float32 values: the average precision of a rare label depends on their order.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    classes, predicted = evaluation.classes, evaluation.predicted
    columns = ["file", "true", "labels", "right", "loss", *probability_columns(classes)]
    with open_table(path, columns) as table:
        for i, row in enumerate(evaluation.rows):
            table.write({
                "file": split.names[int(row)],
                "true": join_cell(names_of(classes, evaluation.truth[i]), classes),
                "labels": join_cell(names_of(classes, predicted[i]), classes),
                "right": int((predicted[i] == evaluation.truth[i]).all()),
                "loss": float(evaluation.losses[i]),
                **dict(zip(probability_columns(classes), map(DIGITS.format, evaluation.probabilities[i]), strict=True)),
            })
    return path


def probability_columns(classes: Sequence[str]) -> list[str]:
    """p(cat), p(dog), ...; the form cannot clash with other columns."""
    return [f"p({name})" for name in classes]


def names_of(classes: Sequence[str], labels: np.ndarray) -> list[str]:
    """labels (classes,) bool -> the names of the true ones"""
    return [classes[c] for c in np.flatnonzero(labels)]


def label_table(scores: list[LabelScore], most: int = 40, narrow: bool = False) -> Table:
    """One row per label. If there are more than `most`, only those with images and the lowest F1.

    Args:
        narrow: the terminal has fewer columns than `vit.report.summary.NARROW`.
    """
    shown, caption = select_worst(scores, most, "labels")
    table = score_table("label", ("images", "AP", "threshold", "precision", "recall", "F1"), caption, narrow)
    for score in shown:
        values = score.average_precision, score.threshold, score.precision, score.recall, score.f1
        table.add_row(escape(visible(score.name)), f"{score.images:,}", *(number(value) for value in values))
    return table


def labels_picture(path: str | PathLike[str], scores: list[LabelScore], heading: str, most: int = 60) -> Path:
    """Draw average precision and F1 per label, best first. If there are more than `most` labels, only those with the
    lowest average precision.
    """
    present = sorted((s for s in scores if s.images), key=lambda score: -score.average_precision)
    shown = present[-most:]
    figure = new_figure(7.5, 1.1 + 0.34 * max(len(shown), 2))
    axes = figure.subplots()
    style_axes(axes)
    positions = np.arange(len(shown))
    axes.barh(positions - 0.19, [s.average_precision for s in shown], 0.36, color=BLUE, label="average precision")
    axes.barh(positions + 0.19, [s.f1 for s in shown], 0.36, color=ORANGE, label="F1 at its threshold")
    short = shorten_all([s.name for s in shown], all_names=[s.name for s in scores])
    names = [left_to_right(name, f" ({s.images:,})") for name, s in zip(short, shown, strict=True)]
    axes.set_yticks(positions, names, fontsize=9, color=INK, family=FONT)
    axes.set(xlim=(0, 1), ylim=(len(shown) - 0.4, -0.6))
    mean = np.mean([s.average_precision for s in present])
    cut = f", the {most} lowest of {len(present)}" if len(present) > most else ""
    set_title(axes, fit(heading, 7.0, TITLE, bold=True),
              f"mean average precision {mean:.4f}{cut}; number of images in parentheses")
    axes.legend(frameon=False, fontsize=8.5, labelcolor=MUTED, loc="upper left", bbox_to_anchor=(1, 1))
    return save_figure(figure, path)


def write_misclassified(path: str | PathLike[str], evaluation: MultiLabelEvaluation, split: Split,
                        preprocessing: Preprocessing, limit: int = 24) -> Path:
    """Draw the most confident wrong labels, false or missing, each with its image."""
    predicted = evaluation.predicted
    confidence = np.where(predicted, evaluation.probabilities, 1 - evaluation.probabilities)  # (N,classes)
    wrong = np.argwhere(predicted != evaluation.truth)
    shown = wrong[np.argsort(-confidence[tuple(wrong.T)], kind="stable")][:limit]
    rows = [int(evaluation.rows[i]) for i, _ in shown]
    images = [preprocessing.preview(split.read(row), split.names[row]) for row in rows]
    truths = [", ".join(names_of(evaluation.classes, evaluation.truth[i])) or "none" for i, _ in shown]
    labels = [("" if predicted[i, c] else "no ") + evaluation.classes[c] for i, c in shown]
    probabilities = [float(confidence[i, c]) for i, c in shown]
    return misclassified_picture(path, images, truths, labels, probabilities, [split.names[row] for row in rows])
