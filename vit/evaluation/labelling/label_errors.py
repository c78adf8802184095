"""Likely label errors by confident learning (Northcutt et al. 2021, arXiv 1911.00068), computed by cleanlab."""

import logging
from dataclasses import dataclass
from importlib.util import find_spec

import numpy as np

from vit.data import DataError
from vit.data.source import separator_of
from vit.evaluation.out_of_fold import HeldOut
from vit.messages import left_to_right

log = logging.getLogger("vit")

MISSING = "vit audit --labels needs the package cleanlab, which is not installed: pip install 'vitwright[labels]'"


@dataclass(frozen=True)
class LabelError:
    """A sample whose label is likely wrong.

    Args:
        quality: cleanlab's score of the label in [0, 1], low for wrong labels.
    """

    name: str
    fold: str
    label: str
    suggested: str
    quality: float
    label_probability: float
    suggested_probability: float

    @property
    def given(self) -> str:
        """The label with its probability."""
        return left_to_right(self.label, f" ({self.label_probability:.3f})")

    @property
    def proposal(self) -> str:
        """The suggested label with its probability."""
        return left_to_right("suggested ", self.suggested, f" ({self.suggested_probability:.3f})")

    def row(self) -> dict[str, str]:
        """The row of a corrections file; nothing changes until a person fills in `new_label`."""
        return {"name": self.name, "label": self.label, "new_label": "", "suggested": self.suggested,
                "quality": f"{self.quality:.4f}", "label_probability": f"{self.label_probability:.4f}",
                "suggested_probability": f"{self.suggested_probability:.4f}", "fold": self.fold}


@dataclass(frozen=True)
class LabelSetError:
    """A sample of several labels, some of which are likely wrong or missing.

    Args:
        label, suggested: names joined as in a corrections file, where the separator alone means no label.
        quality: cleanlab's score of all labels in [0, 1].
        add, remove: labels with their probabilities, the most certain change first.
    """

    name: str
    fold: str
    label: str
    suggested: str
    quality: float
    add: dict[str, float]
    remove: dict[str, float]

    @property
    def given(self) -> str:
        """The labels."""
        return self.label or "no label"

    @property
    def proposal(self) -> str:
        """The labels to add and to remove, with their probabilities."""
        parts = [f"{verb} {', '.join(left_to_right(name, f' ({p:.3f})') for name, p in labels.items())}"
                 for verb, labels in (("add", self.add), ("remove", self.remove)) if labels]
        return "; ".join(parts) or "no change suggested"

    def row(self) -> dict[str, str]:
        """The row of a corrections file; nothing changes until a person fills in `new_label`."""
        add, remove = (", ".join(f"{name} ({p:.4f})" for name, p in labels.items())
                       for labels in (self.add, self.remove))
        return {"name": self.name, "label": self.label, "new_label": "", "suggested": self.suggested, "add": add,
                "remove": remove, "quality": f"{self.quality:.4f}", "fold": self.fold}


def find_label_errors(predictions: HeldOut, limit: int | None = None) -> list[LabelError] | list[LabelSetError]:
    """The samples with likely errors, the most likely one first.

    Several labels per sample are examined one by one, as in `cleanlab.multilabel_classification`; a label that no
    sample or every sample has is left out with a warning.

    Args:
        limit: return so many samples of the lowest quality, whether or not confident learning counts them as errors; by
            default those that it counts.

    Raises:
        DataError: a class has no sample, no label can be examined, or cleanlab is not installed.
    """
    return _label_set_errors(predictions, limit) if predictions.multi_label else _label_errors(predictions, limit)


def check_cleanlab() -> None:
    """Raises DataError if cleanlab is not installed."""
    if find_spec("cleanlab") is None:
        raise DataError(MISSING)


def _label_errors(predictions: HeldOut, limit: int | None) -> list[LabelError]:
    """Likely errors of samples with one label."""
    absent = np.setdiff1d(np.arange(len(predictions.classes)), predictions.labels)
    if len(absent):
        raise DataError(f"class {predictions.classes[absent[0]]!r} has no sample among the {len(predictions)} held-out "
                        "predictions; use those of all folds of vit cross-validate")
    check_cleanlab()
    from cleanlab.filter import find_label_issues
    from cleanlab.rank import get_label_quality_scores

    probabilities = predictions.probabilities / predictions.probabilities.sum(1, keepdims=True)
    quality = get_label_quality_scores(predictions.labels, probabilities)
    if limit is None:
        ranked = find_label_issues(predictions.labels, probabilities, return_indices_ranked_by="self_confidence",
                                   n_jobs=1)
    else:
        ranked = np.argsort(quality, kind="stable")[:limit]
    best = probabilities.argmax(1)
    return [
        LabelError(predictions.names[i], predictions.folds[i], predictions.classes[predictions.labels[i]],
                   predictions.classes[best[i]], float(quality[i]), float(probabilities[i, predictions.labels[i]]),
                   float(probabilities[i, best[i]]))
        for i in map(int, ranked)
    ]


def _label_set_errors(predictions: HeldOut, limit: int | None) -> list[LabelSetError]:
    """Likely errors of samples with several labels."""
    check_cleanlab()
    from cleanlab.multilabel_classification import get_label_quality_scores
    from cleanlab.multilabel_classification.filter import find_multilabel_issues_per_class

    columns = _varying_columns(predictions)
    labels, probabilities = predictions.labels[:, columns], predictions.probabilities[:, columns]
    lists = [np.flatnonzero(row).tolist() for row in labels]
    quality = get_label_quality_scores(lists, probabilities)
    wrong = find_multilabel_issues_per_class(lists, probabilities, n_jobs=1)  # (N,columns) bool
    order = np.argsort(quality, kind="stable")
    if limit is None:
        ranked = order[wrong.any(1)[order]]
    else:
        ranked = order[:limit]
        wrong = np.where(wrong.any(1, keepdims=True), wrong, (probabilities >= 0.5) != labels)
    classes, separator = predictions.classes, separator_of(predictions.classes)
    suggested = predictions.labels.copy()
    suggested[:, columns] ^= wrong
    errors = []
    for i in map(int, ranked):
        label, other = (separator.join(classes[c] for c in np.flatnonzero(row))
                        for row in (predictions.labels[i], suggested[i]))
        add, remove = (_most_certain(classes, predictions.probabilities[i], changed) for changed in
                       (suggested[i] & ~predictions.labels[i], predictions.labels[i] & ~suggested[i]))
        errors.append(LabelSetError(predictions.names[i], predictions.folds[i], label, other or separator,
                                    float(quality[i]), add, remove))
    return errors


def _varying_columns(predictions: HeldOut) -> np.ndarray:
    """The indices of the labels that some samples have and others lack."""
    counts = predictions.labels.sum(0)
    varying = (counts > 0) & (counts < len(predictions))
    left_out = [predictions.classes[c] for c in np.flatnonzero(~varying)]
    if not varying.any():
        raise DataError(f"each label is on all or on none of the {len(predictions)} held-out samples; use the "
                        "predictions of all folds of vit cross-validate")
    if left_out:
        log.warning("labels without a check, because none or all of the %d held-out samples have them: %s",
                    len(predictions), ", ".join(left_out))
    return np.flatnonzero(varying)


def _most_certain(classes: list[str], probabilities: np.ndarray, changed: np.ndarray) -> dict[str, float]:
    """The changed labels (classes,) bool with their probabilities, those that differ most from 0.5 first."""
    indices = np.flatnonzero(changed)
    order = np.argsort(-np.abs(probabilities[indices] - 0.5), kind="stable")
    return {classes[c]: float(probabilities[c]) for c in indices[order]}
