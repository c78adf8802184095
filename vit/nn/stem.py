"""Stems: images to patch tokens by a linear projection or by convolutions."""

import math
from itertools import pairwise
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vit.nn.cpu.linear import linear
from vit.nn.norm import identity

MANY_PATCHES = 1024  # number of patches of an image above which no copy of its pixels is stored for the backward pass


class Stem(Protocol):
    """A module from images to patch tokens of width `dim`."""

    in_chans: int
    dim: int
    patch_size: tuple[int, int]

    def __call__(self, images: Tensor, mask: Tensor | None = None) -> Tensor:
        """images (B,C,H,W), mask (B,rows,columns), False for patches of padding -> (B,N,D)"""


class LinearPatches(nn.Conv2d):
    """The patch projection: a convolution with stride equal to its kernel, computed as one matrix product.

    The weights have the shape of the convolution, (D,C,ph,pw), as in every ViT checkpoint; the tokens are contiguous.
    The product is faster than the convolution, but its backward pass needs the patches, which are a copy of the images.
    Above `MANY_PATCHES` the projection is a small part of a step, and the convolution itself saves that memory.

    Args:
        norm: applied to the tokens (AIMv2, arXiv 2411.14402); None for none.
    """

    def __init__(
        self,
        in_chans: int,
        dim: int,
        patch_size: tuple[int, int],
        bias: bool = True,
        norm: nn.Module | None = None,
    ) -> None:
        super().__init__(in_chans, dim, kernel_size=patch_size, stride=patch_size, bias=bias)
        self.in_chans, self.dim, self.patch_size = in_chans, dim, patch_size
        self.norm = norm or identity

    def forward(self, images: Tensor, mask: Tensor | None = None) -> Tensor:
        """(B,C,H,W) -> (B,N,D); the mask is ignored, because a token depends on its own patch only"""
        height, width = images.shape[2:]
        if height * width <= MANY_PATCHES * math.prod(self.kernel_size):
            return self.project(self.patches(images))
        return self.norm(super().forward(images).flatten(2).mT.contiguous())

    def patches(self, images: Tensor) -> Tensor:
        """(B,C,H,W) -> (B,N,C*ph*pw)"""
        ph, pw = self.kernel_size
        x = images.unflatten(3, (-1, pw)).unflatten(2, (-1, ph))  # (B,C,rows,ph,columns,pw)
        return x.permute(0, 2, 4, 1, 3, 5).flatten(3).flatten(1, 2)

    def project(self, patches: Tensor) -> Tensor:
        """(B,N,C*ph*pw) -> (B,N,D)"""
        return self.norm(linear(patches, self.weight.flatten(1), self.bias))


class NormedPatches(LinearPatches):
    """A patch projection with a LayerNorm before and after it, as in vit-pytorch.

    The channels of the first norm are in the order of the projection, (C,ph,pw).
    """

    def __init__(self, in_chans: int, dim: int, patch_size: tuple[int, int]) -> None:
        super().__init__(in_chans, dim, patch_size)
        self.before, self.after = nn.LayerNorm(in_chans * math.prod(patch_size)), nn.LayerNorm(dim)

    def forward(self, images: Tensor, mask: Tensor | None = None) -> Tensor:
        """(B,C,H,W) -> (B,N,D)"""
        return self.project(self.patches(images))

    def project(self, patches: Tensor) -> Tensor:
        """(B,N,C*ph*pw) -> (B,N,D)"""
        return self.after(super().project(self.before(patches)))


class ConvStem(nn.Sequential):
    """3x3 convolutions of stride 2 down to the patch grid (arXiv 2106.14881), easier to train on little data.

    GroupNorm instead of BatchNorm keeps the tokens of an image independent of the rest of the batch. The activation is
    GELU, in the paper ReLU; its models also have one block less than those with a linear stem.

    Raises:
        ValueError: `patch_size` is not a power of two.
    """

    def __init__(self, in_chans: int, dim: int, patch_size: tuple[int, int]) -> None:
        steps = halvings(patch_size)
        layers, width = [], in_chans
        for i in range(max(steps)):
            out = max(8, dim >> (max(steps) - 1 - i))  # ... dim/4, dim/2, dim
            stride = tuple(2 if i < step else 1 for step in steps)
            convolution = nn.Conv2d(width, out, 3, stride, padding=1, bias=False)
            layers += [convolution, nn.GroupNorm(math.gcd(out, 32), out), nn.GELU()]
            width = out
        super().__init__(*layers, nn.Conv2d(width, dim, 1))
        self.in_chans, self.dim, self.patch_size = in_chans, dim, patch_size

    def forward(self, images: Tensor, mask: None = None) -> Tensor:
        """(B,C,H,W) -> (B,N,D), for images without padding"""
        return super().forward(images).flatten(2).transpose(1, 2).contiguous()


