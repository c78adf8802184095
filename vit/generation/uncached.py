"""Generation without a cache: every step runs the whole model, for models whose `forward` a cache would bypass."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from vit.nn.cpu.linear import has_custom_call


@dataclass
class UncachedState:
    """The source and all generated tokens, in place of a key-value cache."""

    source: Tensor
    mask: Tensor | None  # (B,S)
    ids: Tensor  # (B,length)

    def select_rows(self, rows: Tensor) -> None:
        """Select rows by index (R,), as `Cache.select_rows`."""
        self.source, self.ids = self.source[rows], self.ids[rows]
        self.mask = None if self.mask is None else self.mask[rows]

    def select_tokens(self, tokens: Tensor) -> None:
        """Select tokens by index (B,N), as `Cache.select_tokens`."""
        self.ids = self.ids.gather(1, tokens)


class GenerationWrapper(nn.Module):
    """Base class of wrappers that generate with a model in another way; subclasses define `start` and `advance`."""

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
        """The model's `forward`: source (B,S) or (B,C,H,W), target_in (B,T), source_mask (B,S) -> logits (B,T,V)"""
        return self.model(source, target_in, source_mask)

    def ctc_log_probs(self, source: Tensor, source_mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """images (B,C,H,W), source_mask (B,S) -> log-probabilities (B,columns,V), number of columns (B,)"""
        return self.model.ctc_log_probs(source, source_mask)


class Uncached(GenerationWrapper):
    """Wraps a model for generation without a cache, `generate(Uncached(model), ...)`: each step is a full forward."""

    def start(self, source: Tensor, source_mask: Tensor | None, capacity: int) -> UncachedState:
        """source (B,S) or (B,C,H,W), source_mask (B,S) -> the initial state; the capacity is ignored"""
        return UncachedState(source, source_mask, torch.zeros(len(source), 0, dtype=torch.long, device=source.device))

    def advance(self, ids: Tensor, state: UncachedState, beam_mask: Tensor | None = None) -> Tensor:
        """The next ids (B,T), or those of W beams (B,W) with beam_mask (B,W,length) -> logits (B,1 or W,V)"""
        state.ids = torch.cat([state.ids, ids], dim=1)
        if beam_mask is None:
            beam_mask = torch.ones_like(state.ids, dtype=torch.bool)[:, None]
        B, W, length = beam_mask.shape
        texts = state.ids[:, None].expand(B, W, length)[beam_mask].view(B * W, -1)  # beams have equal lengths
        source = state.source.repeat_interleave(W, dim=0)
        mask = None if state.mask is None else state.mask.repeat_interleave(W, dim=0)
        return self.model(source, texts, mask)[:, -1].view(B, W, -1)


def needs_uncached(model: nn.Module) -> bool:
    """Whether a cache would bypass a change of the model: the model or its decoder overrides `forward` without
    `advance`, or has hooks.
    """
    parts = [getattr(model, "_orig_mod", model), getattr(model, "decoder", None)]
    return any(isinstance(part, nn.Module) and not is_sharded(part) and has_changed_forward(part) for part in parts)


def is_sharded(module: nn.Module) -> bool:
    """Whether FSDP2 wraps the module; its hooks only gather parameters."""
    return any(kind.__name__ == "FSDPModule" for kind in type(module).__mro__)


def has_changed_forward(module: nn.Module) -> bool:
    """Whether a subclass of the one that defines `advance` overrides `forward`, or a call does more than `forward`."""
    forward, advance = (defining_class(name, type(module)) for name in ("forward", "advance"))
    return (forward is not advance and issubclass(forward, advance)) or has_custom_call(module)


def defining_class(name: str, kind: type) -> type:
    """The first class in the MRO that defines an attribute; `object` if none does."""
    return next((each for each in kind.__mro__ if name in vars(each)), object)
