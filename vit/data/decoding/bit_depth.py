"""Images of more than 8 bits per sample: their stored values, and the range that is mapped to 0..255."""

import io
import math
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import BinaryIO, NamedTuple

import numpy as np
from PIL import Image
from PIL.TiffImagePlugin import OPEN_INFO, ImageFileDirectory_v2

from vit.messages import number_of

FULL = "full"  # integers 0..65535, floats 0..1: the range of the container
RULES = ("auto", FULL, "percentile")
Range = str | tuple[float, float]  # FULL, or the values that are mapped to 0 and 255

PERCENTILES = (0.5, 99.5)  # lower and upper percentile of the rule "percentile"
OUTLIERS = (0.01, 99.99)  # percentiles beyond which values may be hot pixels
PIXELS = 16_384  # sampled per image for percentiles
NATIVE = {"I;16BS": "I;16NS", "I;32BS": "I;32NS", "F;32BF": "F;32NF"}  # libtiff returns native byte order for any file
BITS, PHOTOMETRIC, TILE_WIDTH, TILE_HEIGHT, SAMPLE_FORMAT = 258, 262, 322, 323, 339  # tags of TIFF
SAMPLE_FORMATS = {1: "unsigned integers", 2: "signed integers", 3: "floats", 5: "complex integers", 6: "complex floats"}
GREY_ALPHA = [1, 1, 1, 3]  # indices of the lower bytes of grey (3 times) and alpha in the bytes read as RGBA
BYTE_ORDERS = {b"II": "little-endian", b"MM": "big-endian"}
WHITE_IS_ZERO, SIGNED = 0, (2,)
SWAPPED = {"B": "L", "L": "B", "N": "B" if sys.byteorder == "little" else "L"}  # byte orders of Pillow's raw modes


class MeasuredRange(NamedTuple):
    """The range that a rule selects for images, and the measurements behind it."""

    range: Range
    low: float  # smallest and largest value seen
    high: float
    images: int  # number of images of more than 8 bits
    whole: int  # upper end of FULL: 65535, or 1 for floats
    dtype: str = ""  # dtype of arrays; empty for image files

    def text(self, rule: str) -> str:
        """One line for the log and the audit."""
        arrays = f" ({self.dtype} arrays)" if self.dtype else ""
        images = number_of(self.images, "training image")
        seen = f"values {self.low:g}..{self.high:g} in {images} of more than 8 bits{arrays}"
        if self.range == FULL:
            return f"{seen}; the full range of the format is mapped to 0..255 (data.preprocessing.range={rule})"
        low, high = self.range
        levels = round((self.high - self.low) / self.whole * 255) + 1
        note = f"; range=full would leave {levels} grey levels" if self.low >= 0 and levels < 128 else ""
        return f"{seen}; {low:g}..{high:g} is mapped to 0..255 (data.preprocessing.range={rule}{note})"


def check_range(value: object) -> Range:
    """Validates a stored range, `full` or (low, high).

    Raises:
        ValueError: another value.
    """
    if value == FULL:
        return FULL
    numbers = tuple(value) if isinstance(value, list | tuple) else ()
    good = len(numbers) == 2 and all(isinstance(v, int | float) and math.isfinite(v) for v in numbers)
    if not good or numbers[0] >= numbers[1]:
        raise ValueError(f"range={value!r} must be full or [low, high] with low below high; a run measures it with "
                         "data.preprocessing.range=auto or percentile")
    return float(numbers[0]), float(numbers[1])


def has_unknown_depth(dtype: np.dtype) -> bool:
    """Whether arrays of this type may hold images of 8 as well as of 16 bits: all integers but uint8 and uint16."""
    return np.issubdtype(dtype, np.integer) and dtype not in (np.uint8, np.uint16)


def beyond_eight_bits(span: tuple[float, float]) -> str:
    """Part of a warning: how other libraries, which have no such range, treat images of more than 8 bits."""
    return (
        f"in images of more than 8 bits they do not map {span[0]:g}..{span[1]:g} to 0..255; convert such images to 8 "
        "bits with this mapping"
    )


