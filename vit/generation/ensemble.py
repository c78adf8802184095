"""The interface between search and models: models with their caches, whose probabilities are averaged."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from vit.generation.settings import Generation
from vit.generation.suppressed_tokens import suppress_tokens
from vit.generation.utf8 import Texts, Utf8


class Ensemble:
    """Models with their caches, whose probabilities are averaged.

    Args:
        sources: the source of each model, ids (B,S) or images (B,C,H,W).
        source_mask: (B,S), False for padding.
        capacity: initial capacity of the caches.
        utf8: the constraint to valid UTF-8; None for none.
    """

    def __init__(
        self,
        models: Sequence[nn.Module],
        sources: Sequence[Tensor],
        source_mask: Tensor | None,
        capacity: int,
        utf8: Utf8 | None = None,
    ) -> None:
        self.models, self.utf8 = models, utf8
        self.caches = [model.start(source, source_mask, capacity)
                       for model, source in zip(models, sources, strict=True)]

    def advance(self, ids: Tensor, beam_mask: Tensor | None = None) -> Tensor:
        """The next ids (B,T), beam_mask as in `Decoder.advance` -> log-probabilities (B,W,V) of the following token

        Raises:
            ValueError: the models have different vocabularies.
        """
        each = [model.advance(ids, cache, beam_mask) for model, cache in zip(self.models, self.caches, strict=True)]
        if len({logits.shape for logits in each}) > 1:
            sizes = ", ".join(str(logits.shape[-1]) for logits in each)
            raise ValueError(f"the models of an ensemble need one vocabulary, but they have {sizes} ids")
        if len(each) == 1:
            logits = each[0].float()
            return torch.log_softmax(logits, -1, out=logits)  # in place: the largest tensor of a step
        mean = torch.stack([logits.float().log_softmax(-1) for logits in each]).logsumexp(0) - math.log(len(each))
        return mean.clamp_(max=0)  # rounding must not give probabilities above one

    def suppress(self, log_probs: Tensor, texts: Texts, step: int, settings: Generation) -> None:
        """Set the log-probabilities (B,W,V) of tokens that may not follow the texts at `step` to -inf, in place."""
        suppress_tokens(log_probs, texts, step, settings)
        if self.utf8 is not None:
            self.utf8.suppress(log_probs, texts)

    def select_rows(self, rows: Tensor) -> None:
        """Select rows by index (R,), as `Cache.select_rows`."""
        for cache in self.caches:
            cache.select_rows(rows)

    def select_tokens(self, tokens: Tensor) -> None:
        """Select tokens by index (B,N), as `Cache.select_tokens`."""
        for cache in self.caches:
            cache.select_tokens(tokens)
