"""Embeddings: images or token ids to tokens (B,N,D)."""

import math
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from vit.nn.cpu.linear import Packed, linear
from vit.nn.drop import Dropout
from vit.nn.norm import identity
from vit.nn.packing import Packing
from vit.nn.position import resample
from vit.nn.stem import CompactStem, ConvStem, LinearPatches, Stem


class Prefix(NamedTuple):
    """The learned tokens before the patches.

    Args:
        class_token: the token whose output is classified (arXiv 2010.11929).
        dist_token: a distillation token (DeiT, arXiv 2012.12877).
        registers: number of register tokens (arXiv 2309.16588).
    """

    class_token: bool = True
    dist_token: bool = False
    registers: int = 0

    @property
    def length(self) -> int:
        """Number of tokens."""
        return int(self.class_token) + int(self.dist_token) + self.registers


CLASS_TOKEN = Prefix()


class PatchEmbed(nn.Module):
    """Images to tokens: class token, distillation token, registers, then the patches row by row, plus positions.

    Args:
        stem: of `vit.nn.stem`, turns images into patch tokens.
        image_size: (height, width) in pixels.
        pos_embed: a table of `vit.nn.position`, learned or fixed, for all tokens or (by its length) for the patches
            only; None for no table.
        norm: applied to the tokens after adding positions, as in CLIP (arXiv 2103.00020); none by default.
        flexible: accept smaller images too, padded to whole patches and to one size per batch; they use the upper left
            part of the grid of `image_size`. With their `mask`, padding has no influence.

    Images of the grids in `scaled_grids`, none by default, are the whole image in another resolution.

    Raises:
        ValueError: `image_size` is not divisible by the patch size, `pos_embed` does not fit the grid, or the stem does
            not support flexible sizes.
    """

    def __init__(
        self,
        stem: Stem,
        image_size: tuple[int, int],
        *,
        prefix: Prefix = CLASS_TOKEN,
        pos_embed: Tensor | None = None,
        norm: nn.Module | None = None,
        flexible: bool = False,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.image_shape, self.patch_size = (stem.in_chans, *image_size), stem.patch_size
        self.grid, self.flexible = patch_grid(image_size, stem.patch_size), flexible
        self.scaled_grids: frozenset[tuple[int, int]] = frozenset()
        self.prefix = prefix.length
        self.proj = stem
        self.cls_token = nn.Parameter(torch.zeros(1, 1, stem.dim)) if prefix.class_token else None
        self.dist_token = nn.Parameter(torch.zeros(1, 1, stem.dim)) if prefix.dist_token else None
        self.reg_token = nn.Parameter(torch.zeros(1, prefix.registers, stem.dim)) if prefix.registers else None
        register_pos_embed(self, pos_embed)
        self.norm = norm or identity
        self.drop = Dropout(dropout) if dropout else identity
        if flexible and type(stem) in (CompactStem, ConvStem):
            raise ValueError(f"a {type(stem).__name__} mixes an image with its padding; use MaskedConvStem or "
                             "PooledConvStem for flexible sizes")
        patches = math.prod(self.grid)
        if pos_embed is not None and pos_embed.shape[1] not in (patches, self.prefix + patches):
            raise ValueError(f"pos_embed has {pos_embed.shape[1]} rows, but the grid {self.grid} needs {patches}, or "
                             f"{self.prefix + patches} with class token and registers")

    def forward(self, images: Tensor, mask: Tensor | None = None) -> Tensor:
        """images (B,C,H,W), mask (B,rows*columns), False for padding -> (B,N,D)

        Raises:
            ValueError: the images do not have the channels or size of the model.
            TypeError: the images are whole numbers, such as the uint8 pixels of a file.
        """
        rows, columns = self.size(images)
        if not images.dtype.is_floating_point:
            raise TypeError(f"images have dtype {images.dtype}, but must be floating point numbers; normalize them as "
                            "in training, such as with predictor.preprocessing.normalize(images)")
        x = self.proj(images, None if mask is None else mask.unflatten(1, (rows, columns)))  # (B,rows*columns,D)
        table = self.pos_embed if (rows, columns) == self.grid else self.table(rows, columns)
        patches_only = table is not None and table.shape[1] == x.shape[1]
        if patches_only:
            x = x + table
        x = torch.cat([*self.prefix_tokens(x.shape[0]), x], dim=1)  # (B,N,D)
        if table is not None and not patches_only:
            x = x + table
        return self.drop(self.norm(x))

    def packed(self, patches: Tensor, grids: Sequence[tuple[int, int]]) -> tuple[Tensor, Packing]:
        """Whole images of different sizes, not crops: their patches (P,C,ph,pw) one image after another, and the (rows,
        columns) of each image -> tokens (1,T,D) and their packing

        The position table is resampled to each grid.

        Raises:
            ValueError: the patches do not have the channels and size of the model, or the stem is not linear.
        """
        expected = (self.image_shape[0], *self.patch_size)
        if patches.shape[1:] != expected or not isinstance(self.proj, LinearPatches):
            raise ValueError(f"patches have shape {tuple(patches.shape[1:])}, but the model was built for {expected} "
                             f"and a linear stem, and its stem is {type(self.proj).__name__}")
        packing = Packing(grids, self.prefix)
        patches_only = self.pos_embed is not None and self.pos_embed.shape[1] == math.prod(self.grid)
        x = self.proj.project(patches.flatten(1)[None])  # (1,P,D)
        if patches_only:
            x = x + self.packed_table(grids)
        images = x.split([rows * columns for rows, columns in grids], dim=1)
        prefix = [tokens.split(1) for tokens in self.prefix_tokens(len(grids))]
        x = torch.cat([part for i in packing.order for part in (*(tokens[i] for tokens in prefix), images[i])], dim=1)
        if self.pos_embed is not None and not patches_only:
            x = x + self.packed_table(packing.grids)  # (1,T,D)
        return self.drop(self.norm(x)), packing

    def size(self, images: Tensor) -> tuple[int, int]:
        """(rows, columns) in patches of images (B,C,H,W).

        Raises:
            ValueError: the images do not have the channels or size that the model was built for.
        """
        if images.shape[1:] == self.image_shape:
            return self.grid
        other = self.flexible or self.scaled_grids
        if not other or images.ndim != 4 or images.shape[1] != self.image_shape[0]:
            raise ValueError(image_mismatch(images, self.image_shape))
        grid = patch_grid(images.shape[2:], self.patch_size)
        if grid in self.scaled_grids:
            return grid
        if not self.flexible or grid[0] > self.grid[0] or grid[1] > self.grid[1]:
            raise ValueError(image_mismatch(images, self.image_shape))
        return grid

    def scaled_grid(self, images: Tensor) -> tuple[int, int] | None:
        """images (B,C,H,W) -> their grid if it is one of `scaled_grids`, otherwise None"""
        grid = self.size(images)
        return grid if grid != self.grid and grid in self.scaled_grids else None

    def table(self, rows: int, columns: int) -> Tensor | None:
        """For another grid: the position table of the prefix tokens, if it has any, and of the upper left part of the
        grid, (1,N,D); for one of `scaled_grids` the table of the whole grid, resampled.
        """
        if self.pos_embed is None:
            return None
        if (rows, columns) in self.scaled_grids:
            return resample(self.pos_embed, self.grid, (rows, columns))
        prefix = self.pos_embed.shape[1] - math.prod(self.grid)
        prefix, patches = self.pos_embed.split([prefix, math.prod(self.grid)], dim=1)
        return torch.cat([prefix, patches.unflatten(1, self.grid)[:, :rows, :columns].flatten(1, 2)], dim=1)

    def packed_table(self, grids: Sequence[tuple[int, int]]) -> Tensor:
        """The position table of the whole image in each grid, one after another, (1,T,D); each grid is resampled once.
        """
        copies = {  # of the table of a grid, in one expansion, whose backward pass sums over all of them at once
            grid: iter(resample(self.pos_embed, self.grid, grid).expand(count, -1, -1).split(1))
            for grid, count in Counter(grids).items()
        }
        return torch.cat([next(copies[grid]) for grid in grids], dim=1)

    def positions(self, images: Tensor) -> Tensor | None:
        """images (B,C,H,W) -> indices (N,) of their tokens in the full grid; None for images of full size"""
        rows, columns = self.size(images)
        if (rows, columns) == self.grid:
            return None
        full = torch.arange(math.prod(self.grid), device=images.device).view(self.grid) + self.prefix
        prefix = torch.arange(self.prefix, device=images.device)
        return torch.cat([prefix, full[:rows, :columns].flatten()])

    def prefix_tokens(self, batch: int) -> list[Tensor]:
        """The tokens before the patches, each (B,·,D)."""
        tokens = (self.cls_token, self.dist_token, self.reg_token)
        return [token.expand(batch, -1, -1) for token in tokens if token is not None]


class TokenEmbed(nn.Module):
    """Token ids to tokens, plus positions; `logits` uses the same matrix as the output layer (arXiv 1608.05859).

    Args:
        pos_embed: a table of `vit.nn.position`, (1,max_len,D); None for no table and no length limit.
        scale: factor on the id embeddings, sqrt(D) in the original transformer.
        segments: number of segment embeddings, such as 2 for pairs of texts (BERT, arXiv 1810.04805).
        norm: applied to the sum of all embeddings; none by default.
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
        register_pos_embed(self, pos_embed)
        self.scale = scale
        self.norm = norm or identity
        self.drop = Dropout(dropout) if dropout else identity

    def forward(self, ids: Tensor, start: int = 0, segment: Tensor | None = None) -> Tensor:
        """ids (B,T), segment (B,T) -> (B,T,D)

        Args:
            start: position of the first id.
            segment: segment of each id, all 0 by default; ignored without segment embeddings.

        Raises:
            ValueError: the sequence exceeds the position table.
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

    def load_vectors(self, matrix: Tensor, found: Tensor) -> None:
        """Initialize the embeddings from word vectors.

        Args:
            matrix: (V,D); divided by `scale`, so that the scaled embeddings equal the vectors.
            found: (V,) bool, True for ids that have a vector; the others keep their embedding.

        Raises:
            ValueError: the shapes do not match the vocabulary and width.
        """
        vocab_size, dim = self.token.weight.shape
        if matrix.shape[-1] != dim:
            raise ValueError(f"the word vectors have {matrix.shape[-1]} numbers each, but the model's dim is {dim}; "
                             f"use vectors of {dim} or build the model with dim={matrix.shape[-1]}")
        if len(matrix) != vocab_size or len(found) != vocab_size:
            raise ValueError(f"there are {len(matrix)} word vectors and {len(found)} flags for {vocab_size} ids; "
                             "pass one of each per id of the vocabulary")
        with torch.no_grad():
            self.token.weight[found] = (matrix[found] / self.scale).to(self.token.weight)

    def logits(self, x: Tensor, packed: Packed | None = None) -> Tensor:
        """(B,T,D) -> (B,T,V); `packed` as in `vit.nn.cpu.linear`"""
        return linear(x, self.token.weight, packed=packed)


def register_pos_embed(module: nn.Module, pos_embed: Tensor | None) -> None:
    """Register `pos_embed` as a parameter if it is learned, otherwise as a buffer that is not saved."""
    if pos_embed is None or isinstance(pos_embed, nn.Parameter):
        module.register_parameter("pos_embed", pos_embed)
    else:
        module.register_buffer("pos_embed", pos_embed, persistent=False)


def patch_grid(image_size: tuple[int, int], patch_size: tuple[int, int]) -> tuple[int, int]:
    """(rows, columns) in patches.

    Raises:
        ValueError: `image_size` is not divisible by `patch_size`.
    """
    for image, patch in zip(image_size, patch_size, strict=True):
        if patch < 1 or image < 1 or image % patch:
            near = [size for size in (image // max(patch, 1) * patch, -(-image // max(patch, 1)) * patch) if size > 0]
            raise ValueError(f"image_size {image} is not divisible by patch_size {patch}; nearest valid: "
                             f"{', '.join(map(str, dict.fromkeys(near)))}")
    return image_size[0] // patch_size[0], image_size[1] // patch_size[1]


def image_mismatch(images: Tensor, expected: tuple[int, int, int]) -> str:
    """The error message for images (B,C,H,W) that do not have the `expected` channels, height and width."""
    if images.ndim != 4:
        return f"images have shape {tuple(images.shape)}, but must be a batch (B,C,H,W)"
    channels, height, width = images.shape[1:]
    if channels != expected[0]:
        return f"images have {channels} channels, but the model was built for in_chans {expected[0]}"
    return (f"images are {height}x{width} pixels, but the model was built for image_size {expected[1]}x{expected[2]}; "
            "resize them or build the model for this image_size")
