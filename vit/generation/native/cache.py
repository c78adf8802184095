"""The key-value cache of the compiled decoding step."""

import torch.nn.functional as F
from torch import Tensor


class CompiledCache:
    """Keys and values of the generated tokens and of the memory, in the layout of `decoder.cpp`.

    Args:
        memory_keys, memory_values: (layers,B,H,S,K) each.
        memory_mask: (B,S), True for tokens of the memory that may be attended; None for all.
        capacity: initial capacity; it is doubled when it is exhausted.
        panel: tokens and the width of values are padded to a multiple of this number.
    """

    def __init__(
        self, memory_keys: Tensor, memory_values: Tensor, memory_mask: Tensor | None, capacity: int, panel: int
    ) -> None:
        self.panel, self.length, self.position = panel, 0, 0
        layers, B, H, S, K = memory_keys.shape
        self.memory, self.memory_mask = S, memory_mask
        self.memory_keys = self.padded(memory_keys.transpose(3, 4))  # (layers,B,H,K,S')
        self.memory_values = self.padded(F.pad(memory_values, (0, 0, 0, -S % panel)))  # (layers,B,H,S',K')
        capacity += -capacity % panel
        self.keys = memory_keys.new_zeros(layers, B, H, K, capacity)
        self.values = memory_keys.new_zeros(layers, B, H, capacity, self.memory_values.shape[-1])

    def padded(self, x: Tensor) -> Tensor:
        """x (...,N) -> (...,N') with zeros at the end, N' a multiple of `panel`"""
        return F.pad(x, (0, -x.shape[-1] % self.panel)).contiguous()

    @property
    def capacity(self) -> int:
        """Number of tokens that it can hold."""
        return self.keys.shape[-1]

    def reserve(self, count: int) -> None:
        """Increase the capacity, if needed, so that `count` more tokens can be appended."""
        if self.length + count > self.capacity:
            spare = max(self.capacity, self.length + count - self.capacity)
            spare += -spare % self.panel
            self.keys, self.values = F.pad(self.keys, (0, spare)), F.pad(self.values, (0, 0, 0, spare))

    def select_rows(self, rows: Tensor) -> None:
        """Select rows of the batch by index (R,), in this order; an index may be repeated."""
        for name in ("keys", "values", "memory_keys", "memory_values"):
            setattr(self, name, getattr(self, name).index_select(1, rows))
        if self.memory_mask is not None:
            self.memory_mask = self.memory_mask.index_select(0, rows)

    def select_tokens(self, tokens: Tensor) -> None:
        """Select generated tokens by index (B,N) in each row, in this order; all others are dropped."""
        layers, B, H, K, _ = self.keys.shape
        self.length = tokens.shape[1]
        index = tokens[None, :, None, None].expand(layers, B, H, K, -1)
        self.keys[..., : self.length] = self.keys.gather(4, index)
        index = tokens[None, :, None, :, None].expand(layers, B, H, -1, self.values.shape[-1])
        self.values[..., : self.length, :] = self.values.gather(3, index)