def explain_unsupported_tiff(file: BinaryIO) -> str | None:
    """Why Pillow cannot read a TIFF with an unsupported sample format; None for any other file."""
    start = file.read(8)
    if start[:4] not in (b"II*\0", b"MM\0*"):
        return None
    try:
        tags = ImageFileDirectory_v2(start)
        file.seek(tags.next)
        tags.load(file)
        bits, forms, photometric = tags[BITS], tags.get(SAMPLE_FORMAT, (1,)), tags[PHOTOMETRIC]
        form = SAMPLE_FORMATS.get(forms[0], f"sample format {forms[0]}")
    except Exception:  # a damaged file, about which nothing more is known
        return None
    if any((photometric, forms[:1], bits) == (key[1], key[2][:1], key[4]) for key in OPEN_INFO if key[0] == start[:2]):
        return None  # Pillow supports this sample format, so the fault is another one
    return (
        f"is a TIFF of {'/'.join(map(str, bits))} bits per sample ({form}, photometric interpretation {photometric}, "
        f"{BYTE_ORDERS[start[:2]]}), which is not supported; save it with 8 or 16 bits per sample where 0 is black, "
        "or as 32-bit floats"
    )


def is_high_bit_depth(image: Image.Image) -> bool:
    """Whether an opened image has more than 8 bits per sample or signed samples, according to its header."""
    return image.mode.startswith("I") or image.mode == "F" or _low_mode(image) is not None or _is_signed(image)


def tile_pixels(image: Image.Image) -> int:
    """The pixels of a tile of a TIFF, which is decoded as a whole even if the image is smaller; 0 without tiles."""
    tags = getattr(image, "tag_v2", {})
    return int(tags.get(TILE_WIDTH, 0)) * int(tags.get(TILE_HEIGHT, 0))


def fix_byte_order(image: Image.Image) -> Image.Image:
    """Corrects the byte order of an opened image: Pillow swaps the bytes of big-endian compressed TIFFs with signed,
    32-bit or float samples again, after libtiff has already swapped them.
    """
    for number, tile in enumerate(getattr(image, "tile", None) or ()):
        mode = NATIVE.get(tile.args[0]) if tile.codec_name == "libtiff" else None
        if mode is not None:
            image.tile[number] = tile._replace(args=(mode, *tile.args[1:]))
    return image


