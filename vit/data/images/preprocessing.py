"""The preprocessing of images for a model, identical in training and inference.

The mean and std of ImageNet and CLIP are in `vit.exchange.preprocessing`.
"""

import math
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from dataclasses import dataclass
from numbers import Real
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from vit.data.augment.image_ops import at_once
from vit.data.decoding import jpeg_decoders
from vit.data.decoding.bit_depth import FULL, Range, check_range, is_high_bit_depth, stored_values
from vit.data.decoding.decode import (
    MAX_PIXELS_LIMIT,
    BadImage,
    array_to_image,
    load_image,
    open_image,
    orientation,
    to_eight_bits,
    upright_size,
)
from vit.data.formats.zip_archives import ArchivedFile
from vit.data.images.preprocessing_values import StoredPreprocessing, as_numbers, as_size
from vit.data.system_limits import check_files_left
from vit.files.untrusted import read_bytes
from vit.messages import check_choice, number_of

RESIZES = ("shorter", "squash", "pad", "none")
TORCHVISION, TIMM, TRANSFORMERS = ROUNDINGS = ("torchvision", "timm", "transformers")
INTERPOLATIONS = {
    "nearest": Image.Resampling.NEAREST,
    "box": Image.Resampling.BOX,
    "bilinear": Image.Resampling.BILINEAR,
    "bicubic": Image.Resampling.BICUBIC,
    "lanczos": Image.Resampling.LANCZOS,
}
MinScale = Callable[[int, int], float]  # upright (width, height) → the smallest scale with all required pixels
ImageLike = bytes | str | Path | ArchivedFile | Image.Image | np.ndarray | Tensor


