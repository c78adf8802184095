"""What an evaluation leaves in a folder: predictions.csv, confusion.png and mistakes.png."""

from os import PathLike
from pathlib import Path

import numpy as np

from vit.data import Preprocessing, Split, TextSplit
from vit.evaluation import Evaluation
from vit.report.confusion import confusion_picture
from vit.report.mistakes import mistakes_picture
from vit.report.tables import open_table, prediction_cells, prediction_columns


def write_evaluation(folder: str | PathLike[str], evaluation: Evaluation, split: Split, preprocessing: Preprocessing,
                     heading: str = "Test split") -> None:
    """Write the three files; `split` is the one that was evaluated."""
    folder = Path(folder)
    write_predictions(folder / "predictions.csv", evaluation, split)
    confusion_picture(folder / "confusion.png", evaluation.confusion, evaluation.classes, heading)
    write_mistakes(folder / "mistakes.png", evaluation, split, preprocessing)


def write_text_evaluation(folder: str | PathLike[str], evaluation: Evaluation, split: TextSplit,
                          heading: str = "Test split") -> None:
    """predictions.csv and confusion.png."""
    folder = Path(folder)
    write_predictions(folder / "predictions.csv", evaluation, split)
    confusion_picture(folder / "confusion.png", evaluation.confusion, evaluation.classes, heading)


def write_predictions(path: str | PathLike[str], evaluation: Evaluation, split: Split | TextSplit) -> Path:
    """One line per sample: its file, true class, whether the answer was right, its loss, and the best answers."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    columns = ["file", "true", "right", "loss", *prediction_columns(evaluation.answers.shape[1])]
    with open_table(path, columns) as table:
        for i, row in enumerate(evaluation.rows):
            answers, label = evaluation.answers[i], evaluation.labels[i]
            cells = prediction_cells([evaluation.classes[answer] for answer in answers], evaluation.probabilities[i])
            table.write({"file": split.names[int(row)], "true": evaluation.classes[label],
                         "right": int(answers[0] == label), "loss": float(evaluation.losses[i]), **cells})
    return path


def write_mistakes(path: str | PathLike[str], evaluation: Evaluation, split: Split, preprocessing: Preprocessing,
                   most: int = 24) -> Path:
    """The picture of the wrong answers that the model was surest of: the part of each image that it saw."""
    wrong = np.flatnonzero(evaluation.answers[:, 0] != evaluation.labels)
    worst = wrong[np.argsort(-evaluation.probabilities[wrong, 0], kind="stable")][:most]
    rows = [int(evaluation.rows[i]) for i in worst]
    images = [preprocessing.preview(split.read(row), split.names[row]) for row in rows]
    truths = [evaluation.classes[i] for i in evaluation.labels[worst]]
    answers = [evaluation.classes[i] for i in evaluation.answers[worst, 0]]
    sure = evaluation.probabilities[worst, 0].tolist()
    return mistakes_picture(path, images, truths, answers, sure, [split.names[row] for row in rows])
