"""Decoders of JPEG photos that return arrays faster than Pillow, with the same pixels: simplejpeg and torchcodec.

All of them, and Pillow, use libjpeg-turbo. Builds with other settings exist, so a decoder is compared with Pillow once
per process and is only used if every pixel is equal. Pillow decodes whatever these decoders do not.
"""

import functools
import io
import math
from collections.abc import Callable

import numpy as np
from PIL import Image

from vit.data.decoding.bit_depth import FULL
from vit.data.decoding.decode import load_image
from vit.data.errors import DataError
from vit.messages import check_choice, first_line

DECODERS = ("auto", "pillow", "simplejpeg", "torchcodec")
EXTRAS = {"simplejpeg": "jpeg", "torchcodec": "torchcodec"}
Size = tuple[int, int]  # (width, height)
Decoder = Callable[[bytes, bool, Size | None], np.ndarray]


def decode(raw: bytes, header: Image.Image, min_size: Size | None = None, decoder: str = "auto") -> np.ndarray | None:
    """(H,W) or (H,W,3) uint8 pixels of a plain JPEG; None if it must be decoded by Pillow.

    A plain JPEG has one grey or three colour components and a header that Pillow can read, and the decoder accepts it
    without a warning. With `min_size` the image may be scaled by 1/2, 1/4 or 1/8 while it is decoded, as by Pillow's
    `draft`.

    Raises:
        DataError: the decoder is not installed, or its pixels differ from Pillow's.
    """
    chosen = select(decoder)
    if chosen is None or header.format != "JPEG" or header.mode not in ("RGB", "L"):
        return None
    shrink = 1 if min_size is None else draft_factor(header.size, min_size)
    size = None if shrink == 1 else tuple(math.ceil(side / shrink) for side in header.size)
    try:
        return chosen(raw, header.mode == "L", size)
    except Exception:  # a damaged or unusual file, which Pillow decodes or rejects
        return None


def draft_factor(size: Size, min_size: Size) -> int:
    """The largest of 8, 4, 2, 1 by which Pillow's `draft` shrinks an image that must keep `min_size`."""
    scale = min(side // least for side, least in zip(size, min_size, strict=True))
    return next((factor for factor in (8, 4, 2) if scale >= factor), 1)


@functools.cache
def select(decoder: str) -> Decoder | None:
    """The function of a decoder, None for Pillow; `auto` is simplejpeg if it is installed and equals Pillow.

    Raises:
        ValueError: an unknown name.
        DataError: the decoder is not installed, or its pixels differ from Pillow's.
    """
    check_choice("decoder", decoder, DECODERS)
    if decoder == "pillow":
        return None
    name = "simplejpeg" if decoder == "auto" else decoder
    try:
        function = {"simplejpeg": _simplejpeg, "torchcodec": _torchcodec}[name]()
    except (ImportError, OSError, RuntimeError) as error:  # torchcodec: RuntimeError if libraries are missing
        if decoder == "auto":
            return None
        raise DataError(f"data.decoder={name}: {name} cannot be imported ({first_line(error)}); install it "
                        f"with pip install 'vitwright[{EXTRAS[name]}]', or set data.decoder=auto") from None
    if equals_pillow(function):
        return function
    if decoder == "auto":
        return None
    raise DataError(f"data.decoder={name}: its pixels differ from those of Pillow {Image.__version__} on this machine, "
                    "which would change the inputs of a model; set data.decoder=pillow")


def equals_pillow(decoder: Decoder) -> bool:
    """Whether a decoder returns the pixels of Pillow for small test images: with and without colour subsampling, grey,
    and scaled.
    """
    values = np.random.default_rng(0).integers(0, 256, (6, 5, 3), dtype=np.uint8)
    photo = Image.fromarray(values).resize((76, 90), Image.Resampling.BICUBIC)
    for image, subsampling in ((photo, 2), (photo, 0), (photo.convert("L"), 0)):
        buffer = io.BytesIO()
        image.save(buffer, "JPEG", quality=85, subsampling=subsampling)
        for size in (None, (38, 45)):
            expected = Image.open(io.BytesIO(buffer.getvalue()))
            if size:
                expected.draft(None, size)
            expected = np.asarray(load_image(expected, "test image", False, FULL))
            try:
                decoded = decoder(buffer.getvalue(), image.mode == "L", size)
            except NotImplementedError:  # this decoder cannot scale; Pillow decodes these images
                continue
            if decoded.shape != expected.shape or not np.array_equal(decoded, expected):
                return False
    return True


def _simplejpeg() -> Decoder:
    import simplejpeg

    def decode(raw: bytes, grey: bool, size: Size | None) -> np.ndarray:
        width, height = size or (0, 0)
        pixels = simplejpeg.decode_jpeg(raw, "GRAY" if grey else "RGB", min_height=height, min_width=width)
        return pixels[:, :, 0] if grey else pixels

    return decode


def _torchcodec() -> Decoder:
    import torch
    from torchcodec.decoders import decode_jpeg

    def decode(raw: bytes, grey: bool, size: Size | None) -> np.ndarray:
        if size is not None:
            raise NotImplementedError("torchcodec decodes at full size only")
        encoded = torch.frombuffer(bytearray(raw), dtype=torch.uint8)
        pixels = decode_jpeg(encoded, mode="GRAY" if grey else "RGB").numpy()
        return pixels[0] if grey else pixels.transpose(1, 2, 0)

    return decode
