"""The patch projection for another patch size or another number of channels."""

import torch
import torch.nn.functional as F
from torch import Tensor


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

    A single channel gets the sum of all, so that a grey image gives the same token as its RGB version. For any other
    number the channels are repeated or truncated, and scaled such that the token of a grey image is unchanged.
    """
    old = weight.shape[1]
    if old == channels:
        return weight
    if channels == 1:
        return weight.detach().float().sum(dim=1, keepdim=True).to(weight.dtype)
    repeated = weight.detach().float().repeat(1, -(-channels // old), 1, 1)[:, :channels]
    return (repeated * (old / channels)).to(weight.dtype)


def fit_patch_projection(weight: Tensor, own: Tensor) -> tuple[str, Tensor | None, str]:
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
