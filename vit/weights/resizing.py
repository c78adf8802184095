"""Weights for another size: position tables, and the patch projection for other patches or channels."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from vit.nn.position import resample

Fitted = tuple[str, Tensor | None, str]  # status, tensor and details of a `KeyRow`


def fit_unchanged(tensor: Tensor | None, own: Tensor) -> Fitted:
    """The source's tensor if it has the shape of the model's `own` tensor, otherwise None."""
    return ("loaded", tensor, "") if tensor is not None and tensor.shape == own.shape else ("new", None, "")


def fit_grid_positions(
    table: Tensor, own: Tensor, new: tuple[int, int] | None, prefix: int, old: tuple[int, int] | None
) -> Fitted:
    """A position table (1,P+rows*columns,D) of grid `old`, resampled to grid `new` of the model's own table.

    Rows for class token and registers that the source does not have keep the values of the model's table.

    Raises:
        ValueError: `old` is None and the table has no square grid.
    """
    same = table.shape == own.shape and old in (None, new)
    if same or new is None or table.ndim != 3 or table.shape[2] != own.shape[2]:
        return fit_unchanged(table, own)
    old = old or next(iter(square_grids(table.shape[1], prefix)), None)
    if old is None:
        raise ValueError(f"a position table of {table.shape[1]} rows has no square grid; pass source_grid=(rows, "
                         "columns)")
    resampled = resample(table, old, new)  # (1,P+N,D)
    source_prefix, own_prefix = table.shape[1] - math.prod(old), own.shape[1] - math.prod(new)
    fitted, shared = own.detach().clone(), min(source_prefix, own_prefix)
    fitted[:, :shared] = resampled[:, :shared]
    fitted[:, own_prefix:] = resampled[:, source_prefix:]
    return "resized", fitted, f"grid of {old[0]}x{old[1]} to {new[0]}x{new[1]} patches"


def fit_text_positions(table: Tensor, own: Tensor) -> Fitted:
    """Position table (1,max_len,D) of a text model: the positions that both tables have are loaded."""
    if table.shape == own.shape or table.ndim != 3 or table.shape[2] != own.shape[2]:
        return fit_unchanged(table, own)
    fitted, shared = own.detach().clone(), min(table.shape[1], own.shape[1])
    fitted[:, :shared] = table[:, :shared]
    return "resized", fitted, f"the first {shared} positions"


def square_grids(length: int, prefix: int) -> list[tuple[int, int]]:
    """The square grids of a table of `length` rows, without and with rows for the `prefix` tokens before the patches.
    """
    edges = [(patches, math.isqrt(max(patches, 0))) for patches in dict.fromkeys((length - prefix, length))]
    return [(edge, edge) for patches, edge in edges if edge and edge * edge == patches]


def resize_patches(weight: Tensor, size: tuple[int, int]) -> Tensor:
    """(D,C,ph,pw) -> (D,C,ph',pw'), such that a patch resized to `size` gives the same token as the original patch.

    Exact for larger patches and least squares for smaller ones: the pseudo-inverse of bicubic resizing with
    antialiasing (FlexiViT, arXiv 2212.08013), as in timm. Resizing the weights themselves would scale the tokens with
    the number of pixels.
    """
    old = tuple(weight.shape[2:])
    if old == tuple(size):
        return weight
    pixels = torch.eye(old[0] * old[1], dtype=torch.float64).unflatten(1, (1, *old))  # one-hot patches (P,1,ph,pw)
    resizing = F.interpolate(pixels, size=tuple(size), mode="bicubic", antialias=True).flatten(1).T  # (P',P)
    inverse = torch.linalg.pinv(resizing).to(weight.device)  # (P,P')
    return (weight.detach().flatten(2).double() @ inverse).unflatten(2, tuple(size)).to(weight.dtype)


def adapt_channels(weight: Tensor, channels: int) -> Tensor:
    """(D,C,ph,pw) -> (D,channels,ph,pw), as in timm.

    The weight of a single channel is the sum of all, so that a grey image gives the same token as its RGB version. For
    any other number the channels are repeated or truncated, and scaled by C / channels: the token of a grey image is
    then unchanged if the number is a multiple of C, and of about the same size otherwise.
    """
    old = weight.shape[1]
    if old == channels:
        return weight
    if channels == 1:
        return weight.detach().float().sum(dim=1, keepdim=True).to(weight.dtype)
    repeated = weight.detach().float().repeat(1, -(-channels // old), 1, 1)[:, :channels]
    return (repeated * (old / channels)).to(weight.dtype)


def fit_patch_projection(weight: Tensor, own: Tensor) -> Fitted:
    """The source's projection (D,C,ph,pw) in the shape of the model's own one (D,C',ph',pw').

    Returns:
        Status, tensor and details of a `KeyRow`; "new" and None if the widths D differ.
    """
    if weight.shape == own.shape:
        return "loaded", weight, ""
    if weight.ndim != 4 or own.ndim != 4 or weight.shape[0] != own.shape[0]:
        return "new", None, ""
    size, how = tuple(own.shape[2:]), []
    if tuple(weight.shape[2:]) != size:
        how.append(f"patches of {'x'.join(map(str, weight.shape[2:]))} to {'x'.join(map(str, size))} pixels")
    if weight.shape[1] != own.shape[1]:
        how.append(f"{weight.shape[1]} channels to {own.shape[1]}")
    return "resized", adapt_channels(resize_patches(weight, size), own.shape[1]), ", ".join(how)
