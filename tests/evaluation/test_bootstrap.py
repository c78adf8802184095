"""Confidence intervals: against scipy and brute force, and how often they contain the true value."""

import tracemalloc
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats
from scipy.sparse import csr_array

from tests.slow_values import quick_and_slow
from vit.evaluation import Evaluation
from vit.evaluation.intervals import bootstrap
from vit.evaluation.intervals.bootstrap import (
    BOOTSTRAP,
    EXACT,
    FEWEST,
    NONE,
    accuracies,
    exact_interval,
    resampled_counts,
)
from vit.evaluation.intervals.text_bootstrap import TextStatistics
from vit.evaluation.text_metrics import text_metrics


def evaluation(labels, right, classes=3, top5=None):
    """An evaluation whose first prediction is correct where `right` is true."""
    count = min(classes, 5)
    predictions = (labels[:, None] + np.arange(count)[None]) % classes
    predictions[~right] = (predictions[~right] + 1) % classes
    if top5 is not None:  # whether the label is among the best five
        predictions[~right & top5, -1] = labels[~right & top5]
    confusion = np.zeros((classes, classes), int)
    np.add.at(confusion, (labels, predictions[:, 0]), 1)
    probabilities = np.full(predictions.shape, 1 / classes, np.float32)
    return Evaluation([str(i) for i in range(classes)], {}, csr_array(confusion), np.arange(len(labels)), labels,
                      np.zeros(len(labels)), predictions, probabilities)


def simulated(seed, count=200, rates=(0.9, 0.8, 0.6)):
    random = np.random.default_rng(seed)
    labels = random.integers(0, len(rates), count)
    return labels, random.random(count) < np.array(rates)[labels]


def test_the_interval_of_the_accuracy_is_that_of_scipy():
    labels, right = simulated(0, 400)
    found = accuracies(evaluation(labels, right), resamples=8000).accuracy
    theirs = stats.bootstrap((right.astype(float),), np.mean, n_resamples=8000, method="percentile", rng=1)
    assert found.value == right.mean() and found.method == BOOTSTRAP
    assert found.low == pytest.approx(theirs.confidence_interval.low, abs=0.0051)  # two samples of 400
    assert found.high == pytest.approx(theirs.confidence_interval.high, abs=0.0051)


def test_the_interval_of_the_macro_accuracy_is_that_of_scipy():
    from sklearn.metrics import balanced_accuracy_score

    labels, right = simulated(1, 300)
    predicted = np.where(right, labels, (labels + 1) % 3)
    found = accuracies(evaluation(labels, right), resamples=4000).macro
    assert found.value == pytest.approx(balanced_accuracy_score(labels, predicted))

    def recall(true, given):
        return np.mean([(given == c)[true == c].mean() for c in range(3)])

    theirs = stats.bootstrap((labels, predicted), recall, n_resamples=4000, method="percentile", paired=True,
                             vectorized=False, rng=1)
    assert found.low == pytest.approx(theirs.confidence_interval.low, abs=0.006)
    assert found.high == pytest.approx(theirs.confidence_interval.high, abs=0.006)


def test_resamples_are_draws_with_replacement_that_depend_on_the_seed_alone():
    cells = np.arange(50) % 4
    first, again, other = (resampled_counts(cells, 4, 3000, seed) for seed in (0, 0, 1))
    assert (first == again).all() and (first != other).any()
    assert (first.sum(axis=1) == 50).all() and first.dtype == np.int32  # 2,000 x 60,000 for 20,000 classes
    expected = np.bincount(cells)
    assert first.mean(axis=0) == pytest.approx(expected, abs=0.3)
    assert first.var(axis=0) == pytest.approx(expected * (1 - expected / 50), rel=0.1)  # multinomial
    assert (resampled_counts(cells, 4, 7, 0) == first[:7]).all()  # more resamples change no earlier one


@pytest.mark.parametrize("block", quick_and_slow([None, 1, 2, 3], None, 2))
def test_the_intervals_contain_the_true_value_95_times_in_100(block, monkeypatch):
    """Also those of large sets, whose counts are drawn in blocks of classes."""
    if block is not None:
        monkeypatch.setattr(bootstrap, "SAMPLES_DRAWN", 0)
        monkeypatch.setattr(bootstrap, "BLOCK_COUNTS", block * 400 * 3)
    rates, draws = (0.9, 0.8, 0.6), 1000
    accuracy, macro, last = np.mean(rates), np.mean(rates), rates[-1]
    held = np.zeros(3)
    for seed in range(draws):
        found = accuracies(evaluation(*simulated(seed, rates=rates)), resamples=400, seed=seed)
        for i, (interval, truth) in enumerate(((found.accuracy, accuracy), (found.macro, macro),
                                               (found.per_class[-1], last))):
            held[i] += interval.low <= truth <= interval.high
    assert ((held / draws >= 0.93) & (held / draws <= 0.97)).all(), held / draws


