"""Beam search over a batch of rows."""

from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor

from vit.generation.candidates import candidates
from vit.generation.models import Leaving, Writers, forbid
from vit.generation.settings import Best, Generation, Hypothesis

FORGET = 16  # steps after which dead lines are forgotten


class Line(NamedTuple):
    """A text that is being written: the sum of its log-probabilities, and the line of the step before it came from."""

    score: float
    text: tuple[int, ...]
    parent: int = 0


def beam_search(writers: Writers, first: Tensor, settings: Generation, longest: int) -> list[list[Hypothesis]]:
    """For every row its best texts, after the forced ids `first` (B,P).

    As many lines as `beam` are followed. Texts that end among the best `beam` continuations are put aside, and a row
    is done when no line can get past those any more: the result is what it would be if all lines went on to the end.

    The lines of a row stand beside each other in what the models keep, and none ever moves: where lines die and fork,
    only `seen` changes, which tells of all tokens that the row's lines have written the ones that are a line's own.
    """
    best, leaving = [Best(settings.n_best) for _ in first], Leaving(len(first))
    likely = writers.advance(first)  # (B,1,V)
    lines = [[Line(0.0, settings.prefix)] for _ in first]
    seen = first.new_ones(len(first), 1, first.shape[1], dtype=torch.bool)  # (B,W,length of what is kept)
    for step in range(1, longest + 1):
        forbid(likely, [[line.text for line in row] for row in lines], step, settings)
        scores = likely.new_tensor([[line.score for line in row] for row in lines])  # (B,W)
        W, V = likely.shape[1:]
        count = min(2 * settings.beam, W * V)
        found = candidates(likely, scores, count)
        wide = min(settings.beam, max(1, count - W))  # every line has one continuation that ends it
        lines = [go_on(*each, V, wide, step, longest, best[row], settings)
                 for row, *each in zip(leaving.rows, lines, *found, strict=True)]
        done = [over(row[0], step, longest, best[number], settings)
                for number, row in zip(leaving.rows, lines, strict=True)]
        if all(done):
            break
        parents = torch.tensor([[line.parent for line in row] for row in lines], device=first.device)
        seen = pick(seen, parents)
        if (places := leaving.due(done)) is not None:
            lines = [lines[place] for place in places]
            kept = torch.tensor(places, device=first.device)
            writers.select_rows(kept)
            seen = seen[kept]
        if step % FORGET == 0:
            seen = forget(writers, seen)
        ids = torch.tensor([[line.text[-1] for line in row] for row in lines], device=first.device)
        seen = torch.cat([seen, own(*ids.shape, ids.device)], dim=-1)
        likely = writers.advance(ids, seen)
    return [each.found for each in best]


def go_on(
    lines: Sequence[Line], values: Sequence[float], places: Sequence[int], V: int, wide: int, step: int, longest: int,
    best: Best, settings: Generation,
) -> list[Line]:
    """The `wide` lines of a row that are followed, best first, out of its best continuations; those that end here are
    put aside."""
    going = []
    for rank, (value, place) in enumerate(zip(values, places, strict=True)):
        parent, token = divmod(place, V)
        text, end = lines[parent].text, token == settings.eos
        if value == -torch.inf:  # and so are all behind it
            break
        if rank < settings.beam and (end or step == longest):
            best.add(Hypothesis(text if end else (*text, token), settings.score(value, step), end))
        if not end and len(going) < wide:
            going.append(Line(value, (*text, token), parent))
    if values[0] == -torch.inf and not best.found:  # nothing may follow: the texts as they are
        for line in lines:
            if line.score > -torch.inf:
                best.add(Hypothesis(line.text, settings.score(line.score, max(step - 1, 1)), False))
    return going + [Line(-torch.inf, (settings.pad,))] * (wide - len(going))


def over(line: Line, step: int, longest: int, best: Best, settings: Generation) -> bool:
    """Whether the best line that goes on, and so every other, cannot get among the best texts any more."""
    dead = step == longest or line.score == -torch.inf
    return dead or best.beats(settings.bound(line.score, step, longest))


def pick(x: Tensor, lines: Tensor) -> Tensor:
    """x (B,W,N) -> the rows `lines` (B,W') of it, (B,W',N)"""
    return x.gather(1, lines[..., None].expand(-1, -1, x.shape[-1]))


@cache
def own(B: int, W: int, device: torch.device) -> Tensor:
    """Of the W tokens that a row's lines write now each line sees its own: (B,W,W)"""
    return torch.eye(W, dtype=torch.bool, device=device).expand(B, -1, -1)


def forget(writers: Writers, seen: Tensor) -> Tensor:
    """Drop tokens that no line (B,W,N) sees: lines have most of their past in common. -> (B,W,N') of those that stay"""
    alive = seen.any(dim=1)  # (B,N)
    most = int(alive.sum(dim=1).max())
    if 4 * most > 3 * seen.shape[-1]:
        return seen
    tokens = alive.long().argsort(dim=1, descending=True, stable=True)[:, :most]  # (B,N'), in the order they came
    writers.select_tokens(tokens)
    return seen.gather(2, tokens[:, None].expand(-1, seen.shape[1], -1))
