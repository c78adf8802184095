"""Predictions for samples that a model was not trained on: the test splits of several folds as one table."""

import csv
import io
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path

import numpy as np
from torch import Tensor

from vit.bundle import Bundle
from vit.bundle.calibration import calibrated_probabilities
from vit.bundle.label_calibration import label_probabilities
from vit.data import DataError, Split, TextSplit
from vit.data.source import separator_of
from vit.evaluation.classification import RunOptions, check_labels, run_over_split
from vit.evaluation.columns import Columns
from vit.evaluation.progress import Progress
from vit.evaluation.sample_scores import Contents
from vit.evaluation.text_classification import run_over_texts
from vit.files.outputs import write_output
from vit.inference.text_classification import TextPredictor
from vit.messages import different_names, number_of

FACTS = ("name", "fold", "label", "prediction")
COLUMN = "p:"  # prefix of a class name in the header


@dataclass(frozen=True)
class HeldOut:
    """Samples with the probabilities (N,classes) of models that were not trained on them.

    `labels` (N,) int64, or (N,classes) bool for several labels per sample; `folds` (N,): the predicting
    model's fold.
    """

    names: Sequence[str]
    folds: Sequence[str]
    labels: np.ndarray
    probabilities: np.ndarray
    classes: list[str]

    def __len__(self) -> int:
        return len(self.names)

    @property
    def multi_label(self) -> bool:
        return self.labels.ndim == 2

    @property
    def accuracy(self) -> float:
        """The fraction of samples whose most probable class is their label. With several labels, the fraction of all
        decisions about a label of a sample that are right at a threshold of 0.5.
        """
        if self.multi_label:
            return float(((self.probabilities >= 0.5) == self.labels).mean())
        return float((self.probabilities.argmax(1) == self.labels).mean())

    def rows(self) -> list[list]:
        """The cells of the table, without its header."""
        if self.multi_label:
            separator = separator_of(self.classes)
            texts = [[separator.join(self.classes[c] for c in np.flatnonzero(row)) for row in each]
                     for each in (self.labels, self.probabilities >= 0.5)]
        else:
            texts = [[self.classes[c] for c in each] for each in (self.labels, self.probabilities.argmax(1))]
        return [[*facts, *row] for *facts, row in zip(self.names, self.folds, *texts, self.probabilities.tolist(),
                                                      strict=True)]

    def save(self, path: str | PathLike[str]) -> None:
        """Write the table as CSV, or as Parquet if the name ends with .parquet, where bytes of a file name that are not
        UTF-8 are escaped, as in messages: \\udce9 for the byte E9.
        """
        header = [*FACTS, *(f"{COLUMN}{name}" for name in self.classes)]
        if Path(path).suffix.lower() == ".parquet":
            import pyarrow
            from pyarrow import parquet

            names = [name.encode("utf-8", "backslashreplace").decode() for name in self.names]
            columns = zip(*replace(self, names=names).rows(), strict=True)
            table = pyarrow.table(dict(zip(header, map(list, columns), strict=True)))
            write_output(Path(path), lambda hashed: parquet.write_table(table, hashed.file))
            return
        lines = ([*row[: len(FACTS)], *(f"{p:.6g}" for p in row[len(FACTS) :])] for row in self.rows())
        write_output(Path(path), _csv_text([header, *lines]))

    @staticmethod
    def concat(parts: Sequence["HeldOut"]) -> "HeldOut":
        """All samples of several folds; the mean of the probabilities for a sample that several parts have. Two samples
        of one part stay two, also with the same name, as rows of a table that have one file.

        Raises:
            DataError: the parts have different classes.
        """
        for part in parts:
            if part.classes != parts[0].classes:
                raise DataError("a fold has other classes than the first one: "
                                f"{different_names(part.classes, parts[0].classes)}")
        keys = [key for part in parts for key in _occurrences(part.names)]
        index = {key: i for i, key in enumerate(dict.fromkeys(keys))}
        rows = np.array([index[key] for key in keys], dtype=np.int64)
        _, first = np.unique(rows, return_index=True)
        probabilities = np.concatenate([part.probabilities for part in parts]).astype(np.float64)
        total = np.zeros((len(index), probabilities.shape[1]))
        np.add.at(total, rows, probabilities)
        folds = [fold for part in parts for fold in part.folds]
        labels = np.concatenate([part.labels for part in parts])
        return HeldOut([name for name, _ in index], [folds[i] for i in first], labels[first],
                       total / np.bincount(rows)[:, None], parts[0].classes)


