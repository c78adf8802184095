"""Generation without a cache: every step runs the whole model, for models whose `forward` steps would bypass."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from vit.nn.fast_call import has_custom_call


@dataclass
class Everything:
    """All that was read and written: the source, and every row's tokens in the order they came."""

    source: Tensor
    mask: Tensor | None  # (B,S)
    ids: Tensor  # (B,length)

    def select_rows(self, rows: Tensor) -> None:
        self.source, self.ids = self.source[rows], self.ids[rows]
        self.mask = None if self.mask is None else self.mask[rows]

    def select_tokens(self, tokens: Tensor) -> None:
        self.ids = self.ids.gather(1, tokens)


class Uncached(nn.Module):
    """A model that keeps nothing, for `generate(Uncached(model), ...)`: each step is a forward of the whole model."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    @property
    def vocab_size(self) -> int:
        return self.model.vocab_size

    @property
    def max_len(self) -> int | None:
        return self.model.max_len

    def forward(self, source: Tensor, target_in: Tensor, source_mask: Tensor | None = None) -> Tensor:
        return self.model(source, target_in, source_mask)

    def ctc_log_probs(self, source: Tensor, source_mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        return self.model.ctc_log_probs(source, source_mask)

    def start(self, source: Tensor, source_mask: Tensor | None, room: int) -> Everything:
        return Everything(source, source_mask, torch.zeros(len(source), 0, dtype=torch.long, device=source.device))

    def advance(self, ids: Tensor, kept: Everything, lines: Tensor | None = None) -> Tensor:
        """The next ids (B,T), or alternatives for the next (B,W) with lines (B,W,length) -> logits (B,1 or W,V)"""
        kept.ids = torch.cat([kept.ids, ids], dim=1)
        if lines is None:
            lines = torch.ones_like(kept.ids, dtype=torch.bool)[:, None]
        B, W, length = lines.shape
        texts = kept.ids[:, None].expand(B, W, length)[lines].view(B * W, -1)  # each line's tokens, all as many
        source = kept.source.repeat_interleave(W, dim=0)
        mask = None if kept.mask is None else kept.mask.repeat_interleave(W, dim=0)
        return self.model(source, texts, mask)[:, -1].view(B, W, -1)


def bypassed(model: nn.Module) -> bool:
    """Whether generation step by step would leave out what somebody changed: the model or its decoder has another
    `forward` than its `advance` belongs to, or hooks on its call."""
    parts = [getattr(model, "_orig_mod", model), getattr(model, "decoder", None)]
    return any(isinstance(part, nn.Module) and not is_sharded(part) and is_changed(part) for part in parts)


def is_sharded(module: nn.Module) -> bool:
    """Whether FSDP2 manages it: the hooks on its call only gather its parameters."""
    return any(kind.__name__ == "FSDPModule" for kind in type(module).__mro__)


def is_changed(module: nn.Module) -> bool:
    forward, advance = (first_with(name, type(module)) for name in ("forward", "advance"))
    return (forward is not advance and issubclass(forward, advance)) or has_custom_call(module)


def first_with(name: str, kind: type) -> type:
    """The class among a class and its ancestors that defines an attribute."""
    return next((each for each in kind.__mro__ if name in vars(each)), object)
