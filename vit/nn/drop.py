"""LayerScale, dropout, stochastic depth and patch dropout; all draws come from torch's global generator."""

import torch
from torch import Tensor, nn

from vit.nn.cpu.dropout import dropout
from vit.nn.packing import Packing


class LayerScale(nn.Module):
    """A learned factor per channel on a residual branch, small at first (CaiT, arXiv 2103.17239).

    Its initial value is 0.1 up to 18 blocks, 1e-5 up to 24 and 1e-6 above in the paper, and 1e-4 in DeiT III (arXiv
    2204.07118).
    """

    def __init__(self, dim: int, init: float = 1e-5) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.full((dim,), float(init)))

    def forward(self, x: Tensor) -> Tensor:
        """(B,N,D) -> (B,N,D)"""
        return x * self.gamma


class Dropout(nn.Module):
    """Dropout (JMLR 15, 2014), as `nn.Dropout`; on some CPUs with faster draws (`vit.nn.cpu.dropout`).

    Raises:
        ValueError: `rate` is not in [0, 1).
    """

    def __init__(self, rate: float = 0.0) -> None:
        super().__init__()
        if not 0 <= rate < 1:
            raise ValueError(f"dropout is {rate}, but must lie in [0, 1)")
        self.rate = rate

    def forward(self, x: Tensor) -> Tensor:
        """any shape -> the same"""
        return dropout(x, self.rate) if self.training and self.rate else x

    def extra_repr(self) -> str:
        return f"rate={self.rate}"


class DropPath(nn.Module):
    """Stochastic depth (arXiv 1603.09382): drops a residual branch for a random part of the samples.

    Raises:
        ValueError: `rate` is not in [0, 1).
    """

    def __init__(self, rate: float = 0.0) -> None:
        super().__init__()
        if not 0 <= rate < 1:
            raise ValueError(f"drop_path is {rate}, but must lie in [0, 1)")
        self.rate = rate

    def forward(self, x: Tensor, packing: Packing | None = None) -> Tensor:
        """(B,...) -> (B,...), or with the packing of B samples (1,T,D) -> (1,T,D)"""
        if not self.training or self.rate == 0:
            return x
        samples = x.shape[0] if packing is None else len(packing)
        keep = x.new_empty(samples, *[1] * (x.ndim - 1)).bernoulli_(1 - self.rate)
        keep = keep if packing is None else packing.per_token(keep)
        return x * (keep / (1 - self.rate))  # the expected value is unchanged

    def extra_repr(self) -> str:
        return f"rate={self.rate}"


class PatchDropout(nn.Module):
    """Drops a random part of the patches during training, which makes steps cheaper (FLIP, arXiv 2212.00794).

    The first `prefix` tokens (class token, registers) are never dropped.

    Raises:
        ValueError: `rate` is not in [0, 1).
    """

    def __init__(self, rate: float = 0.0, prefix: int = 0) -> None:
        super().__init__()
        if not 0 <= rate < 1:
            raise ValueError(f"patch_dropout is {rate}, but must lie in [0, 1)")
        self.rate, self.prefix = rate, prefix

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        """(B,N,D) -> (B,N',D) and the indices (B,N') of the remaining tokens in ascending order; None if all remain"""
        if not self.training or self.rate == 0:
            return x, None
        B, N, D = x.shape
        patches = N - self.prefix
        keep = torch.rand(B, patches, device=x.device).topk(max(1, round(patches * (1 - self.rate)))).indices
        prefix = torch.arange(self.prefix, device=x.device).expand(B, -1)
        index = torch.cat([prefix, keep.sort().values + self.prefix], dim=1)  # (B,N')
        return x.gather(1, index[..., None].expand(-1, -1, D)), index

    def extra_repr(self) -> str:
        return f"rate={self.rate}"