@dataclass(frozen=True)
class Preprocessing(StoredPreprocessing):
    """All parameters that determine the pixels of a model's input; a bundle stores exactly these values.

    Args:
        size: (height, width).
        resize: "shorter" resizes the shorter side to size/crop_pct and crops the centre, as timm and torchvision do;
            "squash" ignores the aspect ratio; "pad" fits the whole image and pads with `background`; "none" requires
            images of exactly `size`.
        mean, std: of pixels in [0, 1], one number per channel.
        background: colour under transparent pixels and of padding.
        draft: lets the JPEG decoder shrink images by 2, 4 or 8 while at least twice the required size is left. This is
            faster, but pixels differ slightly.
        range: for images of more than 8 bits per sample, "full" or the stored values (low, high) that are mapped to 0
            and 255, with clipping.
        rounding: the library whose rounding is used for the side that follows from the aspect ratio, and for the
            position of the crop. "timm" rounds this side to the nearest pixel for rectangles and padding, the others
            round it down; "transformers" rounds the position down.

    Raises:
        ValueError: a value is unknown or out of range.
    """

    rules: ClassVar[tuple[str, ...]] = RESIZES  # values of `resize`

    size: tuple[int, int]
    resize: str = "shorter"
    crop_pct: float = 1.0
    interpolation: str = "bicubic"
    mean: tuple[float, ...] = (0.5, 0.5, 0.5)
    std: tuple[float, ...] = (0.5, 0.5, 0.5)
    mode: str = "RGB"
    exif: bool = True
    background: tuple[int, int, int] = (255, 255, 255)
    max_pixels: int = 100_000_000
    draft: bool = False
    range: Range = FULL
    rounding: str = TORCHVISION

    def __post_init__(self) -> None:
        object.__setattr__(self, "size", as_size(self.size))
        for name, number in (("mean", float), ("std", float), ("background", int)):
            object.__setattr__(self, name, as_numbers(name, getattr(self, name), number))
        if self.range != FULL:
            object.__setattr__(self, "range", check_range(self.range))
        self._check()

    def _check(self) -> None:
        """Raises ValueError for a value that is out of range or does not fit the others."""
        if len(self.size) != 2 or min(self.size) < 1:
            raise ValueError(f"size {self.size} must be (height, width), both at least 1")
        for name, value, allowed in (
            ("resize", self.resize, self.rules),
            ("interpolation", self.interpolation, tuple(INTERPOLATIONS)),
            ("mode", self.mode, ("RGB", "L")),
            ("rounding", self.rounding, ROUNDINGS),
        ):
            check_choice(name, value, allowed)
        for name in ("exif", "draft"):
            if (value := getattr(self, name)) not in (True, False, None):
                raise ValueError(f"{name}={value!r} must be true or false")
        if not (isinstance(self.crop_pct, Real) and 0 < self.crop_pct <= 1):
            raise ValueError(f"crop_pct={self.crop_pct} must be above 0 and at most 1")
        if self.crop_pct != 1 and self.resize in ("pad", "none"):
            raise ValueError(f"crop_pct={self.crop_pct} has no effect with resize={self.resize!r}; set it to 1")
        if not len(self.mean) == len(self.std) == self.channels:
            raise ValueError(
                f"mode {self.mode} has {number_of(self.channels, 'channel')}, but mean has {len(self.mean)} "
                f"and std {number_of(len(self.std), 'value')}"
            )
        if not all(map(math.isfinite, self.mean)):
            raise ValueError(f"mean={list(self.mean)} must be a finite number in every channel")
        if not all(0 < value < math.inf for value in self.std):
            raise ValueError(f"std={list(self.std)} must be above 0 and finite in every channel")
        if len(self.background) != 3 or not all(0 <= v <= 255 for v in self.background):
            raise ValueError(f"background={list(self.background)} must be three numbers in 0..255")
        if not (isinstance(self.max_pixels, Real) and 1 <= self.max_pixels <= MAX_PIXELS_LIMIT):
            raise ValueError(f"max_pixels={self.max_pixels} must be in 1..{MAX_PIXELS_LIMIT}")

    def to_dict(self) -> dict[str, Any]:
        """The values as a bundle stores them; `rounding` only if it is not torchvision's, as in earlier versions."""
        values = super().to_dict()
        if self.rounding == TORCHVISION:
            del values["rounding"]
        return values

    @property
    def channels(self) -> int:
        return 3 if self.mode == "RGB" else 1

    def image(self, raw: ImageLike, name: str = "") -> Tensor:
        """The preprocessing of evaluation: any image → uint8 (C,H,W).

        Raises:
            BadImage: the image cannot be decoded, or with resize=none has another size.
        """
        return to_tensor(self.fit(self.decode(raw, name, self._min_scale), name))

    def check(self, raw: ImageLike, name: str = "") -> None:
        """Decode an image and drop it: what `image` does but for resizing, which takes longer than decoding.

        Raises:
            BadImage: as `image`.
        """
        image = self.decode(raw, name, self._min_scale)
        if self.resize == "none":
            self.fit(image, name)

    def decode(self, raw: ImageLike, name: str = "", min_scale: MinScale | None = None) -> Image.Image:
        """Any image → an upright 8-bit Pillow image of `mode`; `min_scale` returns the smallest scale for a draft
        decode.

        Raises:
            BadImage: as `image`.
        """
        if isinstance(raw, Tensor):
            if raw.ndim != 2 and (raw.ndim != 3 or raw.shape[0] not in (1, 3, 4)):
                raise BadImage(name, f"tensor of shape {tuple(raw.shape)} is not an image; expected (H,W), (1,H,W), "
                                     "(3,H,W) or (4,H,W)")
            raw = raw.detach().cpu()
            raw = raw.float() if raw.dtype == torch.bfloat16 else raw  # NumPy has no bfloat16
            raw = (raw.permute(1, 2, 0) if raw.ndim == 3 else raw).numpy()
        if isinstance(raw, np.ndarray):
            return to_eight_bits(array_to_image(raw, name, self.range), self.mode, self.background, name)
        if isinstance(raw, str | Path | ArchivedFile):
            name = name or str(raw)
            raw = _file_bytes(raw, name)
        image = open_image(raw, name, self.max_pixels)
        if not isinstance(raw, Image.Image) and (least := self._draft_size(image, min_scale)):
            image.draft(None, least)
        image = load_image(image, name, self.exif, self.range)
        return to_eight_bits(image, self.mode, self.background, name, self.range)

    def pixels(
        self, raw: ImageLike, name: str = "", min_scale: MinScale | None = None, decoder: str = "auto"
    ) -> np.ndarray:
        """The pixels of `decode` as (H,W) or (H,W,3) uint8; plain JPEGs are decoded by `decoder` of
        `vit.data.decoding.jpeg_decoders`.

        Raises:
            BadImage: the image cannot be decoded.
            DataError: the decoder is not installed, or its pixels differ from Pillow's.
        """
        if isinstance(raw, bytes):
            header = open_image(raw, name, self.max_pixels)
            if not self.exif or orientation(header) == 1:
                pixels = jpeg_decoders.decode(raw, header, self._draft_size(header, min_scale), decoder)
                if pixels is not None and header.mode == self.mode:
                    return pixels
                if pixels is not None:
                    return np.array(Image.fromarray(pixels).convert(self.mode))
        return np.array(self.decode(raw, name, min_scale))

    def high_bit_depth_values(self, raw: ImageLike, name: str = "") -> np.ndarray | None:
        """The stored values of an image of more than 8 bits per sample, to which `range` applies; otherwise None.

        Raises:
            BadImage: the image cannot be decoded.
        """
        if isinstance(raw, np.ndarray):
            return None if raw.dtype in (np.uint8, bool) else raw
        image = open_image(raw, name, self.max_pixels)
        try:
            with nullcontext() if isinstance(raw, Image.Image) else image:  # closes its file
                return stored_values(image) if is_high_bit_depth(image) else None
        except Exception as error:  # as in load_image
            raise BadImage(name, f"cannot be decoded ({type(error).__name__}: {error})") from error

    def fit(self, image: Image.Image, name: str = "") -> Image.Image:
        """A decoded image, resized and cropped or padded to `size`.

        Raises:
            BadImage: the image has another size, with resize=none.
        """
        height, width = self.size
        if self.resize == "none":
            if image.size != (width, height):
                raise BadImage(
                    name, f"is {image.width}x{image.height}, but resize=none requires {width}x{height} pixels"
                )
            return image
        target = self._target(image.width, image.height)
        if image.size != target:
            image = image.resize(target, INTERPOLATIONS[self.interpolation])
        if self.resize == "pad":
            return _centred(image, (width, height), self.background)
        if image.size == (width, height):
            return image
        left, top = ((image.width - width) / 2.0, (image.height - height) / 2.0)
        left, top = (math.floor(each) if self.rounding == TRANSFORMERS else round(each) for each in (left, top))
        return image.crop((left, top, left + width, top + height))

    def preview(self, raw: ImageLike, name: str = "", side: int = 480) -> np.ndarray:
        """The region of the model's input for display: (H,W,C) at the image's resolution up to `side` pixels, but at
        least that of the input.
        """
        image = self.decode(raw, name)
        target = self._target(image.width, image.height)
        finer = min(image.width / target[0], image.height / target[1], side / max(self.size))
        if self.resize == "none" or finer <= 1:
            return np.atleast_3d(np.asarray(self.fit(image, name)))
        size = tuple(round(edge * finer) for edge in self.size)
        return np.atleast_3d(np.asarray(self.replace(size=size).fit(image, name)))

    def leaves_unchanged(self, height: int, width: int) -> bool:
        """Whether the pixels of images of this size stay unchanged."""
        if (height, width) != self.size:
            return False
        return self.resize in ("none", "pad") or self._target(width, height) == (width, height)

    def batch(self, images: Iterable[Tensor], most: int | None = None) -> Tensor:
        """uint8 (C,H,W) each → (B,C,H,W), also of no image; an iterator has `most` images or fewer.

        An image is copied before the next one is requested, while it is in the processor's cache.
        """
        rows = len(images) if most is None else most
        batch = torch.empty((rows, self.channels, *self.size), dtype=torch.uint8, device="cpu")
        count = 0
        for row, image in zip(batch.numpy(), images, strict=False):
            row[...] = image.numpy()  # NumPy separates interleaved channels faster than torch
            count += 1
        return batch[:count]

    def normalize(self, images: Tensor) -> Tensor:
        """uint8 (B,C,H,W) → float32 (B,C,H,W) with zero mean and unit standard deviation, on the same device."""
        constants = torch.tensor([self.mean, self.std], dtype=torch.float32, device="cpu")[:, :, None, None]
        mean, std = constants.to(images.device, non_blocking=True)  # (C,1,1); the host does not wait for a GPU
        result = torch.empty_like(images, dtype=torch.float32)
        whole = torch.compiler.is_compiling()  # a program for batches of any size
        parts = [(images, result)] if whole else zip(*(x.split(at_once(images)) for x in (images, result)), strict=True)
        for part, normalized in parts:
            normalized.copy_(part).div_(255).sub_(mean).div_(std)
        return result

    def _target(self, width: int, height: int) -> tuple[int, int]:
        """(width, height) after resizing, before cropping or padding."""
        rows, columns = (math.floor(s / self.crop_pct) for s in self.size)
        if self.resize == "squash":
            return columns, rows
        if self.rounding == TIMM and (self.resize == "pad" or rows != columns):  # operations in timm's order
            ratio = (min if self.resize == "shorter" else max)(height / rows, width / columns)
            return max(1, round(width / ratio)), max(1, round(height / ratio))
        # the height of a wide image determines the scale if it is cropped, its width if it is padded
        wide = rows * width >= columns * height
        if wide == (self.resize == "shorter"):
            return max(1, rows * width // height), rows
        return columns, max(1, columns * height // width)

    def _draft_size(self, image: Image.Image, min_scale: MinScale | None) -> tuple[int, int] | None:
        """The smallest (width, height) to which a JPEG may shrink while it is decoded; None for its full size."""
        if not self.draft or min_scale is None or image.format != "JPEG":
            return None
        ratio = 2 * min_scale(*upright_size(image, self.exif))
        return math.ceil(image.width * ratio), math.ceil(image.height * ratio)

    def _min_scale(self, width: int, height: int) -> float:
        target = self._target(width, height)
        return max(target[0] / width, target[1] / height)


def to_tensor(image: Image.Image) -> Tensor:
    """8-bit Pillow image → uint8 (C,H,W), contiguous."""
    pixels = np.array(image)
    return torch.from_numpy(pixels[None] if pixels.ndim == 2 else np.ascontiguousarray(pixels.transpose(2, 0, 1)))


def _file_bytes(file: str | Path | ArchivedFile, name: str) -> bytes:
    try:
        return file.read_bytes() if isinstance(file, ArchivedFile) else read_bytes(Path(file))
    except OSError as error:
        check_files_left(error)
        raise BadImage(name, f"cannot be read ({error.strerror or error})") from error


def _centred(image: Image.Image, size: tuple[int, int], background: tuple[int, int, int]) -> Image.Image:
    fill = Image.new("RGB", (1, 1), background).convert(image.mode).getpixel((0, 0))
    canvas = Image.new(image.mode, size, fill)
    canvas.paste(image, ((size[0] - image.width) // 2, (size[1] - image.height) // 2))
    return canvas
