"""Saving a bundle: the whole folder or nothing."""

import json
import platform
from collections.abc import Callable, Mapping, Sequence
from importlib import metadata
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import Tensor, nn

import vit
from vit.bundle.calibration import Calibration
from vit.bundle.files import independent_tensors, save_tensors
from vit.bundle.folder_replacement import replace_folder
from vit.bundle.label_calibration import LabelCalibration
from vit.bundle.loading import load_bundle
from vit.bundle.record import (
    CONFIG,
    FORMAT,
    WEIGHTS,
    BundleError,
    check_classes,
    check_thresholds,
    num_outputs,
    text_with_checksum,
    tied_weights,
)
from vit.bundle.timm_folder import timm_folder
from vit.data import AnyPreprocessing, Preprocessing
from vit.data.text.tokenizers import Tokenizer
from vit.files.strict_json import replace_nonfinite
from vit.files.untrusted import file_sha256, read_json
from vit.messages import check_several, one_line
from vit.weights.formats.timm import to_timm

NOT_IN_TIMM = ("mae", "ensemble")  # kinds of models of images that no timm folder can describe


def save_bundle(
    path: str | PathLike[str],
    model: nn.Module,
    classes: Sequence[str] = (),
    preprocessing: AnyPreprocessing | None = None,
    metrics: Mapping[str, float] | None = None,
    extra: Mapping[str, Any] | None = None,
    state: Mapping[str, Tensor] | None = None,
    tokenizers: Mapping[str, Tokenizer] | None = None,
    thresholds: Sequence[float] = (),
    calibration: Calibration | LabelCalibration | None = None,
) -> Path:
    """Save the model as one folder, whole or not at all.

    The new folder is loaded and compared before it replaces an older one. Several processes may save to one path.

    Args:
        metrics: final numbers by name, such as `{"val/accuracy": 0.98}`.
        extra: further values for JSON; `{"data": ["data=digits"]}` are overrides that select the data set of
            `vit evaluate`.
        state: the weights to save, under the model's names; the model's own by default.
        tokenizers: tokenizers by side, "source" and "target", for models of text.
        thresholds: the least probability, per class, with which its label is assigned; for several labels per image.
        calibration: calibration of the probabilities, measured on validation samples; `thresholds` are those of the
            calibrated probabilities.

    Raises:
        TypeError: `classes` is one text.
        BundleError: the classes do not fit the model, the folder contains something that is not a bundle, it cannot be
            written, or it does not load as the same model. An older bundle is then unchanged.
    """
    path = Path(path).expanduser().resolve()
    model = getattr(model, "_orig_mod", model)  # torch.compile's wrapper
    check_several("classes", classes)
    classes, thresholds = list(classes), list(map(float, thresholds))
    check_classes(classes, num_outputs(model))
    check_thresholds(thresholds, classes)
    _check_target(path)
    is_classifier = isinstance(preprocessing, Preprocessing) and model.config.kind not in NOT_IN_TIMM
    timm_config = timm_folder(model, classes, preprocessing) if is_classifier else None
    state = state or model.state_dict()
    inputs_and_outputs = _inputs_and_outputs(classes, preprocessing, tokenizers or {}, thresholds, calibration)
    record = _record(model, "timm" if timm_config else "vit", inputs_and_outputs, metrics or {}, extra or {})
    weights = _weights_to_save(model, state, timm_names=bool(timm_config) and model.config.kind == "vit")
    config = _config_for_others(timm_config, classes, bool(thresholds))
    _write(path, weights, config, record, lambda folder: _check_loads(folder, model, state, record))
    return path


def _record(
    model: nn.Module, names: str, inputs_and_outputs: Mapping[str, Any], metrics: Mapping[str, float],
    extra: Mapping[str, Any],
) -> dict[str, Any]:
    """The record of the bundle; `names` is whose parameter names the weights have, "timm" or "vit"."""
    return replace_nonfinite({
        "format": FORMAT,
        "model": model.config.to_dict(),
        "names": names,
        **inputs_and_outputs,
        "metrics": _finite_metrics(metrics),
        "versions": _versions(),
        "extra": dict(extra),
    })


