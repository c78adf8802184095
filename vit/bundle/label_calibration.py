"""The calibration of a multi-label classifier in a bundle: a temperature for the logit of each label."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from vit.bundle.calibration import read_absent, read_errors, read_temperature, sequence

NEEDED = {"samples", "temperatures", "loss", "ece"}


@dataclass(frozen=True)
class LabelCalibration:
    """Measurements on validation images that calibrate a multi-label classifier.

    Args:
        samples: number of validation images.
        temperatures: (classes,), the divisor of the logit of each label.
        loss, ece: log loss and expected calibration error on these images, means over the labels, without and with the
            temperatures.
        absent: labels that no validation image has or that all have; their temperature is 1.
    """

    samples: int
    temperatures: tuple[float, ...]
    loss: tuple[float, float]
    ece: tuple[float, float]
    absent: tuple[str, ...] = ()

    @property
    def temperature_text(self) -> str:
        return f"temperatures {min(self.temperatures):.4g} to {max(self.temperatures):.4g} (one per label)"

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def label_calibration_from_dict(values: Mapping[str, Any] | None, classes: Sequence[str]) -> LabelCalibration | None:
    """The inverse of `LabelCalibration.to_dict`.

    Raises:
        ValueError: a value is missing, of another type or out of range.
    """
    if values is None:
        return None
    samples, loss, ece = read_errors(values, NEEDED)
    temperatures = tuple(map(read_temperature, sequence(values["temperatures"], "temperatures")))
    if len(temperatures) != len(classes):
        raise ValueError(f"calibration has {len(temperatures)} temperatures; it must have {len(classes)}, "
                         "one per label")
    return LabelCalibration(samples, temperatures, loss, ece, read_absent(values))


def label_probabilities(logits: Tensor, record: LabelCalibration | None) -> Tensor:
    """logits (B,classes) -> sigmoid(logits / temperatures) (B,classes); without a record the sigmoid alone"""
    return scaled_logits(logits, record).sigmoid()


def scaled_logits(logits: Tensor, record: LabelCalibration | None) -> Tensor:
    """logits (B,classes) -> logits / temperatures (B,classes)"""
    return logits if record is None else logits / logits.new_tensor(record.temperatures)


def calibrated_thresholds(thresholds: Sequence[float], record: LabelCalibration | None) -> list[float]:
    """Thresholds (classes,) of uncalibrated probabilities -> thresholds of calibrated ones that select the same labels
    """
    return _scaled(thresholds, record, -1)


def raw_thresholds(thresholds: Sequence[float], record: LabelCalibration | None) -> list[float]:
    """The inverse of `calibrated_thresholds`."""
    return _scaled(thresholds, record, 1)


def _scaled(thresholds: Sequence[float], record: LabelCalibration | None, power: int) -> list[float]:
    """Thresholds (classes,) after their logits are multiplied by the temperatures to this power."""
    if record is None or not len(thresholds):
        return list(thresholds)
    factors = torch.tensor(record.temperatures, dtype=torch.float64) ** power
    return (torch.tensor(thresholds, dtype=torch.float64).logit() * factors).sigmoid().tolist()
