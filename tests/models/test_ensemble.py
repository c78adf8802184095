"""The config of an ensemble checks what divides pixels and logits."""

import math

import pytest

from vit.models.ensemble import EnsembleConfig

MEMBER = {"kind": "vit", "num_classes": 2, "image_size": [8, 8]}


@pytest.mark.parametrize("wrong", [0.0, -1.0, math.nan, math.inf])
def test_divisors_must_be_finite_and_above_0(wrong):
    means, stds = [[0.5] * 3] * 2, [[0.5] * 3] * 2
    assert EnsembleConfig(MEMBER, means, stds, temperatures=[1.5, 1]).temperatures == (1.5, 1.0)
    with pytest.raises(ValueError, match="stds of an ensemble has .*above 0"):
        EnsembleConfig(MEMBER, means, [[0.5] * 3, [0.5, wrong, 0.5]])
    with pytest.raises(ValueError, match="temperatures of an ensemble has .*above 0"):
        EnsembleConfig(MEMBER, means, stds, temperatures=[1.0, wrong])
    with pytest.raises(ValueError, match="temperatures of an ensemble has .*above 0"):
        EnsembleConfig(MEMBER, means, stds, multi_label=True, temperatures=[1.0, [1.0, wrong]])
