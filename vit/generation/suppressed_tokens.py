"""Tokens that may not be generated: padding and bos, eos before the minimum length, and repeated n-grams."""

import functools
from collections.abc import Sequence

import torch
from torch import Tensor

from vit.generation.settings import Generation
from vit.generation.utf8 import Texts


def suppress_tokens(log_probs: Tensor, texts: Texts, step: int, settings: Generation) -> None:
    """Set the log-probabilities (B,W,V) of tokens that may not be generated at `step` (from 1) to -inf, in place."""
    never = (settings.pad, settings.bos, settings.eos) if step <= settings.min_len else (settings.pad, settings.bos)
    log_probs.index_fill_(-1, as_tensor(never, log_probs.device), -torch.inf)
    if size := settings.no_repeat_ngram:
        repeated = [(row, beam, token) for row, beams in enumerate(texts) for beam, text in enumerate(beams)
                    for token in repeated_ngram_ends(text, size)]
        if repeated:
            log_probs[tuple(torch.tensor(repeated, device=log_probs.device).T)] = -torch.inf


@functools.cache
def as_tensor(ids: tuple[int, ...], device: torch.device) -> Tensor:
    """The L ids as a cached tensor (L,)."""
    return torch.tensor(ids, device=device)


def repeated_ngram_ends(text: Sequence[int], size: int) -> set[int]:
    """The ids that would complete an n-gram of `size` ids that the text contains already."""
    last = tuple(text[len(text) - size + 1 :])
    return {text[i + size - 1] for i in range(len(text) - size + 1) if tuple(text[i : i + size - 1]) == last}
