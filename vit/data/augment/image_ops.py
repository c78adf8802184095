"""Image operations with one strength per sample: images (B,C,H,W) uint8 and numbers (B,) → images of the same shape.

The definitions are those of torchvision's tensor functions, and thus of AutoAugment, with one strength per sample.
"""

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

_GRAY = (0.2989, 0.587, 0.114)
BLUR_RADIUS = 6  # of the kernel in pixels: three standard deviations of 2
_VALUES_AT_ONCE = 2**19  # values of the images that are processed at once


def at_once(images: Tensor) -> int:
    """Number of images of a batch (B,C,H,W) to process at once: all of them, on a CPU only so many that intermediate
    results stay in its cache.
    """
    count = _VALUES_AT_ONCE // max(1, images.shape[1:].numel()) if images.device.type == "cpu" else len(images)
    return max(1, count)


def to_bytes(pixels: Tensor) -> Tensor:
    """float → uint8, clipped to 0..255 and rounded down; `pixels` is overwritten."""
    return _truncated(pixels.clamp_(0, 255))


def gray(images: Tensor) -> Tensor:
    """(B,C,H,W) → (B,1,H,W) luma; images of one channel are returned unchanged."""
    if images.shape[1] == 1:
        return images
    return _truncated(_luma(images.float()))


def brightness(images: Tensor, factor: Tensor) -> Tensor:
    """Brightness factor (B,): 0 is black, 1 unchanged."""
    return to_bytes(images.float().mul_(_per_image(factor)))


def saturation(images: Tensor, factor: Tensor) -> Tensor:
    """Saturation factor (B,): 0 is gray, 1 unchanged."""
    if images.shape[1] == 1:
        return images
    pixels = images.float()
    return _blend(pixels, _luma(pixels).floor_(), factor)


def contrast(images: Tensor, factor: Tensor) -> Tensor:
    """Contrast factor (B,): 0 is the mean gray of the image, 1 unchanged."""
    pixels = images.float()
    luma = pixels if images.shape[1] == 1 else _luma(pixels).floor_()
    return _blend(pixels, luma.mean(dim=(1, 2, 3), keepdim=True), factor)


def sharpness(images: Tensor, factor: Tensor) -> Tensor:
    """Sharpness factor (B,): 0 is slightly blurred, 1 unchanged; border pixels do not change."""
    if min(images.shape[-2:]) <= 2:
        return images
    pixels = images.to(torch.float32, memory_format=torch.contiguous_format)
    return _blend(pixels, _softened(images, pixels), factor)


def blend(images: Tensor, other: Tensor, factor: Tensor) -> Tensor:
    """Linear interpolation with factor (B,): 0 is `other`, 1 unchanged."""
    return _blend(images.float(), other.to(torch.float32, copy=True), factor)


def posterize(images: Tensor, dropped: Tensor) -> Tensor:
    """Clears the lowest `dropped` bits, (B,) in 0..8."""
    mask = (255 << dropped.int()).to(torch.uint8)
    return images & _per_image(mask)


def solarize(images: Tensor, threshold: Tensor) -> Tensor:
    """Inverts pixels at or above the threshold, (B,) in 0..256."""
    threshold = _per_image(threshold.ceil().int())  # the same result as with fractions
    below = (threshold - 1).to(torch.uint8)  # 255 for a threshold of 0
    threshold = threshold.clamp(max=255).to(torch.uint8)  # 256, which is above all pixels, does not fit into uint8
    mask = below - images.maximum(below).minimum(threshold)  # 255 or 0; on CPUs much faster than a comparison
    return mask.bitwise_xor_(images)  # XOR with 255 is 255 - images


def solarize_add(images: Tensor, amount: Tensor) -> Tensor:
    """Adds the amount, (B,) in 0..128, rounded down, to pixels below 128."""
    dark = 1 - (images >> 7)  # 1 or 0
    return dark.mul_(_per_image(amount.to(torch.uint8))).add_(images)


def invert(images: Tensor) -> Tensor:
    """255 - images"""
    return images.bitwise_not()


def autocontrast(images: Tensor) -> Tensor:
    """Stretches the values of every channel to 0..255."""
    low, high = images.amin(dim=(2, 3), keepdim=True), images.amax(dim=(2, 3), keepdim=True)
    flat = low == high
    scale = torch.where(flat, 1.0, 255 / (high - low))
    return _truncated((images - low.masked_fill(flat, 0)).float().mul_(scale))


