"""Pictures as data URLs, for pages in one file."""

import base64
import io
from collections.abc import Callable
from os import PathLike
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from PIL import Image

SMALL = 64  # pixels; pictures up to this side are saved without loss
SIDE = 240  # pixels of a thumbnail


def png_url(image: np.ndarray | Image.Image) -> str:
    """uint8 (H,W,C) or a Pillow image -> the data URL of a PNG"""
    return _url(_pillow(image), "PNG")


def thumbnail_url(image: np.ndarray | Image.Image, side: int = SIDE) -> str:
    """The data URL of a picture of at most `side` pixels: a PNG if the original is small, otherwise a JPEG."""
    shown = _pillow(image)
    if max(shown.size) <= SMALL:
        return _url(shown, "PNG")
    shown = shown.convert("RGB")
    shown.thumbnail((side, side))
    return _url(shown, "JPEG", quality=80)


def figure_url(draw: Callable[..., Path | None], *arguments: Any, **options: Any) -> str | None:
    """The figure that `draw(path, *arguments, **options)` saves, as the data URL of a PNG; None if it draws nothing."""
    with TemporaryDirectory() as folder:
        path = draw(Path(folder) / "figure.png", *arguments, **options)
        return None if path is None else file_url(path)


def file_url(path: str | PathLike[str]) -> str:
    """The data URL of a figure in a file, as a PNG with a palette, which is a third as large."""
    with Image.open(path) as image:
        return _url(image.convert("RGB").quantize(256, dither=Image.Dither.NONE), "PNG", optimize=True)


def _pillow(image: np.ndarray | Image.Image) -> Image.Image:
    if isinstance(image, Image.Image):
        return image
    return Image.fromarray(image.squeeze(-1) if image.ndim == 3 and image.shape[-1] == 1 else image)


def _url(image: Image.Image, form: str, **options: Any) -> str:
    stream = io.BytesIO()
    image.save(stream, form, **options)
    return f"data:image/{form.lower()};base64," + base64.b64encode(stream.getvalue()).decode()
