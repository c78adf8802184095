"""The doors of the house: an image or a text becomes tokens (B,N,D)."""

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vit.nn.drop import Dropout

# (in_chans, dim, patch_size) -> a module from images (B,C,H,W) to patch tokens (B,N,D)
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
        self.norm = norm or nn.Identity()

    def forward(self, images: Tensor) -> Tensor:
        """(B,C,H,W) -> (B,N,D)"""
        ph, pw = self.kernel_size
        x = images.unflatten(3, (-1, pw)).unflatten(2, (-1, ph))  # (B,C,rows,ph,columns,pw)
        x = x.permute(0, 2, 4, 1, 3, 5).flatten(3).flatten(1, 2)  # (B,N,C*ph*pw)
        return self.project(x)

    def project(self, patches: Tensor) -> Tensor:
        """(B,N,C*ph*pw) -> (B,N,D)"""
        return self.norm(F.linear(patches, self.weight.flatten(1), self.bias))


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
    """3x3 convolutions at full resolution, each followed by a norm over the batch, ReLU and the largest of 2x2 or 2x1,
    until one more convolution makes the patches: what readers of text lines begin with (CRNN, arXiv 1507.05717).

    Dear, but what strokes make up is learned soon. Once trained, padding means nothing and images do not depend on each
    other, as with a `MaskedConvStem`; in training the norms see the batch of their process.
    """

    def __init__(self, in_chans: int, dim: int, patch_size: tuple[int, int]) -> None:
        steps = [power_of_two(size) for size in patch_size]
        if None in steps or max(steps) == 0:
            raise ValueError(f"a convolutional stem halves the image step by step: patch_size {patch_size} must be of "
                             "powers of two, such as 4, 8 or 16")
        layers, width = [], in_chans
        for i in range(max(steps) - 1):
            out = min(dim, max(8, dim // 4) << i)  # dim/4, dim/2, dim, dim ...
            pool = nn.MaxPool2d(tuple(2 if i < step else 1 for step in steps))
            layers += [nn.Conv2d(width, out, 3, padding=1, bias=False), nn.BatchNorm2d(out), nn.ReLU(), pool]
            width = out
        rest = tuple(2 if step == max(steps) else 1 for step in steps)  # of a patch, along each edge
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


class PatchEmbed(nn.Module):
    """An image as tokens: class token, distillation token, registers, then the patches row by row, with their positions
    added.

    Args:
        image_size, patch_size: (height, width) in pixels.
        flexible: smaller images are taken too, padded to whole patches and to one size per batch; they stand at the
            upper left of the grid of `image_size`. Give their `mask`, and padding changes no answer.
        dist_token: a second class token, which learns a teacher's answer (DeiT, arXiv 2012.12877).
        registers: tokens without meaning of their own, where the model keeps notes (arXiv 2309.16588).
        pos_embed: a table of `vit.nn.position`, learned or fixed, for all tokens or for the patches alone, which its
            length tells; None for no table.
        stem: what makes patch tokens of images.
        norm: applied to the tokens with their positions, as CLIP does (arXiv 2103.00020); none by default.
    """

    def __init__(
        self,
        image_size: tuple[int, int],
        patch_size: tuple[int, int],
        in_chans: int,
        dim: int,
        *,
        class_token: bool = True,
        dist_token: bool = False,
        registers: int = 0,
        pos_embed: Tensor | None = None,
        stem: Stem = LinearPatches,
        norm: nn.Module | None = None,
        flexible: bool = False,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.image_shape = (in_chans, *image_size)
        self.patch_size, self.grid, self.flexible = patch_size, patch_grid(image_size, patch_size), flexible
        self.prefix = int(class_token) + int(dist_token) + registers
        self.proj = stem(in_chans, dim, patch_size)
        self.cls_token = nn.Parameter(torch.zeros(1, 1, dim)) if class_token else None
        self.dist_token = nn.Parameter(torch.zeros(1, 1, dim)) if dist_token else None
        self.reg_token = nn.Parameter(torch.zeros(1, registers, dim)) if registers else None
        set_table(self, pos_embed)
        self.norm = norm or nn.Identity()
        self.drop = Dropout(dropout)
        if flexible and type(self.proj) is ConvStem:
            raise ValueError("a ConvStem mixes an image with its padding; take MaskedConvStem or PooledConvStem for "
                             "flexible sizes")
        patches = math.prod(self.grid)
        if pos_embed is not None and pos_embed.shape[1] not in (patches, self.prefix + patches):
            raise ValueError(f"pos_embed has {pos_embed.shape[1]} rows, but the grid {self.grid} needs {patches}, or "
                             f"{self.prefix + patches} with class token and registers")

    def forward(self, images: Tensor, mask: Tensor | None = None) -> Tensor:
        """images (B,C,H,W), mask (B,rows*columns) of each image's own patches -> (B,N,D)"""
        rows, columns = self.size(images)
        if mask is not None and isinstance(self.proj, MaskedConvStem | PooledConvStem):
            x = self.proj(images, mask.unflatten(1, (rows, columns)))
        else:
            x = self.proj(images)  # (B,rows*columns,D)
        table = self.table(rows, columns)
        patches_only = table is not None and table.shape[1] == x.shape[1]
        if patches_only:
            x = x + table
        x = torch.cat([*self.first(x.shape[0]), x], dim=1)  # (B,N,D)
        if table is not None and not patches_only:
            x = x + table
        return self.drop(self.norm(x))

    def size(self, images: Tensor) -> tuple[int, int]:
        """(rows, columns) in patches of a batch of images (B,C,H,W); raises ValueError for images that do not fit."""
        if images.shape[1:] == self.image_shape:
            return self.grid
        if not self.flexible or images.ndim != 4 or images.shape[1] != self.image_shape[0]:
            raise ValueError(wrong_images(images, self.image_shape))
        grid = patch_grid(images.shape[2:], self.patch_size)
        if grid[0] > self.grid[0] or grid[1] > self.grid[1]:
            raise ValueError(wrong_images(images, self.image_shape))
        return grid

    def table(self, rows: int, columns: int) -> Tensor | None:
        """The positions of the first tokens, where the table has any, and of the upper left part of the grid."""
        if self.pos_embed is None or (rows, columns) == self.grid:
            return self.pos_embed
        first, patches = self.pos_embed.split([self.pos_embed.shape[1] - math.prod(self.grid), math.prod(self.grid)], 1)
        return torch.cat([first, patches.unflatten(1, self.grid)[:, :rows, :columns].flatten(1, 2)], dim=1)

    def places(self, images: Tensor) -> Tensor | None:
        """Which of the tokens of a whole grid the tokens (N,) of these images are; None for all of them."""
        rows, columns = self.size(images)
        if (rows, columns) == self.grid:
            return None
        whole = torch.arange(math.prod(self.grid), device=images.device).view(self.grid) + self.prefix
        first = torch.arange(self.prefix, device=images.device)
        return torch.cat([first, whole[:rows, :columns].flatten()])

    def first(self, batch: int) -> list[Tensor]:
        """The tokens in front of the patches."""
        tokens = (self.cls_token, self.dist_token, self.reg_token)
        return [token.expand(batch, -1, -1) for token in tokens if token is not None]


class TokenEmbed(nn.Module):
    """A text as tokens: a vector per id, and positions; `logits` goes back through the same matrix (arXiv 1608.05859).

    Args:
        pos_embed: a table of `vit.nn.position`, (1,max_len,D); None for no table and no limit.
        scale: factor on the id vectors, sqrt(D) in the original transformer, so that positions do not drown them.
        segments: kinds of tokens with a vector of their own, such as first and second text (BERT, arXiv 1810.04805).
        norm: applied to the sum of all vectors; none by default.
    """

    def __init__(
        self,
        vocab_size: int,
        dim: int,
        *,
        pos_embed: Tensor | None = None,
        scale: float = 1.0,
        segments: int = 0,
        norm: nn.Module | None = None,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.token = nn.Embedding(vocab_size, dim)
        self.segment = nn.Embedding(segments, dim) if segments else None
        set_table(self, pos_embed)
        self.scale = scale
        self.norm = norm or nn.Identity()
        self.drop = Dropout(dropout)

    def forward(self, ids: Tensor, start: int = 0, segment: Tensor | None = None) -> Tensor:
        """ids (B,T), segment (B,T) -> (B,T,D); the first id stands at position `start`.

        Without a `segment` all ids are of segment 0; without vectors for segments it makes no difference.
        """
        x = self.token(ids) * self.scale
        if self.segment is not None:
            x = x + (self.segment.weight[0] if segment is None else self.segment(segment))
        if self.pos_embed is not None:
            end, max_len = start + ids.shape[1], self.pos_embed.shape[1]
            if end > max_len:
                raise ValueError(f"the sequence has {end} tokens, but max_len is {max_len}; cut it or raise max_len")
            x = x + self.pos_embed[:, start:end]
        return self.drop(self.norm(x))

    def start_from(self, matrix: Tensor, found: Tensor) -> None:
        """Take word vectors (V,D) for the ids that were `found` (V,), as bools; the others keep their own.

        Divided by `scale`, so that the tokens are the vectors that were given.
        """
        vocab_size, dim = self.token.weight.shape
        if matrix.shape[-1] != dim:
            raise ValueError(f"the word vectors have {matrix.shape[-1]} numbers each, but the model's dim is {dim}; "
                             f"take vectors of {dim} or build the model with dim={matrix.shape[-1]}")
        if len(matrix) != vocab_size or len(found) != vocab_size:
            raise ValueError(f"there are {len(matrix)} word vectors and {len(found)} marks for {vocab_size} ids; "
                             "give one of each per id of the vocabulary")
        with torch.no_grad():
            self.token.weight[found] = (matrix[found] / self.scale).to(self.token.weight)

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
