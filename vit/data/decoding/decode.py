"""Encoded images of any supported format → upright 8-bit Pillow images without transparency, or a one-line error.

The formats are an explicit list (no PostScript, no plug-ins that start programs), and the limit of pixels is checked
before anything is decoded.
"""

import contextlib
import ctypes
import io
import re
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from vit.data.decoding.bit_depth import (
    FULL,
    Range,
    explain_unsupported_tiff,
    fix_byte_order,
    has_unknown_depth,
    join_bytes,
    map_range,
    open_low_bytes,
    scale_transparency,
    tile_pixels,
    values_by_tags,
)
from vit.data.decoding.quiet_decoding import quiet_decoding
from vit.data.errors import printable
from vit.data.system_limits import check_files_left
from vit.messages import import_problem, on_one_line

FORMATS = ("JPEG", "PNG", "GIF", "BMP", "TIFF", "WEBP", "AVIF", "JPEG2000", "ICO", "PPM")
EXTENSIONS = frozenset(
    (
        *(".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".apng", ".gif", ".bmp", ".tif", ".tiff", ".webp", ".avif"),
        *(".jp2", ".j2k", ".jpx", ".ico", ".ppm", ".pgm", ".pbm", ".mpo", ".heic", ".heif", ".hif"),
    )
)
HEIF_BRANDS = (b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"mif1", b"msf1")
ORIENTATION = 0x0112  # the EXIF tag
EMPTY = "the file is empty (0 bytes)"
PILLOW_LIMIT = 178_956_970  # pixels above which Pillow does not open an image
MAX_PIXELS_LIMIT = 2**32  # the largest max_pixels: 12 GB of RGB
ARRAYS = "holds NumPy arrays, not one image; train, evaluate and audit read it with data=table data.path=FILE"
NOT_ONE_IMAGE = (".csv", ".tsv", ".parquet", ".arrow", ".json", ".jsonl", ".xlsx", ".tar", ".tgz", ".tar.gz")
RAISE_LIMIT = "shrink the file, or raise the limit (predict --max-pixels, data.preprocessing.max_pixels)"


class BadImage(ValueError):
    """An image that cannot be used; the message is its name and the reason."""

    def __init__(self, name: str, reason: str):
        super().__init__(f"{printable(name) or 'image'}: {reason}")
        self.name, self.reason = name, reason


def _silence_libtiff() -> None:
    """Silences libtiff, which prints errors without the file name; Pillow raises the same errors."""
    with contextlib.suppress(OSError, AttributeError):  # a statically linked libtiff keeps printing
        libtiff = ctypes.CDLL(Image.core.__file__)
        for name in ("TIFFSetErrorHandler", "TIFFSetWarningHandler"):
            setter = getattr(libtiff, name)
            setter.argtypes, setter.restype = [ctypes.c_void_p], ctypes.c_void_p
            setter(None)


_silence_libtiff()


def open_image(raw: bytes | Path | Image.Image, name: str, max_pixels: int) -> Image.Image:
    """The image with its header read and its size checked, but not decoded.

    Raises:
        BadImage: the format is not supported, or the image has more than `max_pixels`.
    """
    if max_pixels > PILLOW_LIMIT and Image.MAX_IMAGE_PIXELS is not None:  # raises Pillow's own limit
        Image.MAX_IMAGE_PIXELS = max(Image.MAX_IMAGE_PIXELS, max_pixels)
    image = raw if isinstance(raw, Image.Image) else _open(raw, name, max_pixels)
    if hasattr(image, "tag_v2"):  # a TIFF
        image = fix_byte_order(image)
    if "transparency" in image.info:
        image = scale_transparency(image)
    if (tile := tile_pixels(image)) > max_pixels:
        raise BadImage(name, f"is a TIFF with tiles of {tile} pixels, more than max_pixels={max_pixels}; save it again")
    if (count := image.width * image.height) > max_pixels:
        raise BadImage(name, _over_limit(f"{image.width}x{image.height}", count, max_pixels))
    return image


def load_image(image: Image.Image, name: str, exif: bool, span: Range = FULL) -> Image.Image:
    """Decodes the first frame of an opened image and applies its EXIF orientation.

    16-bit colour, which Pillow cannot represent, is reduced to its upper 8 bits, or `span` is mapped to 0..255.

    Raises:
        BadImage: the image cannot be decoded.
    """
    try:
        with quiet_decoding:  # palette and EXIF warnings; faults that matter raise below
            clear = image.info.get("transparency")
            # before load() closes the file
            low = open_low_bytes(image) if span != FULL or isinstance(clear, tuple) else None
            image.load()
            if low is not None:
                _use_low_bytes(image, join_bytes(image, low), span, clear)
            by_tags = values_by_tags(image) if hasattr(image, "tag_v2") else None
            image = _upright(image) if exif else image
            return image if by_tags is None else _from_values(by_tags(np.asarray(image)), image, span)
    except Exception as error:  # Pillow raises a dozen types here, SyntaxError and struct.error among them
        raise BadImage(name, f"cannot be decoded ({_reason(error)})") from error


def to_eight_bits(
    image: Image.Image, mode: str, background: tuple[int, int, int], name: str, span: Range = FULL
) -> Image.Image:
    """Any Pillow mode → "RGB" or "L": `span` of more than 8 bits is mapped to 0..255, and transparent images are
    composited on the background.
    """
    if image.mode == mode and "transparency" not in image.info:
        return image
    if image.mode.startswith("I") or image.mode == "F":
        image = _scale_down(image, name, span)
    with quiet_decoding:
        if image.mode in ("RGBA", "LA", "PA", "RGBa", "La") or "transparency" in image.info:
            image = _on_background(image, background)
        if image.mode not in ("L", "RGB"):
            image = image.convert("L" if image.mode == "1" else "RGB")
        return image if image.mode == mode else image.convert(mode)


def array_to_image(array: np.ndarray, name: str, span: Range = FULL) -> Image.Image:
    """Pixels (H,W), (H,W,1), (H,W,3) or (H,W,4), uint8 or other numbers in `span` → an 8-bit Pillow image.

    Raises:
        BadImage: the array has another shape or values outside the range of its type. Or the number of bits is unknown:
            `span` is the full range, and all values of a type that images of 8 and of 16 bits have are at most 255.
    """
    if array.ndim == 3 and array.shape[2] == 1:
        array = array[:, :, 0]
    if array.ndim not in (2, 3) or (array.ndim == 3 and array.shape[2] not in (3, 4)) or 0 in array.shape:
        expected = "(H,W), (H,W,1), (H,W,3) or (H,W,4)"
        raise BadImage(name, f"array of shape {array.shape} is not an image; expected {expected}")
    if span == FULL and has_unknown_depth(array.dtype) and array.min() >= 0 and array.max() <= 255:
        raise BadImage(name, f"{array.dtype} values {array.min()}..{array.max()} may be of 8 or of 16 bits; pass uint8 "
                             "or uint16")
    return Image.fromarray(np.ascontiguousarray(_bytes_from(array, name, span)))


def _over_limit(size: str, count: int, max_pixels: int) -> str:
    """Why an image of `count` pixels, written as `size`, is refused."""
    if count > MAX_PIXELS_LIMIT:
        return (f"{size} pixels are more than max_pixels={max_pixels}, which can be at most {MAX_PIXELS_LIMIT}; shrink "
                "the file")
    return f"{size} pixels are more than max_pixels={max_pixels}; {RAISE_LIMIT}"


def _refused_by_pillow(error: Image.DecompressionBombError, max_pixels: int) -> str:
    """Why Pillow does not open an image; its message states the number of pixels, which the header may not."""
    match = re.search(r"\((\d+) pixels\)", str(error))
    if match and int(match[1]) > max_pixels:
        return _over_limit(match[1], int(match[1]), max_pixels)
    return f"is refused by Pillow, whatever max_pixels is ({_reason(error)}); shrink the file"


def _open(raw: bytes | Path, name: str, max_pixels: int) -> Image.Image:
    """The opened but not decoded image; every error becomes a BadImage with the reason."""
    if isinstance(raw, bytes) and not raw:
        raise BadImage(name, EMPTY)
    try:
        with quiet_decoding:
            try:
                return Image.open(io.BytesIO(raw) if isinstance(raw, bytes) else raw, formats=FORMATS)
            except UnidentifiedImageError:
                if reason := _explain_unsupported(raw, name):
                    raise BadImage(name, reason) from None
                if not _is_heif(raw):
                    raise
                return _open_heif(raw, name)
    except BadImage:
        raise
    except Image.DecompressionBombError as error:
        raise BadImage(name, _refused_by_pillow(error, max_pixels)) from None
    except Exception as error:
        check_files_left(error)
        raise BadImage(name, f"cannot be opened ({_reason(error)})") from error


def _explain_unsupported(raw: bytes | Path, name: str) -> str | None:
    """Why a file that Pillow cannot identify is not supported; None if unknown."""
    if name.lower().endswith(".npz"):
        return ARRAYS
    if name.lower().endswith(NOT_ONE_IMAGE):
        return "is a table or archive of images, not one image; give the images or their folder"
    with io.BytesIO(raw) if isinstance(raw, bytes) else raw.open("rb") as file:
        return explain_unsupported_tiff(file)


def _is_heif(raw: bytes | Path) -> bool:
    if isinstance(raw, Path):
        with raw.open("rb") as file:
            raw = file.read(12)
    return raw[4:8] == b"ftyp" and raw[8:12] in HEIF_BRANDS


def _open_heif(raw: bytes | Path, name: str) -> Image.Image:
    """Opens HEIC photos with the optional pillow-heif, which also applies the orientation."""
    try:
        import pillow_heif
    except ImportError as error:
        raise BadImage(name, "is a HEIC image, which requires pillow-heif, which "
                             f"{import_problem(error, 'pillow_heif')}: pip install 'vitwright[heic]'") from None
    pillow_heif.register_heif_opener()
    return Image.open(io.BytesIO(raw) if isinstance(raw, bytes) else raw, formats=("HEIF",))


def _upright(image: Image.Image) -> Image.Image:
    try:
        if image.getexif().get(ORIENTATION, 1) == 1:
            return image
        return ImageOps.exif_transpose(image)
    except Exception:  # damaged EXIF; the pixels are still good
        return image


def upright_size(image: Image.Image, exif: bool) -> tuple[int, int]:
    """(width, height) of an opened image after its EXIF orientation is applied."""
    turned = exif and orientation(image) in (5, 6, 7, 8)
    return (image.height, image.width) if turned else image.size


def orientation(image: Image.Image) -> int:
    """The EXIF orientation, 1 to 8; 1 if it is missing or damaged."""
    try:
        return image.getexif().get(ORIENTATION, 1)
    except Exception:
        return 1


def _on_background(image: Image.Image, background: tuple[int, int, int]) -> Image.Image:
    layer = image.convert("RGBA")
    return Image.alpha_composite(Image.new("RGBA", layer.size, (*background, 255)), layer).convert("RGB")


def _use_low_bytes(image: Image.Image, values: np.ndarray, span: Range, clear: object) -> None:
    """Changes a decoded image of 16-bit colour, `values` (H,W,3) or (H,W,4): maps `span` to 0..255, and makes the
    pixels of the colour `clear` transparent, which Pillow compares with the upper 8 bits.
    """
    if span != FULL:
        image.paste(_mapped_colour(values, span))
    if isinstance(clear, tuple) and image.mode == "RGB":
        del image.info["transparency"]
        image.putalpha(Image.fromarray(np.where((values == clear).all(-1), 0, 255).astype(np.uint8)))


def _mapped_colour(pixels: np.ndarray, span: tuple[float, float]) -> Image.Image:
    """uint16 (H,W,3) or (H,W,4) → an 8-bit image; alpha is not mapped by `span`."""
    mapped = map_range(pixels, span)
    mapped[..., 3:] = pixels[..., 3:] >> 8
    return Image.fromarray(mapped)


def _from_values(values: np.ndarray, image: Image.Image, span: Range) -> Image.Image:
    """A TIFF with the values that its tags describe; at FULL, signed bytes without negative values need no change."""
    return image if span == FULL and image.mode == "L" and values.min() >= 0 else Image.fromarray(values)


def _scale_down(image: Image.Image, name: str, span: Range) -> Image.Image:
    pixels = np.asarray(image)
    result = Image.fromarray(_bytes_from(pixels, name, span))
    clear = image.info.get("transparency")
    if isinstance(clear, int) and image.mode != "F":
        result.putalpha(Image.fromarray(np.where(pixels == clear, 0, 255).astype(np.uint8)))
    return result


def _bytes_from(pixels: np.ndarray, name: str, span: Range) -> np.ndarray:
    """uint8 unchanged; other numbers are mapped from `span` to 0..255. FULL scales 16 bits by 255/65535 and floats in
    [0, 1] by 255, without clipping.
    """
    if pixels.dtype == np.uint8:
        return pixels
    if pixels.dtype == bool:
        return pixels.astype(np.uint8) * 255
    low, high = pixels.min(), pixels.max()
    floats = np.issubdtype(pixels.dtype, np.floating)
    if span != FULL and np.isfinite(high - low):
        if floats and 0 < high <= 1 and span[1] >= 255:
            known = f"the model was trained on values {span[0]:g}..{span[1]:g}; pass unscaled values"
            raise BadImage(name, f"{pixels.dtype} values {low:g}..{high:g} are already scaled, but {known}")
        return map_range(pixels, span)
    if floats and low >= 0 and high <= 1:
        return np.rint(pixels * 255).astype(np.uint8)
    if np.issubdtype(pixels.dtype, np.integer) and low >= 0 and high <= 65535:
        return ((pixels.astype(np.int64) * 255 + 32767) // 65535).astype(np.uint8)
    expected = "0..1 for floats" if floats else "0..65535 for 16-bit images"
    scaled = "pass values in 0..1 or uint8; " if floats else ""
    mapped = f"{scaled}data.preprocessing.range=auto maps the training images' own range"
    fix = mapped if np.isfinite(high - low) else "repair the image"
    raise BadImage(name, f"{pixels.dtype} values {low}..{high} are outside {expected}; {fix}")


def _reason(error: Exception) -> str:
    text = on_one_line(error)
    if "cannot identify image file" in text:
        return f"not one of {', '.join(FORMATS)}"
    return f"{type(error).__name__}: {printable(text)}" if text else type(error).__name__
