"""Predictions of a calibrated classifier: probabilities, prediction sets, unknown scores and abstention; and what they
need besides the logits, the input of the head.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from threading import get_ident
from typing import NamedTuple

import torch
from torch import Tensor, nn

from vit.bundle import Bundle, Calibration
from vit.bundle.calibration import calibrated_probabilities
from vit.inference.abstention import probability_threshold
from vit.inference.conformal import content_draws, prediction_sets
from vit.inference.unknown import unknown_scores
from vit.messages import ArgumentError
from vit.models import Classifier

UNSURE = "unsure"
SET_METHOD = "aps"
IMPROBABLE, STRANGE = "low probability", "unlike the validation data"  # reasons to abstain


class CalibratedOutputs(NamedTuple):
    """The fields of a prediction besides its names and probabilities; None where one was not requested.

    Attributes:
        calibrated: whether the probabilities are calibrated on validation samples.
        set: the labels of the prediction set, most probable first.
        unknown: the unknown score; higher for inputs less like those of training.
        p_value: the share of validation samples that are at least as strange, (1 + k) / (1 + n).
        unsure: why the model abstains; empty where it does not.
    """

    calibrated: bool = False
    set: tuple[str, ...] | None = None
    unknown: float | None = None
    p_value: float | None = None
    unsure: str = ""


class Calibrator:
    """Computes calibrated probabilities, prediction sets, unknown scores and abstention from logits.

    Args:
        set_level: probability with which the prediction set contains the true label, such as 0.9.
        abstain: the tolerated error rate, such as 0.05. The model abstains below the probability from which at most
            this share of predictions is wrong (95 % confidence over the draw of the validation samples), and for inputs
            with a higher unknown score than all but this share of validation samples.

    Raises:
        ValueError: a value is not between 0 and 1, the bundle has no calibration, or too few validation samples for
            such a statement; the message names how many are needed.
    """

    def __init__(self, bundle: Bundle, set_level: float | None = None, abstain: float | None = None) -> None:
        self.classes, self.abstain = bundle.classes, abstain
        self.calibrated = bundle.calibration is not None
        self.record = bundle.calibration if isinstance(bundle.calibration, Calibration) else None
        self.limit = self.threshold = None
        for option, value in (("set", set_level), ("abstain", abstain)):
            if value is not None:
                check_request(option, value, bundle)
        if set_level is not None:
            self.limit = explained(f"set={set_level:g}", self.record.sets[SET_METHOD].at, set_level)
        if abstain is not None:
            risks = self.record.selective_risks
            self.threshold = explained(f"abstain={abstain:g}", probability_threshold, risks, abstain)

    def captured(self, model: nn.Module) -> AbstractContextManager[list[Tensor]]:
        """The context of forward passes that collects what `outputs` needs."""
        needs = self.record is not None and self.record.unknown is not None and self.record.unknown.means
        return captured_features(model) if needs else nullcontext([])

    def probabilities(self, logits: Tensor) -> Tensor:
        """logits (B,classes) -> calibrated probabilities (B,classes); the softmax without a calibration"""
        return calibrated_probabilities(logits, self.record)

    def outputs(
        self, logits: Tensor, captured: list[Tensor], contents: Callable[[], Iterator[bytes]]
    ) -> list[CalibratedOutputs]:
        """logits (B,classes) -> the calibrated outputs of each of the B inputs.

        Args:
            captured: what `captured_features` collected in this batch's forward pass; it is emptied.
            contents: the bytes of each input, which determine the random part of its prediction set.
        """
        if self.record is None or self.record.unknown is None or not len(logits):
            return [CalibratedOutputs(self.calibrated)] * len(logits)
        logits, record = logits.cpu(), self.record.unknown
        probabilities = self.probabilities(logits)
        strange = unknown_scores(logits, captured.pop() if captured else None, record)
        sets = [None] * len(logits) if self.limit is None else self._sets(probabilities, content_draws(contents()))
        p_values, highest = record.quantiles.p_values(strange.numpy()), probabilities.amax(-1)
        abstains = self.threshold is not None
        rows = zip(sets, strange.tolist(), p_values.tolist(), highest.tolist(), strict=True)
        return [CalibratedOutputs(True, names, score, p, self._reason(top, p) if abstains else "")
                for names, score, p, top in rows]

    def _sets(self, probabilities: Tensor, draws: Tensor) -> list[tuple[str, ...]]:
        sizes, order = prediction_sets(probabilities, draws, self.limit, SET_METHOD)
        return [tuple(self.classes[i] for i in row[:size].tolist()) for row, size in zip(order, sizes, strict=True)]

    def _reason(self, probability: float, p_value: float) -> str:
        """Why the model abstains; empty where it does not."""
        reasons = [*([IMPROBABLE] if probability < self.threshold else []),
                   *([STRANGE] if p_value <= self.abstain else [])]
        return " and ".join(reasons)


def check_request(option: str, value: float, bundle: Bundle) -> None:
    """Check that a bundle supports prediction sets or abstention.

    Raises:
        ValueError: it does not, or the value is not between 0 and 1.
    """
    if not 0 < value < 1:
        raise ArgumentError(f"{option}={value:g} must be between 0 and 1, such as {0.9 if option == 'set' else 0.05}")
    if bundle.thresholds:
        raise ArgumentError(f"{option}= is for one label per input, but {bundle.path} assigns several labels per "
                            "image, each above its own threshold; leave it out: --top-k N gives the probabilities of N "
                            "labels")
    if bundle.calibration is None or bundle.calibration.unknown is None:
        lacking = "is not calibrated" if bundle.calibration is None else "has only a temperature"
        raise ArgumentError(f"{option}= needs a calibrated model, but {bundle.path} {lacking}; write a calibrated copy "
                            "with: vit calibrate MODEL --output FOLDER")
    if option == "abstain" and UNSURE in bundle.classes:
        raise ArgumentError(f"{option}= predicts {UNSURE!r}, which is the name of a class of {bundle.path}; use "
                            "set= instead")


def explained(request: str, function: Callable[..., float], *arguments: object) -> float:
    """`function(*arguments)`, whose errors name the request.

    Raises:
        ValueError: as `function`, with the request in front.
    """
    try:
        return function(*arguments)
    except ValueError as error:
        raise ArgumentError(f"{request}: {error}") from None


def image_contents(images: Tensor) -> Iterator[bytes]:
    """uint8 (B,C,H,W) -> the bytes of each image"""
    return (image.contiguous().numpy().tobytes() for image in images.to(torch.uint8).cpu())


@contextmanager
def captured_features(model: nn.Module) -> Iterator[list[Tensor]]:
    """Within the context, each forward pass of this thread appends the input of the head, float32 (B,D), to the list.

    The logits are those of a forward pass without it. For a timm model whose head is not one linear layer the list
    stays empty.
    """
    features: list[Tensor] = []
    thread = get_ident()

    def append(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor | None = None) -> None:
        if get_ident() == thread:  # several threads may predict with one model
            features.append((inputs[0] if output is None else output).detach().float().cpu())

    if isinstance(model, Classifier):
        handle = model.pool.register_forward_hook(append)
    elif isinstance(head := classifier_of(model), nn.Linear):
        handle = head.register_forward_pre_hook(append)
    else:
        yield features
        return
    try:
        yield features
    finally:
        handle.remove()


def classifier_of(model: nn.Module) -> nn.Module | None:
    return model.get_classifier() if hasattr(model, "get_classifier") else None
