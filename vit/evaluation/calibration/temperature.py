"""Temperature scaling: a number that divides the logits, so that probabilities agree with the accuracy."""

import numpy as np
from torch import Tensor
from torch.nn import functional as F

PRIOR_STD = 1.0  # standard deviation of the normal prior of the log temperature
LIMIT = 5.0  # largest absolute log temperature
PART = 1 << 20  # logits at once: copies of all logits in float64 would take many times their own memory


def row_parts(logits: Tensor) -> list[slice]:
    """Slices of the rows of `logits` (N,classes) with at most `PART` numbers each, or one row."""
    size = max(1, PART // max(1, logits.shape[1]))
    return [slice(start, start + size) for start in range(0, len(logits), size)]


def log_loss(logits: Tensor, labels: Tensor, temperature: float) -> float:
    """The mean cross entropy of `logits` (N,classes) divided by the temperature, computed in float64."""
    losses = (F.cross_entropy(logits[part].double() / temperature, labels[part], reduction="sum")
              for part in row_parts(logits))
    return sum(map(float, losses)) / len(labels)


def fit_temperature(logits: Tensor, labels: Tensor) -> float:
    """The temperature of `logits` (N,classes) for `labels` (N,) (Guo et al., arXiv 1706.04599).

    Minimizes the log loss plus the negative log density of a normal prior of the log temperature around 0, which weighs
    as much as one sample: without it, samples that are all classified correctly would have temperature 0. The result is
    1 if no other temperature lowers the log loss.
    """
    from scipy.optimize import minimize_scalar

    count = len(labels)

    def loss(log_temperature: float) -> float:
        return log_loss(logits, labels, np.exp(log_temperature))

    def objective(log_temperature: float) -> float:
        return loss(log_temperature) + (log_temperature / PRIOR_STD) ** 2 / (2 * count)

    best = float(minimize_scalar(objective, bounds=(-LIMIT, LIMIT), method="bounded", options={"xatol": 1e-6}).x)
    temperature = round(float(np.exp(best)), 6)
    return temperature if loss(np.log(temperature)) < loss(0.0) else 1.0
