"""What the header of an encoded image states.

Headers of ordinary JPEG images are parsed here, which takes a fraction of the time of Pillow's parser; Pillow reads all
others.
"""

import os
from pathlib import Path
from typing import NamedTuple

from PIL import Image

from vit.data.decoding.decode import EMPTY, ORIENTATION, BadImage, open_image
from vit.data.decoding.quiet_decoding import quiet_decoding

START, SCAN, QUANTIZATION, HUFFMAN, JFIF = 0xD8, 0xDA, 0xDB, 0xC4, 0xE0  # JPEG markers, ITU-T T.81, table B.1
FRAMES = (0xC0, 0xC1, 0xC2)  # markers of baseline, extended and progressive frames
TABLE = 65  # bytes of a quantization table of 8 bits
HEADER_BYTES = 1024  # first bytes of a file, enough for the header of an ordinary image


class ImageHeader(NamedTuple):
    """Pillow's names of format and mode, width and height, EXIF orientation (1: upright) and number of frames."""

    format: str | None
    mode: str
    size: tuple[int, int]
    orientation: int = 1
    frames: int = 1


def read_header(source: bytes | Path, name: str, max_pixels: int) -> ImageHeader:
    """The header of an encoded image or file. The mode of an ordinary JPEG image is RGB, even if it is grey.

    Raises:
        BadImage: as `open_image`.
    """
    data = source if isinstance(source, bytes) else _first_bytes(source)
    if not data and isinstance(source, Path) and os.path.isfile(source) and os.stat(source).st_size == 0:
        raise BadImage(name, EMPTY)
    size = ordinary_jpeg_size(data)
    if size is not None and size[0] * size[1] <= max_pixels:
        return ImageHeader("JPEG", "RGB", size)
    with open_image(source, name, max_pixels) as image:
        return ImageHeader(image.format, image.mode, image.size, *_orientation_and_frames(image))


def _first_bytes(path: Path) -> bytes:
    """The first bytes of a file; none if it is not regular or cannot be read, which `open_image` then reports."""
    try:
        if not os.path.isfile(path):
            return b""
        with open(path, "rb", buffering=0) as file:  # no other system calls than those of a read
            return file.read(HEADER_BYTES)
    except OSError:
        return b""


def _orientation_and_frames(image: Image.Image) -> tuple[int, int]:
    """EXIF orientation and number of frames; 1 and 1 if they are damaged, since the pixels may still be good."""
    try:
        with quiet_decoding:
            return image.getexif().get(ORIENTATION, 1), getattr(image, "n_frames", 1)
    except Exception:
        return 1, 1


def ordinary_jpeg_size(data: bytes) -> tuple[int, int] | None:
    """(width, height) of a grey or YCbCr JPEG image of 8 bits, whose header has a JFIF segment and coding tables only.

    None for all other data, which is left to Pillow: other formats, images with EXIF, XMP, a colour profile or several
    frames, damaged images, and images whose header is longer than `data`.

    Args:
        data: the image, or its first bytes.
    """
    if data[:2] != bytes([0xFF, START]):
        return None
    start, size = 2, None
    while data[start:start + 1] == b"\xff":
        marker = int.from_bytes(data[start + 1:start + 2], "big")
        length = int.from_bytes(data[start + 2:start + 4], "big")
        body = data[start + 4:start + 2 + length]
        if len(body) != length - 2 or not _is_ordinary(marker, body):
            return None
        if marker == SCAN:
            return size
        if marker in FRAMES:
            if size is not None:
                return None
            size = int.from_bytes(body[3:5], "big"), int.from_bytes(body[1:3], "big")
        start += 2 + length
    return None


def _is_ordinary(marker: int, body: bytes) -> bool:
    """Whether Pillow accepts this segment, and reads nothing from it that matters to the use of the image."""
    if marker in FRAMES:
        layers = body[5] if len(body) > 5 else 0
        return layers in (1, 3) and len(body) == 6 + 3 * layers and body[0] == 8 and any(body[1:3]) and any(body[3:5])
    if marker == QUANTIZATION:
        return len(body) % TABLE == 0 and all(start < 16 for start in body[::TABLE])  # 16 and more: tables of 16 bits
    if marker == JFIF:
        return body.startswith(b"JFIF") and len(body) >= 14
    return marker in (HUFFMAN, SCAN)
