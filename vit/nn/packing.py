"""Sequences of different lengths, concatenated to one sequence without padding (NaViT, arXiv 2307.06304)."""

from collections.abc import Sequence
from itertools import groupby

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from vit.nn.scores import ScaledDotProduct


class Packing:
    """The layout of B images of different grids in one sequence (1,T,D): each image is its prefix tokens, then its
    patches row by row.

    The images are sorted by their number of tokens; images with equally many stay in the order of the batch. Attention
    can then compute all images of one length at once, without a mask and without copies. `Attention` takes a packing in
    place of its mask; all other layers act on single tokens.

    Args:
        grids: (rows, columns) of the images in the order of the batch.
        prefix: number of tokens before the patches of an image.

    Attributes:
        order: the index in the batch of each image of the sequence.
        grids: (rows, columns) of the images in the order of the sequence.
        lengths: number of tokens of each image in the order of the sequence.
        runs: (number of images, tokens per image) of each run of consecutive images with equally many tokens.
    """

    def __init__(self, grids: Sequence[tuple[int, int]], prefix: int) -> None:
        lengths = [prefix + rows * columns for rows, columns in grids]
        self.order = sorted(range(len(grids)), key=lengths.__getitem__)
        self.grids = [grids[i] for i in self.order]
        self.lengths = [lengths[i] for i in self.order]
        self.runs = [(len(list(run)), length) for length, run in groupby(self.lengths)]

    def __len__(self) -> int:
        """Number of images."""
        return len(self.order)

    def attend(self, score: ScaledDotProduct, q: Tensor, k: Tensor, v: Tensor, dropout: float = 0.0) -> Tensor:
        """Attention within each image: q (1,H,T,K), k (1,H,T,K), v (1,H,T,V) -> heads (1,H,T,V)"""
        sizes = [images * tokens for images, tokens in self.runs]
        outputs = []
        for run, *parts in zip(self.runs, *(x[0].split(sizes, dim=1) for x in (q, k, v)), strict=True):
            part = (x.unflatten(1, run).transpose(0, 1) for x in parts)  # (images,H,tokens,K)
            heads = score.attend(*part, dropout=dropout)  # (images,H,tokens,V)
            outputs.append(heads.transpose(1, 2).flatten(0, 1))  # (images*tokens,H,V)
        heads = outputs[0] if len(outputs) == 1 else torch.cat(outputs)
        return heads.transpose(0, 1)[None]

    def mask(self, device: torch.device) -> Tensor:
        """The mask (1,T,T) of the attention within each image."""
        image = self.repeated(torch.arange(len(self), device=device))
        return (image[:, None] == image)[None]

    def per_token(self, values: Tensor) -> Tensor:
        """A value of each image (B,1,1), in the order of the packing -> (1,T,1)"""
        if len(self.runs) == 1:
            return values.expand(-1, self.lengths[0], -1).reshape(1, -1, 1)
        return self.repeated(values.flatten())[None, :, None]

    def repeated(self, values: Tensor) -> Tensor:
        """A value of each image (B,), in the order of the packing -> (T,)"""
        lengths = on_device(torch.tensor(self.lengths), values.device)
        return values.repeat_interleave(lengths, output_size=sum(self.lengths))  # otherwise the host reads the lengths

    def padded(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        """(1,T,D) -> the tokens of each image (B,N,D), in the order of the batch, and their mask (B,N), False for
        padding; the mask is None if all images have equally many tokens
        """
        if len(self.runs) == 1:
            return x.view(len(self), self.lengths[0], -1), None
        back = on_device(torch.tensor(self.order).argsort(), x.device)
        lengths = on_device(torch.tensor(self.lengths), x.device)
        mask = torch.arange(self.lengths[-1], device=x.device) < lengths[:, None]
        images = pad_sequence(x[0].split(self.lengths), batch_first=True)  # (B,N,D)
        return images.index_select(0, back), mask.index_select(0, back)


def on_device(tensor: Tensor, device: torch.device) -> Tensor:
    """A small tensor (B,) of the host on the device, without waiting for a GPU."""
    return tensor.to(device, non_blocking=True)
