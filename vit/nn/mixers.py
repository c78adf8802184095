"""Layers between tokens other than attention: recurrence, convolution and the Fourier transform.

Each takes the place of the `Attention` of a block: (B,N,D) -> (B,N,D). Table 1 of arXiv 1706.03762 compares them:
recurrence costs O(N*D^2) in N sequential steps, a convolution of k tokens O(k*N*D^2) in one, attention O(N^2*D) in one.
"""

from abc import ABC, abstractmethod

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vit.nn.cache import TokenStates

BFLOAT16_LSTM = torch.backends.cpu.get_cpu_capability() == "AVX512"  # whether oneDNN has an LSTM in bfloat16


class Mixer(nn.Module, ABC):
    """Base class: `mix` for whole texts, `step` for the next tokens of a text that is generated.

    Tokens that the mask excludes have no influence on the others, wherever they are.

    Args:
        causal: a token depends only on itself and the tokens before it, as in a decoder.
    """

    state_width = 0  # W of the states that the cache holds

    def __init__(self, causal: bool) -> None:
        super().__init__()
        self.causal = causal

    def forward(
        self, x: Tensor, mask: Tensor | None = None, causal: bool = False, rotary: None = None,
        cache: TokenStates | None = None,
    ) -> Tensor:
        """x (B,N,D), mask (B,N) -> (B,N,D); with the arguments of `Attention`

        Args:
            mask: bool, False for padding; with a cache (B,N,S) for N beams at one position, as in `Decoder.advance`.
            causal: must be that of the constructor; with a cache it is implied.

        Raises:
            ValueError: a mask of other dimensions, rotary positions, or another `causal`.
        """
        name = type(self).__name__
        if rotary is not None:
            raise ValueError(f"{name} has no queries and keys that rotary positions could rotate; use a position table")
        if cache is not None:
            return self.step(x, mask, cache)
        if causal != self.causal:
            raise ValueError(f"{name} was built with causal={self.causal}, but is called with causal={causal}")
        if mask is not None and (mask.ndim != 2 or mask.dtype != torch.bool):
            raise ValueError(f"{name} takes a bool mask (B,N) of the tokens, not one of shape {tuple(mask.shape)} and "
                             f"dtype {mask.dtype}; only attention has masks of pairs")
        return self.mix(x, mask)

    @abstractmethod
    def mix(self, x: Tensor, mask: Tensor | None) -> Tensor:
        """x (B,N,D), mask (B,N) -> (B,N,D)"""

    @abstractmethod
    def step(self, x: Tensor, mask: Tensor | None, cache: TokenStates) -> Tensor:
        """x (B,T,D), the next tokens -> (B,T,D); their states are appended to the cache.

        Args:
            mask: (B,T,S+T) bool or additive: x holds T beams at the same position, each after its own tokens.
        """

    def new_cache(self, like: Tensor, capacity: int) -> TokenStates:
        """An empty cache; batch and dtype are those of `like`."""
        return TokenStates(like.new_zeros(like.shape[0], 0, self.state_width))


class Recurrent(Mixer):
    """A recurrent layer: LSTM (Hochreiter and Schmidhuber 1997) or GRU (arXiv 1406.1078).

    If it is not causal, it is bidirectional, with D/2 units in each direction, whose outputs are concatenated.

    Args:
        cell: `nn.LSTM` or `nn.GRU`.

    Raises:
        ValueError: `dim` is odd and the layer is bidirectional.
    """

    def __init__(self, dim: int, cell: type[nn.LSTM] | type[nn.GRU], causal: bool = False) -> None:
        super().__init__(causal)
        if dim % 2 and not causal:
            raise ValueError(f"dim {dim} is not divisible by 2, as a bidirectional layer needs; nearest: {dim - 1}, "
                             f"{dim + 1}")
        units = dim if causal else dim // 2
        self.forwards = cell(dim, units, batch_first=True)
        self.backwards = None if causal else cell(dim, units, batch_first=True)
        self.parts = 2 if cell is nn.LSTM else 1  # tensors of a state: h and c, or h
        self.state_width = self.parts * units

    def mix(self, x: Tensor, mask: Tensor | None) -> Tensor:
        """x (B,N,D), mask (B,N) -> (B,N,D)"""
        if mask is None:
            y = run_cell(self.forwards, x)[0]
            return y if self.backwards is None else torch.cat([y, run_cell(self.backwards, x.flip(1))[0].flip(1)], -1)
        order = (~mask).byte().argsort(dim=1, stable=True)  # (B,N): the valid tokens, then the others
        y = in_order(self.forwards, x, order)
        if self.backwards is None:
            return y
        index, length = torch.arange(x.shape[1], device=x.device), mask.sum(1, keepdim=True)
        reverse = order.gather(1, torch.where(index < length, length - 1 - index, index))
        return torch.cat([y, in_order(self.backwards, x, reverse)], dim=-1)

    def step(self, x: Tensor, mask: Tensor | None, cache: TokenStates) -> Tensor:
        """x (B,T,D) -> (B,T,D), as `Mixer.step`"""
        if mask is not None:
            return self.advance(x, cache.last(1, mask).squeeze(2), cache)
        return torch.cat([self.advance(token, cache.last(1).squeeze(2), cache) for token in x.split(1, dim=1)], dim=1)

    def advance(self, x: Tensor, states: Tensor, cache: TokenStates) -> Tensor:
        """x (B,T,D) of T beams, each after its state (B,T,W) -> (B,T,D)"""
        old = tuple(part.contiguous() for part in states.flatten(0, 1)[None].to(x.dtype).chunk(self.parts, dim=-1))
        y, new = run_cell(self.forwards, x.flatten(0, 1)[:, None], old)
        new = torch.cat(new, dim=-1) if self.parts == 2 else new
        cache.append(new.view(*x.shape[:2], -1))
        return y.view(*x.shape[:2], -1)


