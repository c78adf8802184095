"""Two classifiers on the same samples: McNemar's test, and a paired bootstrap of the difference of their accuracies."""

import csv
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path

import numpy as np

from vit.data import DataError
from vit.evaluation.intervals.bootstrap import (
    BOOTSTRAP,
    LEVEL,
    NONE,
    RESAMPLES,
    Interval,
    percentiles,
    resampled_counts,
)
from vit.files.atomic import check_result
from vit.messages import agree, first_line, number_of

PREDICTIONS = "predictions.csv"
COLUMNS = ("file", "true", "right")
GENERATED = ("generated", "answer")  # the column of generated texts, and its name in older versions
NO_ROWS = "has no rows; evaluate the model again with vit evaluate MODEL --output FOLDER"
Predictions = Mapping[str, tuple[str, bool]]  # file -> (true class, whether the prediction is right)


@dataclass(frozen=True)
class PairedComparison:
    """The comparison of a second classifier with a first one.

    `only_first` and `only_second`: samples that only one of them classifies correctly. `difference`: accuracy of the
    second one minus that of the first. `p_value`: of `mcnemar`.
    """

    samples: int
    first: float
    second: float
    only_first: int
    only_second: int
    difference: Interval
    p_value: float


def compare_paired(
    first: np.ndarray, second: np.ndarray, resamples: int = RESAMPLES, seed: int = 0
) -> PairedComparison:
    """The comparison of two classifiers by whether their predictions for the same samples are right, bool (N,) each."""
    cells = first.astype(np.int64) + 2 * second
    counts = np.bincount(cells, minlength=4)
    only_first, only_second = int(counts[1]), int(counts[2])
    drawn = resampled_counts(cells, 4, resamples, seed)
    low, high = percentiles((drawn[:, 2] - drawn[:, 1]) / len(cells), LEVEL)
    difference = Interval((only_second - only_first) / len(cells), low, high, BOOTSTRAP)
    p_value = mcnemar(only_first, only_second)
    return PairedComparison(
        len(cells), float(first.mean()), float(second.mean()), only_first, only_second, difference, p_value
    )


def mcnemar(only_first: int, only_second: int) -> float:
    """The p-value of McNemar's exact test (1947): that samples which only one of two classifiers gets right are this
    unevenly divided, or more, if both are equally good.
    """
    from scipy.stats import binomtest

    total = only_first + only_second
    return float(binomtest(only_first, total, 0.5).pvalue) if total else 1.0


def paired_metrics(
    observed: Mapping[str, float], drawn: tuple[Mapping[str, np.ndarray], Mapping[str, np.ndarray]] | None,
    exact: Mapping[str, float]
) -> dict[str, tuple[Interval, float | None]]:
    """name -> (observed difference with its interval, two-sided p-value)

    The p-value of the paired bootstrap is the share of resamples whose difference, shifted to mean 0, is at least as
    large as the observed one (Koehn 2004, Riezler and Maxwell 2005). Resamples in which a metric is undefined do not
    count.

    Args:
        observed: differences, second minus first.
        drawn: the metrics (R,) of both on the same resamples; None for samples too few for a bootstrap, which then have
            no interval and no p-value but the exact ones.
        exact: p-values of exact tests, which replace those of the bootstrap.
    """
    if drawn is None:
        return {name: (Interval(value, None, None, NONE), exact.get(name)) for name, value in observed.items()}
    metrics = {}
    for name, value in observed.items():
        differences = drawn[1][name] - drawn[0][name]
        differences = differences[np.isfinite(differences)]
        beyond = np.abs(differences - differences.mean()) >= abs(value)
        p_value = exact.get(name, float((beyond.sum() + 1) / (len(differences) + 1)))
        metrics[name] = Interval(value, *percentiles(differences, LEVEL), BOOTSTRAP), p_value
    return metrics


def read_predictions(run: str | PathLike[str]) -> Predictions:
    """The predictions in the predictions.csv of a run or of `vit evaluate --output`.

    Raises:
        DataError: there is no such file, it is damaged or empty, it is not that of a classifier, or a sample occurs
            twice in it.
    """
    path = Path(run) / PREDICTIONS
    try:
        with open(path, newline="", encoding="utf-8", errors="surrogateescape") as file:
            rows = list(csv.DictReader(file))
    except (OSError, csv.Error) as error:
        raise DataError(f"{path} cannot be read ({first_line(error, 120)}); pass the folder of a finished run of a "
                        "classifier, or the folder of vit evaluate --output") from error
    check_written(path)
    if not rows:
        raise DataError(f"{path} {NO_ROWS}")
    if absent := [name for name in COLUMNS if rows[0].get(name) is None]:
        raise DataError(f"{path} has no column {absent[0]}, so it does not hold the predictions of a classifier with "
                        "one label per sample")
    check_complete(path, rows, COLUMNS)
    found = {row["file"]: (row["true"], row["right"] == "1") for row in rows}
    if len(found) < len(rows):
        raise DataError(f"{path} has {number_of(len(rows), 'row')} for {number_of(len(found), 'file')}, so samples "
                        "cannot be matched by name")
    return found


