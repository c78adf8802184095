"""Confidence intervals of the metrics of generated texts: the bootstrap over pairs (Koehn 2004).

All metrics are functions of sums over the texts, so a resample is one count per text.
"""

from collections.abc import Sequence

import numpy as np

from vit.evaluation.intervals.bootstrap import (
    BOOTSTRAP,
    EXACT,
    FEWEST,
    LEVEL,
    Interval,
    exact_interval,
    percentiles,
    resampled_counts,
)
from vit.evaluation.intervals.paired import mcnemar, paired_metrics
from vit.evaluation.text_metrics import References, character_errors, nearest_errors, references_of

RESAMPLES = 1000
ORDERS = 4  # n-grams of BLEU
FEWEST_TEXTS = 50  # in a paired comparison; with 10, one of eight comparisons of equal systems has p < 0.05
MATCH = "exact_match"


class TextStatistics:
    """The sums behind exact match, character error rate and BLEU, a row per text: (N,5+2*ORDERS).

    Args:
        predictions, references: N texts each, of which one may have several references, as in `text_metrics`.

    Raises:
        ValueError: the numbers of predictions and references differ.
    """

    def __init__(self, predictions: Sequence[str], references: Sequence[References]) -> None:
        from sacrebleu.metrics import BLEU

        metric, rows = BLEU(effective_order=True), []  # effective_order only changes the score of a sentence
        for text, each in zip(predictions, map(references_of, references), strict=True):
            score = metric.sentence_score(text, each)
            rows.append([text in each, *nearest_errors(text, each, character_errors, len), score.sys_len, score.ref_len,
                         *score.counts, *score.totals])
        self.rows = np.array(rows, np.float64)

    def metrics(self, counts: np.ndarray) -> dict[str, np.ndarray]:
        """counts (R,N), how often each text occurs in a resample -> exact_match, cer and bleu (R,) each"""
        sums = counts.astype(np.float64) @ self.rows
        return {MATCH: sums[:, 0] / counts.sum(axis=1), "cer": sums[:, 1] / np.maximum(sums[:, 2], 1),
                "bleu": np.array([corpus_bleu(each[3:]) for each in sums])}

    def resampled(self, resamples: int = RESAMPLES, seed: int = 0) -> dict[str, np.ndarray]:
        """The metrics of `resamples` draws of N texts with replacement; the same draws for every model."""
        counts = resampled_counts(np.arange(len(self.rows)), len(self.rows), resamples, seed)
        return self.metrics(counts)

    def intervals(self, resamples: int = RESAMPLES) -> dict[str, Interval]:
        """exact_match, cer and bleu with percentile intervals; exact match with the exact binomial interval if fewer
        than `FEWEST` texts are right or wrong.
        """
        observed = self.metrics(np.ones((1, len(self.rows)), np.int64))
        drawn = self.resampled(resamples)
        result = {name: Interval(float(value[0]), *percentiles(drawn[name], LEVEL), BOOTSTRAP)
                  for name, value in observed.items()}
        texts, matches = len(self.rows), int(self.rows[:, 0].sum())
        if min(matches, texts - matches) < FEWEST:
            result[MATCH] = Interval(matches / texts, *exact_interval(matches, texts, LEVEL), EXACT)
        return result


def corpus_bleu(sums: np.ndarray) -> float:
    """sums (2+2*ORDERS,): lengths of system and reference, matched n-grams, all n-grams -> BLEU as a fraction, smoothed
    as in `text_metrics`
    """
    from sacrebleu.metrics import BLEU

    correct, total = (list(map(int, part)) for part in (sums[2 : 2 + ORDERS], sums[2 + ORDERS :]))
    return BLEU.compute_bleu(correct, total, int(sums[0]), int(sums[1]), smooth_method="exp").score / 100


def paired_bootstrap(
    first: TextStatistics, second: TextStatistics, resamples: int = RESAMPLES
) -> dict[str, tuple[Interval, float | None]]:
    """name -> (difference second minus first with its interval, two-sided p-value), on the same texts.

    The p-value of the exact match is from McNemar's exact test, the p-values of BLEU and character errors are from
    sacreBLEU's paired bootstrap. With fewer than `FEWEST_TEXTS` texts, bootstrap intervals would be too narrow: there
    are no intervals, and the p-values of BLEU and character errors are None.

    Raises:
        ValueError: `first` and `second` have different numbers of texts.
    """
    ones = np.ones((1, len(first.rows)), np.int64)
    before, after = first.metrics(ones), second.metrics(ones)
    observed = {name: float(after[name][0] - value[0]) for name, value in before.items()}
    p_match = mcnemar(*(int((one.rows[:, 0] > other.rows[:, 0]).sum()) for one, other in ((first, second),
                                                                                        (second, first))))
    drawn = None if len(first.rows) < FEWEST_TEXTS else (first.resampled(resamples), second.resampled(resamples))
    return paired_metrics(observed, drawn, {MATCH: p_match})
