"""Random crops that change the size of a picture: boxes from counters, cut out per sample while decoding."""

from dataclasses import dataclass

import torch
from torch import Tensor

from vit.data.counters import uniform

_TRIES = 10
_SLOT = 1000  # first slot of the sizing step; the batch augmentations use 0..999


@dataclass(frozen=True)
class RandomResizedCrop:
    """A box of random area and aspect ratio (Inception crop, Szegedy et al. 2015), with torchvision's rules.

    `scale` is the share of the picture's area, `ratio` width over height.
    """

    scale: tuple[float, float] = (0.08, 1.0)
    ratio: tuple[float, float] = (3 / 4, 4 / 3)
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 < self.scale[0] <= self.scale[1] <= 1:
            raise ValueError(f"scale {tuple(self.scale)} must be (low, high) with 0 < low <= high <= 1")
        if not 0 < self.ratio[0] <= self.ratio[1]:
            raise ValueError(f"ratio {tuple(self.ratio)} must be (low, high) with 0 < low <= high")

    def boxes(self, sizes: Tensor, target: tuple[int, int], epoch: Tensor, index: Tensor) -> Tensor:
        """sizes (B,2) width, height → boxes (B,4) left, top, right, bottom in whole pixels."""
        width, height = sizes[:, :1].double(), sizes[:, 1:].double()
        draw = uniform(self.seed, epoch[:, None], index[:, None], torch.arange(_SLOT, _SLOT + 4 * _TRIES)).double()
        area, aspect, across, down = draw.chunk(4, dim=1)  # (B,tries) each
        low, high = (torch.tensor(r, dtype=torch.float64).log() for r in self.ratio)
        area = width * height * (self.scale[0] + area * (self.scale[1] - self.scale[0]))
        aspect = torch.exp(low + aspect * (high - low))
        w, h = torch.sqrt(area * aspect).round(), torch.sqrt(area / aspect).round()
        fits = (w > 0) & (w <= width) & (h > 0) & (h <= height)
        first = fits.to(torch.uint8).argmax(dim=1, keepdim=True)
        w, h, across, down = (v.gather(1, first) for v in (w, h, across, down))
        left, top = (across * (width - w + 1)).floor(), (down * (height - h + 1)).floor()
        found = torch.cat([left, top, left + w, top + h], dim=1)
        return torch.where(fits.any(dim=1, keepdim=True), found, self._centre(width, height)).long()

    def _centre(self, width: Tensor, height: Tensor) -> Tensor:
        """The largest centred box of an allowed aspect ratio, for pictures too long for the random ones."""
        w = torch.minimum(width, (height * self.ratio[1]).round()).clamp(min=1)
        h = torch.minimum(height, (width / self.ratio[0]).round()).clamp(min=1)
        left, top = ((width - w) / 2).floor(), ((height - h) / 2).floor()
        return torch.cat([left, top, left + w, top + h], dim=1)


@dataclass(frozen=True)
class RandomCrop:
    """The largest box of the target's aspect ratio, at a random place (the "simple random crop" of DeiT III, Touvron et al. 2022)."""

    seed: int = 0

    def boxes(self, sizes: Tensor, target: tuple[int, int], epoch: Tensor, index: Tensor) -> Tensor:
        """sizes (B,2) width, height → boxes (B,4) left, top, right, bottom in whole pixels."""
        width, height = sizes[:, 0].double(), sizes[:, 1].double()
        aspect = target[1] / target[0]
        w = torch.minimum(width, (height * aspect).round()).clamp(min=1)
        h = torch.minimum(height, (width / aspect).round()).clamp(min=1)
        left = (uniform(self.seed, epoch, index, _SLOT).double() * (width - w + 1)).floor()
        top = (uniform(self.seed, epoch, index, _SLOT + 1).double() * (height - h + 1)).floor()
        return torch.stack([left, top, left + w, top + h], dim=1).long()


Sizing = RandomResizedCrop | RandomCrop
