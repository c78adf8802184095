"""What makes patch tokens of images: one matrix product, or convolutions in front of it."""

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vit.nn.linear import linear
from vit.nn.norm import same

# (in_chans, dim, patch_size) -> a module from images (B,C,H,W) to patch tokens (B,N,D); it may be given a mask
# (B,rows,columns) of each image's own patches as well
Stem = Callable[[int, int, tuple[int, int]], nn.Module]


class LinearPatches(nn.Conv2d):
    """A convolution whose stride is its kernel, computed as one matrix product over the unfolded patches.

    The weights keep the convolution's shape (D,C,ph,pw), so every ViT's load; the tokens come out contiguous, where the
    convolution would leave channels first.

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
        self.norm = norm or same

    def forward(self, images: Tensor, mask: Tensor | None = None) -> Tensor:
        """(B,C,H,W) -> (B,N,D); the mask makes no difference, for a token is made of its own patch alone."""
        ph, pw = self.kernel_size
        x = images.unflatten(3, (-1, pw)).unflatten(2, (-1, ph))  # (B,C,rows,ph,columns,pw)
        x = x.permute(0, 2, 4, 1, 3, 5).flatten(3).flatten(1, 2)  # (B,N,C*ph*pw)
        return self.project(x)

    def project(self, patches: Tensor) -> Tensor:
        """(B,N,C*ph*pw) -> (B,N,D)"""
        return self.norm(linear(patches, self.weight.flatten(1), self.bias))


class NormedPatches(LinearPatches):
    """The pixels of a patch normed before their projection, and its token after it, as vit-pytorch does.

    The norm before has its channels in the order of the projection's, (C,ph,pw).
    """

    def __init__(self, in_chans: int, dim: int, patch_size: tuple[int, int]) -> None:
        super().__init__(in_chans, dim, patch_size)
        self.before, self.after = nn.LayerNorm(in_chans * math.prod(patch_size)), nn.LayerNorm(dim)

    def project(self, patches: Tensor) -> Tensor:
        """(B,N,C*ph*pw) -> (B,N,D)"""
        return self.after(super().project(self.before(patches)))


class ConvStem(nn.Sequential):
    """3x3 convolutions of stride 2 down to the patch grid (arXiv 2106.14881): easier to train on little data.

    Norms over channel groups instead of batches, so that an image's tokens do not depend on its neighbours in the
    batch.
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

    def forward(self, images: Tensor, mask: None = None) -> Tensor:
        """(B,C,H,W) -> (B,N,D); for images without padding, so there is no mask."""
        return super().forward(images).flatten(2).transpose(1, 2).contiguous()


class MaskedConvStem(ConvStem):
    """A `ConvStem` to which padding means nothing, for images of different widths in one batch.

    The norm is per position, and after each convolution the features outside an image's own patches are zero, which
    is what a convolution sees around an image that is alone. Parameters are named and shaped as those of `ConvStem`.
    """

    def __init__(self, in_chans: int, dim: int, patch_size: tuple[int, int]) -> None:
        super().__init__(in_chans, dim, patch_size)
        for i in range(1, len(self) - 1, 3):
            self[i] = nn.LayerNorm(self[i].num_channels)

    def forward(self, images: Tensor, mask: Tensor | None = None) -> Tensor:
        """images (B,C,H,W), mask (B,rows,columns) of each image's own patches -> (B,N,D)"""
        x, own = images, None if mask is None else mask[:, None].to(images.dtype)  # (B,1,rows,columns)
        for i in range(0, len(self) - 1, 3):
            convolution, norm, activation = self[i], self[i + 1], self[i + 2]
            x = convolution(within(x, own))
            x = activation(norm(x.permute(0, 2, 3, 1))).permute(0, 3, 1, 2)  # (B,C',H',W')
        return self[-1](x).flatten(2).transpose(1, 2).contiguous()


class PooledConvStem(nn.Sequential):
    """3x3 convolutions at full resolution, each followed by the largest of 2x2 or 2x1, a norm over the batch and ReLU,
    until a patch is two places high or wide; one more makes the patches. So begin readers of text lines (CRNN, arXiv
    1507.05717), but with norms everywhere, and behind the pooling, where they cost a quarter.

    What strokes make up is learned soon. Once trained, padding means nothing and images do not depend on each other, as
    with a `MaskedConvStem`; in training the norms see the batch of their process.
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

    def forward(self, images: Tensor, mask: Tensor | None = None) -> Tensor:
        """images (B,C,H,W), mask (B,rows,columns) of each image's own patches -> (B,N,D)"""
        x, own = images, None if mask is None else mask[:, None].to(images.dtype)  # (B,1,rows,columns)
        x = x.contiguous(memory_format=torch.channels_last)
        for layer in self:
            x = layer(within(x, own) if isinstance(layer, nn.Conv2d) else x)
        return x.permute(0, 2, 3, 1).flatten(1, 2).contiguous()  # (B,N,D)


def within(x: Tensor, own: Tensor | None) -> Tensor:
    """(B,C,H,W) with zeros wherever `own` (B,1,rows,columns) is zero."""
    return x if own is None else x * F.interpolate(own, size=x.shape[-2:], mode="nearest")


def halvings(patch_size: tuple[int, int]) -> list[int]:
    """How often each edge of an image is halved until a patch is a single place.

    Raises:
        ValueError: no number of times does it.
    """
    if any(size < 1 or size & (size - 1) for size in patch_size) or max(patch_size) == 1:
        raise ValueError(f"a convolutional stem halves the image step by step: patch_size {patch_size} must be of "
                         "powers of two, such as 4, 8 or 16")
    return [size.bit_length() - 1 for size in patch_size]
