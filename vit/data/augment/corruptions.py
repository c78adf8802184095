"""Common corruptions of images in five severities (Hendrycks and Dietterich, arXiv 1903.12261), to measure robustness.

Constants are those that the paper's authors used for images of 224 pixels. Lengths (radii, displacements) are scaled
with the shorter side of the image, so that images of any size are corrupted alike; strengths of noise and colour are
not. Two kinds differ from the paper's: frost is a generated texture instead of photographs of frost, and glass blur
copies random neighbours instead of swapping them one after the other.

Each corruption acts on a batch of images of one size, (B,H,W,C) in [0,1]; each image has its own random generator, so
that it is corrupted alike in any batch.
"""

import io
import math
from collections.abc import Callable, Sequence

import numpy as np
from PIL import Image

from vit.counters import hash_to_int
from vit.messages import number_of

REFERENCE = 224  # side, in pixels, of the images that the constants of the corruptions are for
SEVERITIES = (1, 2, 3, 4, 5)
FINE = 9  # points per pixel and axis at which the kernel of a disk is sampled
CHUNK_VALUES = 1 << 18  # values of the images corrupted at once: 2 MiB, which fit in a processor's cache
Randoms = Sequence[np.random.Generator]
Corruption = Callable[[np.ndarray, int, Randoms], np.ndarray]  # (B,H,W,C) in [0,1], severity from 0, random numbers


def corrupt(image: np.ndarray, kind: str, severity: int, *counters: int) -> np.ndarray:
    """A corrupted copy of an image: uint8 (H,W,C) -> (H,W,C), with 1 or 3 channels.

    Args:
        kind: a key of `CORRUPTIONS`.
        severity: 1 to 5.
        counters: such as a seed and the index of the sample; with kind and severity they determine all random numbers.

    Raises:
        ValueError: an unknown kind or severity, or another shape or type.
    """
    return corrupt_batch(np.asarray(image)[None], kind, severity, [counters])[0]


