"""Calibration of a multi-label classifier on validation images: a temperature per label."""

import logging
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from vit.bundle.label_calibration import LabelCalibration, label_probabilities, scaled_logits
from vit.evaluation.calibration.temperature import fit_temperature
from vit.evaluation.multi_label import label_calibration_error
from vit.messages import first_of

log = logging.getLogger("vit")


def fit_label_calibration(classes: Sequence[str], logits: Tensor, truth: Tensor) -> LabelCalibration:
    """The calibration from logits (N,classes) and the labels (N,classes) bool of validation images.

    Each label is a classifier of two classes with the logits 0 and z, calibrated by `fit_temperature`. A label that no
    image has, or all have, keeps the temperature 1, because its images do not determine another one.
    """
    count, logits = len(truth), logits.cpu().double()
    positives, targets = truth.sum(dim=0).tolist(), truth.double()
    known = [0 < images < count for images in positives]
    zeros = logits.new_zeros(count)
    temperatures = tuple(fit_temperature(torch.stack([zeros, logits[:, c]], dim=-1), truth[:, c].long())
                         if known[c] else 1.0 for c in range(len(classes)))
    calibration = LabelCalibration(count, temperatures, (0.0, 0.0), (0.0, 0.0))
    loss = tuple(float(F.binary_cross_entropy_with_logits(scaled_logits(logits, each), targets))
                 for each in (None, calibration))
    ece = tuple(label_calibration_error(label_probabilities(logits, each).numpy(), truth.numpy())
                for each in (None, calibration))
    absent = tuple(name for name, is_known in zip(classes, known, strict=True) if not is_known)
    calibration = LabelCalibration(count, temperatures, loss, ece, absent)
    report(calibration)
    return calibration


def report(found: LabelCalibration) -> None:
    """Log the temperatures and the labels whose temperature the images do not determine."""
    log.info("calibration on %d validation images: temperatures per label %.3f to %.3f, log loss %.4f -> %.4f, "
             "expected calibration error, mean over labels, %.4f -> %.4f", found.samples, min(found.temperatures),
             max(found.temperatures), *found.loss, *found.ece)
    if found.absent:
        log.warning("no validation image has the label %s, or all have it: its probabilities are not calibrated",
                    first_of(list(map(repr, found.absent)), 3))
