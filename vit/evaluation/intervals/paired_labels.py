"""Two multi-label classifiers on the same images: paired bootstrap of mAP and F1, McNemar's test of exact match."""

import csv
from dataclasses import dataclass
from os import PathLike
from pathlib import Path

import numpy as np

from vit.data import DataError
from vit.data.source import separator_of
from vit.evaluation.intervals.bootstrap import Interval, resampled_counts
from vit.evaluation.intervals.label_bootstrap import RESAMPLES, label_mean, weighted_f1, weighted_precision
from vit.evaluation.intervals.paired import NO_ROWS, PREDICTIONS, check_written, mcnemar, paired_metrics
from vit.messages import agree, number_of

FEWEST_IMAGES = 50  # minimum number of images for intervals of a paired comparison, the same as for texts
MATCH = "exact_match"


@dataclass(frozen=True)
class LabelAnswers:
    """True and predicted labels of N images.

    Args:
        names: names of the images.
        truth, predicted: (N,classes) bool.
        probabilities: (N,classes).
    """

    names: list[str]
    classes: list[str]
    truth: np.ndarray
    predicted: np.ndarray
    probabilities: np.ndarray

    @property
    def matches(self) -> np.ndarray:
        """Whether all labels of an image are right, bool (N,)."""
        return (self.truth == self.predicted).all(axis=1)

    def metrics(self, counts: np.ndarray) -> dict[str, np.ndarray]:
        """counts (R,N), how often each of R resamples contains each image -> exact_match, map and f1 (R,); map and f1
        are means over labels.
        """
        matches = counts @ self.matches.astype(np.int64) / len(self.names)
        counts = counts.T.astype(np.uint8, order="C").T  # contiguous per image
        present = np.flatnonzero(self.truth.any(axis=0))
        areas = np.stack([weighted_precision(self.truth[:, c], self.probabilities[:, c], counts) for c in present])
        f1 = np.stack([weighted_f1(self.truth[:, c], self.predicted[:, c], counts) for c in present])
        return {MATCH: matches, "map": label_mean(areas), "f1": label_mean(f1)}


def has_label_sets(run: str | PathLike[str]) -> bool:
    """Whether the predictions.csv of a run is that of a multi-label model."""
    try:
        with open(Path(run) / PREDICTIONS, newline="", encoding="utf-8", errors="surrogateescape") as file:
            return {"true", "labels"} <= set(next(csv.reader(file), ()))
    except (OSError, csv.Error):
        return False


def read_label_sets(run: str | PathLike[str]) -> LabelAnswers:
    """The labels in the predictions.csv of a run or of `vit evaluate --output`.

    Raises:
        DataError: it is empty or damaged, no image has a label, or an image occurs twice in it.
    """
    path = Path(run) / PREDICTIONS
    check_written(path)
    with open(path, newline="", encoding="utf-8", errors="surrogateescape") as file:
        rows = list(csv.DictReader(file))
    if not rows:
        raise DataError(f"{path} {NO_ROWS}")
    classes = [column[2:-1] for column in rows[0] if column.startswith("p(") and column.endswith(")")]
    sign = separator_of(classes)
    try:
        probabilities = np.array([[float(row[f"p({name})"]) for name in classes] for row in rows])
        truth, predicted = (np.array([[name in labels for name in classes] for labels in
                                      (set(row[key].split(sign)) for row in rows)]) for key in ("true", "labels"))
    except (TypeError, ValueError, AttributeError) as error:
        raise DataError(f"{path} is damaged ({error}); evaluate the model again with vit evaluate MODEL --output "
                        "FOLDER") from error
    if not np.isfinite(probabilities).all():
        raise DataError(f"{path} has a probability that is not a finite number; evaluate the model again with vit "
                        "evaluate MODEL --output FOLDER")
    if not truth.any():
        raise DataError(f"{path}: none of its {number_of(len(rows), 'image')} has a label, so there is nothing to "
                        "compare")
    names = [row["file"] for row in rows]
    if len(set(names)) < len(names):
        raise DataError(f"{path} has {number_of(len(rows), 'row')} for {number_of(len(set(names)), 'file')}, so "
                        "samples cannot be matched by name")
    return LabelAnswers(names, classes, truth, predicted, probabilities)


def matched_label_sets(first: LabelAnswers, second: LabelAnswers, names: tuple[object, object]) -> LabelAnswers:
    """`second` with its images and classes in the order of `first`.

    Args:
        names: names of the two runs, for the message.

    Raises:
        DataError: the images, their labels or the classes differ.
    """
    fix = "evaluate both on the same data: vit evaluate MODEL data=... --output FOLDER"
    for what, ours, theirs in (("class", first.classes, second.classes), ("sample", first.names, second.names)):
        if alone := set(ours) ^ set(theirs):
            raise DataError(f"{number_of(len(alone), what)} {agree(len(alone), 'is', 'are')} in only one of "
                            f"{names[0]} and {names[1]}, such as {min(alone)!r}; {fix}")
    row_of, column_of = ({name: i for i, name in enumerate(each)} for each in (second.names, second.classes))
    rows, columns = [row_of[name] for name in first.names], [column_of[name] for name in first.classes]
    matched = LabelAnswers(first.names, first.classes, *(
        each[rows][:, columns] for each in (second.truth, second.predicted, second.probabilities)))
    if (other := (matched.truth != first.truth).any(axis=1)).any():
        raise DataError(f"{first.names[int(other.argmax())]!r} has other labels in {names[0]} than in {names[1]}; "
                        "evaluate both on the same data")
    return matched


def compare_label_sets(
    first: LabelAnswers, second: LabelAnswers, resamples: int = RESAMPLES
) -> dict[str, tuple[Interval, float | None]]:
    """name -> (difference second minus first with its interval, two-sided p-value), on the same images.

    The p-value of exact match is from McNemar's exact test, the p-values of mAP and F1 are from the paired bootstrap.
    With fewer than `FEWEST_IMAGES` images there are no intervals, and the p-values of mAP and F1 are None.
    """
    images = len(first.names)
    ones = np.ones((1, images), np.int64)
    before, after = first.metrics(ones), second.metrics(ones)
    observed = {name: float(after[name][0] - value[0]) for name, value in before.items()}
    p_match = mcnemar(int((first.matches & ~second.matches).sum()), int((second.matches & ~first.matches).sum()))
    drawn = None
    if images >= FEWEST_IMAGES:
        counts = resampled_counts(np.arange(images), images, resamples)
        drawn = first.metrics(counts), second.metrics(counts)
    return paired_metrics(observed, drawn, {MATCH: p_match})
