"""Image classification with a saved model: images in, class names and probabilities out.

Preprocessing and forward pass are those of the evaluation during training.
"""

import logging
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from numbers import Integral

import torch
from torch import Tensor, nn

from vit.bundle import Bundle
from vit.data import BadImage, PackedPreprocessing, Preprocessing
from vit.data.image_sources.files import LeftOut
from vit.files.machine import allow_forks
from vit.inference.calibrated import UNSURE, Calibrator, image_contents
from vit.inference.fast import IMAGES, FastMode, Mode, Networks, Passes, choose_mode
from vit.inference.image_inputs import File, Images, Pixels, check_batch_size, decode_ahead, named_images
from vit.inference.tta import averaged, check_tta
from vit.low_precision import DTYPES, warn_if_slow
from vit.messages import ArgumentError, check_choice, first_line, override_for_shell

log = logging.getLogger("vit")


@dataclass(frozen=True)
class Prediction:
    """The classes predicted for one input and their probabilities, most probable first.

    Args:
        calibrated: whether the probabilities are calibrated on validation samples.
        set: the labels of the prediction set, if one was requested.
        unknown: a score that is higher for inputs less like those of training; None if the model is not calibrated.
        p_value: the share of validation samples that are at least as strange, (1 + k) / (1 + n).
        unsure: why the model abstains; empty where it does not.
    """

    source: str
    names: tuple[str, ...]
    probabilities: tuple[float, ...]
    calibrated: bool = False
    set: tuple[str, ...] | None = None
    unknown: float | None = None
    p_value: float | None = None
    unsure: str = ""

    @property
    def label(self) -> str:
        """The most probable class, or "unsure" where the model abstains."""
        return UNSURE if self.unsure else self.names[0]

    @property
    def probability(self) -> float:
        return self.probabilities[0]


class Predictions(list[Prediction]):
    """Predictions in the order of the images.

    Attributes:
        unreadable: images that could not be read (`on_error="skip"`).
        left_out: (name, reason) of each file in the folders that is not an image.
    """

    def __init__(self) -> None:
        super().__init__()
        self.unreadable: list[BadImage] = []
        self.left_out: list[LeftOut] = []