def read_held_out(path: str | PathLike[str]) -> HeldOut:
    """The table that `HeldOut.save` wrote.

    Raises:
        DataError: it is not such a table, or a label is not among its classes.
        FileNotFoundError: there is no such file.
    """
    from vit.data.formats.delimited import numbered_rows
    from vit.data.formats.parquet import read_parquet

    path = Path(path)
    if path.suffix.lower() == ".parquet":
        columns = {str(name): column.to_pylist() for name, column in read_parquet([path])[0].items()}
        header, rows = list(columns), list(zip(*columns.values(), strict=True))
    else:
        header, *rows = [row for _, row in numbered_rows(path)] or [[]]
    width = len(FACTS)
    if tuple(header[:width]) != FACTS or not all(name.startswith(COLUMN) for name in header[width:]):
        raise DataError(f"{path}: is not a table of held-out predictions, whose columns are {', '.join(FACTS)} and "
                        f"{COLUMN}CLASS for each class; vit cross-validate writes one")
    if not rows:
        raise DataError(f"{path}: the table has no rows; vit cross-validate writes one per sample")
    if (short := next((row for row in rows if len(row) != len(header)), None)) is not None:
        raise DataError(f"{path}: the row of {short[0]} has {len(short)} cells, but the header has {len(header)}; "
                        "restore the file")
    classes = [name.removeprefix(COLUMN) for name in header[width:]]
    try:
        probabilities = np.array([row[width:] for row in rows], dtype=np.float64)
    except ValueError as error:
        raise DataError(f"{path}: a probability is not a number ({error})") from None
    if (wrong := ~((probabilities >= 0) & (probabilities <= 1 + 1e-6)).all(axis=1)).any():
        raise DataError(f"{path}: a probability of {rows[int(wrong.argmax())][0]} is not between 0 and 1")
    labels = _labels_of(path, rows, classes, probabilities)
    return HeldOut([row[0] for row in rows], [str(row[1]) for row in rows], labels, probabilities, classes)


def _occurrences(names: Sequence[str]) -> list[tuple[str, int]]:
    """Each name with the number of its earlier occurrences."""
    counts: Counter[str] = Counter()
    found = []
    for name in names:
        found.append((name, counts[name]))
        counts[name] += 1
    return found


def _labels_of(path: Path, rows: Sequence[Sequence[str]], classes: list[str], probabilities: np.ndarray) -> np.ndarray:
    """The labels (N,) of rows with one class each and probabilities of sum 1, else (N,classes)."""
    index, separator = {name: c for c, name in enumerate(classes)}, separator_of(classes)
    if all(row[2] in index for row in rows) and np.allclose(probabilities.sum(1), 1, atol=1e-3):
        return np.array([index[row[2]] for row in rows], dtype=np.int64)
    labels = np.zeros((len(rows), len(classes)), dtype=bool)
    for row, sample in zip(labels, rows, strict=True):
        for name in filter(None, (sample[2] or "").split(separator)):  # None: an empty cell of Parquet
            if name not in index:
                raise DataError(f"{path}: the label {name!r} of {sample[0]} is not one of its "
                                f"{number_of(len(classes), 'class')}")
            row[index[name]] = True
    return labels


def predict_held_out(
    bundle: Bundle, split: Split | TextSplit, fold: str, batch_size: int = 64, precision: str = "32-true",
    on_bad_sample: str = "error", device: str | None = None, progress: Progress | None = None,
) -> HeldOut:
    """The probabilities of a model, calibrated where it is, for every readable sample of a split.

    Args:
        device: device to compute on; by default the GPU if there is one.

    Raises:
        BadImage, BadText: a sample cannot be read.
        DataError: the split is empty, or a label has no class.
    """
    if isinstance(split, TextSplit):
        return _predict_texts(bundle, split, fold, batch_size, device, progress)
    if split.labels.ndim == 1:
        check_labels(split, bundle.classes)

    probabilities_of = label_probabilities if bundle.thresholds else calibrated_probabilities

    def score(logits: Tensor, labels: Tensor, rows: Tensor, contents: Contents) -> tuple[Tensor, ...]:
        return rows, probabilities_of(logits, bundle.calibration)

    options = RunOptions(batch_size, precision, on_bad_sample, device, progress)
    columns, _ = run_over_split(bundle.model, bundle.preprocessing, split, score, options)
    rows, probabilities = (column.numpy() for column in columns)
    return HeldOut([split.names[int(i)] for i in rows], [fold] * len(rows), split.labels[rows], probabilities,
                   bundle.classes)


def _predict_texts(
    bundle: Bundle, split: TextSplit, fold: str, batch_size: int, device: str | None, progress: Progress | None
) -> HeldOut:
    """The calibrated predictions of a text classifier for a split."""
    predictor, columns = TextPredictor(bundle, device), Columns(len(split))
    check_labels(split, bundle.classes)
    for logits, _, _ in run_over_texts(predictor, split, batch_size, progress):
        columns.append([calibrated_probabilities(logits, bundle.calibration)])
    (probabilities,) = columns.filled()
    names = list(split.names)
    return HeldOut(names, [fold] * len(names), split.labels, probabilities.numpy(), bundle.classes)


def _csv_text(rows: Sequence[Sequence]) -> bytes:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue().encode("utf-8", "surrogateescape")
