"""The projection of the patches for patches of another size and images of other channels."""

import torch
import torch.nn.functional as F
from torch import Tensor


def resize_patches(weight: Tensor, size: tuple[int, int]) -> Tensor:
    """(D,C,ph,pw) -> (D,C,ph',pw'), so that a patch resized to `size` gives the token that the patch gave.

    Exact for larger patches, the least squares for smaller ones: the pseudo-inverse of resizing (FlexiViT, arXiv
    2212.08013), bicubic with antialiasing as timm takes it. Resizing the weights themselves would change the tokens'
    length with the number of pixels.
    """
    old = tuple(weight.shape[2:])
    if old == tuple(size):
        return weight
    single = torch.eye(old[0] * old[1], dtype=torch.float64).unflatten(1, (1, *old))  # every pixel alone, (P,1,ph,pw)
    resizing = F.interpolate(single, size=tuple(size), mode="bicubic", antialias=True).flatten(1).T  # (P',P)
    back = torch.linalg.pinv(resizing).to(weight.device)  # (P,P')
    return (weight.detach().flatten(2).double() @ back).unflatten(2, tuple(size)).to(weight.dtype)


def adapt_channels(weight: Tensor, channels: int) -> Tensor:
    """(D,C,ph,pw) -> (D,channels,ph,pw), as timm does it.

    One channel takes the sum of all: a grey image gives the token of the same image in colour. More or fewer are
    repeated or cut, and scaled so that the token of a grey image stays.
    """
    old = weight.shape[1]
    if old == channels:
        return weight
    if channels == 1:
        return weight.detach().float().sum(dim=1, keepdim=True).to(weight.dtype)
    repeated = weight.detach().float().repeat(1, -(-channels // old), 1, 1)[:, :channels]
    return (repeated * (old / channels)).to(weight.dtype)


def fit_patches(weight: Tensor, own: Tensor) -> tuple[str, Tensor | None, str]:
    """A projection of patches in the shape of our own one: the status of a `KeyRow`, the tensor, and how it came."""
    if weight.shape == own.shape:
        return "taken", weight, ""
    if weight.ndim != 4 or own.ndim != 4 or weight.shape[0] != own.shape[0]:
        return "new", None, ""
    size, how = tuple(own.shape[2:]), []
    if tuple(weight.shape[2:]) != size:
        how.append(f"patches of {'x'.join(map(str, weight.shape[2:]))} to {'x'.join(map(str, size))} pixels")
    if weight.shape[1] != own.shape[1]:
        how.append(f"{weight.shape[1]} channels to {own.shape[1]}")
    return "resized", adapt_channels(resize_patches(weight, size), own.shape[1]), ", ".join(how)
