"""Saved classifiers combined into one saved model that averages their probabilities."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from vit.bundle.loading import Bundle, load_bundle
from vit.bundle.record import BundleError
from vit.bundle.saving import save_bundle
from vit.data import PackedPreprocessing, Preprocessing
from vit.messages import check_several, different_names
from vit.models import ClassifierEnsemble, EnsembleConfig
from vit.models.checks import DROPPING, INITIAL_STD

MEMBERS = ("vit", "timm")  # kinds of models
TRAINING_ONLY = {*DROPPING, *INITIAL_STD}  # fields of model configs
MEMBER_PATHS = "members"  # key of `extra`: the paths of the members, whose runs record their samples


def save_ensemble(
    path: str | PathLike[str],
    sources: Sequence[str | PathLike[str]],
    metrics: Mapping[str, float] | None = None,
    extra: Mapping[str, Any] | None = None,
) -> Path:
    """Save the ensemble of bundles or run folders as one bundle, which loads and predicts as any other.

    The members have the same architecture, classes and preprocessing; only mean and std of the pixels may differ, as
    they do between folds, and the rates of dropout, which have no effect outside training. `extra` also records the
    paths of the members, so that evaluation finds the samples that they were trained on.

    Raises:
        TypeError: `sources` is one path instead of several.
        BundleError: there is no member, a member is not a classifier of images, or members differ in architecture,
            classes, preprocessing, or the number of labels per image.
    """
    check_several("sources", sources)
    bundles = [load_bundle(source) for source in sources]
    if not bundles:
        raise BundleError("an ensemble needs one or more models")
    for bundle in bundles:
        _check_member(bundle, bundles[0])
    first = bundles[0]
    config = EnsembleConfig(first.model.config.to_dict(), tuple(b.preprocessing.mean for b in bundles),
                            tuple(b.preprocessing.std for b in bundles), bool(first.thresholds),
                            tuple(map(_temperature, bundles)))
    model = ClassifierEnsemble(config, [bundle.model for bundle in bundles])
    channels = first.preprocessing.channels
    preprocessing = first.preprocessing.replace(mean=(0.0,) * channels, std=(1.0,) * channels)
    thresholds = np.mean([bundle.thresholds for bundle in bundles], axis=0).tolist() if first.thresholds else ()
    extra = {**(extra or {}), MEMBER_PATHS: [os.path.abspath(os.path.expanduser(source)) for source in sources]}
    return save_bundle(path, model, first.classes, preprocessing, metrics, extra, thresholds=thresholds)


def _temperature(bundle: Bundle) -> float | tuple[float, ...]:
    """The divisor of the logits: one number, or one per label of a multi-label classifier."""
    if bundle.calibration is None:
        return 1.0
    return bundle.calibration.temperatures if bundle.thresholds else bundle.calibration.temperature


def inference_config(bundle: Bundle) -> dict[str, Any]:
    """The config values of the model that matter when it predicts."""
    return {key: value for key, value in bundle.model.config.to_dict().items() if key not in TRAINING_ONLY}


def _check_member(bundle: Bundle, first: Bundle) -> None:
    kind = bundle.model.config.kind
    if kind not in MEMBERS or not isinstance(bundle.preprocessing, Preprocessing):
        raise BundleError(f"{bundle.path} is of kind {kind}; an ensemble bundle is made of classifiers of images "
                          f"({', '.join(MEMBERS)})")
    if not bundle.classes:
        raise BundleError(f"{bundle.path} has no classes, but an ensemble averages the probabilities of classes; train "
                          f"a classifier from it with init_from={bundle.path}")
    if isinstance(bundle.preprocessing, PackedPreprocessing):
        raise BundleError(f"{bundle.path} is for images that keep their aspect ratio (data.pack=true), but an ensemble "
                          "is for images of one size; train its members with data.pack=false")
    if bool(bundle.thresholds) != bool(first.thresholds):
        several, one = (bundle, first) if bundle.thresholds else (first, bundle)
        raise BundleError(f"{several.path} assigns several labels per image, but {one.path} assigns one; the members "
                          "of an ensemble must agree in this")
    if bundle.classes != first.classes:
        raise BundleError(f"{bundle.path} has other classes than {first.path}: "
                          f"{different_names(bundle.classes, first.classes)}; the members of an ensemble need the same "
                          "classes")
    one, other = inference_config(bundle), inference_config(first)
    if different := [key for key in one if one[key] != other.get(key)]:
        key = different[0]
        raise BundleError(f"{bundle.path} has another architecture than {first.path}: {key} is {one[key]} and "
                          f"{other.get(key)}; the members of an ensemble need the same architecture")
    one, other = asdict(bundle.preprocessing), asdict(first.preprocessing)
    for key in one:
        if key not in ("mean", "std") and one[key] != other[key]:
            raise BundleError(f"{bundle.path} preprocesses images in another way than {first.path}: {key} is "
                              f"{one[key]} and {other[key]}; set data.preprocessing.{key} for all members")