def run_cell(
    cell: nn.LSTM | nn.GRU, x: Tensor, state: tuple[Tensor, ...] = ()
) -> tuple[Tensor, Tensor | tuple[Tensor, Tensor]]:
    """x (B,N,D), state (1,B,units) of each part -> outputs (B,N,units) and the new state

    Autocast is ignored on CPUs without `BFLOAT16_LSTM`, where torch raises an error.
    """
    if x.device.type == "cpu" and torch.is_autocast_enabled("cpu") and not BFLOAT16_LSTM:
        with torch.autocast("cpu", enabled=False):
            return run_cell(cell, x.float(), tuple(part.float() for part in state))
    if not state:
        return cell(x)
    return cell(x, state if len(state) == 2 else state[0])


def in_order(layer: nn.LSTM | nn.GRU, x: Tensor, order: Tensor) -> Tensor:
    """x (B,N,D), order (B,N), a permutation of the tokens -> (B,N,E), of a layer that reads the tokens in this order"""
    y = run_cell(layer, x.gather(1, order[..., None].expand_as(x)))[0]
    return torch.zeros_like(y).scatter(1, order[..., None].expand_as(y), y)


class Convolution(Mixer):
    """A convolution of `kernel` neighbouring tokens (arXiv 1705.03122), zero-padded.

    Args:
        kernel: number of tokens, centred on the token itself, or ending with it if causal.

    Raises:
        ValueError: `kernel` is below 1, or it is even and the layer is not causal.
    """

    def __init__(self, dim: int, kernel: int, causal: bool = False) -> None:
        super().__init__(causal)
        if kernel < 1 or (kernel % 2 == 0 and not causal):
            raise ValueError(f"kernel is {kernel}, but must be odd, such as 3, 5 or 7, so that it has a middle")
        self.conv = nn.Conv1d(dim, dim, kernel)
        self.kernel, self.state_width = kernel, dim

    def mix(self, x: Tensor, mask: Tensor | None) -> Tensor:
        """x (B,N,D), mask (B,N) -> (B,N,D)"""
        x = x if mask is None else x * mask[..., None]
        before = self.kernel - 1 if self.causal else self.kernel // 2
        return self.convolve(F.pad(x, (0, 0, before, self.kernel - 1 - before)))

    def step(self, x: Tensor, mask: Tensor | None, cache: TokenStates) -> Tensor:
        """x (B,T,D) -> (B,T,D), as `Mixer.step`; the states are the inputs"""
        before = cache.last(self.kernel - 1, mask)  # (B,T or 1,kernel-1,D)
        cache.append(x)
        if mask is None:
            return self.convolve(torch.cat([before.squeeze(1).to(x.dtype), x], dim=1))
        windows = torch.cat([before.to(x.dtype), x[:, :, None]], dim=2)  # (B,T,kernel,D)
        return self.convolve(windows.flatten(0, 1)).view_as(x)

    def convolve(self, x: Tensor) -> Tensor:
        """(B,N,D) -> (B,N-kernel+1,D)"""
        return self.conv(x.transpose(1, 2)).transpose(1, 2)


class Fourier(Mixer):
    """The real part of the Fourier transform over tokens and channels, without parameters (FNet, arXiv 2105.03824).

    Every token depends on all others, so there is no causal form.
    """

    def __init__(self) -> None:
        super().__init__(causal=False)

    def mix(self, x: Tensor, mask: Tensor | None) -> Tensor:
        """x (B,N,D), mask (B,N) -> (B,N,D), computed in float32

        With a mask each row is transformed over its own number of tokens, by a matrix instead of the fast transform.
        """
        if mask is None:
            return torch.fft.fft2(x.float()).real.to(x.dtype)
        channels = torch.fft.fft(x.float(), dim=-1)  # (B,N,D), complex
        index, length = mask.cumsum(1) - 1, mask.sum(1)[:, None, None]  # among the tokens that are not masked
        angles = index[:, :, None] * index[:, None] % length.clamp(min=1) * (2 * torch.pi / length.clamp(min=1))
        valid = mask[:, :, None] & mask[:, None]
        cos, sin = angles.cos() * valid, angles.sin() * valid  # (B,N,N)
        with torch.autocast(x.device.type, enabled=False):
            return (cos @ channels.real + sin @ channels.imag).to(x.dtype)  # of (cos - i sin)(real + i imag)

    def step(self, x: Tensor, mask: Tensor | None, cache: TokenStates) -> Tensor:
        """x (B,T,D), as `Mixer.step`

        Raises:
            ValueError: always, because the transform has no causal form.
        """
        raise ValueError("the Fourier transform of a token needs all tokens after it, so it cannot generate a text; "
                         "use attention, a recurrent layer or a causal convolution in the decoder")
