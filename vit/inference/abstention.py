"""When a classifier abstains: a probability below which too many predictions were wrong on validation samples."""

import math
from collections.abc import Sequence

import numpy as np

from vit.bundle import SelectiveRisk
from vit.messages import number_of

CONFIDENCE = 0.95  # confidence level of the bound on the error rate
FRACTIONS = tuple(each / 10 for each in range(10, 0, -1))  # coverages, the share of samples without abstention


def selective_risks(probabilities: np.ndarray, right: np.ndarray) -> tuple[SelectiveRisk, ...]:
    """Samples and errors of the most certain tenth, fifth, ... and of all samples, most first; arguments (N,).

    The thresholds are order statistics of the probabilities, chosen independently of which predictions are right.
    """
    ordered, risks = np.sort(probabilities)[::-1], {}
    for fraction in FRACTIONS:
        threshold = math.floor(ordered[max(math.ceil(fraction * len(ordered)), 1) - 1] * 1e6) / 1e6
        above = probabilities >= threshold
        risks[threshold] = SelectiveRisk(threshold, int(above.sum()), int((above & ~right).sum()))
    return tuple(risks.values())


def may_exceed(rate: float, samples: int, wrong: int, failure: float) -> bool:
    """Whether an error rate above `rate` is compatible with `wrong` errors in `samples`: one-sided exact binomial test
    (Clopper and Pearson 1934), which errs with probability `failure` at most.
    """
    from scipy.stats import binom

    return bool(binom.cdf(wrong, samples, rate) > failure)


def probability_threshold(risks: Sequence[SelectiveRisk], rate: float) -> float:
    """The lowest stored probability from which on at most `rate` of the predictions are wrong, with the confidence
    level `CONFIDENCE` over the draw of the validation samples.

    Selective classification with guaranteed risk (Geifman and El-Yaniv, arXiv 1705.08500): the exact bound on the error
    rate holds for all stored thresholds together (Bonferroni).

    Raises:
        ValueError: no stored probability shows such a rate. The message has the number of samples that a perfect model
            would need, or how many of the most certain predictions are wrong.
    """
    failure = (1 - CONFIDENCE) / len(FRACTIONS)
    for each in risks:
        if not may_exceed(rate, each.samples, each.wrong, failure):
            return each.probability
    total = max(each.samples for each in risks)
    if (needed := fewest_samples(rate, failure)) > total:
        raise ValueError(f"an error rate of {rate:g} can be guaranteed with {needed} or more validation samples, but "
                         f"the model was calibrated on {total}: choose {smallest_rate(total, failure):.2g} or more")
    surest = risks[-1]
    raise ValueError(f"no probability gives an error rate of {rate:g} on the {number_of(total, 'validation sample')}: "
                     f"of the {surest.samples} most certain predictions {surest.wrong} are wrong; choose a higher rate")


def fewest_samples(rate: float, failure: float) -> int:
    """The smallest number of samples for which zero errors show an error rate of at most `rate`."""
    return math.ceil(math.log(failure) / math.log1p(-rate))


def smallest_rate(samples: int, failure: float) -> float:
    """The error rate that `samples` predictions without an error show, rounded up to two digits."""
    rate = 1 - failure ** (1 / samples)
    unit = 10.0 ** (math.floor(math.log10(rate)) - 1)
    return math.ceil(rate / unit) * unit