class Predictor:
    """A classifier with its class names and preprocessing: `predictor.predict("photos")`."""

    prediction_type = Prediction

    def __init__(
        self,
        bundle: Bundle,
        device: str | torch.device | None = None,
        precision: str = "32-true",
        fast: bool = False,
        prepack: bool = False,
    ) -> None:
        """
        Args:
            fast: measure several modes of computation on the first batch of 64 images and use the fastest one with the
                same predictions, see `vit.inference.fast`. `fast_mode` is then the choice with its measurements, and
                None before.
            prepack: cast and pack the weights once for all calls; otherwise once in each call with many images.

        Raises:
            ValueError: the device cannot be used, `precision` is unknown, or `fast` is set with another precision than
                the default or for images that keep their aspect ratio.
        """
        check_precision(precision)
        if fast and precision != "32-true":
            raise ArgumentError(f"fast=True chooses the precision by measurement; leave out precision={precision}")
        if fast and isinstance(bundle.preprocessing, PackedPreprocessing):
            raise ArgumentError(f"fast=True measures batches of images of one size, but those of {bundle.path} keep "
                                "their aspect ratio (data.pack=true); leave it out")
        self.fast: bool = fast
        self.fast_mode: FastMode | None = None
        self._passes = Passes() if fast else None  # the choice switches the layers of the model
        self.bundle = bundle
        self.device = best_device(device)
        self.model = bundle.model.eval().to(self.device)
        self._networks = Networks(self.model, at_once=True) if prepack else None
        self.classes, self.precision = bundle.classes, precision
        self._preprocessing = bundle.preprocessing

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.bundle.path}, {len(self.classes)} classes, {self.device})"

    @property
    def preprocessing(self) -> Preprocessing:
        """The preprocessing of the images, which may be replaced.

        Raises:
            ValueError: the model was saved without one.
        """
        if self._preprocessing is None:
            raise without_preprocessing(str(self.bundle.path))
        return self._preprocessing

    @preprocessing.setter
    def preprocessing(self, preprocessing: Preprocessing) -> None:
        self._preprocessing = preprocessing

    def predict(
        self, images: Images, top_k: int | None = None, batch_size: int = 64, on_error: str = "raise", *,
        set: float | None = None, abstain: float | None = None, tta: int = 1,
    ) -> Predictions:
        """Classify images: paths, folders and .zip archives (recursively), PIL images, arrays (H,W[,C]),
        tensors (C,H,W), encoded bytes, open files, or any iterable of those.

        Args:
            top_k: classes per image, at most the number of classes; by default the best one. A multi-label model
                returns by default all labels whose probability reaches their threshold.
            on_error: "raise" stops at the first image that cannot be read, "skip" collects them in `.unreadable`.
            set: such as 0.9: `prediction.set` are the labels that contain the true one with this probability.
            abstain: such as 0.05: the label is "unsure" where the model cannot guarantee this error rate.
            tta: test-time augmentation: 2 averages the logits over the image and its mirror image, for models trained
                with horizontal flips.

        Raises:
            BadImage: an image cannot be read; the message has its name and the reason.
            FileNotFoundError: a folder or archive has no image, or a path is a URL.
            TypeError: an item is not an image.
            ValueError: `top_k` or `batch_size` is below 1, `on_error` is unknown, `tta` is neither 1 nor 2, the
                model is not calibrated for `set` or `abstain`, or it has no classes.
        """
        check_choice("on_error", on_error, ("raise", "skip"))
        predictions = Predictions()
        requests = {"set": set, "abstain": abstain, "tta": tta}
        for prediction in self.stream(images, top_k, batch_size, predictions.left_out, **requests):
            if not isinstance(prediction, BadImage):
                predictions.append(prediction)
            elif on_error == "raise":
                raise prediction
            else:
                predictions.unreadable.append(prediction)
        return predictions

    def stream(
        self, images: Images, top_k: int | None = None, batch_size: int = 64, left_out: list[LeftOut] | None = None, *,
        set: float | None = None, abstain: float | None = None, tta: int = 1,
    ) -> Iterator[Prediction | BadImage]:
        """One item per image, in order, as soon as its batch is done: a Prediction, or the BadImage that names the
        reason why there is none.

        `left_out` is extended by (name, reason) of each file in the folders that is not an image.

        Raises:
            FileNotFoundError: a folder or archive has no image, or a path is a URL.
            TypeError: an item is not an image.
            ValueError: as `predict`.
        """
        check_has_classes(self.bundle)
        if top_k is not None:
            top_k = clamp_top_k(top_k, len(self.classes))
        check_batch_size(batch_size)
        if tta != 1:
            check_tta(tta)
        calibrator = Calibrator(self.bundle, set, abstain)
        size = max(batch_size, IMAGES) if self.fast and self.fast_mode is None else batch_size
        networks = self._networks or Networks(self.model)
        for batch in decode_ahead(named_images(images, left_out), self._decode, size):
            pixels = [image for _, image in batch if isinstance(image, Tensor)]
            items = iter(())
            if pixels:
                items = self._classify(self.preprocessing.batch(pixels), networks, top_k, calibrator, tta)
            for name, image in batch:
                yield self.prediction_type(name, *next(items)) if isinstance(image, Tensor) else image

    def _classify(
        self, images: Tensor, networks: Networks, top_k: int | None, calibrator: Calibrator, tta: int
    ) -> Iterator[tuple]:
        """uint8 (B,C,H,W) -> B times the fields of a prediction after its name"""
        if self.fast and self.fast_mode is None and len(images) >= IMAGES:
            self._choose_mode(images, calibrator)
        with nullcontext() if self._passes is None else self._passes.one():
            mode = Mode(self.precision) if self.fast_mode is None else self.fast_mode.mode
            model = networks.for_batch(mode, len(images))
            with calibrator.captured(model) as captured:
                logits = self._logits(model, images, mode, tta)
        outputs = calibrator.outputs(logits, captured, lambda: image_contents(images))
        for best, stated in zip(self._best(logits, top_k, calibrator), outputs, strict=True):
            yield *best, *stated

    def _decode(self, item: tuple[str, File | Pixels]) -> tuple[str, Tensor | BadImage]:
        name, image = item
        try:
            return name, self.preprocessing.image(image, name)
        except BadImage as error:
            return name, error

    def _choose_mode(self, images: Tensor, calibrator: Calibrator) -> None:
        """Choose how images are computed with `fast`, by uint8 images (B,C,H,W), unless another thread has done so."""
        def names(logits: Tensor) -> list[tuple[str, ...]]:
            return [labels for labels, _ in self._best(logits, None, calibrator)]

        with self._passes.none():
            if self.fast_mode is None:
                self.fast_mode = choose_mode(self.model, partial(self._logits, self.model), names, images[:IMAGES])
                log.info("%s", self.fast_mode)

    def _logits(self, model: nn.Module, images: Tensor, mode: Mode, tta: int = 1) -> Tensor:
        """uint8 (B,C,H,W) -> float32 (B,classes) of the model or its copy"""
        model = model if tta == 1 else averaged(model, tta)
        if mode.channels_last:
            images = images.contiguous(memory_format=torch.channels_last)
        return forward(model, self.preprocessing, images, mode.precision)

    def _best(
        self, logits: Tensor, top_k: int | None, calibrator: Calibrator
    ) -> Iterator[tuple[tuple[str, ...], tuple[float, ...]]]:
        """logits (B,classes) -> B times (names, probabilities)"""
        probabilities, indices = calibrator.probabilities(logits).topk(top_k or 1)
        for row, best in zip(probabilities.tolist(), indices.tolist(), strict=True):
            yield tuple(self.classes[i] for i in best), tuple(row)


