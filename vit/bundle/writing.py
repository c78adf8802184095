"""A model saved as one folder, whole or not at all."""

import json
import platform
from collections.abc import Callable, Mapping, Sequence
from importlib import metadata
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor, nn

import vit
from vit.bundle.reading import load_bundle
from vit.bundle.record import (
    CONFIG,
    FORMAT,
    WEIGHTS,
    BundleError,
    Contract,
    check_classes,
    check_thresholds,
    outputs,
    sealed,
    sha256,
    tied,
)
from vit.bundle.replacing import replacing
from vit.bundle.timm_folder import timm_folder
from vit.data import Preprocessing
from vit.data.text.tokenizers import Tokenizer
from vit.files.strict_json import finite
from vit.messages import one_line
from vit.weights.formats.timm import to_timm


def save_bundle(
    path: str | PathLike[str],
    model: nn.Module,
    classes: Sequence[str] = (),
    preprocessing: Contract | None = None,
    metrics: Mapping[str, float] | None = None,
    extra: Mapping[str, Any] | None = None,
    state: Mapping[str, Tensor] | None = None,
    tokenizers: Mapping[str, Tokenizer] | None = None,
    thresholds: Sequence[float] = (),
) -> Path:
    """Save the model as one folder, whole or not at all.

    The new folder is read back and compared before it replaces an older one. Several processes may save to one path.

    Args:
        metrics: final numbers by name, such as `{"val/accuracy": 0.98}`.
        extra: JSON-able facts, such as `{"data": ["data=digits"]}`: from these words `vit evaluate` makes the set.
        state: the weights to write, named as the model's; the model's own by default.
        tokenizers: of "source" and "target", where texts are read or written.
        thresholds: the probability from which each class is given, where an image may have several, or none.

    Raises:
        BundleError: the classes do not fit the model, the folder holds something that is no bundle, it cannot be
            written, or it does not read back as the same model. The older bundle is still there.
    """
    path = Path(path).expanduser().resolve()
    model = getattr(model, "_orig_mod", model)  # torch.compile's wrapper
    check_classes(classes, outputs(model))
    check_thresholds(thresholds, classes)
    _check_target(path)
    classifies = isinstance(preprocessing, Preprocessing) and model.config.kind != "mae"
    foreign = timm_folder(model, classes, preprocessing) if classifies else None
    state = state or model.state_dict()
    weights = _weights(model, state, timm_names=bool(foreign) and model.config.kind == "vit")
    record = {
        "format": FORMAT,
        "model": model.config.to_dict(),
        "names": "timm" if foreign else "vit",
        "classes": list(classes),
        "preprocessing": None if preprocessing is None else preprocessing.to_dict(),
        "tokenizers": {name: tokenizer.to_dict() for name, tokenizer in (tokenizers or {}).items()},
        "metrics": {name: value for name, value in finite(dict(metrics or {})).items() if value is not None},
        "versions": _versions(),
        "extra": dict(extra or {}),
        **({"thresholds": list(map(float, thresholds))} if thresholds else {}),
    }
    names = {"num_classes": len(classes), "label_names": list(classes)} if classes else {}
    kind = {"problem_type": "multi_label_classification"} if thresholds else {}  # transformers: no softmax
    _write(path, weights, {**(foreign or names), **kind}, record,
           lambda part: _check_read_back(part, model, state, record))
    return path


def _weights(model: nn.Module, state: Mapping[str, Tensor], timm_names: bool) -> dict[str, Tensor]:
    """What is written of a state dict: every tensor once, under its name on disk."""
    once = tied(model)
    weights = _plain({name: tensor for name, tensor in state.items() if name not in once})
    return to_timm(weights, model.config) if timm_names else weights


def _write(path: Path, weights: dict[str, Tensor], config: Mapping[str, Any], record: Mapping[str, Any],
           check: Callable[[Path], None]) -> None:
    """Both files into a new folder, which replaces `path` when `check` finds nothing wrong with it."""
    try:
        with replacing(path, (WEIGHTS, CONFIG)) as part:
            save_file(weights, part / WEIGHTS, metadata={"format": "pt"})
            content = {**config, "vit": {**record, "sha256": sha256(part / WEIGHTS)}}
            (part / CONFIG).write_text(sealed(content), encoding="utf-8")
            check(part)
    except (OSError, SafetensorError) as error:
        raise BundleError(f"the model could not be saved to {path}: {one_line(error)}") from error


def _check_read_back(part: Path, model: nn.Module, state: Mapping[str, Tensor], record: Mapping[str, Any]) -> None:
    """Opens what was saved, as anybody would, and compares it with what it was made of.

    Raises:
        BundleError: it cannot be opened, or something in it differs.
    """
    found = load_bundle(part)
    again = found.model.state_dict()
    for name, tensor in state.items():
        other = again.get(name)
        if other is None or not same_bits(tensor.detach().to("cpu", other.dtype), other):
            raise BundleError(f"{name} does not read back as it was saved; please report this with the model's config: "
                              f"{model.config}")
    for key, value in record.items():
        if found.record.get(key) != json.loads(json.dumps(finite(value))):
            raise BundleError(f"{key} does not read back as it was saved; please report this")


def same_bits(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and torch.equal(
        *(each.contiguous().flatten().view(torch.uint8) for each in (one, other)))


def _check_target(path: Path) -> None:
    """Only a bundle may be overwritten: anything else in the way is somebody's work."""
    if path.is_dir() and any(path.iterdir()) and not (path / CONFIG).is_file():
        raise BundleError(f"{path} is not empty and holds no {CONFIG}; choose another folder for the model")
    if path.exists() and not path.is_dir():
        raise BundleError(f"{path} is a file; choose a folder for the model")


def _plain(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Contiguous CPU tensors, each with memory of its own, as safetensors wants them."""
    seen, plain = set(), {}
    for name, tensor in state.items():
        tensor = tensor.detach().cpu().contiguous()
        storage = tensor.untyped_storage().data_ptr()
        plain[name] = tensor.clone() if storage in seen else tensor
        seen.add(storage)
    return plain


def _versions() -> dict[str, str]:
    packages = {name: metadata.version(name) for name in ("timm", "safetensors", "pillow")}
    return {"vit": vit.__version__, "python": platform.python_version(), "torch": torch.__version__, **packages}