def scale_transparency(image: Image.Image) -> Image.Image:
    """Scales the transparent value of an opened grey PNG of 2 or 4 bits to 0..255; Pillow scales only the pixels."""
    clear, tile = image.info.get("transparency"), getattr(image, "tile", None)
    highest = {"L;2": 3, "L;4": 15}.get(tile[0].args) if tile and isinstance(tile[0].args, str) else None
    if highest is not None and isinstance(clear, int) and clear <= highest:
        image.info["transparency"] = clear * (255 // highest)
    return image


def stored_values(image: Image.Image) -> np.ndarray:
    """The stored values of an image of more than 8 bits, without alpha: (H,W), or (H,W,C) for 16-bit colour."""
    low, by_tags = open_low_bytes(image), values_by_tags(image)
    if low is None:
        return np.asarray(image) if by_tags is None else by_tags(np.asarray(image))
    return join_bytes(image, low)[..., :3]


def values_by_tags(image: Image.Image) -> Callable[[np.ndarray], np.ndarray] | None:
    """A function that maps the values decoded by Pillow to those described by the TIFF's tags; None if they are equal.

    Pillow neither inverts 16-bit grey images in which 0 is white, nor reads signed bytes as signed.
    """
    if image.mode.startswith("I;16") and _tags(image).get(PHOTOMETRIC) == WHITE_IS_ZERO:
        return lambda values: (~values).astype(np.uint16)
    return (lambda values: values.view(np.int8).astype(np.int32)) if _is_signed(image) else None


def open_low_bytes(image: Image.Image) -> Image.Image | None:
    """A 16-bit image in colour, or in grey with alpha, reopened to decode the lower byte of each sample; None for any
    other image.

    Pillow has no mode for such images and returns the upper byte of each sample. With the byte order reversed it
    returns the lower byte. Grey with alpha has no reversed mode: its two samples are read as the four bytes of RGBA.
    """
    mode = _low_mode(image)
    if mode is None:
        return None
    image.fp.seek(0)
    low = Image.open(io.BytesIO(image.fp.read()), formats=[image.format])
    low.tile = [
        tile._replace(args=mode if isinstance(tile.args, str) else (mode, *tile.args[1:])) for tile in low.tile
    ]
    low.info["bytes"] = GREY_ALPHA if mode == "RGBA" else slice(None)
    return low


def join_bytes(upper: Image.Image, lower: Image.Image) -> np.ndarray:
    """The upper and lower bytes of 16-bit colour → uint16 (H,W,C)."""
    return np.asarray(upper).astype(np.uint16) << 8 | np.asarray(lower)[..., lower.info["bytes"]]


def map_range(values: np.ndarray, span: tuple[float, float]) -> np.ndarray:
    """Numbers of any type and shape → uint8: `span` is mapped to 0..255 and rounded; values outside are clipped."""
    low, high = span
    scaled = (np.clip(values, low, high).astype(np.float64) - low) * (255 / (high - low))
    return np.rint(scaled).astype(np.uint8)


def measure_range(images: Iterable[np.ndarray], rule: str) -> MeasuredRange | None:
    """The range of images of more than 8 bits by the rule `auto`, `full` or `percentile`; None if there are no images.

    `auto` selects the first of these ranges of which the values cover at least half: the full range of the format, and
    for integers the ranges of 8 to 15 bits. If there is none, it selects the range of the values. Outliers do not count
    if they would widen the range of the values more than fourfold.
    """
    low, high, count, samples, floats = math.inf, -math.inf, 0, [], False
    for values in images:
        floats |= bool(np.issubdtype(values.dtype, np.floating))
        values = values[np.isfinite(values)]
        if values.size:
            low, high, count = min(low, float(values.min())), max(high, float(values.max())), count + 1
            samples.append(values[:: max(1, values.size // PIXELS)].astype(np.float64))
    if not count:
        return None
    pixels, whole = np.concatenate(samples), 1 if floats else 65535
    if rule == "percentile":
        span = tuple(float(v) for v in np.percentile(pixels, PERCENTILES))
    else:
        span = FULL if rule == FULL else _detect_range(low, high, pixels, whole)
    if span != FULL and span[0] >= span[1]:  # all values are equal
        span = (low, high) if low < high else (low, low + 1)
    return MeasuredRange(span, low, high, count, whole)


def _detect_range(low: float, high: float, pixels: np.ndarray, whole: int) -> Range:
    """The rule `auto` for values low..high, sampled in `pixels`; `whole` is the upper end of the format's range."""
    inner = [float(v) for v in np.percentile(pixels, OUTLIERS)]
    if inner[1] > inner[0] and high - low > 4 * (inner[1] - inner[0]):
        low, high = inner
    limits = [1] if whole == 1 else [65535, *(2**bits - 1 for bits in range(8, 16))]
    filled = (limit for limit in limits if low >= 0 and high <= limit <= 2 * (high - low))
    limit = next(filled, None)
    if limit is None:
        return low, high
    return FULL if limit == whole else (0.0, float(limit))


def _low_mode(image: Image.Image) -> str | None:
    """Pillow's raw mode for the lower bytes of 16-bit colour, or of grey with alpha; None for any other image."""
    if image.mode not in ("RGB", "RGBA") or not getattr(image, "tile", None):
        return None
    args = image.tile[0].args
    mode = args
    if not isinstance(args, str):
        mode = args[0] if args else ""
    name, _, order = str(mode).partition(";16")
    if (name, order) == ("LA", "B"):
        return "RGBA"
    return f"{name};16{SWAPPED[order]}" if name in ("RGB", "RGBA") and order in SWAPPED else None


def _is_signed(image: Image.Image) -> bool:
    """Whether a TIFF has signed bytes."""
    return image.mode == "L" and _tags(image).get(SAMPLE_FORMAT) == SIGNED


def _tags(image: Image.Image) -> Mapping[int, object]:
    return getattr(image, "tag_v2", {})
