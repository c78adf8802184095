"""The best continuations of all lines of a row."""

import torch
from torch import Tensor

GROUP = 64  # ids whose maximum is taken first
STEP = 2.0**-50  # shares of a value: 2**24 places together take 2**-26, and the next value in float32 is 2**-24 away
LARGE, TINY = 2.0**200, 2.0**-200  # beyond all numbers in float32: infinities and zeros differ by their places as well


def candidates(likely: Tensor, scores: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The `count` best of W*V continuations per row, best first; of equal ones the first line, then the smallest id.

    A maximum over small groups of ids rules out all but `count` of the groups, so that few numbers have to be sorted:
    an id of another group is no better than the best ids of all of these.

    Args:
        likely, scores: log-probabilities (B,W,V) of each id, and (B,W) of the lines they would follow.

    Returns:
        Values (B,count), the sums of both, and places (B,count), a place being line * V + id.
    """
    B, W, V = likely.shape
    whole = V // GROUP
    if W * whole < 4 * count:
        return best((likely + scores[..., None]).flatten(1), count)
    tops = likely[..., : whole * GROUP].unflatten(-1, (whole, GROUP)).amax(-1)  # (B,W,G)
    if whole * GROUP < V:
        tops = torch.cat([tops, likely[..., whole * GROUP :].amax(-1, keepdim=True)], dim=-1)
    G = tops.shape[-1]
    groups = best((tops + scores[..., None]).flatten(1), count)[1].sort(-1).values  # (B,count), first lines first
    lines = groups // G
    ids = (groups % G * GROUP)[..., None] + torch.arange(GROUP, device=likely.device)  # (B,count,GROUP)
    places = lines[..., None] * V + ids.clamp(max=V - 1)
    values = likely.flatten(1).gather(1, places.flatten(1)).view_as(places) + scores.gather(1, lines)[..., None]
    if whole * GROUP < V:
        values = values.masked_fill_(ids >= V, -torch.inf)
    values, order = best(values.flatten(1), count)
    return values, places.flatten(1).gather(1, order)


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
