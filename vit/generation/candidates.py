"""The best continuations of all lines of a row."""

from functools import cache

import torch
from torch import Tensor

GROUP = 64  # ids whose maximum is taken first
STEP = 2.0**-50  # shares of a value: 2**24 places together take 2**-26, and the next value in float32 is 2**-24 away
LARGE, TINY = 2.0**200, 2.0**-200  # beyond all numbers in float32: infinities and zeros differ by their places as well


def candidates(likely: Tensor, scores: Tensor, count: int) -> tuple[list[list[float]], list[list[int]]]:
    """The `count` best of W*V continuations per row, best first; of equal ones the first line, then the smallest id.

    Args:
        likely, scores: log-probabilities (B,W,V) of each id, and (B,W) of the lines they would follow.

    Returns:
        Per row values, the sums of both, and places, a place being line * V + id.
    """
    if likely.shape[1] * (likely.shape[2] // GROUP) > 4 * count:
        values, places = (each.tolist() for each in quickly(likely, scores, count + 1))
        if all(len(set(row)) > count for row in values):  # none are equal, so their order is no question
            return [row[:count] for row in values], [row[:count] for row in places]
    values, places = best((likely + scores[..., None]).flatten(1), count)
    return values.tolist(), places.tolist()


def quickly(likely: Tensor, scores: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The same, (B,count) each, but of equal ones any.

    A maximum over small groups of ids rules out all but `count` of the groups, so that few numbers have to be sorted:
    an id of another group is no better than the best ids of all of these.
    """
    B, W, V = likely.shape
    G, rest = divmod(V, GROUP)
    tops = likely[..., : V - rest].unflatten(-1, (G, GROUP)).amax(-1) + scores[..., None]  # (B,W,G)
    groups = tops.flatten(1).topk(count).indices  # (B,count)
    lines = groups // G
    firsts = torch.add(groups * GROUP, lines, alpha=rest)  # as places
    places = firsts[..., None] + counted(GROUP, likely.device)  # (B,count,GROUP)
    values = likely.flatten(1).gather(1, places.flatten(1)).view_as(places) + scores.gather(1, lines)[..., None]
    places, values = places.flatten(1), values.flatten(1)
    if rest:  # the last ids of each line are no whole group
        values = torch.cat([values, (likely[..., V - rest :] + scores[..., None]).flatten(1)], dim=1)
        places = torch.cat([places, last_places(W, V, rest, likely.device).expand(B, -1)], dim=1)
    values, order = values.topk(count)
    return values, places.gather(1, order)


@cache
def counted(count: int, device: torch.device) -> Tensor:
    """0 ... count - 1, (count,)"""
    return torch.arange(count, device=device)


@cache
def last_places(W: int, V: int, rest: int, device: torch.device) -> Tensor:
    """(W*rest,) those of the last ids of each line"""
    return (torch.arange(1, W + 1, device=device)[:, None] * V + torch.arange(-rest, 0, device=device)).flatten()


def best(values: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """(B,N) in float32 -> the largest (B,count) and their places, largest first, of equal ones the first.

    The selection is of numbers in float64 that no two places share: each value less a share of itself that grows with
    the place, and that all places together do not take as far as the next value in float32.
    """
    places = torch.arange(1, values.shape[-1] + 1, dtype=torch.float64, device=values.device)
    wide = values.double().clamp_(-LARGE, LARGE)
    keys = wide.addcmul(wide.abs() + TINY, places, value=-STEP)
    places = keys.topk(count).indices
    return values.gather(-1, places), places
