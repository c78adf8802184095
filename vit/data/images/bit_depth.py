"""Images of more than 8 bits per sample: their stored values, and the range of values that is mapped to 0..255."""

import io
import math
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import BinaryIO, NamedTuple

import numpy as np
from PIL import Image
from PIL.TiffImagePlugin import OPEN_INFO, ImageFileDirectory_v2

FULL = "full"  # integers 0..65535, floats 0..1: the range of the container
RULES = ("auto", FULL, "percentile")
Range = str | tuple[float, float]  # FULL, or the values that become 0 and 255

PERCENTILES = (0.5, 99.5)  # of rule "percentile"
OUTLIERS = (0.01, 99.99)  # what lies beyond may be a hot pixel
PIXELS = 16_384  # per image that percentiles are taken of
NATIVE = {"I;16BS": "I;16NS", "I;32BS": "I;32NS", "F;32BF": "F;32NF"}  # what libtiff gives, whatever the file's order
BITS, PHOTOMETRIC, SAMPLE_FORMAT = 258, 262, 339  # tags of TIFF
SAMPLE_FORMATS = {1: "unsigned integers", 2: "signed integers", 3: "floats", 5: "complex integers", 6: "complex floats"}
GREY_ALPHA = [1, 1, 1, 3]  # of the bytes of grey and alpha, read as RGBA: the lower ones of red, green, blue and alpha
BYTE_ORDERS = {b"II": "little-endian", b"MM": "big-endian"}
WHITE_IS_ZERO, SIGNED = 0, (2,)
SWAPPED = {"B": "L", "L": "B", "N": "B" if sys.byteorder == "little" else "L"}  # byte orders of Pillow's raw modes


class Measured(NamedTuple):
    """The range that a rule finds in images, and the facts behind it."""

    range: Range
    low: float  # smallest and largest value seen
    high: float
    images: int  # of more than 8 bits
    whole: int  # what FULL ends at: 65535, or 1 for floats

    def text(self, rule: str) -> str:
        """One line for the log and the audit."""
        seen = f"values {self.low:g}..{self.high:g} in {self.images} training images of more than 8 bits"
        if self.range == FULL:
            return f"{seen}; the whole range of the format becomes 0..255 (data.preprocessing.range={rule})"
        low, high = self.range
        levels = round((self.high - self.low) / self.whole * 255) + 1
        note = f"; range=full would leave {levels} grey levels" if self.low >= 0 and levels < 128 else ""
        return f"{seen}; {low:g}..{high:g} becomes 0..255 (data.preprocessing.range={rule}{note})"


def check_range(value: object) -> Range:
    """Validates a stored range, `full` or (low, high).

    Raises:
        ValueError: anything else.
    """
    if value == FULL:
        return FULL
    numbers = tuple(value) if isinstance(value, list | tuple) else ()
    good = len(numbers) == 2 and all(isinstance(v, int | float) and math.isfinite(v) for v in numbers)
    if not good or numbers[0] >= numbers[1]:
        raise ValueError(f"range={value!r} must be {', '.join(RULES)} or [low, high] with low below high")
    return float(numbers[0]), float(numbers[1])


def beyond_eight_bits(span: tuple[float, float]) -> str:
    """The sentence about a library without such a range, which preprocesses deep images differently."""
    return (
        f"in images of more than 8 bits they do not map {span[0]:g}..{span[1]:g} to 0..255; give them images of 8 bits "
        "mapped so"
    )


def unknown_samples(file: BinaryIO) -> str | None:
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
    except Exception:  # damaged; there is nothing more to say about it
        return None
    if any((photometric, forms[:1], bits) == (key[1], key[2][:1], key[4]) for key in OPEN_INFO if key[0] == start[:2]):
        return None  # something else is wrong
    return (
        f"is a TIFF of {'/'.join(map(str, bits))} bits per sample ({form}, photometric interpretation {photometric}, "
        f"{BYTE_ORDERS[start[:2]]}), which cannot be read; save it with 8 or 16 bits per sample in which 0 is black or "
        "as 32-bit floats"
    )


