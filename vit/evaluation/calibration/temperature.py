"""Temperature scaling: a number that divides the logits, so that probabilities agree with the accuracy."""

import numpy as np
from torch import Tensor
from torch.nn import functional as F

PRIOR_STD = 1.0  # standard deviation of the normal prior of the log temperature
LIMIT = 5.0  # largest absolute log temperature


def fit_temperature(logits: Tensor, labels: Tensor) -> float:
    """The temperature of `logits` (N,classes) for `labels` (N,) (Guo et al., arXiv 1706.04599).

    Minimizes the log loss plus the negative log density of a normal prior of the log temperature around 0, which weighs
    as much as one sample: without it, samples that are all classified correctly would have temperature 0. The result is
    1 if no other temperature lowers the log loss.
    """
    from scipy.optimize import minimize_scalar

    logits, count = logits.double(), len(labels)

    def loss(log_temperature: float) -> float:
        return float(F.cross_entropy(logits / np.exp(log_temperature), labels))

    def objective(log_temperature: float) -> float:
        return loss(log_temperature) + (log_temperature / PRIOR_STD) ** 2 / (2 * count)

    best = float(minimize_scalar(objective, bounds=(-LIMIT, LIMIT), method="bounded", options={"xatol": 1e-6}).x)
    temperature = round(float(np.exp(best)), 6)
    return temperature if loss(np.log(temperature)) < loss(0.0) else 1.0
