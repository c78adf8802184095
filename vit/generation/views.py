"""An image of writing seen several ways, as several models see it: what is unsure differs, what is sure does not."""

import math

import torch
from torch import Tensor

SHEAR, STRETCH = math.radians(8.5), 0.14  # at most: an angle, and the logarithm of a factor


def views(images: Tensor, mask: Tensor | None, count: int) -> list[Tensor]:
    """The images (B,C,H,W) themselves, and `count` - 1 times sheared and made lower or higher about their middle row.

    What comes in from outside is the outermost of an image's own pixels, so padding changes nothing.

    Args:
        mask: (B,N) of patches, of which whole columns on the left are an image's own; None where all are.

    Raises:
        ValueError: views of what is no image.
    """
    if count == 1:
        return [images]
    if images.ndim != 4:
        raise ValueError(f"views are of images, but this model reads texts; take views=1 instead of {count}")
    width = images.shape[3]
    own = images.new_full((len(images),), width) if mask is None else mask.float().mean(1) * width  # (B,)
    turns = [2 * math.pi * (i + 0.5) / (count - 1) for i in range(count - 1)]
    around = [(SHEAR * math.cos(turn), STRETCH * math.sin(turn)) for turn in turns]
    return [images, *(moved(images, own.round().long(), *each) for each in around)]


def moved(images: Tensor, own: Tensor, shear: float, stretch: float) -> Tensor:
    """Bilinear; `own` (B,) is how many pixels across belong to each image."""
    height, width = images.shape[2:]
    rows = torch.arange(height, device=images.device) - (height - 1) / 2  # from the middle
    above, part = split(rows * math.exp(stretch) + (height - 1) / 2)  # (H,)
    above, below = above.clamp(0, height - 1), (above + 1).clamp(0, height - 1)
    images = torch.lerp(images[:, :, above], images[:, :, below], part[:, None].to(images))
    shift, part = split(rows * math.tan(shear))
    left = torch.arange(width, device=images.device) + shift[:, None]  # (H,W)
    last = (own - 1)[:, None, None, None]  # (B,1,1,1)
    left, right = (places.clamp(min=0).minimum(last).expand(images.shape) for places in (left, left + 1))
    return torch.lerp(images.gather(3, left), images.gather(3, right), part[:, None].to(images))


def split(places: Tensor) -> tuple[Tensor, Tensor]:
    """A place as the whole number before it and the part of the way to the next."""
    whole = places.floor()
    return whole.long(), places - whole