def equalize(images: Tensor) -> Tensor:
    """Flattens the histogram of every channel."""
    planes = images.flatten(2)  # (B,C,HW)
    shape, count = planes.shape, planes.shape[0] * planes.shape[1]
    first = 256 * torch.arange(count, dtype=torch.int32, device=images.device)  # first bin of each channel plane
    numbers = planes.to(torch.int32, memory_format=torch.contiguous_format).add_(first.view(*shape[:2], 1)).view(-1)
    histogram = _counts(numbers, 256 * count).view(*shape[:2], 256)
    last = histogram.gather(2, planes.amax(2, keepdim=True).long())
    step = (shape[2] - last) // 255  # (B,C,1)
    table = (histogram.cumsum(2) - histogram + step // 2) // step.clamp(min=1)
    table = torch.where(step == 0, torch.arange(256, device=images.device), table.clamp(0, 255))
    return table.to(torch.uint8).view(-1).index_select(0, numbers).view_as(images)


def gaussian_blur(images: Tensor, sigma: Tensor, radius: int = BLUR_RADIUS) -> Tensor:
    """Gaussian blur with standard deviations (B,) in pixels; the border is replicated. The kernel ends at `radius`
    pixels, which should be three standard deviations.
    """
    taps = torch.arange(-radius, radius + 1, device=images.device)
    weights = torch.exp(-0.5 * (taps / sigma[:, None].clamp(min=1e-6)) ** 2)  # 0 is no blur
    weights = weights / weights.sum(1, keepdim=True)
    pixels = _smooth(images.float(), weights, 2)
    return to_bytes(_smooth(pixels, weights, 3).round_())


def affine(images: Tensor, matrix: Tensor, fill: int | Tensor) -> Tensor:
    """Bilinear resampling by matrix (B,2,3) from output to input positions, in pixels from the upper left corner.

    `fill`, a number or (1,C,1,1), is the value outside the image.
    """
    x, y = _centres(images)
    a, b, across, c, d, down = matrix.flatten(1)[..., None, None].unbind(1)  # (B,1,1) each
    return _sampled(images, a * x + across, b * y, c * x, d * y + down, fill)


def shear_rows(images: Tensor, slope: Tensor, fill: int | Tensor) -> Tensor:
    """Bilinear resampling of each row at positions that move to the right by `slope`, (B,), pixels per row, for images
    on a CPU; `fill`, a number or (1,C,1,1), is the value outside the image.

    A row is copied from its whole offset on and interpolated with its neighbours to the right, which is faster than
    `affine`. The results of that differ by one where a tie is decided by rounding errors of its positions.
    """
    height, width = images.shape[-2:]
    offset = (slope[:, None] * (torch.arange(height) + 0.5)).clamp(-width - 1, width + 1)  # (B,H); then all is `fill`
    whole = offset.floor()
    first = min(0, int(whole.min()))
    padded = np.full((*images.shape[:-1], width + 1 + max(0, int(whole.max())) - first), fill, np.uint8)
    padded[..., -first : width - first] = images.numpy()
    windows = torch.from_numpy(padded).unfold(3, width + 1, 1).numpy()  # (B,C,H,offsets,W+1), a view
    image, channel, row = (np.arange(size) for size in images.shape[:3])
    start = (whole - first).long().numpy()[:, None]  # (B,1,H)
    rows = torch.from_numpy(windows[image[:, None, None], channel[:, None], row, start]).float()
    return _truncated(torch.lerp(rows[..., :-1], rows[..., 1:], (offset - whole)[:, None, :, None]).round_())


def shear_columns(images: Tensor, slope: Tensor, fill: int | Tensor) -> Tensor:
    """`shear_rows` of columns, which move downwards by `slope` pixels per column."""
    return shear_rows(images.transpose(2, 3), slope, fill).transpose(2, 3)


def translate(images: Tensor, offset: Tensor, fill: int | Tensor) -> Tensor:
    """Translation by offset (B,2), whole pixels to the right and downwards; `fill`, a number or uint8 (1,C,1,1), is the
    value outside the image.
    """
    return (translate_slices if images.device.type == "cpu" else translate_pixels)(images, offset, fill)


def translate_slices(images: Tensor, offset: Tensor, fill: int | Tensor) -> Tensor:
    """`translate` by copies of slices, whose offsets are read on the host."""
    result = torch.empty_like(images).copy_(fill) if isinstance(fill, Tensor) else torch.full_like(images, fill)
    height, width = images.shape[-2:]
    for image, moved, (right, down) in zip(images, result, offset.tolist(), strict=True):
        columns, into_columns = _overlap(right, width)
        rows, into_rows = _overlap(down, height)
        moved[:, into_rows, into_columns] = image[:, rows, columns]
    return result


def translate_pixels(images: Tensor, offset: Tensor, fill: int | Tensor) -> Tensor:
    """`translate` without reading the offsets on the host; on a CPU several times as slow as slices."""
    height, width = images.shape[-2:]
    columns = torch.arange(width, device=images.device) - offset[:, :1]  # (B,W)
    rows = torch.arange(height, device=images.device) - offset[:, 1:]  # (B,H)
    inside = ((rows >= 0) & (rows < height))[:, :, None] & ((columns >= 0) & (columns < width))[:, None]
    pixel = rows.clamp(0, height - 1)[:, :, None] * width + columns.clamp(0, width - 1)[:, None]  # (B,H,W)
    moved = images.flatten(2).gather(2, pixel.flatten(1)[:, None].expand(-1, images.shape[1], -1))
    return torch.where(inside[:, None], moved.view_as(images), fill)


def displace(images: Tensor, field: Tensor, fill: int | Tensor) -> Tensor:
    """Bilinear resampling by field (B,2,H,W), the offset of each input position in pixels to the right and downwards.

    `fill`, a number or (1,C,1,1), is the value outside the image.
    """
    x, y = _centres(images)
    return _sampled(images, field[:, 0], x, field[:, 1], y, fill)


def erode(images: Tensor) -> Tensor:
    """Erosion, the minimum over 3x3 neighbourhoods, which makes dark strokes thicker."""
    for dim in (2, 3):
        n, eroded = images.shape[dim] - 1, images.clone()
        for here, there in ((1, 0), (0, 1)):
            region = eroded.narrow(dim, here, n)
            torch.minimum(region, images.narrow(dim, there, n), out=region)
        images = eroded
    return images


def _centres(images: Tensor) -> tuple[Tensor, Tensor]:
    """Positions of the pixel centres from the left (W,) and from the top (H,1)."""
    height, width = images.shape[-2:]
    return (torch.arange(width, device=images.device) + 0.5, torch.arange(height, device=images.device)[:, None] + 0.5)


def _overlap(offset: int, side: int) -> tuple[slice, slice]:
    """The slice of a side that stays inside the image when it is moved by `offset`, before and after the move."""
    offset = max(-side, min(side, offset))
    return slice(max(0, -offset), side - max(0, offset)), slice(max(0, offset), side - max(0, -offset))


def _sampled(images: Tensor, x1: Tensor, x2: Tensor, y1: Tensor, y2: Tensor, fill: int | Tensor) -> Tensor:
    """Bilinear samples at the positions (x1 + x2, y1 + y2), sums of shape (B,H,W) in pixels from the upper left."""
    height, width = images.shape[-2:]
    grid = torch.empty(len(images), 2, height, width, device=images.device)  # -1..1 from edge to edge
    torch.add(x1 * (2 / width) - 1, x2 * (2 / width), out=grid[:, 0])
    torch.add(y1 * (2 / height), y2 * (2 / height) - 1, out=grid[:, 1])
    moved = images.float().sub_(fill)
    moved = F.grid_sample(moved, grid.permute(0, 2, 3, 1), mode="bilinear", padding_mode="zeros", align_corners=False)
    return _truncated(moved.add_(fill).round_())  # a weighted mean is within 0..255


def _per_image(numbers: Tensor) -> Tensor:
    return numbers[:, None, None, None]


def _smooth(pixels: Tensor, weights: Tensor, dim: int) -> Tensor:
    """Weighted sum of shifted copies along one dimension, weights (B,taps)."""
    n, radius = pixels.shape[dim], weights.shape[1] // 2
    position = torch.arange(-radius, n + radius, device=pixels.device).clamp(0, n - 1)
    padded = pixels.index_select(dim, position)
    total = torch.zeros_like(pixels)
    for tap in range(weights.shape[1]):
        total.addcmul_(padded.narrow(dim, tap, n), _per_image(weights[:, tap]))
    return total


def _truncated(pixels: Tensor) -> Tensor:
    """float within 0..255 → uint8, rounded down; on CPUs the cast of NumPy is four times as fast as that of torch."""
    if pixels.device.type == "cpu":
        return torch.from_numpy(pixels.numpy().astype(np.uint8))
    return pixels.to(torch.uint8)


def _blend(pixels: Tensor, other: Tensor, factor: Tensor) -> Tensor:
    """`blend` of float images, both of which are overwritten."""
    factor = _per_image(factor)
    return to_bytes(pixels.mul_(factor).add_(other.mul_(1 - factor)))


def _luma(pixels: Tensor) -> Tensor:
    """float (B,3,H,W) → (B,1,H,W), not rounded"""
    red, green, blue = pixels.split(1, dim=1)
    return (_GRAY[0] * red).add_(_GRAY[1] * green).add_(_GRAY[2] * blue)


def _softened(images: Tensor, pixels: Tensor) -> Tensor:
    """uint8 (B,C,H,W) and the same as float → float (B,C,H,W), the kernel of `sharpness`; border pixels do not change.

    The batch is one sequence of pixels, so that sums over neighbours are sums of a few slices; those of the border are
    wrong and replaced.
    """
    width, whole = images.shape[-1], images.to(torch.int16).reshape(-1)
    middle = whole[width:-width]
    rows = (whole[: -2 * width] + whole[2 * width :]).add_(middle)
    around = (rows[:-2] + rows[2:]).add_(rows[1:-1]).add_(middle[1:-1], alpha=4)  # the 3x3 kernel times 13
    soft = torch.empty_like(pixels)
    soft.view(-1)[width + 1 : -width - 1].copy_(around).mul_(1 / 13).round_()  # no tie, so division is not needed
    for dim in (2, 3):
        for edge in (0, -1):
            soft.select(dim, edge).copy_(pixels.select(dim, edge))
    return soft


def _counts(values: Tensor, length: int) -> Tensor:
    """How often each number below `length` occurs, int64; without waiting for a GPU, which `bincount` does."""
    if values.device.type == "cpu":
        return torch.bincount(values, minlength=length)
    counts = torch.zeros(length, dtype=torch.int64, device=values.device)
    return counts.scatter_add_(0, values.long(), counts.new_ones(1).expand_as(values))
