"""Answers from a saved model: images in, names and probabilities out, through the evaluation path of training."""

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from itertools import islice
from os import PathLike
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from vit.bundle import Bundle
from vit.data import BadImage, Preprocessing
from vit.data.formats.zip_archives import ArchivedFile, is_archive, open_archive
from vit.data.images.decode import EXTENSIONS
from vit.data.images.files import LeftOut, image_files, summary

Pixels = bytes | Image.Image | np.ndarray | Tensor
File = Path | ArchivedFile
Images = str | PathLike[str] | Pixels | Iterable["Images"]
AHEAD = 2  # batches that are decoded while one is computed
T = TypeVar("T")


@dataclass(frozen=True)
class Prediction:
    """The best answers for one image, most probable first."""

    source: str
    names: tuple[str, ...]
    probabilities: tuple[float, ...]

    @property
    def label(self) -> str:
        return self.names[0]

    @property
    def probability(self) -> float:
        return self.probabilities[0]


class Predictions(list[Prediction]):
    """Predictions in the order of the images.

    Attributes:
        unreadable: images that could not be read (`on_error="skip"`).
        left_out: (name, reason) of everything in the folders that is no image.
    """

    def __init__(self) -> None:
        super().__init__()
        self.unreadable: list[BadImage] = []
        self.left_out: list[LeftOut] = []


class Predictor:
    """A model with its class names and its preprocessing: `predictor.predict("photos")`."""

    answer = Prediction

    def __init__(self, bundle: Bundle, device: str | torch.device | None = None, precision: str = "32-true") -> None:
        self.bundle = bundle
        self.device = best_device(device)
        self.model = bundle.model.eval().to(self.device)
        self.classes, self.preprocessing, self.precision = bundle.classes, bundle.preprocessing, precision

    def predict(
        self, images: Images, top_k: int | None = None, batch_size: int = 64, on_error: str = "raise"
    ) -> Predictions:
        """Name images: paths, folders and .zip archives (with all folders inside), PIL images, arrays (H,W[,C]),
        tensors (C,H,W), encoded bytes, or any iterable of those.

        Args:
            top_k: names per image, at most as many as there are classes; by default the best one, or where an image may
                have several labels all whose threshold is reached.
            on_error: "raise" stops at the first image that cannot be read, "skip" collects them in `.unreadable`.

        Raises:
            BadImage: an image cannot be read; the text names it and the reason.
        """
        if on_error not in ("raise", "skip"):
            raise ValueError(f"on_error={on_error!r} is not one of raise, skip")
        answers = Predictions()
        for answer in self.stream(images, top_k, batch_size, answers.left_out):
            if not isinstance(answer, BadImage):
                answers.append(answer)
            elif on_error == "raise":
                raise answer
            else:
                answers.unreadable.append(answer)
        return answers

    def stream(
        self, images: Images, top_k: int | None = None, batch_size: int = 64, left_out: list[LeftOut] | None = None
    ) -> Iterator[Prediction | BadImage]:
        """One answer per image, in order, as soon as its batch is done: a Prediction, or why there is none.

        `left_out` gains the (name, reason) of everything in the folders that is no image.
        """
        top_k = checked_top_k(top_k, len(self.classes))
        for batch in decode_ahead(named_images(images, left_out), self._decode, batch_size):
            good = [pixels for _, pixels in batch if isinstance(pixels, Tensor)]
            answers = iter(self._answer(self._logits(good), top_k)) if good else iter(())
            for name, pixels in batch:
                yield self.answer(name, *next(answers)) if isinstance(pixels, Tensor) else pixels

    def _decode(self, item: tuple[str, File | Pixels]) -> tuple[str, Tensor | BadImage]:
        name, image = item
        try:
            return name, self.preprocessing.image(image, name)
        except BadImage as error:
            return name, error

    def _logits(self, images: list[Tensor]) -> Tensor:
        """B images (C,H,W) -> (B,classes)"""
        return forward(self.model, self.preprocessing, torch.stack(images), self.precision)

    def _answer(self, logits: Tensor, top_k: int | None) -> Iterator[tuple[tuple[str, ...], tuple[float, ...]]]:
        probabilities, indices = logits.softmax(-1).topk(top_k or 1)
        for row, places in zip(probabilities.tolist(), indices.tolist(), strict=True):
            yield tuple(self.classes[i] for i in places), tuple(row)


