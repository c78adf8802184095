"""Chooses by measurement the fastest precision and memory layout of a model with the predictions of float32; and the
model that computes the images of a predictor: itself, or its copy for inference.
"""

import statistics
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from vit.inference.int8 import Int8Layers, has_int8, quantizable, quantize_layers
from vit.low_precision import DTYPES, is_slow
from vit.messages import number_of
from vit.models.inference_copy import inference_copy

IMAGES = 64  # number of input images for which the predictions must be equal
TIMED = 16  # images per timed batch
ROUNDS = 3
GAIN = 1.05  # the least speed relative to float32 for which a mode is chosen: smaller gains are noise
CONVOLUTIONS = 4  # fewest convolutions of a network that may gain from channels_last; a Vision Transformer has one
PACKING_PAYS = 16  # images; packing the weights takes about as long as computing ten, one by one


@dataclass(frozen=True)
class Mode:
    """How a model is computed: Lightning's name of a precision, whether images are stored with channels last, and
    whether the linear layers of the blocks are computed in 8-bit integers.
    """

    precision: str = "32-true"
    channels_last: bool = False
    int8: bool = False

    def __str__(self) -> str:
        return self.precision + (", channels_last" if self.channels_last else "") + (", int8" if self.int8 else "")


@dataclass(frozen=True)
class FastMode:
    """The chosen mode.

    Attributes:
        milliseconds: per image, of each mode that was measured.
        rejected: (mode, number of images) of faster modes that predict something else for so many images.
        images: number of images for which the chosen mode predicts the same as float32.
    """

    mode: Mode
    milliseconds: dict[Mode, float]
    rejected: tuple[tuple[Mode, int], ...]
    images: int

    @property
    def gain(self) -> float:
        """How many times as fast as float32 the mode is."""
        return self.milliseconds[Mode()] / self.milliseconds[self.mode]

    def __str__(self) -> str:
        """One line for the log."""
        took = ", ".join(f"{mode} {each:.1f} ms" for mode, each in self.milliseconds.items())
        chosen = f"{self.mode}, {self.gain:.2f} times as fast as 32-true" if self.mode != Mode() else "32-true"
        others = "".join(f"; {mode} predicts something else for {count}" for mode, count in self.rejected)
        return f"fast: {chosen}; the same predictions for {number_of(self.images, 'image')}{others} (per image: {took})"


def candidates(model: nn.Module, device: torch.device) -> list[Mode]:
    """The modes to measure, float32 first; none in a precision that the processor emulates, in which 16 images can take
    longer than all others in float32.
    """
    lower = ["bf16-mixed", *(["16-mixed"] if device.type == "cuda" else [])]
    precisions = ["32-true", *(precision for precision in lower if not is_slow(precision, device.type))]
    convolutional = sum(isinstance(module, nn.Conv2d) for module in model.modules()) >= CONVOLUTIONS
    layouts = (False, True) if convolutional else (False,)
    modes = [Mode(precision, last) for precision in precisions for last in layouts]
    if device.type == "cpu" and quantizable(model) and has_int8():
        modes += [Mode(precision, int8=True) for precision in precisions]
    return modes


def choose_mode(
    model: nn.Module, compute: Callable[[Tensor, Mode], Tensor], predicted: Callable[[Tensor], list], images: Tensor
) -> FastMode:
    """Measures all modes on images (B,C,H,W) uint8, in turns, and chooses the fastest one with the predictions of
    float32.

    Args:
        compute: (images, mode) → logits (B,classes).
        predicted: logits → the prediction for each image, which is compared.
    """
    device = next(model.parameters()).device
    modes = candidates(model, device)
    layers = None
    if any(mode.int8 for mode in modes):
        layers = quantize_layers(model, lambda: compute(images, Mode()))
    times: dict[Mode, list[float]] = {mode: [] for mode in modes}
    for number in range(ROUNDS + 1):
        for mode in modes if number % 2 else modes[::-1]:
            apply(model, mode, layers)
            seconds = timed(lambda mode=mode: compute(images[:TIMED], mode), device)
            if number:  # the first round is a warm-up
                times[mode].append(1000 * seconds / len(images[:TIMED]))
    seconds = {mode: statistics.median(each) for mode, each in times.items()}
    faster = sorted((mode for mode in modes if seconds[mode] * GAIN < seconds[Mode()]), key=seconds.get)
    apply(model, Mode(), layers)
    expected, rejected = predicted(compute(images, Mode())) if faster else [], []
    for mode in faster:
        apply(model, mode, layers)
        differing = sum(a != b for a, b in zip(predicted(compute(images, mode)), expected, strict=True))
        if not differing:
            return FastMode(mode, seconds, tuple(rejected), len(images))
        rejected.append((mode, differing))
    apply(model, Mode(), layers)
    return FastMode(Mode(), seconds, tuple(rejected), len(images))


def apply(model: nn.Module, mode: Mode, layers: Int8Layers | None) -> None:
    """Stores the weights of convolutions in the layout of the images, and switches between the quantized layers and the
    model's own. The values of the weights do not change.
    """
    model.to(memory_format=torch.channels_last if mode.channels_last else torch.contiguous_format)
    if layers is not None:
        layers.use(mode.int8)


def timed(program: Callable[[], object], device: torch.device) -> float:
    """The seconds that a call takes, until the device has finished its work."""
    start = time.perf_counter()
    program()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()
    return time.perf_counter() - start


class Passes:
    """The forward passes of several threads through a model, and changes of the model, during which none runs."""

    def __init__(self) -> None:
        self.condition, self.running, self.changing = threading.Condition(), 0, False

    def __reduce__(self) -> tuple[type, tuple]:
        """Pickles and copies of a predictor have no forward pass yet; locks cannot be copied."""
        return Passes, ()

    @contextmanager
    def one(self) -> Iterator[None]:
        """Context manager: a forward pass, which waits for the end of a change."""
        with self.condition:
            self.condition.wait_for(lambda: not self.changing)
            self.running += 1
        try:
            yield
        finally:
            with self.condition:
                self.running -= 1
                self.condition.notify_all()

    @contextmanager
    def none(self) -> Iterator[None]:
        """Context manager: a change, which waits for the end of all forward passes, and later ones wait for it."""
        with self.condition:
            self.condition.wait_for(lambda: not self.changing)
            self.changing = True
        try:
            with self.condition:
                self.condition.wait_for(lambda: not self.running)
            yield
        finally:
            with self.condition:
                self.changing = False
                self.condition.notify_all()


class Networks:
    """A model for the first images, and its copy for inference (`vit.models.inference_copy`) for all later ones.

    Args:
        at_once: the copy computes the first images too.
    """

    def __init__(self, model: nn.Module, at_once: bool = False) -> None:
        self.model, self.copies = model, {}
        self.images = PACKING_PAYS if at_once else 0

    def for_batch(self, mode: Mode, images: int) -> nn.Module:
        """What computes the next batch of so many images in a mode, to which the model has been switched."""
        self.images += images
        if self.images < PACKING_PAYS:
            return self.model
        if mode not in self.copies:
            self.copies[mode] = inference_copy(self.model, DTYPES.get(mode.precision))
        return self.copies[mode]
