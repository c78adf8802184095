"""Greedy soups on losses whose minimum is known."""

import pytest
import torch

from vit.training.averaging.soup import greedy_soup, mean_state


def score(state):
    """Highest at weight 0."""
    return -abs(float(state["weight"].sum()))


def states(*values):
    return [{"weight": torch.tensor([value]), "count": torch.tensor(3)} for value in values]


def test_a_model_stays_if_the_mean_gets_no_worse():
    soup, chosen = greedy_soup(states(3.0, -1.0, 1.0), score)
    assert chosen == [1, 2] and soup["weight"].item() == 0 and soup["count"].item() == 3


def test_a_model_stays_if_the_mean_is_as_good():
    assert greedy_soup(states(1.0, 1.0, 3.0), score)[1] == [0, 1]


def test_a_soup_is_never_worse_than_its_best_ingredient():
    for seed in range(20):
        each = states(*torch.randn(6, generator=torch.Generator().manual_seed(seed)).tolist())
        soup, chosen = greedy_soup(each, score)
        assert score(soup) >= max(map(score, each)) - 1e-6
        assert torch.allclose(soup["weight"], torch.stack([each[i]["weight"] for i in chosen]).mean(0))


def test_other_architectures_are_an_error():
    with pytest.raises(ValueError, match="same architecture"):
        greedy_soup([*states(1.0), {"weight": torch.zeros(2), "count": torch.tensor(3)}], score)
    with pytest.raises(ValueError, match="one or more"):
        greedy_soup([], score)


def test_the_mean_keeps_the_type():
    half = [{"weight": torch.tensor([1.0, 2.0]).half()}, {"weight": torch.tensor([2.0, 2.0]).half()}]
    assert torch.equal(mean_state(half)["weight"], torch.tensor([1.5, 2.0]).half())
    assert mean_state([{"count": torch.tensor(1)}, {"count": torch.tensor(5)}])["count"] == 1
