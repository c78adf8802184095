"""The best continuations of all beams of a row: an exact, deterministic top-k over beams and vocabulary."""

from functools import cache

import torch
from torch import Tensor

GROUP = 64  # ids per group in `grouped_topk`
STEP = 2.0**-50  # relative step per index: 2**24 indices add up to 2**-26, and float32 values differ by 2**-24
LARGE, TINY = 2.0**200, 2.0**-200  # outside the range of float32, so that infinities and zeros get distinct keys


def candidates(log_probs: Tensor, scores: Tensor, count: int) -> tuple[list[list[float]], list[list[int]]]:
    """The `count` best of W*V continuations per row, best first; ties go to the first beam, then to the smallest id.

    Args:
        log_probs: (B,W,V), of each id.
        scores: (B,W), of the beams.

    Returns:
        For each row the values, sums of `log_probs` and `scores`, and their indices beam * V + id.
    """
    if log_probs.shape[1] * (log_probs.shape[2] // GROUP) <= 4 * count:
        values, indices = best((log_probs + scores[..., None]).flatten(1), count)
        return values.tolist(), indices.tolist()
    values, indices = (each.tolist() for each in grouped_topk(log_probs, scores, count + 1))
    if tied := [i for i, row in enumerate(values) if len(set(row)) <= count]:  # only these rows have ties to break
        exact = best((log_probs[tied] + scores[tied][..., None]).flatten(1), count)
        for i, row, found in zip(tied, *(each.tolist() for each in exact), strict=True):
            values[i], indices[i] = row, found
    return [row[:count] for row in values], [row[:count] for row in indices]


def grouped_topk(log_probs: Tensor, scores: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """log_probs (B,W,V), scores (B,W) -> values and indices (B,count), with ties in any order

    The maxima of groups of ids select `count` groups, which contain the `count` best ids, so that few values have to be
    sorted.
    """
    B, W, V = log_probs.shape
    G, rest = divmod(V, GROUP)
    maxima = log_probs[..., : V - rest].unflatten(-1, (G, GROUP)).amax(-1) + scores[..., None]  # (B,W,G)
    groups = maxima.flatten(1).topk(count).indices  # (B,count)
    beams = groups // G
    starts = torch.add(groups * GROUP, beams, alpha=rest)  # index of the first id of each group
    indices = starts[..., None] + arange(GROUP, log_probs.device)  # (B,count,GROUP)
    values = log_probs.flatten(1).gather(1, indices.flatten(1)).view_as(indices) + scores.gather(1, beams)[..., None]
    indices, values = indices.flatten(1), values.flatten(1)
    if rest:  # the last ids of each beam are an incomplete group
        values = torch.cat([values, (log_probs[..., V - rest :] + scores[..., None]).flatten(1)], dim=1)
        indices = torch.cat([indices, last_indices(W, V, rest, log_probs.device).expand(B, -1)], dim=1)
    values, order = values.topk(count)
    return values, indices.gather(1, order)


@cache
def arange(count: int, device: torch.device) -> Tensor:
    """0 ... count - 1, (count,), cached"""
    return torch.arange(count, device=device)


@cache
def last_indices(W: int, V: int, rest: int, device: torch.device) -> Tensor:
    """Indices of the last `rest` ids of each beam, (W*rest,), cached"""
    return (torch.arange(1, W + 1, device=device)[:, None] * V + torch.arange(-rest, 0, device=device)).flatten()


def best(values: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """values (B,N) in float32 -> the largest values and their indices (B,count), descending; ties in ascending index

    Ties are broken in float64: a value is reduced by a tiny part of itself that grows with its index and stays below
    the distance to the next float32 value.
    """
    values = values.to(float64_device(values.device))
    numbers = torch.arange(1, values.shape[-1] + 1, dtype=torch.float64, device=values.device)
    wide = values.double().clamp_(-LARGE, LARGE)
    keys = wide.addcmul(wide.abs() + TINY, numbers, value=-STEP)
    indices = keys.topk(count).indices
    return values.gather(-1, indices), indices


def float64_device(device: torch.device) -> torch.device:
    """The device, or the CPU in place of an Apple GPU, which has no float64."""
    return torch.device("cpu") if device.type == "mps" else device
