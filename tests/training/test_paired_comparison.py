"""The paired comparison of two models on the same samples, against McNemar's statistic and a permutation test."""

import itertools

import numpy as np
import pytest
import torch

from vit.training.monitoring.paired_comparison import SampleScores, is_clearly_better


def right(*flags):
    return SampleScores(torch.arange(len(flags)), torch.tensor(flags, dtype=torch.float32))


def scores_of(only_new, only_old, both=10, neither=2):
    new = [1] * only_new + [0] * only_old + [1] * both + [0] * neither
    old = [0] * only_new + [1] * only_old + [1] * both + [0] * neither
    return right(*new), right(*old)


@pytest.mark.parametrize("only_new", range(8))
@pytest.mark.parametrize("only_old", range(5))
@pytest.mark.parametrize("margin", [0, 1, 2])
def test_of_right_and_wrong_it_is_mcnemars_statistic(only_new, only_old, margin):
    expected = only_new - only_old > margin * np.sqrt(only_new + only_old)
    assert is_clearly_better(*scores_of(only_new, only_old), "max", margin) == expected


def test_by_default_one_sample_of_forty_is_not_enough_and_two_are():
    assert not is_clearly_better(*scores_of(1, 0, both=35, neither=4), "max")
    assert not is_clearly_better(*scores_of(3, 1), "max")
    assert is_clearly_better(*scores_of(2, 0), "max")
    assert is_clearly_better(*scores_of(4, 1), "max")


def test_the_standard_error_is_that_of_all_exchanges_of_signs():
    rng = np.random.default_rng(0)
    new, old = rng.normal(0.3, 1, size=(2, 10))
    sums = [np.dot(signs, new - old) for signs in itertools.product((-1, 1), repeat=10)]
    ratio = (new - old).sum() / np.std(sums)
    tables = [SampleScores(torch.arange(10), torch.tensor(scores)) for scores in (new, old)]
    for margin in (ratio - 1e-6, ratio + 1e-6):
        assert is_clearly_better(*tables, "max", margin) == (margin < ratio)
        assert is_clearly_better(*tables[::-1], "min", margin) == (margin < ratio)


def test_samples_that_only_one_of_both_has_are_ignored():
    new = SampleScores(torch.tensor([0, 2, 3, 7]), torch.tensor([1.0, 1, 1, 1]))
    old = SampleScores(torch.tensor([2, 3, 5]), torch.tensor([0.0, 0, 1]))
    assert is_clearly_better(new, old, "max") and not is_clearly_better(old, new, "max")


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_what_is_not_finite_is_never_better(bad):
    assert not is_clearly_better(right(bad, 1, 1), right(0, 0, 0), "max")
