"""The doors of the house: an image or a text becomes tokens (B,N,D)."""

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

# (in_chans, dim, patch_size) -> a module from images (B,C,H,W) to patch tokens (B,N,D)
Stem = Callable[[int, int, tuple[int, int]], nn.Module]


class LinearPatches(nn.Conv2d):
    """A convolution whose stride is its kernel, computed as one matrix product over the unfolded patches.

    The weights keep the convolution's shape (D,C,ph,pw), so every ViT's load; the tokens come out contiguous, where the
    convolution would leave channels first.
    """

    def __init__(self, in_chans: int, dim: int, patch_size: tuple[int, int]) -> None:
        super().__init__(in_chans, dim, kernel_size=patch_size, stride=patch_size)

    def forward(self, images: Tensor) -> Tensor:
        """(B,C,H,W) -> (B,N,D)"""
        ph, pw = self.kernel_size
        x = images.unflatten(3, (-1, pw)).unflatten(2, (-1, ph))  # (B,C,rows,ph,columns,pw)
        x = x.permute(0, 2, 4, 1, 3, 5).flatten(3).flatten(1, 2)  # (B,N,C*ph*pw)
        return F.linear(x, self.weight.flatten(1), self.bias)


class ConvStem(nn.Sequential):
    """3x3 convolutions of stride 2 down to the patch grid (arXiv 2106.14881): easier to train on little data.

    Norms over channel groups instead of batches, so that an image's tokens do not depend on its neighbours in the
    batch.
    """

    def __init__(self, in_chans: int, dim: int, patch_size: tuple[int, int]) -> None:
        steps = [power_of_two(size) for size in patch_size]
        if None in steps or max(steps) == 0:
            raise ValueError(f"a convolutional stem halves the image step by step: patch_size {patch_size} must be of "
                             "powers of two, such as 4, 8 or 16")
        layers, width = [], in_chans
        for i in range(max(steps)):
            out = max(8, dim >> (max(steps) - 1 - i))  # ... dim/4, dim/2, dim
            stride = tuple(2 if i < step else 1 for step in steps)
            convolution = nn.Conv2d(width, out, 3, stride, padding=1, bias=False)
            layers += [convolution, nn.GroupNorm(math.gcd(out, 32), out), nn.GELU()]
            width = out
        super().__init__(*layers, nn.Conv2d(width, dim, 1))

    def forward(self, images: Tensor) -> Tensor:
        """(B,C,H,W) -> (B,N,D)"""
        return super().forward(images).flatten(2).transpose(1, 2).contiguous()