def is_deep(image: Image.Image) -> bool:
    """Whether an opened image has more than 8 bits per sample, or signed ones; its header shows it."""
    return image.mode.startswith("I") or image.mode == "F" or _low_mode(image) is not None or _is_signed(image)


def in_native_order(image: Image.Image) -> Image.Image:
    """Corrects the byte order of an opened image. Pillow swaps bytes of big-endian compressed TIFFs that libtiff has
    already swapped, if samples are signed, 32 bits wide or floats.
    """
    for number, tile in enumerate(getattr(image, "tile", None) or ()):
        mode = NATIVE.get(tile.args[0]) if tile.codec_name == "libtiff" else None
        if mode is not None:
            image.tile[number] = tile._replace(args=(mode, *tile.args[1:]))
    return image


def stored_values(image: Image.Image) -> np.ndarray:
    """The values of an opened deep image as they are stored, transparency aside: (H,W), or (H,W,C) in 16-bit colour."""
    low, by_tags = open_low_bytes(image), values_by_tags(image)
    if low is None:
        return np.asarray(image) if by_tags is None else by_tags(np.asarray(image))
    return join_bytes(image, low)[..., :3]


def values_by_tags(image: Image.Image) -> Callable[[np.ndarray], np.ndarray] | None:
    """A function from the values that Pillow decodes to those that the TIFF's tags describe; None if they are equal.

    Pillow does not invert 16-bit grey in which 0 is white, and reads signed bytes as unsigned ones.
    """
    if image.mode.startswith("I;16") and _tags(image).get(PHOTOMETRIC) == WHITE_IS_ZERO:
        return lambda values: (~values).astype(np.uint16)
    return (lambda values: values.view(np.int8).astype(np.int32)) if _is_signed(image) else None


def open_low_bytes(image: Image.Image) -> Image.Image | None:
    """16-bit colour, or grey with alpha, opened again so that it decodes to the lower byte of each sample; else None.

    Pillow has no mode for such images and returns the upper byte; read in the other byte order, that is the lower one.
    Grey with alpha, which Pillow decodes to RGBA, has no other order: its two samples are read as four bytes.
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
    """uint16 (H,W,C)"""
    return np.asarray(upper).astype(np.uint16) << 8 | np.asarray(lower)[..., lower.info["bytes"]]


def map_range(values: np.ndarray, span: tuple[float, float]) -> np.ndarray:
    """Any numbers → uint8: `span` is mapped to 0..255 and rounded; values outside are clipped."""
    low, high = span
    scaled = (np.clip(values, low, high).astype(np.float64) - low) * (255 / (high - low))
    return np.rint(scaled).astype(np.uint8)


def measure_range(images: Iterable[np.ndarray], rule: str) -> Measured | None:
    """The range of deep images by the rule `auto`, `full` or `percentile`; None if there are none.

    `auto` is the first range of which the values cover at least half: that of the format, that of fewer bits (8 to 15)
    for integers, else the range of the values, without outliers if these would widen it more than fourfold.
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
        span = FULL if rule == FULL else own_range(low, high, pixels, whole)
    if span != FULL and span[0] >= span[1]:  # nothing varies
        span = (low, high) if low < high else (low, low + 1)
    return Measured(span, low, high, count, whole)


def own_range(low: float, high: float, pixels: np.ndarray, whole: int) -> Range:
    """The rule `auto` for values low..high, of which `pixels` is a sample; `whole` is the upper end of the format's
    range.
    """
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
    """The raw mode that gives the lower bytes of 16-bit colour, or grey with alpha; None for any other image."""
    if image.mode not in ("RGB", "RGBA") or not getattr(image, "tile", None):
        return None
    args = image.tile[0].args
    mode = args if isinstance(args, str) else args[0] if args else ""
    name, _, order = str(mode).partition(";16")
    if (name, order) == ("LA", "B"):
        return "RGBA"
    return f"{name};16{SWAPPED[order]}" if name in ("RGB", "RGBA") and order in SWAPPED else None


def _is_signed(image: Image.Image) -> bool:
    """Whether a TIFF has signed bytes."""
    return image.mode == "L" and _tags(image).get(SAMPLE_FORMAT) == SIGNED


def _tags(image: Image.Image) -> Mapping[int, object]:
    return getattr(image, "tag_v2", {})
