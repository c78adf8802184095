"""Beam search over a batch of rows."""

from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor

from vit.generation.active_rows import ActiveRows
from vit.generation.candidates import candidates
from vit.generation.ensemble import Ensemble
from vit.generation.hypotheses import Hypothesis, NBest
from vit.generation.length_penalty import highest_score
from vit.generation.search_tree import Outcome, SearchTree
from vit.generation.settings import Generation

COMPACT_EVERY = 16  # steps after which tokens of dropped beams are removed from the caches


class Beam(NamedTuple):
    """An unfinished text: the sum of its log-probabilities, its ids, and the index of its parent beam."""

    score: float
    text: tuple[int, ...]
    parent: int = 0


def beam_search(
    ensemble: Ensemble, first: Tensor, settings: Generation, longest: int, trees: Sequence[SearchTree] = ()
) -> list[list[Hypothesis]]:
    """The best texts of every row.

    Texts that end among the best `beam` continuations are collected. A row is done when no beam can beat them any more,
    so that stopping early does not change the result.

    Caches are never reordered: the cache of a row holds the tokens of all of its beams, and the mask (B,W,length)
    selects those of each beam. When beams are dropped or forked, only the mask changes.

    Args:
        first: (B,P), the ids that each text starts with: bos and the prefix.
        longest: maximum number of tokens to generate.
        trees: one per row, to which the continuations of each step are added; none by default.

    Returns:
        For each row up to `settings.n_best` hypotheses, best first.
    """
    active_trees = dict(enumerate(trees))  # row -> tree, of rows that are not done
    best, active = [NBest(settings.n_best) for _ in first], ActiveRows(len(first))
    log_probs = ensemble.advance(first)  # (B,1,V)
    beams = [[Beam(0.0, settings.prefix)] for _ in first]
    mask = first.new_ones(len(first), 1, first.shape[1], dtype=torch.bool)  # (B,W,cached tokens)
    for step in range(1, longest + 1):
        ensemble.suppress(log_probs, [[beam.text for beam in row] for row in beams], step, settings)
        beams = next_beams(beams, log_probs, step, longest, [best[row] for row in active.rows], settings,
                           [active_trees.get(row) for row in active.rows])
        done = [is_done(row[0], step, longest, best[number], settings)
                for number, row in zip(active.rows, beams, strict=True)]
        active_trees = {row: tree for row, tree in active_trees.items() if not done[active.rows.index(row)]}
        if all(done):
            break
        parents = torch.tensor([[beam.parent for beam in row] for row in beams], device=first.device)
        mask = gather_beams(mask, parents)
        if (remaining := active.compact(done)) is not None:
            beams = [beams[i] for i in remaining]
            index = torch.tensor(remaining, device=first.device)
            ensemble.select_rows(index)
            mask = mask[index]
        if step % COMPACT_EVERY == 0:
            mask = drop_unused(ensemble, mask)
        ids = torch.tensor([[beam.text[-1] for beam in row] for row in beams], device=first.device)
        mask = torch.cat([mask, new_token_mask(*ids.shape, ids.device)], dim=-1)
        log_probs = ensemble.advance(ids, mask)
    return [each.found for each in best]


def next_beams(
    beams: Sequence[Sequence[Beam]], log_probs: Tensor, step: int, longest: int, best: Sequence[NBest],
    settings: Generation, trees: Sequence[SearchTree | None],
) -> list[list[Beam]]:
    """The beams of each row after the next token, which has log_probs (B,W,V); see `extend` for the other arguments."""
    scores = log_probs.new_tensor([[beam.score for beam in row] for row in beams])  # (B,W)
    W, V = log_probs.shape[1:]
    count = min(2 * settings.beam, W * V)
    values, indices = candidates(log_probs, scores, count)
    width = min(settings.beam, max(1, count - W))  # each beam has one continuation by eos
    return [extend(*row_candidates, V, width, step, longest, found, settings, tree)
            for found, tree, *row_candidates in zip(best, trees, beams, values, indices, strict=True)]


def extend(
    beams: Sequence[Beam], values: Sequence[float], indices: Sequence[int], V: int, width: int, step: int, longest: int,
    best: NBest, settings: Generation, tree: SearchTree | None = None,
) -> list[Beam]:
    """Select the next `width` beams of a row, best first, from its best continuations; add finished texts to `best`.

    Args:
        values, indices: sum of log-probabilities, and index beam * V + token, of each continuation, best first.
        width: number of beams of the next step.
        step: number of generated tokens, the continuation included.
        tree: the continuations are added to it.
    """
    extended, outcomes = [], []
    for rank, (value, index) in enumerate(zip(values, indices, strict=True)):
        parent, token = divmod(index, V)
        text, end = beams[parent].text, token == settings.eos
        if value == -torch.inf:  # all that follow are too
            break
        if rank < settings.beam and (end or step == longest):
            best.add(Hypothesis(text if end else (*text, token), settings.score(value, step), end))
            outcomes.append(Outcome.ended if end else Outcome.cut)
        else:
            is_dropped = end or step == longest or len(extended) == width
            outcomes.append(Outcome.dropped if is_dropped else Outcome.extended)
        if not end and len(extended) < width:
            extended.append(Beam(value, (*text, token), parent))
    if tree is not None:
        tree.add_step([(*divmod(index, V), value, outcome)
                       for index, value, outcome in zip(indices, values, outcomes, strict=False)])
    if values[0] == -torch.inf and not best.found:  # every continuation is suppressed: return the unfinished texts
        for beam in beams:
            if beam.score > -torch.inf:
                best.add(Hypothesis(beam.text, settings.score(beam.score, max(step - 1, 1)), False))
    return extended + [Beam(-torch.inf, (settings.pad,))] * (width - len(extended))


def is_done(beam: Beam, step: int, longest: int, best: NBest, settings: Generation) -> bool:
    """Whether a row is finished: not even its best unfinished `beam` can still enter its best texts."""
    if step == longest or beam.score == -torch.inf:
        return True
    return best.beats(highest_score(beam.score, step, settings.length_penalty, settings.min_len, longest,
                                    settings.length_penalty_form))


def gather_beams(x: Tensor, index: Tensor) -> Tensor:
    """x (B,W,N), index (B,W') -> (B,W',N), the rows of x at the indices of the beams"""
    return x.gather(1, index[..., None].expand(-1, -1, x.shape[-1]))


@cache
def new_token_mask(B: int, W: int, device: torch.device) -> Tensor:
    """Mask (B,W,W) of the W newest tokens, one per beam: each beam attends to its own"""
    return torch.eye(W, dtype=torch.bool, device=device).expand(B, -1, -1)


def drop_unused(ensemble: Ensemble, mask: Tensor) -> Tensor:
    """Remove tokens from the caches that no beam attends to: mask (B,W,N) -> (B,W,N')"""
    used = mask.any(dim=1)  # (B,N)
    most = int(used.sum(dim=1).max())
    if 4 * most > 3 * mask.shape[-1]:
        return mask
    tokens = used.long().argsort(dim=1, descending=True, stable=True)[:, :most]  # (B,N'), in order
    ensemble.select_tokens(tokens)
    return mask.gather(2, tokens[:, None].expand(-1, mask.shape[1], -1))