@torch.inference_mode()
def forward(model: nn.Module, preprocessing: Preprocessing, images: Tensor, precision: str) -> Tensor:
    """uint8 (B,C,H,W) -> float32 logits (B,classes), on the model's device: what predict and evaluate share."""
    device = next(model.parameters()).device
    with autocast(device, precision):
        return model(preprocessing.normalize(images.to(device))).float()


def autocast(device: torch.device, precision: str) -> AbstractContextManager:
    """The arithmetic that a Lightning precision name stands for."""
    types = {"32-true": None, "bf16-mixed": torch.bfloat16, "16-mixed": torch.float16}
    if precision not in types:
        raise ValueError(f"precision={precision!r} is not one of {', '.join(types)}")
    dtype = types[precision]
    return torch.autocast(device.type, dtype) if dtype else nullcontext()


def best_device(device: str | torch.device | None = None) -> torch.device:
    """The device asked for; else the GPU where there is one."""
    if device is not None:
        return torch.device(device)
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def checked_top_k(top_k: int | None, classes: int) -> int | None:
    """At most the number of classes, so that a request for the 5 best names is answered by both of 2 classes."""
    if top_k is not None and top_k < 1:
        raise ValueError(f"top_k={top_k} must be at least 1")
    return None if top_k is None else min(top_k, classes)


def named_images(images: Images, left_out: list[LeftOut] | None = None) -> Iterator[tuple[str, File | Pixels]]:
    """(name, image) for everything an argument stands for, folders and archives opened and batches taken apart, read
    lazily.

    `left_out` gains the (name, reason) of everything in the folders that is no image.
    """
    for count, image in enumerate(_flat(images, [] if left_out is None else left_out)):
        name = str(image) if isinstance(image, File) else getattr(image, "filename", "") or f"image {count}"
        yield name, image


def check_batch_size(batch_size: int) -> None:
    if batch_size < 1:
        raise ValueError(f"batch_size={batch_size} must be at least 1")


def decode_ahead(items: Iterable[T], decode: Callable, batch_size: int) -> Iterator[list]:
    """Lists of `decode(item)` in order, the next batches decoded by threads while the caller computes."""
    check_batch_size(batch_size)
    items, waiting = iter(items), deque[list[Future]]()
    pool = ThreadPoolExecutor(min(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 4, 8))
    try:
        while batch := [pool.submit(decode, item) for item in islice(items, batch_size)]:
            waiting.append(batch)
            if len(waiting) > AHEAD:
                yield [future.result() for future in waiting.popleft()]
        while waiting:
            yield [future.result() for future in waiting.popleft()]
    finally:
        pool.shutdown(cancel_futures=True)


def _flat(images: Images, left_out: list[LeftOut]) -> Iterator[File | Pixels]:
    if isinstance(images, str | PathLike):
        path = Path(images).expanduser()
        yield from _inside(path, left_out) if path.is_dir() or is_archive(path) else (path,)
    elif isinstance(images, np.ndarray | Tensor):
        yield from images if images.ndim == 4 else (images,)
    elif isinstance(images, bytes | Image.Image | ArchivedFile):
        yield images
    elif isinstance(images, Iterable) and not isinstance(images, dict):
        for image in images:
            yield from _flat(image, left_out)
    else:
        raise TypeError(f"{type(images).__name__} is no image; give paths, PIL images, arrays, tensors or bytes")


def _inside(folder: Path, left_out: list[LeftOut]) -> Iterator[File]:
    """The image files of a folder or a zip archive and all folders inside it, in the order of their names."""
    archive = open_archive(folder) if is_archive(folder) else None
    files = image_files(folder if archive is None else archive)
    if not files.images:
        listed = f"; left out: {summary(files.left_out)}" if files.left_out else ""
        raise FileNotFoundError(f"{folder} holds no image (endings {' '.join(sorted(EXTENSIONS))}){listed}")
    top = folder if archive is None else folder / archive.at
    left_out += [(str(top / name), reason) for name, reason in files.left_out]
    if archive is None:
        yield from (folder / name for name in files.images)
    else:
        yield from (ArchivedFile(str(folder), archive.at + name) for name in files.images)
