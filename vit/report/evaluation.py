"""The files of an evaluation of a classifier: predictions.csv, confusion.png, reliability.png and mistakes.png."""

from os import PathLike
from pathlib import Path

import numpy as np

from vit.data import Preprocessing, Split, TextSplit
from vit.evaluation import Evaluation
from vit.report.figures.confusion import confusion_picture
from vit.report.figures.misclassified import misclassified_picture
from vit.report.figures.reliability import reliability_picture
from vit.report.tables import open_table, prediction_cells, prediction_columns


def write_evaluation(folder: str | PathLike[str], evaluation: Evaluation, split: Split, preprocessing: Preprocessing,
                     heading: str = "Test split") -> None:
    """Write all four files; `split` is the evaluated one."""
    write_text_evaluation(folder, evaluation, split, heading)
    write_misclassified(Path(folder) / "mistakes.png", evaluation, split, preprocessing)


def write_text_evaluation(folder: str | PathLike[str], evaluation: Evaluation, split: Split | TextSplit,
                          heading: str = "Test split") -> None:
    """Write predictions.csv, confusion.png and reliability.png, which do not need images."""
    folder = Path(folder)
    write_predictions(folder / "predictions.csv", evaluation, split)
    unit = "texts" if isinstance(split, TextSplit) else "images"
    confusion_picture(folder / "confusion.png", evaluation.confusion_counts, evaluation.classes, heading, unit)
    reliability_picture(folder / "reliability.png", evaluation, heading)


def write_predictions(path: str | PathLike[str], evaluation: Evaluation, split: Split | TextSplit) -> Path:
    """Write a row per sample: file, true class, whether the prediction is right, loss, and the best predictions."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    columns = ["file", "true", "right", "loss", *prediction_columns(evaluation.predictions.shape[1])]
    with open_table(path, columns) as table:
        for i, row in enumerate(evaluation.rows):
            best, label = evaluation.predictions[i], evaluation.labels[i]
            cells = prediction_cells([evaluation.classes[index] for index in best], evaluation.probabilities[i])
            table.write({"file": split.names[int(row)], "true": evaluation.classes[label],
                         "right": int(best[0] == label), "loss": float(evaluation.losses[i]), **cells})
    return path


def write_misclassified(path: str | PathLike[str], evaluation: Evaluation, split: Split, preprocessing: Preprocessing,
                        limit: int = 24) -> Path:
    """The model's input images of the wrong predictions with the highest probability."""
    wrong = np.flatnonzero(evaluation.predictions[:, 0] != evaluation.labels)
    shown = wrong[np.argsort(-evaluation.probabilities[wrong, 0], kind="stable")][:limit]
    rows = [int(evaluation.rows[i]) for i in shown]
    images = [preprocessing.preview(split.read(row), split.names[row]) for row in rows]
    truths = [evaluation.classes[i] for i in evaluation.labels[shown]]
    predictions = [evaluation.classes[i] for i in evaluation.predictions[shown, 0]]
    probabilities = evaluation.probabilities[shown, 0].tolist()
    names = [split.names[row] for row in rows]
    return misclassified_picture(path, images, truths, predictions, probabilities, names, evaluation.classes)
