"""What scales or silences a residual branch, and what hides tokens. All draws come from torch's global generator."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class LayerScale(nn.Module):
    """A learned factor per channel on a residual branch, small at first (CaiT, arXiv 2103.17239)."""

    def __init__(self, dim: int, init: float = 1e-5) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.full((dim,), float(init)))

    def forward(self, x: Tensor) -> Tensor:
        """(B,N,D) -> (B,N,D)"""
        return x * self.gamma


class Dropout(nn.Module):
    """Silences a random part of the numbers while training (JMLR 15, 2014), as `nn.Dropout` does.

    Torch draws each number's fate on the CPU one by one. Here four fates of 16 bits come from one draw, which makes a
    small translator's step 1.1 times as fast (benchmarks/cpu_step.py); the part that is silenced is off by less than 1
    in 65,536.
    """

    def __init__(self, rate: float = 0.0) -> None:
        super().__init__()
        if not 0 <= rate < 1:
            raise ValueError(f"dropout is {rate}, but must lie in [0, 1)")
        self.rate = rate

    def forward(self, x: Tensor) -> Tensor:
        """any shape -> the same"""
        if not self.training or self.rate == 0:
            return x
        if x.device.type != "cpu" or torch.compiler.is_compiling():  # there it draws in parallel
            return F.dropout(x, self.rate)
        draws = torch.empty((x.numel() + 3) // 4, dtype=torch.int64).random_(-(2**63), None)
        fates = draws.view(torch.int16)[: x.numel()].view(x.shape)  # each of -32,768 ... 32,767 equally likely
        kept = torch.ge(fates, round(self.rate * 2**16) - 2**15, out=x.new_empty(x.shape))  # 0 or 1, in one pass
        return x * kept.div_(1 - self.rate)  # the expected value stays

    def extra_repr(self) -> str:
        return f"rate={self.rate}"


class DropPath(nn.Module):
    """Leaves a whole residual branch out for a random part of the samples (stochastic depth, arXiv 1603.09382)."""

    def __init__(self, rate: float = 0.0) -> None:
        super().__init__()
        if not 0 <= rate < 1:
            raise ValueError(f"drop_path is {rate}, but must lie in [0, 1)")
        self.rate = rate

    def forward(self, x: Tensor) -> Tensor:
        """(B,...) -> (B,...)"""
        if not self.training or self.rate == 0:
            return x
        kept = x.new_empty(x.shape[0], *[1] * (x.ndim - 1)).bernoulli_(1 - self.rate)
        return x * (kept / (1 - self.rate))  # the expected value stays

    def extra_repr(self) -> str:
        return f"rate={self.rate}"


def drop_path_rates(rate: float, depth: int) -> list[float]:
    """Stochastic depth grows linearly from 0 at the first block to `rate` at the last (arXiv 1603.09382)."""
    return [rate * i / max(depth - 1, 1) for i in range(depth)]


class PatchDropout(nn.Module):
    """Hides a random part of the patches while training: less work per step (FLIP, arXiv 2212.00794).

    The first `prefix` tokens (class token, registers) always stay.
    """

    def __init__(self, rate: float = 0.0, prefix: int = 0) -> None:
        super().__init__()
        if not 0 <= rate < 1:
            raise ValueError(f"patch_dropout is {rate}, but must lie in [0, 1)")
        self.rate, self.prefix = rate, prefix

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        """(B,N,D) -> (B,N',D) and the places (B,N') of the kept tokens in ascending order; None where all stay."""
        if not self.training or self.rate == 0:
            return x, None
        B, N, D = x.shape
        patches = N - self.prefix
        kept = torch.rand(B, patches, device=x.device).topk(max(1, round(patches * (1 - self.rate)))).indices
        first = torch.arange(self.prefix, device=x.device).expand(B, -1)
        places = torch.cat([first, kept.sort().values + self.prefix], dim=1)  # (B,N')
        return x.gather(1, places[..., None].expand(-1, -1, D)), places

    def extra_repr(self) -> str:
        return f"rate={self.rate}"