class PatchEmbed(nn.Module):
    """An image as tokens: class token, registers, then the patches row by row, with their positions added.

    Args:
        image_size, patch_size: (height, width) in pixels.
        registers: tokens without meaning of their own, where the model keeps notes (arXiv 2309.16588).
        pos_embed: a table of `vit.nn.position`, learned or fixed, for all tokens or for the patches alone, which its
            length tells; None for no table.
        stem: what makes patch tokens of images.
    """

    def __init__(
        self,
        image_size: tuple[int, int],
        patch_size: tuple[int, int],
        in_chans: int,
        dim: int,
        *,
        class_token: bool = True,
        registers: int = 0,
        pos_embed: Tensor | None = None,
        stem: Stem = LinearPatches,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.image_shape = (in_chans, *image_size)
        self.grid = patch_grid(image_size, patch_size)
        self.prefix = int(class_token) + registers
        self.proj = stem(in_chans, dim, patch_size)
        self.cls_token = nn.Parameter(torch.zeros(1, 1, dim)) if class_token else None
        self.reg_token = nn.Parameter(torch.zeros(1, registers, dim)) if registers else None
        set_table(self, pos_embed)
        self.drop = nn.Dropout(dropout)
        patches = math.prod(self.grid)
        if pos_embed is not None and pos_embed.shape[1] not in (patches, self.prefix + patches):
            raise ValueError(f"pos_embed has {pos_embed.shape[1]} rows, but the grid {self.grid} needs {patches}, or "
                             f"{self.prefix + patches} with class token and registers")

    def forward(self, images: Tensor) -> Tensor:
        """(B,C,H,W) -> (B,N,D)"""
        if images.shape[1:] != self.image_shape:
            raise ValueError(wrong_images(images, self.image_shape))
        x = self.proj(images)  # (B,rows*columns,D)
        patches_only = self.pos_embed is not None and self.pos_embed.shape[1] == x.shape[1]
        if patches_only:
            x = x + self.pos_embed
        x = torch.cat([*self.first(x.shape[0]), x], dim=1)  # (B,N,D)
        if self.pos_embed is not None and not patches_only:
            x = x + self.pos_embed
        return self.drop(x)

    def first(self, batch: int) -> list[Tensor]:
        """The tokens in front of the patches."""
        return [token.expand(batch, -1, -1) for token in (self.cls_token, self.reg_token) if token is not None]


class TokenEmbed(nn.Module):
    """A text as tokens: a vector per id, and positions; `logits` goes back through the same matrix (arXiv 1608.05859).

    Args:
        pos_embed: a table of `vit.nn.position`, (1,max_len,D); None for no table and no limit.
        scale: factor on the id vectors, sqrt(D) in the original transformer, so that positions do not drown them.
    """

    def __init__(
        self, vocab_size: int, dim: int, *, pos_embed: Tensor | None = None, scale: float = 1.0, dropout: float = 0.0
    ) -> None:
        super().__init__()
        self.token = nn.Embedding(vocab_size, dim)
        set_table(self, pos_embed)
        self.scale = scale
        self.drop = nn.Dropout(dropout)

    def forward(self, ids: Tensor, start: int = 0) -> Tensor:
        """ids (B,T) -> (B,T,D); the first id stands at position `start`."""
        x = self.token(ids) * self.scale
        if self.pos_embed is not None:
            end, max_len = start + ids.shape[1], self.pos_embed.shape[1]
            if end > max_len:
                raise ValueError(f"the sequence has {end} tokens, but max_len is {max_len}; cut it or raise max_len")
            x = x + self.pos_embed[:, start:end]
        return self.drop(x)

    def logits(self, x: Tensor) -> Tensor:
        """(B,T,D) -> (B,T,V)"""
        return F.linear(x, self.token.weight)


def set_table(module: nn.Module, pos_embed: Tensor | None) -> None:
    """A learned table is saved with the weights; a fixed one is not: it follows from the sizes."""
    if pos_embed is None or isinstance(pos_embed, nn.Parameter):
        module.register_parameter("pos_embed", pos_embed)
    else:
        module.register_buffer("pos_embed", pos_embed, persistent=False)


def patch_grid(image_size: tuple[int, int], patch_size: tuple[int, int]) -> tuple[int, int]:
    """(rows, columns) in patches.

    Raises:
        ValueError: an edge is no whole number of patches.
    """
    for image, patch in zip(image_size, patch_size, strict=True):
        if patch < 1 or image < 1 or image % patch:
            near = [size for size in (image // max(patch, 1) * patch, -(-image // max(patch, 1)) * patch) if size > 0]
            raise ValueError(f"image_size {image} is not divisible by patch_size {patch}; nearest valid: "
                             f"{', '.join(map(str, dict.fromkeys(near)))}")
    return image_size[0] // patch_size[0], image_size[1] // patch_size[1]


def power_of_two(size: int) -> int | None:
    """8 -> 3; None for a size that is no power of two."""
    return size.bit_length() - 1 if size > 0 and size & (size - 1) == 0 else None


def wrong_images(images: Tensor, expected: tuple[int, int, int]) -> str:
    if images.ndim != 4:
        return f"images have shape {tuple(images.shape)}, but must be a batch (B,C,H,W)"
    channels, height, width = images.shape[1:]
    if channels != expected[0]:
        return f"images have {channels} channels, but the model was built for in_chans {expected[0]}"
    return (f"images are {height}x{width} pixels, but the model was built for image_size {expected[1]}x{expected[2]}; "
            "resize them or build the model with image_size of theirs")