def without_preprocessing(model: str) -> ValueError:
    """The error of a model that was saved without the preprocessing of its images."""
    return ValueError(f"{model} was saved without the preprocessing of its images; save it with save_bundle(..., "
                      "preprocessing=vit.data.Preprocessing(...))")


def check_has_classes(bundle: Bundle) -> None:
    """Check that a classifier has classes; a model that was saved without its head has none.

    Raises:
        ValueError: it has none.
    """
    if not bundle.classes:
        path = bundle.path
        raise ValueError(f"{path} has no head, so it predicts no classes; {override_for_shell('init_from', path)} "
                         "trains one, and vit probe evaluates and saves its features")


@torch.inference_mode()
def forward(model: nn.Module, preprocessing: Preprocessing, images: Tensor, precision: str) -> Tensor:
    """uint8 (B,C,H,W) -> float32 logits (B,classes) on the model's device; shared by `predict` and `evaluate`.

    Raises:
        ValueError: an unknown `precision`.
    """
    device = next(model.parameters()).device
    with autocast(device, precision):
        return model(preprocessing.normalize(images.to(device))).float()


def accept_size(model: nn.Module, preprocessing: Preprocessing, pixels: Tensor) -> None:
    """Let a model compute an image (C,H,W) that keeps its aspect ratio as an ordinary batch of one, with the result of
    a packed batch; nothing to do for images of one size.
    """
    if isinstance(preprocessing, PackedPreprocessing):
        model.add_image_sizes([tuple(pixels.shape[1:])])


def autocast(device: torch.device, precision: str) -> AbstractContextManager:
    """The autocast context of a Lightning precision name, for a forward pass in this process; its later forks can
    compute too. A warning names a precision that the processor emulates.

    Raises:
        ValueError: an unknown `precision`.
    """
    allow_forks()
    if precision == "32-true":
        return nullcontext()
    check_precision(precision)
    warn_if_slow(precision, device.type)
    return torch.autocast(device.type, DTYPES[precision])


def check_precision(precision: str) -> None:
    """Check the name of a precision.

    Raises:
        ValueError: it is unknown.
    """
    if precision != "32-true" and precision not in DTYPES:
        raise ArgumentError(f"precision={precision!r} is not one of 32-true, {', '.join(DTYPES)}")


def best_device(device: str | torch.device | None = None) -> torch.device:
    """The given device; by default the GPU if there is one, else the CPU.

    Raises:
        ValueError: torch has no such device, or this machine does not.
    """
    if device is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:  # the latter where torch is built without this kind of device
        if str(device).partition(":")[0] in ("gpu", "nvidia"):
            raise ValueError(f"device={device} is no device of torch; use cuda for a GPU, cuda:1 for the second one, "
                             "or cpu") from None
        reason = first_line(error).partition(". ")[0]  # not torch's advice
        raise ValueError(f"device={device} cannot be used: {reason}; use cpu, or leave it out") from None
    return torch.device(device)


def clamp_top_k(top_k: int, classes: int) -> int:
    """`top_k`, at most the number of classes.

    Raises:
        ValueError: `top_k` is not a whole number of at least 1.
    """
    if not isinstance(top_k, Integral) or isinstance(top_k, bool) or top_k < 1:
        raise ArgumentError(f"top_k={top_k} must be a whole number of at least 1")
    return min(top_k, classes)
