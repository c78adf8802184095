"""Mixup (arXiv 1710.09412) and CutMix (arXiv 1905.04899) within a batch: soft labels, any batch size."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from vit.counters import uniform
from vit.data.augment.steps import are_numbers, box_mask


class Mixup:
    """Mixes each image with the previous one of the batch; each sample draws mixup or CutMix and its own ratio, as in
    timm's mode "elem", where timm's default and DeiT draw once per batch. The boxes of CutMix lie within the image; in
    the paper they are centred at a random pixel and cut at the border.

    `mixup` and `cutmix` are the parameters of Beta(a, a) for the ratio (0 disables one), `prob` is the probability that
    a sample is mixed, `switch` that of CutMix if both are enabled. Label smoothing is part of the loss.

    Raises:
        ValueError: a parameter is negative, both are 0, or a probability is outside 0..1.
    """

    def __init__(
        self, num_classes: int, mixup: float = 0.8, cutmix: float = 1.0, prob: float = 1.0, switch: float = 0.5
    ):
        positive = are_numbers(mixup, cutmix) and all(0 <= each < math.inf for each in (mixup, cutmix))
        if not positive or mixup == cutmix == 0:
            raise ValueError(f"mixup={mixup} and cutmix={cutmix} must be at least 0, and one of them above 0")
        if not (are_numbers(prob, switch) and 0 <= prob <= 1 and 0 <= switch <= 1):
            raise ValueError(f"prob={prob} and switch={switch} must be in 0..1")
        self.num_classes, self.mixup, self.cutmix, self.prob = num_classes, mixup, cutmix, prob
        self.switch = 0.0 if cutmix == 0 else 1.0 if mixup == 0 else switch

    def __call__(
        self, images: Tensor, labels: Tensor, seed: int, step: int, micro: int = 0, rank: int = 0
    ) -> tuple[Tensor, Tensor]:
        """images (B,C,H,W) float, labels (B,) → mixed images, targets (B,classes) that sum to 1

        Multi-label targets (B,classes) are mixed directly.
        """
        drawn = self._drawn(len(images), seed, step, micro, rank).to(images.device, non_blocking=True)
        (share, across, down), cut = drawn[:3], drawn[3] > 0  # (B,) each
        boxes, cut_share = self._boxes(share, across, down, images.shape[-2:])
        share = torch.where(cut, cut_share, share)
        keep = torch.where(cut[:, None, None], (~boxes).to(share.dtype), share[:, None, None])[:, None]  # (B,1,H,W)
        mixed = torch.lerp(images.roll(1, 0), images, keep.to(images.dtype))
        own = (labels if labels.ndim == 2 else F.one_hot(labels, self.num_classes)).to(torch.float32)
        return mixed, torch.lerp(own.roll(1, 0), own, share[:, None])

    def _drawn(self, rows: int, *counters: int) -> Tensor:
        """(4,B): weight of the sample's own image, horizontal and vertical position of the box, 1 for CutMix.

        Computed on the CPU, where SciPy has the inverse Beta distribution, and copied without synchronizing the device.
        """
        seed, step, *rest = counters
        draws = uniform(seed, step, torch.arange(rows), torch.arange(5)[:, None], *rest)  # (5,B)
        cut = draws[0] < self.switch
        share = torch.where(cut, self._beta(draws[1], self.cutmix), self._beta(draws[1], self.mixup))
        share = torch.where(draws[2] < self.prob, share, torch.ones_like(share))
        return torch.stack([share, draws[3], draws[4], cut.to(share)])

    @staticmethod
    def _beta(u: Tensor, a: float) -> Tensor:
        """Uniform numbers → Beta(a, a) numbers by the inverse distribution function, one draw each."""
        if a == 0 or a == 1:
            return u
        from scipy.special import betaincinv

        return torch.from_numpy(betaincinv(a, a, u.double().numpy())).to(u)

    @staticmethod
    def _boxes(share: Tensor, across: Tensor, down: Tensor, size: tuple[int, int]) -> tuple[Tensor, Tensor]:
        """Boxes of area 1 - share inside the image, bool (B,H,W), and the exact share after rounding to pixels, (B,).
        """
        height, width = size
        side = (1 - share).clamp(min=0).sqrt()
        h, w = (side * height).round(), (side * width).round()
        boxes = box_mask((down * (height - h + 1)).floor(), (across * (width - w + 1)).floor(), h, w, height, width)
        return boxes, 1 - h * w / (height * width)
