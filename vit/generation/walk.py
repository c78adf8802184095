"""Token by token along one line: the likeliest each time, or one that is drawn."""

import torch
from torch import Tensor

from vit.counters import hashed_int
from vit.generation.candidates import best
from vit.generation.models import Leaving, Writers, forbid
from vit.generation.settings import Generation, Hypothesis


def walk(writers: Writers, first: Tensor, settings: Generation, longest: int, names: list[tuple]) -> list[Hypothesis]:
    """For every row a text, after the forced ids `first` (B,P); `names` tell the rows apart when tokens are drawn."""
    found: dict[int, Hypothesis] = {}
    leaving, ids, texts = Leaving(len(first)), first, [settings.prefix for _ in first]
    total = torch.zeros(len(first), 1, device=first.device)
    for step in range(1, longest + 1):
        likely = writers.advance(ids)  # (B,1,V)
        forbid(likely, [[text] for text in texts], step, settings)
        ids = choose(likely[:, 0], settings, [(*names[row], step) for row in leaving.rows])  # (B,1)
        before, total = total, total + likely[:, 0].gather(1, ids)
        for place, (row, (token,), (value,)) in enumerate(zip(leaving.rows, ids.tolist(), total.tolist(), strict=True)):
            dead = value == -torch.inf  # nothing at all may follow
            end = token == settings.eos and not dead
            texts[place] = texts[place] if end or dead else (*texts[place], token)
            if row not in found and (end or dead or step == longest):
                value, length = (float(before[place]), max(step - 1, 1)) if dead else (value, step)
                found[row] = Hypothesis(texts[place], settings.score(value, length), end)
        if len(found) == len(first):
            break
        if (places := leaving.due([row in found for row in leaving.rows])) is not None:
            kept = torch.tensor(places, device=ids.device)
            writers.select_rows(kept)
            texts, total, ids = [texts[place] for place in places], total[kept], ids[kept]
    return [found[row] for row in range(len(first))]


def choose(likely: Tensor, settings: Generation, counters: list[tuple[int, ...]]) -> Tensor:
    """log-probabilities (B,V) -> ids (B,1)"""
    if not settings.sample:
        return likely.max(-1, keepdim=True).indices  # the first of equal ones
    draws = torch.tensor([uniform(settings.seed, *each) for each in counters], dtype=torch.float64)
    return draw(likely, draws.to(likely.device), settings)


def draw(logits: Tensor, draws: Tensor, settings: Generation) -> Tensor:
    """logits (B,V), draws (B,) in [0,1) -> ids (B,1), by inversion of the distribution function."""
    logits, ids = logits / settings.temperature, None
    if settings.top_k or settings.top_p < 1:
        logits, ids = best(logits, min(settings.top_k or logits.shape[-1], logits.shape[-1]))  # likeliest first
    shares = logits.double().softmax(-1)
    if settings.top_p < 1:
        before = shares.cumsum(-1) - shares
        shares = shares.masked_fill(before >= settings.top_p, 0)  # the likeliest has nothing before it, and stays
    steps = shares.cumsum(-1)
    place = torch.searchsorted(steps, draws[:, None] * steps[:, -1:], right=True)
    last = (shares > 0).long().cumsum(-1).argmax(-1, keepdim=True)  # where rounding went beyond the last possible one
    place = place.minimum(last)
    return place if ids is None else ids.gather(1, place)


def uniform(*counters: int) -> float:
    """A number in [0, 1) on a grid of 2^-53 that depends on the counters alone."""
    return (hashed_int(*counters) >> 11) / 2**53
