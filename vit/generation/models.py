"""One model or several that write together, seen from a search: ids in, logits out."""

import functools
import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from vit.generation.settings import Generation

Texts = Sequence[Sequence[Sequence[int]]]  # of every line of every row


class Writers:
    """Models with what each has kept of the same rows, of which each reads a source of its own. Of several the mean of
    their probabilities counts.
    """

    def __init__(
        self, models: Sequence[nn.Module], sources: Sequence[Tensor], source_mask: Tensor | None, room: int
    ) -> None:
        self.models = models
        read = zip(models, sources, strict=True)
        self.caches = [model.start(source, source_mask, room) for model, source in read]

    def advance(self, ids: Tensor, lines: Tensor | None = None) -> Tensor:
        """The next ids (B,T) -> log-probabilities (B,W,V) of what follows"""
        each = [model.advance(ids, cache, lines) for model, cache in zip(self.models, self.caches, strict=True)]
        if len({logits.shape for logits in each}) > 1:
            sizes = ", ".join(str(logits.shape[-1]) for logits in each)
            raise ValueError(f"models that write together need one vocabulary, but they have {sizes} ids")
        if len(each) == 1:
            logits = each[0].float()
            return torch.log_softmax(logits, -1, out=logits)  # in place: these are the largest numbers of a step
        mean = torch.stack([logits.float().log_softmax(-1) for logits in each]).logsumexp(0) - math.log(len(each))
        return mean.clamp_(max=0)  # no rounding makes a probability larger than one

    def select_rows(self, rows: Tensor) -> None:
        """Rows by their numbers, as `Cache.keep`."""
        for cache in self.caches:
            cache.select_rows(rows)

    def select_tokens(self, tokens: Tensor) -> None:
        """Tokens by their numbers, as `Cache.recall`."""
        for cache in self.caches:
            cache.select_tokens(tokens)


def forbid(likely: Tensor, texts: Texts, step: int, settings: Generation) -> None:
    """Sets log-probabilities (B,W,V) to -inf of what must not be chosen as token number `step` after these texts."""
    never = (settings.pad, settings.bos, settings.eos) if step <= settings.min_len else (settings.pad, settings.bos)
    likely.index_fill_(-1, as_tensor(never, likely.device), -torch.inf)
    if size := settings.no_repeat_ngram:
        again = [(row, line, token) for row, lines in enumerate(texts) for line, text in enumerate(lines)
                 for token in repeating(text, size)]
        if again:
            likely[tuple(torch.tensor(again, device=likely.device).T)] = -torch.inf


@functools.cache
def as_tensor(ids: tuple[int, ...], device: torch.device) -> Tensor:
    return torch.tensor(ids, device=device)


def repeating(text: Sequence[int], size: int) -> set[int]:
    """The ids that would end a run of `size` ids which the text has already."""
    last = tuple(text[len(text) - size + 1 :])
    return {text[i + size - 1] for i in range(len(text) - size + 1) if tuple(text[i : i + size - 1]) == last}


class Leaving:
    """Decides when finished rows leave the batch: a copy of all that is kept pays when an eighth is for nothing."""

    def __init__(self, rows: int) -> None:
        self.rows = list(range(rows))  # numbers of the rows that are still there

    def due(self, done: list[bool]) -> list[int] | None:
        """Places of the rows to keep, once enough are done."""
        if sum(done) * 8 < len(self.rows) or not any(done):
            return None
        places = [place for place, gone in enumerate(done) if not gone]
        self.rows = [self.rows[place] for place in places]
        return places
