"""A batch of images of different sizes without padding: their patches, one image after another (NaViT, arXiv
2307.06304).
"""

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

Grid = tuple[int, int]  # (rows, columns) in patches


@dataclass(frozen=True, eq=False, slots=True)
class PackedImages:
    """B images of different sizes as P patches.

    Args:
        patches: (P,C,ph,pw), the patches of all images, one image after another, each image row by row.
        grids: (rows, columns) of each image in patches.
    """

    patches: Tensor
    grids: tuple[Grid, ...]

    @classmethod
    def of(cls, images: Sequence[Tensor], patch_size: tuple[int, int]) -> Self:
        """Pack one or more images (C,H,W), whose sizes are divisible by the patch size."""
        grids = tuple((image.shape[1] // patch_size[0], image.shape[2] // patch_size[1]) for image in images)
        return cls(torch.cat([to_patches(image, patch_size) for image in images]), grids)

    @classmethod
    def joined(cls, batches: Sequence[Self]) -> Self:
        """The concatenation of one or more batches."""
        grids = itertools.chain.from_iterable(batch.grids for batch in batches)
        return cls(torch.cat([batch.patches for batch in batches]), tuple(grids))

    def __len__(self) -> int:
        """Number of images."""
        return len(self.grids)

    def __getitem__(self, row: int) -> Tensor:
        """An image (C,H,W)."""
        return to_images(self.patches.split(self.counts)[row], self.grids[row])

    def __iter__(self) -> Iterator[Tensor]:
        """The images, (C,H,W) each."""
        for patches, grid in zip(self.patches.split(self.counts), self.grids, strict=True):
            yield to_images(patches, grid)

    @property
    def counts(self) -> list[int]:
        """Number of patches of each image."""
        return [math.prod(grid) for grid in self.grids]

    def apply_by_grid(self, function: Callable[[Tensor, Tensor], Tensor]) -> Self:
        """The images after `function(images, rows)`, called once for all images of a grid: images (b,C,H,W) and their
        indices (b,) in the batch -> images of the same shape
        """
        parts: list[Tensor] = list(self.patches.split(self.counts))
        for grid in dict.fromkeys(self.grids):
            rows = [row for row, other in enumerate(self.grids) if other == grid]
            images = to_images(torch.stack([parts[row] for row in rows]), grid)
            changed = to_patches(function(images, torch.tensor(rows)), self.patches.shape[2:])
            for row, patches in zip(rows, changed, strict=True):
                parts[row] = patches
        return self.replaced(torch.cat(parts))

    def replaced(self, patches: Tensor) -> Self:
        """The images with other values (P,C,ph,pw) of their patches."""
        return type(self)(patches, self.grids)

    def flip(self, axis: int) -> Self:
        """The images mirrored along an axis: -1 horizontally, -2 vertically."""
        return self.apply_by_grid(lambda images, rows: images.flip(axis))

    def to(self, target: torch.device | torch.dtype | str) -> Self:
        """The images on another device, or in another dtype. As Lightning copies tensors, the host does not wait for a
        copy from page-locked memory to a GPU.
        """
        to_gpu = not isinstance(target, torch.dtype) and torch.device(target).type == "cuda"
        return self.replaced(self.patches.to(target, non_blocking=to_gpu))

    def cpu(self) -> Self:
        """The images on the CPU."""
        return self.replaced(self.patches.cpu())

    def pin_memory(self) -> Self:
        """The images in page-locked memory."""
        return self.replaced(self.patches.pin_memory())


def to_patches(images: Tensor, patch_size: Sequence[int]) -> Tensor:
    """(...,C,H,W) -> (...,N,C,ph,pw), row by row"""
    x = images.unflatten(-1, (-1, patch_size[1])).unflatten(-3, (-1, patch_size[0]))  # (...,C,rows,ph,columns,pw)
    return x.movedim((-4, -2, -5, -3, -1), (-5, -4, -3, -2, -1)).flatten(-5, -4)


def to_images(patches: Tensor, grid: Grid) -> Tensor:
    """(...,N,C,ph,pw) -> (...,C,H,W)"""
    x = patches.unflatten(-4, grid)  # (...,rows,columns,C,ph,pw)
    x = x.movedim((-3, -5, -2, -4, -1), (-5, -4, -3, -2, -1))  # (...,C,rows,ph,columns,pw)
    return x.flatten(-2, -1).flatten(-3, -2)