def test_drawn_counts_have_the_distribution_of_draws_of_samples(monkeypatch):
    cells = np.random.default_rng(0).integers(0, 12, 80)
    observed = np.bincount(cells, minlength=12).reshape(4, 3)
    monkeypatch.setattr(bootstrap, "SAMPLES_DRAWN", 0)
    for classes in (1, 3, 4):
        monkeypatch.setattr(bootstrap, "BLOCK_COUNTS", classes * 5000 * 3)
        found = np.concatenate([drawn for _, drawn in bootstrap.drawn_blocks(cells, observed, 5000)], axis=1)
        drawn = found.reshape(5000, 12)
        assert (drawn.sum(axis=1) == 80).all()
        assert drawn.mean(axis=0) == pytest.approx(observed.ravel(), abs=0.3)
        rates = observed.ravel() / 80
        assert np.cov(drawn.T) == pytest.approx(80 * (np.diag(rates) - np.outer(rates, rates)), abs=0.5)


@pytest.mark.slow
def test_the_memory_of_the_intervals_of_many_classes_is_bounded():
    """Of 20,000 classes all counts would take 0.5 GB, and the values computed from them more."""
    labels, right = np.arange(40_000) % 20_000, np.arange(40_000) % 3 > 0
    found = evaluation(labels[:2], right[:2])
    predictions = np.where(right, labels, (labels + 1) % 20_000)[:, None]
    found = replace(found, classes=[str(i) for i in range(20_000)], labels=labels, predictions=predictions)
    tracemalloc.start()
    intervals = accuracies(found)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 250e6, f"{peak / 1e6:.0f} MB"
    assert intervals.accuracy.low < right.mean() < intervals.accuracy.high and len(intervals.per_class) == 20_000


def test_few_errors_have_the_exact_interval():
    labels = np.zeros(90, int)
    labels[:30] = 1
    right = np.ones(90, bool)
    right[-(FEWEST - 1):] = False
    found = accuracies(evaluation(labels, right))
    assert found.accuracy.method == EXACT and found.macro.method == NONE and found.macro.low is None
    theirs = stats.binomtest(int(right.sum()), 90).proportion_ci(0.95, "exact")
    assert (found.accuracy.low, found.accuracy.high) == pytest.approx((theirs.low, theirs.high))
    assert found.per_class[1].high == 1 and found.per_class[1].low == pytest.approx(0.025 ** (1 / 30))
    assert found.per_class[2] is None and found.top5 is None


@pytest.mark.parametrize(("right", "total"), [(0, 5), (5, 5), (3, 7), (999, 1000)])
def test_the_exact_interval_is_that_of_scipy(right, total):
    theirs = stats.binomtest(right, total).proportion_ci(0.95, "exact")
    assert exact_interval(right, total) == pytest.approx((theirs.low, theirs.high))


def test_the_best_five_count_only_above_five_classes():
    random = np.random.default_rng(0)
    labels, right, near = random.integers(0, 8, 300), random.random(300) < 0.6, random.random(300) < 0.5
    found = accuracies(evaluation(labels, right, 8, near))
    assert found.top5.value == pytest.approx((right | near).mean())
    assert found.top5.low < found.top5.value < found.top5.high


@pytest.mark.parametrize(("matches", "method"), [(0, EXACT), (FEWEST - 1, EXACT), (FEWEST, BOOTSTRAP), (60, EXACT)])
def test_an_exact_match_of_few_right_or_wrong_texts_has_the_exact_interval(matches, method):
    references = [f"the number {i} of many" for i in range(60)]
    found = TextStatistics([text if i < matches else f"{text} more" for i, text in enumerate(references)],
                           references).intervals(50)["exact_match"]
    assert (found.value, found.method) == (matches / 60, method) and found.low < found.high
    if method == EXACT:
        theirs = stats.binomtest(matches, 60).proportion_ci(method="exact")
        assert (found.low, found.high) == pytest.approx((theirs.low, theirs.high))


def test_statistics_of_several_references_are_those_of_the_metrics():
    references = [[f"the cat number {i} sat on a mat", f"on a mat sat cat {i}"] for i in range(20)]
    texts = [f"the cat {i} sat on a mat" if i % 3 else each[1] for i, each in enumerate(references)]
    found, expected = TextStatistics(texts, references).intervals(50), text_metrics(texts, references)
    for name in ("exact_match", "cer", "bleu"):
        assert 0 < found[name].value == pytest.approx(expected[name])


def test_bleu_without_long_matches_is_smoothed_as_that_of_sacrebleu():
    references = [f"the cat number {i} sat on a mat" for i in range(20)]
    texts = [" ".join(word if i % 4 else "dog" for i, word in enumerate(text.split())) for text in references]
    found = TextStatistics(texts, references).intervals(50)["bleu"]
    assert found.value == pytest.approx(text_metrics(texts, references)["bleu"])
    assert 0 < found.low <= found.value <= found.high
