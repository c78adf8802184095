"""A model as one folder, written whole or not at all."""

import json
import os
import platform
import shutil
from collections.abc import Mapping, Sequence
from importlib import metadata
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

import vit
from vit.bundle.record import (
    CONFIG,
    FORMAT,
    WEIGHTS,
    BundleError,
    Contract,
    check_classes,
    check_thresholds,
    outputs,
    sha256,
    tied,
)
from vit.bundle.timm_folder import timm_folder
from vit.data import Preprocessing
from vit.data.text import Tokenizer
from vit.weights.timm import to_timm


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
    """Write the model as one folder, whole or not at all; an older bundle stays until the new one is complete.

    Args:
        metrics: final numbers by name, such as `{"val/accuracy": 0.98}`.
        extra: JSON-able facts, such as `{"data": ["data=digits"]}`: from these words `vit evaluate` makes the set.
        state: the weights to write, named as the model's; the model's own by default.
        tokenizers: of "source" and "target", where texts are read or written.
        thresholds: the probability from which each class is given, where an image may have several, or none.

    Raises:
        BundleError: the classes do not fit the model, or the folder holds something that is no bundle.
    """
    path = Path(path).expanduser().resolve()
    model = getattr(model, "_orig_mod", model)  # torch.compile's wrapper
    check_classes(classes, outputs(model))
    check_thresholds(thresholds, classes)
    _check_target(path)
    classifies = isinstance(preprocessing, Preprocessing) and model.config.kind != "mae"
    foreign = timm_folder(model, classes, preprocessing) if classifies else None
    weights = _weights(model, state or model.state_dict(), timm_names=bool(foreign) and model.config.kind == "vit")
    record = {
        "format": FORMAT,
        "model": model.config.to_dict(),
        "names": "timm" if foreign else "vit",
        "classes": list(classes),
        "preprocessing": None if preprocessing is None else preprocessing.to_dict(),
        "tokenizers": {name: tokenizer.to_dict() for name, tokenizer in (tokenizers or {}).items()},
        "metrics": dict(metrics or {}),
        "versions": _versions(),
        "extra": dict(extra or {}),
        **({"thresholds": list(map(float, thresholds))} if thresholds else {}),
    }
    names = {"num_classes": len(classes), "label_names": list(classes)} if classes else {}
    kind = {"problem_type": "multi_label_classification"} if thresholds else {}  # transformers: no softmax
    _write(path, weights, {**(foreign or names), **kind}, record)
    return path


def _weights(model: nn.Module, state: Mapping[str, Tensor], timm_names: bool) -> dict[str, Tensor]:
    """What is written of a state dict: every tensor once, under its name on disk."""
    once = tied(model)
    weights = _plain({name: tensor for name, tensor in state.items() if name not in once})
    return to_timm(weights, model.config) if timm_names else weights


def _write(path: Path, weights: dict[str, Tensor], config: Mapping[str, Any], record: Mapping[str, Any]) -> None:
    """Both files under another name first, which is then exchanged for the real one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.part-{os.getpid()}")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir()
    try:
        save_file(weights, part / WEIGHTS, metadata={"format": "pt"})
        content = {**config, "vit": {**record, "sha256": sha256(part / WEIGHTS)}}
        (part / CONFIG).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
        _replace(part, path)
    finally:
        shutil.rmtree(part, ignore_errors=True)


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


def _replace(part: Path, path: Path) -> None:
    """Put the finished folder in its place; files that somebody added to an older bundle move along."""
    for file in (part / WEIGHTS, part / CONFIG):
        _flush(file)
    if not path.exists():
        part.rename(path)
        return
    for item in path.iterdir():
        if item.name not in (WEIGHTS, CONFIG):
            (shutil.copytree if item.is_dir() else shutil.copy2)(item, part / item.name)
    old = path.with_name(f".{path.name}.old-{os.getpid()}")
    path.rename(old)
    try:
        part.rename(path)
    except BaseException:
        old.rename(path)
        raise
    shutil.rmtree(old, ignore_errors=True)


def _flush(file: Path) -> None:
    with open(file, "rb+") as stream:
        os.fsync(stream.fileno())


def _versions() -> dict[str, str]:
    packages = {name: metadata.version(name) for name in ("timm", "safetensors", "pillow")}
    return {"vit": vit.__version__, "python": platform.python_version(), "torch": torch.__version__, **packages}
