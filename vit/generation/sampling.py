"""Greedy search and sampling."""

from collections.abc import Sequence

import torch
from torch import Tensor

from vit.counters import hash_to_int
from vit.generation.active_rows import ActiveRows
from vit.generation.candidates import best, candidates, float64_device
from vit.generation.ensemble import Ensemble
from vit.generation.hypotheses import Hypothesis
from vit.generation.search_tree import Outcome, SearchTree
from vit.generation.settings import Generation

ALTERNATIVES = 5  # continuations per step of greedy search that a search tree shows


def sample(
    ensemble: Ensemble, first: Tensor, settings: Generation, longest: int, names: list[tuple],
    trees: Sequence[SearchTree] = (),
) -> list[Hypothesis]:
    """One text per row by greedy search, or by sampling with `settings.sample`.

    Args:
        first: (B,P), the forced ids.
        longest: maximum number of tokens to generate.
        names: counters of each row from which the random numbers of sampling are derived.
        trees: one per row of greedy search, to which the best continuations of each step are added; none by default.
    """
    hypotheses: dict[int, Hypothesis] = {}
    active, ids, texts = ActiveRows(len(first)), first, [settings.prefix for _ in first]
    total = torch.zeros(len(first), 1, device=first.device)
    for step in range(1, longest + 1):
        log_probs = ensemble.advance(ids)  # (B,1,V)
        ensemble.suppress(log_probs, [[text] for text in texts], step, settings)
        ids = choose(log_probs[:, 0], settings, [(*names[row], step) for row in active.rows])  # (B,1)
        if trees:
            unfinished = {i: trees[row] for i, row in enumerate(active.rows) if row not in hypotheses}
            add_alternatives(unfinished, log_probs, total, settings, step == longest)
        before, total = total, total + log_probs[:, 0].gather(1, ids)
        for i, (row, (token,), (value,)) in enumerate(zip(active.rows, ids.tolist(), total.tolist(), strict=True)):
            dead = value == -torch.inf  # every continuation is suppressed
            end = token == settings.eos and not dead
            texts[i] = texts[i] if end or dead else (*texts[i], token)
            if row not in hypotheses and (end or dead or step == longest):
                value, length = (float(before[i]), max(step - 1, 1)) if dead else (value, step)
                hypotheses[row] = Hypothesis(texts[i], settings.score(value, length), end)
        if len(hypotheses) == len(first):
            break
        if (remaining := active.compact([row in hypotheses for row in active.rows])) is not None:
            index = torch.tensor(remaining, device=ids.device)
            ensemble.select_rows(index)
            texts, total, ids = [texts[i] for i in remaining], total[index], ids[index]
    return [hypotheses[row] for row in range(len(first))]


def add_alternatives(
    trees: dict[int, SearchTree], log_probs: Tensor, total: Tensor, settings: Generation, is_last: bool
) -> None:
    """Add the best continuations of a step of greedy search to the trees; the search follows the first of them.

    Args:
        trees: index in the batch -> tree.
        log_probs, total: (B,1,V) of each id and (B,1) of the texts so far.
        is_last: whether this is the last step.
    """
    alternatives = list(zip(*candidates(log_probs, total, min(ALTERNATIVES, log_probs.shape[-1])), strict=True))
    for i, tree in trees.items():
        tokens = [(0, token, value) for value, token in zip(*alternatives[i], strict=True) if value > -torch.inf]
        followed = Outcome.cut if is_last else Outcome.extended
        outcomes = [Outcome.ended if token == settings.eos else followed for _, token, _ in tokens[:1]]
        outcomes += [Outcome.dropped] * (len(tokens) - 1)
        tree.add_step([(*each, outcome) for each, outcome in zip(tokens, outcomes, strict=True)])


def choose(log_probs: Tensor, settings: Generation, counters: list[tuple[int, ...]]) -> Tensor:
    """log-probabilities (B,V) -> ids (B,1), the most probable (first of equal ones) or sampled"""
    if not settings.sample:
        return log_probs.max(-1, keepdim=True).indices
    draws = torch.tensor([uniform(settings.seed, *each) for each in counters], dtype=torch.float64)
    device = float64_device(log_probs.device)
    return draw(log_probs.to(device), draws.to(device), settings).to(log_probs.device)


def draw(logits: Tensor, draws: Tensor, settings: Generation) -> Tensor:
    """logits (B,V), draws (B,) in [0,1) -> ids (B,1), by inversion of the cumulative distribution"""
    logits, ids = logits / settings.temperature, None
    if settings.top_k or settings.top_p < 1:
        logits, ids = best(logits, min(settings.top_k or logits.shape[-1], logits.shape[-1]))  # descending
    probabilities = logits.double().softmax(-1)
    if settings.top_p < 1:
        before = probabilities.cumsum(-1) - probabilities
        probabilities = probabilities.masked_fill(before >= settings.top_p, 0)  # never masks the most probable token
    cumulative = probabilities.cumsum(-1)
    index = torch.searchsorted(cumulative, draws[:, None] * cumulative[:, -1:], right=True)
    last = (probabilities > 0).long().cumsum(-1).argmax(-1, keepdim=True)  # rounding may go past the last token
    index = index.minimum(last)
    return index if ids is None else ids.gather(1, index)


def uniform(*counters: int) -> float:
    """A pseudo-random number in [0, 1) on a grid of 2^-53, a function of the counters alone."""
    return (hash_to_int(*counters) >> 11) / 2**53
