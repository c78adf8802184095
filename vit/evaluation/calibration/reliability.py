"""How well probabilities agree with accuracy: reliability diagram and expected calibration error."""

import numpy as np
from torch import Tensor

BINS = 15  # number of bins of equal width


def certainty(probabilities: Tensor, labels: Tensor) -> tuple[np.ndarray, np.ndarray]:
    """probabilities (N,classes), labels (N,) -> the highest probability (N,), and whether its class is right (N,)"""
    highest, predicted = probabilities.max(-1)
    return highest.double().cpu().numpy(), (predicted == labels.to(predicted.device)).cpu().numpy()


def reliability(probabilities: np.ndarray, right: np.ndarray, bins: int = BINS) -> list[tuple[int, float, float]]:
    """(samples, mean probability, accuracy) of each bin of equal width that has samples, in ascending order.
    Probabilities that are nan, those of a model that diverged, are in the first bin.
    """
    index = np.nan_to_num(np.ceil(probabilities * bins) - 1).clip(0, bins - 1).astype(int)
    rows = (np.flatnonzero(index == i) for i in range(bins))
    return [(len(each), float(probabilities[each].mean()), float(right[each].mean())) for each in rows if len(each)]


def calibration_error(probabilities: np.ndarray, right: np.ndarray, bins: int = BINS) -> float:
    """Expected calibration error of the most probable class (Naeini et al. 2015): mean absolute difference of
    probability and accuracy in bins of equal width, weighted by their samples.
    """
    parts = reliability(probabilities, right, bins)
    return float(sum(count * abs(mean - accuracy) for count, mean, accuracy in parts) / len(probabilities))


def risks(probabilities: np.ndarray, right: np.ndarray) -> np.ndarray:
    """probabilities, right (N,) -> (N,): the error rate of the 1, 2, ... N most certain predictions (risk, arXiv
    1705.08500). Predictions of the same probability count as their mean, so that the order of the samples does not
    matter.
    """
    order = np.argsort(-probabilities, kind="stable")
    _, starts, counts = np.unique(-probabilities[order], return_index=True, return_counts=True)
    wrong = np.add.reduceat((~right[order]).astype(np.float64), starts) / counts
    return np.cumsum(np.repeat(wrong, counts)) / np.arange(1, len(order) + 1)
