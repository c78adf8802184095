"""Mixup and CutMix: the mixed pixels and the targets."""

import math

import numpy as np
import pytest
import torch
from scipy import stats

from vit.data import Mixup


def batch(n=33, classes=40):
    """Image i has the constant value i and label i, so that pixels reveal the mixture."""
    images = torch.arange(n, dtype=torch.float32)[:, None, None, None].expand(n, 3, 16, 16).clone()
    return images, torch.arange(n) % classes


def test_mixup_mixes_images_and_targets_with_the_same_ratio():
    images, labels = batch()
    mixed, targets = Mixup(40, mixup=0.8, cutmix=0.0)(images, labels, seed=0, step=0)
    assert torch.allclose(targets.sum(1), torch.ones(33))
    share = targets[torch.arange(33), labels]
    partner = images.roll(1, 0)
    assert torch.allclose(
        mixed, share[:, None, None, None] * images + (1 - share)[:, None, None, None] * partner, atol=1e-4
    )
    assert share.min() > 0 and share.max() < 1 and len(share.unique()) > 30


def test_cutmix_pastes_one_box_and_weights_targets_by_its_area():
    images, labels = batch()
    mixed, targets = Mixup(40, mixup=0.0, cutmix=1.0)(images, labels, seed=0, step=3)
    for i in range(33):
        own = mixed[i, 0] == images[i, 0]
        assert torch.equal(~own, mixed[i, 0] == images[i - 1, 0])
        assert abs(float(targets[i, labels[i]]) - float(own.float().mean())) < 1e-6
        rows, columns = (~own).any(1).sum(), (~own).any(0).sum()
        assert int((~own).sum()) == int(rows * columns)


def test_ratios_have_the_beta_distribution():
    shares = Mixup._beta(torch.rand(4000, generator=torch.Generator().manual_seed(0)), 0.3)
    assert stats.kstest(shares.numpy(), stats.beta(0.3, 0.3).cdf).pvalue > 0.01


def test_prob_and_switch():
    images, labels = batch(400)
    mixed, targets = Mixup(40, prob=0.25)(images, labels, seed=1, step=0)
    untouched = (mixed == images).all(dim=(1, 2, 3))
    assert 0.65 < untouched.float().mean() < 0.85
    assert torch.equal(targets[untouched].amax(1), torch.ones(int(untouched.sum())))
    mixed, _ = Mixup(40, switch=0.5)(images, labels, seed=1, step=0)
    whole = (mixed.amax((1, 2, 3)) == mixed.amin((1, 2, 3))).float().mean()  # mixup leaves constant images constant
    assert 0.4 < whole < 0.65


def test_mixup_is_a_function_of_counters():
    images, labels = batch()
    mixup = Mixup(40)
    first = mixup(images, labels, seed=0, step=5, micro=1, rank=2)[0]
    assert torch.equal(mixup(images, labels, seed=0, step=5, micro=1, rank=2)[0], first)
    for other in ({"seed": 1}, {"step": 6}, {"micro": 0}, {"rank": 0}):
        assert not torch.equal(
            mixup(images, labels, **({"seed": 0, "step": 5, "micro": 1, "rank": 2} | other))[0], first
        )
    state = torch.random.get_rng_state()
    np.testing.assert_array_equal(images.numpy(), batch()[0].numpy())
    mixup(images.to(torch.bfloat16), labels, 0, 0)
    assert torch.equal(torch.random.get_rng_state(), state)


def test_a_batch_of_one():
    images, labels = batch(1)
    mixed, targets = Mixup(40)(images, labels, 0, 0)
    assert torch.allclose(mixed, images) and torch.allclose(targets.amax(1), torch.ones(1))


def test_wrong_options():
    for amounts in ((math.nan, 1.0), (1.0, math.nan), (math.inf, 0.0)):
        with pytest.raises(ValueError, match="one of them above 0"):
            Mixup(10, *amounts)
    with pytest.raises(ValueError, match="one of them above 0"):
        Mixup(10, mixup=0, cutmix=0)
    with pytest.raises(ValueError, match="mixup=nan and cutmix=1.0 must be at least 0"):
        Mixup(10, mixup=float("nan"))
    with pytest.raises(ValueError, match="mixup=0.8 and cutmix=None must be at least 0"):
        Mixup(10, cutmix=None)
    with pytest.raises(ValueError, match="prob=0.5 and switch=0.5 must be in 0..1"):
        Mixup(10, prob="0.5")
    with pytest.raises(ValueError, match="prob=2"):
        Mixup(10, prob=2)