def check_complete(path: Path, rows: Sequence[Mapping[str, str | None]], columns: Sequence[str]) -> None:
    """Checks that each row of a table has these cells.

    Raises:
        DataError: a row ends before them, as the last one of a file that was not written to its end.
    """
    cut = next((number for number, row in enumerate(rows, 1) if any(row[name] is None for name in columns)), None)
    if cut is not None:
        raise DataError(f"{path} is damaged: row {cut} of {len(rows)} ends before its last cell; evaluate the model "
                        "again with vit evaluate MODEL --output FOLDER")


def check_written(path: Path) -> None:
    """Checks that the predictions of a run are those that it wrote, by its manifest.

    Raises:
        DataError: they are not.
    """
    check_result(path, DataError, "restore it, or evaluate the model again with vit evaluate MODEL --output FOLDER")


def is_generated(run: str | PathLike[str]) -> bool:
    """Whether the predictions.csv of a run holds generated texts."""
    try:
        with open(Path(run) / PREDICTIONS, newline="", encoding="utf-8", errors="surrogateescape") as file:
            columns = next(csv.reader(file), ())
            return "reference" in columns and any(name in columns for name in GENERATED)
    except (OSError, csv.Error):
        return False


def read_texts(run: str | PathLike[str]) -> list[tuple[list[str], str]]:
    """(references, generated text) of each source in the predictions.csv of a translator or image-to-text model, in its
    order.

    Raises:
        DataError: it is empty or damaged.
    """
    path = Path(run) / PREDICTIONS
    check_written(path)
    with open(path, newline="", encoding="utf-8", errors="surrogateescape") as file:
        rows = csv.DictReader(file)
        column = next((name for name in GENERATED if name in (rows.fieldnames or ())), GENERATED[0])
        texts = list(rows)
    if not texts:
        raise DataError(f"{path} {NO_ROWS}")
    several = ["references"] if "references" in texts[0] else []
    check_complete(path, texts, ("reference", column, *several))
    return [(_listed(path, number, row["references"]) if several else [row["reference"]], row[column])
            for number, row in enumerate(texts, 1)]


def _listed(path: Path, number: int, cell: str) -> list[str]:
    """The texts of a JSON list in row `number` of a table."""
    try:
        found = json.loads(cell)
    except ValueError:
        found = None
    if not isinstance(found, list) or not found or not all(isinstance(each, str) for each in found):
        raise DataError(f"{path} is damaged: references of row {number} is not a JSON list of texts; evaluate the "
                        "model again with vit evaluate MODEL --output FOLDER")
    return found


def check_same_references(
    first: list[tuple[list[str], str]], second: list[tuple[list[str], str]], names: tuple
) -> None:
    """Checks that two runs generated texts for the same references in the same order.

    Raises:
        DataError: they did not; names the first row that differs, or both numbers of pairs.
    """
    row = next((i for i, (a, b) in enumerate(zip(first, second, strict=False), 1) if a[0] != b[0]), None)
    if row is not None or len(first) != len(second):
        lengths = f"{len(first)} and {number_of(len(second), 'pair')}"
        found = lengths if row is None else f"other references from row {row} on"
        raise DataError(f"{names[0]} and {names[1]} have {found}; evaluate both on the same data: vit evaluate MODEL "
                        "data=... --output FOLDER")


def matched(first: Predictions, second: Predictions, names: tuple[object, object]) -> tuple[np.ndarray, np.ndarray]:
    """Whether both are right, for each sample: bool (N,) each.

    Args:
        names: names of the two runs, for the message.

    Raises:
        DataError: the samples or their labels differ.
    """
    alone = first.keys() ^ second.keys()
    if alone:
        raise DataError(f"{number_of(len(alone), 'sample')} {agree(len(alone), 'is', 'are')} in only one of {names[0]} "
                        f"and {names[1]}, such as {min(alone)!r}; evaluate both on the same data: vit evaluate MODEL "
                        "data=... --output FOLDER")
    for name, (label, _) in first.items():
        if second[name][0] != label:
            raise DataError(f"{name!r} has the label {label!r} in {names[0]} and {second[name][0]!r} in {names[1]}; "
                            "evaluate both on the same data")
    return (np.array([right for _, right in first.values()]), np.array([second[name][1] for name in first]))