def corrupt_batch(images: np.ndarray, kind: str, severity: int, counters: Sequence[Sequence[int]]) -> np.ndarray:
    """`corrupt` of each image of a batch with its own counters: uint8 (B,H,W,C) -> (B,H,W,C).

    Raises:
        ValueError: as `corrupt`, or there are not as many counters as images.
    """
    if kind not in CORRUPTIONS:
        raise ValueError(f"{kind!r} is not a kind of corruption: {', '.join(CORRUPTIONS)}")
    if severity not in SEVERITIES:
        raise ValueError(f"severity {severity} must be one of 1 to 5")
    if images.ndim != 4 or images.shape[3] not in (1, 3) or images.dtype != np.uint8:
        raise ValueError(f"an image must be uint8 (H,W,1) or (H,W,3), got {images.dtype} {images.shape[1:]}")
    if len(images) != len(counters):
        raise ValueError(f"{number_of(len(images), 'image')} and as many counters are needed, got {len(counters)}")
    number, corruption, found = list(CORRUPTIONS).index(kind), CORRUPTIONS[kind], np.empty_like(images)
    chunk = max(CHUNK_VALUES // max(math.prod(images.shape[1:]), 1), 1)
    for start in range(0, len(images), chunk):
        some = slice(start, start + chunk)
        randoms = [np.random.default_rng(hash_to_int(number, severity, *each)) for each in counters[some]]
        corrupted = corruption(images[some].astype(np.float64) / 255, severity - 1, randoms)
        found[some] = (np.clip(corrupted, 0, 1) * 255).round()
    return found


def scale_of(x: np.ndarray) -> float:
    """Pixels of these images per pixel of the reference."""
    return min(x.shape[1:3]) / REFERENCE


def drawn(randoms: Randoms, draw: Callable[[np.random.Generator], np.ndarray]) -> np.ndarray:
    """What each generator draws, as a batch."""
    return np.stack([draw(random) for random in randoms])


# noise


def gaussian_noise(x: np.ndarray, level: int, randoms: Randoms) -> np.ndarray:
    """Normal noise, as in low light."""
    scale = (0.08, 0.12, 0.18, 0.26, 0.38)[level]
    return x + drawn(randoms, lambda random: random.normal(scale=scale, size=x.shape[1:]))


def shot_noise(x: np.ndarray, level: int, randoms: Randoms) -> np.ndarray:
    """Poisson noise of counted photons."""
    photons = (60, 25, 12, 5, 3)[level]
    return np.stack([random.poisson(each * photons) for each, random in zip(x, randoms, strict=True)]) / photons


def impulse_noise(x: np.ndarray, level: int, randoms: Randoms) -> np.ndarray:
    """Single values set to 0 or 1, as by bit errors."""
    hit = drawn(randoms, lambda random: random.random(x.shape[1:])) < (0.03, 0.06, 0.09, 0.17, 0.27)[level]
    return np.where(hit, drawn(randoms, lambda random: random.integers(0, 2, x.shape[1:])), x)


# blur


def defocus_blur(x: np.ndarray, level: int, randoms: Randoms) -> np.ndarray:
    """The mean over a disk, as of an image that is out of focus."""
    radius = (3, 4, 6, 8, 10)[level] * scale_of(x)
    return filtered(x, disk(radius)[None])


def glass_blur(x: np.ndarray, level: int, randoms: Randoms) -> np.ndarray:
    """Each pixel is that of a random neighbour, between two Gaussian blurs, as behind frosted glass."""
    sigma, reach, times = ((0.7, 1, 2), (0.9, 2, 1), (1, 2, 3), (1.1, 3, 2), (1.5, 4, 2))[level]
    scale, (height, width) = scale_of(x), x.shape[1:3]
    reach = (reach + 0.5) * scale  # before rounding
    x = blurred(x, sigma * scale)
    images, rows, columns = np.mgrid[: len(x), :height, :width]
    for _ in range(times):
        moves = drawn(randoms, lambda random: random.uniform(-reach, reach, (2, height, width))).round().astype(int)
        down, right = moves.swapaxes(0, 1)
        x = x[images, (rows + down).clip(0, height - 1), (columns + right).clip(0, width - 1)]
    return blurred(x, sigma * scale)


def motion_blur(x: np.ndarray, level: int, randoms: Randoms) -> np.ndarray:
    """The mean along a line of random direction within 45 degrees of the horizontal."""
    radius, sigma = ((10, 3), (15, 5), (15, 8), (15, 12), (20, 15))[level]
    scale = scale_of(x)
    angles = drawn(randoms, lambda random: random.uniform(-45, 45))
    return filtered(x, line(radius * scale, sigma * scale, angles))


def zoom_blur(x: np.ndarray, level: int, randoms: Randoms) -> np.ndarray:
    """The mean over several zooms, as of a camera that moves towards the object."""
    stop, step = ((1.11, 0.01), (1.16, 0.01), (1.21, 0.02), (1.26, 0.02), (1.31, 0.03))[level]
    zooms = np.arange(1, stop, step)
    return (x + sum(zoomed(x, zoom) for zoom in zooms)) / (len(zooms) + 1)


# weather


def snow(x: np.ndarray, level: int, randoms: Randoms) -> np.ndarray:
    """Streaks of snow over a whitened image."""
    mean, deviation, zoom, least, radius, sigma, mix = (
        (0.1, 0.3, 3, 0.5, 10, 4, 0.8), (0.2, 0.3, 2, 0.5, 12, 4, 0.7), (0.55, 0.3, 4, 0.9, 12, 8, 0.7),
        (0.55, 0.3, 4.5, 0.85, 12, 8, 0.65), (0.55, 0.3, 2.5, 0.85, 12, 12, 0.55))[level]
    flakes = zoomed(drawn(randoms, lambda random: random.normal(mean, deviation, (*x.shape[1:3], 1))), zoom)
    flakes = np.where(flakes < least, 0, flakes).clip(0, 1)
    angles = drawn(randoms, lambda random: random.uniform(-135, -45))
    flakes = filtered(flakes, line(radius * scale_of(x), sigma * scale_of(x), angles))
    white = mix * x + (1 - mix) * np.maximum(x, gray(x) * 1.5 + 0.5)
    return white + flakes + flakes[:, ::-1, ::-1]


def frost(x: np.ndarray, level: int, randoms: Randoms) -> np.ndarray:
    """A bright texture of ridges over a darkened image."""
    image, texture = ((1, 0.4), (0.8, 0.6), (0.7, 0.7), (0.65, 0.7), (0.6, 0.75))[level]
    first, second = (plasma(x.shape[1:3], 2.0, randoms) for _ in range(2))
    apart = np.abs(first - second)
    ridges = 1 - apart / np.maximum(apart.max(axis=(1, 2), keepdims=True), 1e-12)  # 0 in an image of one pixel
    return image * x + texture * (0.8 * ridges**3)[..., None]


def fog(x: np.ndarray, level: int, randoms: Randoms) -> np.ndarray:
    """A bright cloud over an image of less contrast."""
    strength, decay = ((1.5, 2), (2, 2), (2.5, 1.7), (2.5, 1.5), (3, 1.4))[level]
    highest = x.max(axis=(1, 2, 3), keepdims=True)
    return (x + strength * plasma(x.shape[1:3], decay, randoms)[..., None]) * highest / (highest + strength)


def brightness(x: np.ndarray, level: int, randoms: Randoms) -> np.ndarray:
    """A higher value of each pixel in the HSV space."""
    value = x.max(axis=3, keepdims=True)
    higher = (value + (0.1, 0.2, 0.3, 0.4, 0.5)[level]).clip(0, 1)
    return np.where(value > 0, x * higher / np.maximum(value, 1e-12), higher)  # hue and saturation stay


# digital


def contrast(x: np.ndarray, level: int, randoms: Randoms) -> np.ndarray:
    """Values nearer to the mean of their channel."""
    mean = x.mean(axis=(1, 2), keepdims=True)
    return (x - mean) * (0.4, 0.3, 0.2, 0.1, 0.05)[level] + mean


def elastic_transform(x: np.ndarray, level: int, randoms: Randoms) -> np.ndarray:
    """A random affine map and smooth random displacements; severities 1 and 2 move wide regions, 3 to 5 small ones."""
    from scipy.ndimage import gaussian_filter, map_coordinates

    strength, smooth, affine = ((2, 0.7, 0.1), (2, 0.08, 0.2), (0.05, 0.01, 0.02), (0.07, 0.01, 0.02),
                                (0.12, 0.01, 0.02))[level]
    (height, width), side = x.shape[1:3], min(x.shape[1:3]) * 244 / REFERENCE  # the authors wrote 244
    corners = np.array([[-1.0, -1], [1, -1], [-1, 1]]) * min(height, width) / 3
    moved = corners + drawn(randoms, lambda random: random.uniform(-affine * side, affine * side, corners.shape))
    centre = np.array([height, width]) / 2
    ones = np.ones((len(x), 3, 1))
    matrix = np.linalg.solve(np.concatenate([moved, ones], 2), corners)  # (B,3,2): from moved points back to the image
    rows, columns = np.mgrid[:height, :width]
    points = np.c_[rows.ravel() - centre[0], columns.ravel() - centre[1], np.ones(rows.size)] @ matrix + centre
    shift = [gaussian_filter(drawn(randoms, lambda random: random.uniform(-1, 1, (height, width))),
                             (0, smooth * side, smooth * side), mode="reflect", truncate=3) * strength * side
             for _ in range(2)]
    where = points.swapaxes(1, 2).reshape(-1, 2, height, width) + np.stack(shift, 1)
    result = np.empty_like(x)
    for image, channel in np.ndindex(len(x), x.shape[3]):
        map_coordinates(x[image, ..., channel], where[image], result[image, ..., channel], order=1, mode="reflect")
    return result


def pixelate(x: np.ndarray, level: int, randoms: Randoms) -> np.ndarray:
    """Fewer pixels, each enlarged."""
    share = (0.6, 0.5, 0.4, 0.3, 0.25)[level]
    height, width = x.shape[1:3]
    small = max(int(width * share), 1), max(int(height * share), 1)
    images = [to_pillow(each).resize(small, Image.Resampling.BOX) for each in x]
    return from_pillow([each.resize((width, height), Image.Resampling.BOX) for each in images])


def jpeg_compression(x: np.ndarray, level: int, randoms: Randoms) -> np.ndarray:
    """A JPEG file of low quality."""
    streams = [io.BytesIO() for _ in x]
    for each, stream in zip(x, streams, strict=True):
        to_pillow(each).save(stream, "JPEG", quality=(25, 18, 15, 10, 7)[level])
    return from_pillow([Image.open(stream) for stream in streams])


CORRUPTIONS: dict[str, Corruption] = {
    each.__name__: each for each in (
        gaussian_noise, shot_noise, impulse_noise, defocus_blur, glass_blur, motion_blur, zoom_blur, snow, frost, fog,
        brightness, contrast, elastic_transform, pixelate, jpeg_compression)
}


# parts


def blurred(x: np.ndarray, sigma: float) -> np.ndarray:
    """A Gaussian blur of (B,H,W,C)."""
    from scipy.ndimage import gaussian_filter

    return gaussian_filter(x, (0, sigma, sigma, 0), mode="nearest")


def filtered(x: np.ndarray, kernel: np.ndarray) -> np.ndarray:
    """(B,H,W,C) convolved with one kernel (1,k,k) or one for each image (B,k,k); a kernel sums to 1."""
    from scipy.ndimage import convolve

    if len(kernel) == 1:
        return convolve(x, kernel[..., None], mode="reflect")
    pairs = zip(x, kernel, strict=True)
    return np.stack([convolve(each, weights[..., None], mode="reflect") for each, weights in pairs])


def disk(radius: float) -> np.ndarray:
    """A kernel whose weights are the share of each pixel that is within the radius; at least the pixel itself."""
    half = int(np.ceil(max(radius - 0.5, 0)))
    points = (np.arange((2 * half + 1) * FINE) + 0.5) / FINE - half - 0.5
    inside = points[:, None] ** 2 + points[None] ** 2 <= max(radius, 0.5) ** 2
    cells = inside.reshape(2 * half + 1, FINE, 2 * half + 1, FINE).sum(axis=(1, 3)).astype(float)
    return cells / cells.sum()


def line(radius: float, sigma: float, angles: np.ndarray) -> np.ndarray:
    """Kernels (B,k,k) along lines through the centre to one side, of Gaussian weights; `angles` (B,) in degrees."""
    half = int(np.ceil(2 * radius)) + 1
    steps = np.linspace(0, 2 * radius, max(8 * half, 2))
    weights = np.exp(-(steps**2) / (2 * max(sigma, 1e-6) ** 2))
    angles = np.deg2rad(angles)[:, None]
    rows, columns = half + steps * np.sin(angles), half + steps * np.cos(angles)  # (B,steps)
    kernels = np.zeros((len(angles), 2 * half + 1, 2 * half + 1))
    for down in (0, 1):  # each point is shared among the four pixels around it
        for right in (0, 1):
            row, column = np.floor(rows).astype(int) + down, np.floor(columns).astype(int) + right
            share = (1 - np.abs(rows - row)) * (1 - np.abs(columns - column))
            at = np.arange(len(angles))[:, None], row.clip(0, 2 * half), column.clip(0, 2 * half)
            np.add.at(kernels, at, weights * share)
    return kernels / kernels.sum(axis=(1, 2), keepdims=True)


def zoomed(x: np.ndarray, factor: float) -> np.ndarray:
    """The middle of (B,H,W,C), enlarged to the same size by linear interpolation; `factor` is 1 or more."""
    for axis in (1, 2):
        size = x.shape[axis]
        points = (np.arange(size) - (size - 1) / 2) / factor + (size - 1) / 2
        below = points.astype(int)
        share = (points - below).reshape(-1, *(1,) * (3 - axis))
        first = x.take(below, axis)
        x = first + share * (x.take(np.minimum(below + 1, size - 1), axis) - first)
    return x


def gray(x: np.ndarray) -> np.ndarray:
    """The luma of (B,H,W,C): (B,H,W,1)."""
    return x if x.shape[3] == 1 else x @ np.array([[0.299], [0.587], [0.114]])


def plasma(size: tuple[int, int], decay: float, randoms: Randoms) -> np.ndarray:
    """Fractals in [0, 1] of the size (H,W) of an image, by midpoint displacement: (B,H,W)

    Each octave halves the distance of the points and divides their displacement by `decay` squared.
    """

    def displacements(shape: tuple[int, ...]) -> np.ndarray:
        return drawn(randoms, lambda random: random.uniform(-reach, reach, shape))

    side = 1 << max(int(np.ceil(np.log2(max(size)))), 1)
    field, step, reach = np.zeros((len(randoms), side, side)), side, 1.0
    while step >= 2:
        half = step // 2
        corners = field[:, ::step, ::step]
        around = corners + np.roll(corners, -1, 1)
        around = around + np.roll(around, -1, 2)
        centres = around / 4 + displacements(corners.shape[1:])
        field[:, half::step, half::step] = centres
        beside = centres + np.roll(centres, 1, 1) + corners + np.roll(corners, -1, 2)
        field[:, ::step, half::step] = beside / 4 + displacements(corners.shape[1:])
        below = centres + np.roll(centres, 1, 2) + corners + np.roll(corners, -1, 1)
        field[:, half::step, ::step] = below / 4 + displacements(corners.shape[1:])
        step, reach = half, reach / decay**2
    field -= field.min(axis=(1, 2), keepdims=True)
    return (field / field.max(axis=(1, 2), keepdims=True))[:, : size[0], : size[1]]


def to_pillow(x: np.ndarray) -> Image.Image:
    pixels = (x * 255).round().astype(np.uint8)
    return Image.fromarray(pixels[..., 0] if pixels.shape[2] == 1 else pixels)


def from_pillow(images: Sequence[Image.Image]) -> np.ndarray:
    pixels = np.stack([np.asarray(image) for image in images])
    return pixels.reshape(*pixels.shape[:3], -1) / 255
