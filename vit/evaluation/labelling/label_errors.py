"""Likely label errors by confident learning (Northcutt et al. 2021, arXiv 1911.00068), computed by cleanlab."""

from dataclasses import dataclass

import numpy as np

from vit.data import DataError
from vit.evaluation.out_of_fold import HeldOut

MISSING = "vit audit --labels needs the package cleanlab, which is not installed: pip install 'vitwright[labels]'"


@dataclass(frozen=True)
class LabelError:
    """A sample whose label is likely wrong. `quality`: cleanlab's score of the label in 0..1, low for wrong ones."""

    name: str
    fold: str
    label: str
    suggested: str
    quality: float
    label_probability: float
    suggested_probability: float

    def row(self) -> dict[str, str]:
        """The row of a corrections file; nothing changes until a person fills in `new_label`."""
        return {"name": self.name, "label": self.label, "new_label": "", "suggested": self.suggested,
                "quality": f"{self.quality:.4f}", "label_probability": f"{self.label_probability:.4f}",
                "suggested_probability": f"{self.suggested_probability:.4f}", "fold": self.fold}


def find_label_errors(predictions: HeldOut, limit: int | None = None) -> list[LabelError]:
    """The samples with likely errors, the most likely one first.

    Args:
        limit: the number of samples, ranked by quality whether or not confident learning counts them as errors; by
            default those that it counts.

    Raises:
        DataError: samples have several labels, a class has no sample, or cleanlab is not installed.
    """
    if predictions.multi_label:
        raise DataError("label errors are found among samples with one label each, and these have several")
    absent = np.setdiff1d(np.arange(len(predictions.classes)), predictions.labels)
    if len(absent):
        raise DataError(f"class {predictions.classes[absent[0]]!r} has no sample among the {len(predictions)} held-out "
                        "predictions; use those of all folds of vit cross-validate")
    try:
        from cleanlab.filter import find_label_issues
        from cleanlab.rank import get_label_quality_scores
    except ImportError:
        raise DataError(MISSING) from None
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