class CompactStem(nn.Module):
    """Convolutions and max pooling down to the patch grid, after the tokenizer of Compact Convolutional Transformers
    (arXiv 2104.05704): neighbouring patches overlap, which learns faster on few pixels.

    The first convolution has stride 2, so that no features of full resolution are computed; each halving that follows
    is a 3x3 convolution with max pooling. The norms are per position, so that an image is independent of the rest of
    the batch. Channels are the last axis in memory: on a CPU convolutions and pooling are then faster, and the tokens
    are contiguous.

    Raises:
        ValueError: `patch_size` does not consist of powers of two.
    """

    def __init__(self, in_chans: int, dim: int, patch_size: tuple[int, int]) -> None:
        super().__init__()
        steps = halvings(patch_size)
        count = max(steps)
        self.strides = [tuple(2 if i < step else 1 for step in steps) for i in range(count)]
        widths = [max(8, dim >> (count - 1 - i)) for i in range(count)]  # ... dim/4, dim/2, dim
        kernel = tuple(stride + 2 for stride in self.strides[0])  # 4 where it halves: no pixel has more weight
        self.first = nn.Conv2d(in_chans, widths[0], kernel, self.strides[0], padding=1)
        self.later = nn.ModuleList(
            nn.Conv2d(width, out, 3, padding=1, bias=False) for width, out in pairwise(widths)
        )
        self.norms = nn.ModuleList(nn.LayerNorm(width) for width in widths)
        self.in_chans, self.dim, self.patch_size = in_chans, dim, patch_size

    def forward(self, images: Tensor, mask: None = None) -> Tensor:
        """(B,C,H,W) -> (B,N,D), for images without padding"""
        x = self.activated(self.first(images.contiguous(memory_format=torch.channels_last)), 0)
        for i, (convolution, stride) in enumerate(zip(self.later, self.strides[1:], strict=True), start=1):
            x = self.activated(F.max_pool2d(convolution(x), stride), i)
        return x.permute(0, 2, 3, 1).flatten(1, 2)  # a view

    def activated(self, x: Tensor, layer: int) -> Tensor:
        """(B,C,H,W) -> (B,C,H,W), the channels last in memory, after the norm of the layer and GELU"""
        return F.gelu(self.norms[layer](x.permute(0, 2, 3, 1))).permute(0, 3, 1, 2)


class MaskedConvStem(ConvStem):
    """A `ConvStem` that is invariant to padding, for images of different widths in one batch.

    The norm is per position, and features of padding are set to zero before each convolution, as its own zero padding.
    Parameters have the names and shapes of those of `ConvStem`.
    """

    def __init__(self, in_chans: int, dim: int, patch_size: tuple[int, int]) -> None:
        super().__init__(in_chans, dim, patch_size)
        for i in range(1, len(self) - 1, 3):
            self[i] = nn.LayerNorm(self[i].num_channels)

    def forward(self, images: Tensor, mask: Tensor | None = None) -> Tensor:
        """images (B,C,H,W), mask (B,rows,columns), False for padding -> (B,N,D)"""
        x, valid = images, None if mask is None else mask[:, None].to(images.dtype)  # (B,1,rows,columns)
        for i in range(0, len(self) - 1, 3):
            convolution, norm, activation = self[i], self[i + 1], self[i + 2]
            x = convolution(mask_features(x, valid))
            x = activation(norm(x.permute(0, 2, 3, 1))).permute(0, 3, 1, 2)  # (B,C',H',W')
        return self[-1](x).flatten(2).transpose(1, 2).contiguous()


class PooledConvStem(nn.Sequential):
    """3x3 convolutions, each with max pooling, BatchNorm and ReLU, then one convolution to the patch grid.

    This is the stem of CRNN (arXiv 1507.05717) for text line images, with every layer normalized, after the pooling,
    where it costs a quarter. In evaluation padding has no influence and images are independent, as in
    `MaskedConvStem`; in training BatchNorm uses the statistics of the local batch.

    Raises:
        ValueError: `patch_size` is not a power of two.
    """

    def __init__(self, in_chans: int, dim: int, patch_size: tuple[int, int]) -> None:
        steps = halvings(patch_size)
        layers, width, rest = [], in_chans, list(patch_size)
        count = max(1, max(steps) - 1)
        for i in range(count):
            out = min(dim, max(8, dim >> max(0, count - 2 - i)))  # ... dim/4, dim/2, dim, dim
            pool = tuple(2 if i < step else 1 for step in steps)
            layers += [nn.Conv2d(width, out, 3, padding=1, bias=False), nn.MaxPool2d(pool)]
            layers += [nn.BatchNorm2d(out), nn.ReLU()]
            width, rest = out, [edge // by for edge, by in zip(rest, pool, strict=True)]
        super().__init__(*layers, nn.Conv2d(width, dim, rest, rest))
        self.in_chans, self.dim, self.patch_size = in_chans, dim, patch_size

    def forward(self, images: Tensor, mask: Tensor | None = None) -> Tensor:
        """images (B,C,H,W), mask (B,rows,columns), False for padding -> (B,N,D)"""
        x, valid = images, None if mask is None else mask[:, None].to(images.dtype)  # (B,1,rows,columns)
        x = x.contiguous(memory_format=torch.channels_last)
        for layer in self:
            x = layer(mask_features(x, valid) if isinstance(layer, nn.Conv2d) else x)
        return x.permute(0, 2, 3, 1).flatten(1, 2).contiguous()  # (B,N,D)


def mask_features(x: Tensor, valid: Tensor | None) -> Tensor:
    """x (B,C,H,W), valid (B,1,rows,columns) of 0 and 1 -> (B,C,H,W), zero where `valid` is zero"""
    return x if valid is None else x * F.interpolate(valid, size=x.shape[-2:], mode="nearest")


def halvings(patch_size: tuple[int, int]) -> list[int]:
    """Number of times that each edge is halved until a patch is one position: log2 of `patch_size`.

    Raises:
        ValueError: `patch_size` is not a power of two.
    """
    if any(size < 1 or size & (size - 1) for size in patch_size) or max(patch_size) == 1:
        raise ValueError(f"a convolutional stem halves the image repeatedly: patch_size {patch_size} must consist of "
                         "powers of two, such as 4, 8 or 16")
    return [size.bit_length() - 1 for size in patch_size]
