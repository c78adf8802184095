"""What an evaluation of several labels per image leaves in a folder: predictions.csv, labels.png and mistakes.png."""

from collections.abc import Sequence
from os import PathLike
from pathlib import Path

import numpy as np
from rich.box import SIMPLE_HEAD
from rich.markup import escape
from rich.table import Table

from vit.data import Preprocessing, Split
from vit.data.source import separator_of
from vit.evaluation import LabelScore, LabelSetEvaluation
from vit.report.canvas import BLUE, FONT, INK, MUTED, ORANGE, new_figure, plain_axes, save, short, title
from vit.report.mistakes import mistakes_picture
from vit.report.summary import worst
from vit.report.tables import open_table


def write_label_sets(folder: str | PathLike[str], evaluation: LabelSetEvaluation, split: Split,
                     preprocessing: Preprocessing, heading: str = "Test split") -> None:
    """Write the three files; `split` is the one that was evaluated."""
    folder = Path(folder)
    write_predictions(folder / "predictions.csv", evaluation, split)
    labels_picture(folder / "labels.png", evaluation.class_scores(), heading)
    write_mistakes(folder / "mistakes.png", evaluation, split, preprocessing)


def write_predictions(path: str | PathLike[str], evaluation: LabelSetEvaluation, split: Split) -> Path:
    """One line per image: its file, true labels, those given, whether all are right, its loss, each probability."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    classes, said = evaluation.classes, evaluation.said
    columns = ["file", "true", "labels", "right", "loss", *probability_columns(classes)]
    with open_table(path, columns) as table:
        for i, row in enumerate(evaluation.rows):
            table.write({
                "file": split.names[int(row)],
                "true": joined(names_of(classes, evaluation.truth[i]), classes),
                "labels": joined(names_of(classes, said[i]), classes),
                "right": int((said[i] == evaluation.truth[i]).all()),
                "loss": float(evaluation.losses[i]),
                **dict(zip(probability_columns(classes), evaluation.probabilities[i].tolist(), strict=True)),
            })
    return path


def probability_columns(classes: Sequence[str]) -> list[str]:
    """`p(cat), p(dog)`: they never meet a column of another kind."""
    return [f"p({name})" for name in classes]


def names_of(classes: Sequence[str], given: np.ndarray) -> list[str]:
    return [classes[c] for c in np.flatnonzero(given)]


def joined(names: Sequence[str], classes: Sequence[str]) -> str:
    """Several names, or their numbers, in one cell."""
    return separator_of(classes).join(names)


def label_table(scores: list[LabelScore], most: int = 40) -> Table:
    """One row per label; of more than `most` labels the worst ones that have images."""
    shown, caption = worst(scores, most, "labels")
    table = Table(box=SIMPLE_HEAD, padding=(0, 1), caption=caption, caption_justify="left")
    table.add_column("label")
    for name in ("images", "AP", "threshold", "precision", "recall", "F1"):
        table.add_column(name, justify="right")
    for score in shown:
        values = score.average_precision, score.threshold, score.precision, score.recall, score.f1
        table.add_row(escape(score.name), f"{score.images:,}", *(f"{value:.4f}" for value in values))
    return table


def labels_picture(path: str | PathLike[str], scores: list[LabelScore], heading: str, most: int = 60) -> Path:
    """Two bars per label, average precision and F1 at its threshold, the best on top; of many labels the worst."""
    present = sorted((s for s in scores if s.images), key=lambda score: -score.average_precision)
    shown = present[-most:]
    figure = new_figure(7.5, 1.1 + 0.34 * max(len(shown), 2))
    axes = figure.subplots()
    plain_axes(axes)
    places = np.arange(len(shown))
    axes.barh(places - 0.19, [s.average_precision for s in shown], 0.36, color=BLUE, label="average precision")
    axes.barh(places + 0.19, [s.f1 for s in shown], 0.36, color=ORANGE, label="F1 at its threshold")
    names = [f"{short(s.name)} ({s.images:,})" for s in shown]
    axes.set_yticks(places, names, fontsize=9, color=INK, family=FONT)
    axes.set(xlim=(0, 1), ylim=(len(shown) - 0.4, -0.6))
    mean = np.mean([s.average_precision for s in present])
    cut = f", the {most} worst of {len(present)}" if len(present) > most else ""
    title(axes, heading, f"mean average precision {mean:.4f}{cut}; images in brackets")
    axes.legend(frameon=False, fontsize=8.5, labelcolor=MUTED, loc="upper left", bbox_to_anchor=(1, 1))
    return save(figure, path)


def write_mistakes(path: str | PathLike[str], evaluation: LabelSetEvaluation, split: Split,
                   preprocessing: Preprocessing, most: int = 24) -> Path:
    """The picture of the single wrong labels that the model was surest of: given or missed."""
    sure = np.where(evaluation.said, evaluation.probabilities, 1 - evaluation.probabilities)  # (N,classes)
    wrong = np.argwhere(evaluation.said != evaluation.truth)
    worst = wrong[np.argsort(-sure[tuple(wrong.T)], kind="stable")][:most]
    rows = [int(evaluation.rows[i]) for i, _ in worst]
    images = [preprocessing.preview(split.read(row), split.names[row]) for row in rows]
    truths = [", ".join(names_of(evaluation.classes, evaluation.truth[i])) or "none" for i, _ in worst]
    answers = [("" if evaluation.said[i, c] else "no ") + evaluation.classes[c] for i, c in worst]
    return mistakes_picture(path, images, truths, answers, [float(sure[i, c]) for i, c in worst],
                            [split.names[row] for row in rows])
