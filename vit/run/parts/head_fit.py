"""Initialization of a new head: logistic regression on the pretrained features of the training images.

The large gradients of a random head distort good features (LP-FT, arXiv 2202.10054), and in the few steps of a small
data set a random head may not reach the accuracy that the fitted one starts with.
"""

import logging
from functools import partial

import torch
from torch import nn

from vit.data import Preprocessing, Source, Split
from vit.evaluation.features.embeddings import embed_split
from vit.evaluation.features.probe import Labelled, LinearFit, class_balanced_order, fit_linear
from vit.inference.features import Featurizer
from vit.nn.init import restored_modes
from vit.run.console import console, progress_bar
from vit.run.parts.devices import Devices
from vit.training.finetuning.finetune import head_layer

log = logging.getLogger("vit")

IMAGES, IMAGES_PER_CLASS = 5000, 10  # images that are fitted: at most 5,000, or 10 per class if that is more


def start_head(
    model: nn.Module, source: Source, preprocessing: Preprocessing, devices: Devices, on_bad_sample: str
) -> LinearFit | None:
    """Fit the head in place by logistic regression on the features of the model. If the head is not a single linear
    layer, or if images have several labels, it remains unchanged and the result is None.
    """
    layer = head_layer(model)
    if layer is None or source.multi_label:
        return None
    split = class_balanced(source.splits["train"], max(IMAGES, IMAGES_PER_CLASS * source.num_classes))
    found = features(model, split, preprocessing, devices, on_bad_sample)
    if layer.in_features != found.features.shape[1]:
        return None
    fit = fit_linear(found, source.num_classes)
    with torch.no_grad():
        layer.weight.copy_(torch.from_numpy(fit.weight))
        layer.bias.copy_(torch.from_numpy(fit.bias))
    log.info("head: logistic regression on the features of %s training images (C=%g, accuracy in cross-validation %s)",
             f"{len(found.labels):,}", fit.C, f"{fit.accuracy:.2%}")
    return fit


def class_balanced(split: Split, count: int) -> Split:
    """At most `count` samples in a fixed random order, the same number of each class where it has so many."""
    return split.take(class_balanced_order(split.labels)[:count])


def features(
    model: nn.Module, split: Split, preprocessing: Preprocessing, devices: Devices, on_bad_sample: str
) -> Labelled:
    """The features of each image, by the model in eval mode; its device and modes are restored afterwards.

    Raises:
        BadImage: an image cannot be read, and `on_bad_sample` is not skip.
    """
    home = next(model.parameters()).device
    device = devices.gpu if devices.accelerator == "gpu" else home
    try:
        with restored_modes(model), progress_bar(console) as bar:
            featurizer = Featurizer(model, preprocessing, device, "32-true")
            advance = partial(bar.advance, bar.add_task("features", total=len(split)))
            found = embed_split(featurizer, split, 32, on_bad_sample, advance)
    finally:
        model.to(home)
    return Labelled(found.features, found.labels)