def _inputs_and_outputs(
    classes: list[str], preprocessing: AnyPreprocessing | None, tokenizers: Mapping[str, Tokenizer],
    thresholds: list[float], calibration: Calibration | LabelCalibration | None,
) -> dict[str, Any]:
    """The part of the record about inputs and outputs; thresholds and calibration only if there are any."""
    return {
        "classes": classes,
        "preprocessing": None if preprocessing is None else preprocessing.to_dict(),
        "tokenizers": {name: tokenizer.to_dict() for name, tokenizer in tokenizers.items()},
        **({"thresholds": thresholds} if thresholds else {}),
        **({"calibration": calibration.to_dict()} if calibration else {}),
    }


def _finite_metrics(metrics: Mapping[str, float]) -> dict[str, float]:
    return {name: value for name, value in replace_nonfinite(dict(metrics)).items() if value is not None}


def _config_for_others(timm_config: dict[str, Any] | None, classes: Sequence[str], multi_label: bool) -> dict[str, Any]:
    """The keys of config.json beside the record: a timm folder's, or the class names alone."""
    names = {"num_classes": len(classes), "label_names": list(classes)} if classes else {}
    kind = {"problem_type": "multi_label_classification"} if multi_label else {}  # transformers then applies no softmax
    return {**(timm_config or names), **kind}


def _weights_to_save(model: nn.Module, state: Mapping[str, Tensor], timm_names: bool) -> dict[str, Tensor]:
    """The state under its names on disk, with tied weights once."""
    tied = tied_weights(model)
    weights = independent_tensors({name: tensor for name, tensor in state.items() if name not in tied})
    return to_timm(weights, model.config) if timm_names else weights


def _versions() -> dict[str, str]:
    packages = {name: metadata.version(name) for name in ("timm", "safetensors", "pillow")}
    return {"vit": vit.__version__, "python": platform.python_version(), "torch": torch.__version__, **packages}


def _check_target(path: Path) -> None:
    """Checks that only a bundle is overwritten, and no other work.

    Raises:
        BundleError: the path is a file, or a folder with other content, such as a model of another program.
    """
    if path.is_dir() and any(path.iterdir()) and not (path / CONFIG).is_file():
        raise BundleError(f"{path} is not empty and holds no {CONFIG}; choose another folder for the model")
    if _is_of_another_program(path / CONFIG):
        raise BundleError(f"{path / CONFIG} was not written by this program; choose another folder for the model")
    if path.exists() and not path.is_dir():
        raise BundleError(f"{path} is a file; choose a folder for the model")


def _is_of_another_program(file: Path) -> bool:
    """Whether a config.json is readable and lacks the key vit; a damaged one counts as that of a bundle."""
    try:
        config = read_json(file)
    except (OSError, ValueError):
        return False
    return not isinstance(config, dict) or "vit" not in config


def _write(path: Path, weights: dict[str, Tensor], config: Mapping[str, Any], record: Mapping[str, Any],
           check: Callable[[Path], None]) -> None:
    """Write both files into a new folder, which replaces `path` if `check` does not raise."""
    try:
        with replace_folder(path, (WEIGHTS, CONFIG)) as folder:
            save_tensors(weights, folder / WEIGHTS, metadata={"format": "pt"})
            content = {**config, "vit": {**record, "sha256": file_sha256(folder / WEIGHTS)}}
            (folder / CONFIG).write_text(text_with_checksum(content), encoding="utf-8")
            try:
                check(folder)
            except BundleError as error:  # which names the temporary folder
                raise BundleError(str(error).replace(str(folder), str(path))) from error
    except (OSError, SafetensorError) as error:
        raise BundleError(f"the model could not be saved to {path}: {one_line(error)}") from error


def _check_loads(folder: Path, model: nn.Module, state: Mapping[str, Tensor], record: Mapping[str, Any]) -> None:
    """Checks that the saved folder loads, and that weights and record are those that were saved.

    Raises:
        BundleError: it does not load, or something differs.
    """
    loaded = load_bundle(folder)
    loaded_state = loaded.model.state_dict()
    for name, tensor in state.items():
        other = loaded_state.get(name)
        if other is None or not _same_bits(tensor.detach().to("cpu", other.dtype), other):
            raise BundleError(f"{name} does not load as it was saved; please report this with the model's config: "
                              f"{model.config}")
    for key, value in record.items():
        if loaded.record.get(key) != json.loads(json.dumps(value)):
            raise BundleError(f"{key} does not load as it was saved; please report this")


def _same_bits(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and torch.equal(
        *(each.contiguous().flatten().view(torch.uint8) for each in (one, other)))
