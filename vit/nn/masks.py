"""Attention masks: their forms, their combination, and the softmax of masked scores."""

from collections.abc import Callable

import torch
from torch import Tensor


def attention_mask(mask: Tensor | None, causal: bool, q: Tensor, k: Tensor) -> tuple[Tensor | None, bool]:
    """The mask in the kernel's form, (B,H,N,S) or None, and the kernel's causal flag.

    The kernel accepts either a mask or the flag, and the flag aligns the first query with the first key. With a mask,
    or with fewer queries than keys, causality therefore becomes part of the mask.

    Args:
        mask, causal: as in `Attention.forward`.
        q, k: (B,H,N,K) and (B,H,S,K).

    Raises:
        ValueError: the mask does not have 2, 3 or 4 dimensions.
        TypeError: the mask is neither bool nor, with 3 or 4 dimensions, floating point.
    """
    if mask is not None:
        if mask.dtype != torch.bool and (mask.ndim < 3 or not mask.is_floating_point()):
            raise TypeError(f"a mask of shape {tuple(mask.shape)} has dtype {mask.dtype}, but must be bool: True = may "
                            "be attended (masks of 3 or 4 dimensions may also be floats to add to the scores)")
        if not 2 <= mask.ndim <= 4:
            raise ValueError(f"mask has shape {tuple(mask.shape)}, but must be (B,S), (B,N,S) or (B,H,N,S)")
        if mask.ndim == 2:
            mask = mask[:, None, None, :]  # (B,S) -> (B,1,1,S)
        elif mask.ndim == 3:
            mask = mask[:, None]  # (B,N,S) -> (B,1,N,S)
    N, S = q.shape[-2], k.shape[-2]
    if not causal or (mask is None and N == S):
        return mask, causal
    past = torch.ones(N, S, dtype=torch.bool, device=q.device).tril(S - N)
    return past if mask is None else restrict(mask, past), False


def restrict(mask: Tensor, allowed: Tensor) -> Tensor:
    """Combine a bool or additive mask (...,N,S) with the bool mask `allowed` (...,N,S); shapes broadcast."""
    return mask & allowed if mask.dtype == torch.bool else mask.masked_fill(~allowed, -torch.inf)


def softmax(scores: Tensor) -> Tensor:
    """(...,S) -> (...,S), over the keys"""
    return scores.softmax(-1)


def masked_softmax(
    scores: Tensor, mask: Tensor | None, causal: bool, softmax: Callable[[Tensor], Tensor] = softmax
) -> Tensor:
    """Scores (...,N,S) -> attention weights (...,N,S); mask and causal from `attention_mask`"""
    if causal:
        mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
    if mask is None:
        return softmax(scores)
    scores, mask = (scores, mask) if mask.dtype == torch.bool else (scores + mask, mask > -torch.inf)
    scores = scores.masked_fill(~mask, -torch.inf)  # stops NaN gradients of fully masked rows
    return softmax(scores).nan_to_num()  # fully masked rows become zeros
