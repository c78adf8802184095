"""Model soups: the mean of the weights of models that started from the same weights (arXiv 2203.05482)."""

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

State = Mapping[str, Tensor]


def greedy_soup(states: Sequence[State], score: Callable[[State], float]) -> tuple[dict[str, Tensor], list[int]]:
    """The greedy soup of the paper's recipe 1, and the indices of its ingredients.

    Models are tried in the order of their own scores; a model is added if the score of the mean does not fall.

    Args:
        score: function from a state to its score on validation data, higher is better.

    Raises:
        ValueError: there is no state, or the states have different tensors.
    """
    if not states:
        raise ValueError("a soup needs one or more models")
    for state in states:
        if [(name, each.shape) for name, each in state.items()] != [(n, each.shape) for n, each in states[0].items()]:
            raise ValueError("the models of a soup need the same architecture")
    scores = [score(state) for state in states]
    order = sorted(range(len(states)), key=lambda i: -scores[i])
    chosen, best = order[:1], scores[order[0]]
    for i in order[1:]:
        mean_score = score(mean_state([states[j] for j in (*chosen, i)]))
        if mean_score >= best:
            chosen, best = [*chosen, i], mean_score
    return mean_state([states[i] for i in chosen]), chosen


def mean_state(states: Sequence[State]) -> dict[str, Tensor]:
    """The mean of each floating-point tensor, computed in float64; other tensors are those of the first state."""
    return {
        name: torch.stack([state[name].double() for state in states]).mean(0).to(tensor.dtype)
        if tensor.is_floating_point() else tensor
        for name, tensor in states[0].items()
    }
