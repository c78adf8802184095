"""Loading a bundle: a model with everything that is needed to use it."""

import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import nn

from vit.bundle.calibration import Calibration, calibration_from_dict
from vit.bundle.files import LFS, read_file
from vit.bundle.folder_replacement import recover_folder
from vit.bundle.label_calibration import LabelCalibration, label_calibration_from_dict
from vit.bundle.record import (
    CONFIG,
    WEIGHTS,
    BundleError,
    check_checksum,
    check_classes,
    check_thresholds,
    num_outputs,
    preprocessing_from_dict,
    read_record,
    tied_weights,
)
from vit.data import AnyPreprocessing
from vit.data.text.tokenizers import Tokenizer, tokenizer_from_dict
from vit.files.untrusted import file_sha256, megabytes, open_regular, unpacked_limit
from vit.messages import first_of, one_line
from vit.models import model_from_config
from vit.nn.init import SkipInit
from vit.torch_defaults import torch_defaults
from vit.weights.formats.timm import from_timm

LARGE = 10_000  # pixels, channels, tokens or classes
TRIES = 100  # of loading, while other processes replace the folder
PAUSE = 0.05  # seconds; systems without an atomic exchange of folders have no folder for a moment of the replacement

CALIBRATED_ON = "calibrated_on"  # key of `extra`


@dataclass(frozen=True)
class Bundle:
    """A model loaded from disk, in eval mode, with everything that is needed to use it.

    Args:
        classes: empty for models that generate text.
        preprocessing: preprocessing of images; None for models without image input.
        tokenizers: tokenizers by side, "source" and "target", for models of text.
        extra: further values that the caller of `save_bundle` added.
        record: everything under the key `vit` of config.json.
        thresholds: one per class for multi-label classifiers, otherwise empty.
        calibration: the calibration of a classifier, a `LabelCalibration` for a multi-label one; None if the model was
            not calibrated.
    """

    path: Path
    model: nn.Module
    classes: list[str]
    preprocessing: AnyPreprocessing | None
    tokenizers: dict[str, Tokenizer]
    metrics: dict[str, float]
    extra: dict[str, Any]
    record: dict[str, Any]
    thresholds: tuple[float, ...] = ()
    calibration: Calibration | LabelCalibration | None = None

    @property
    def calibrated_on(self) -> dict[str, Any]:
        """`data` and `split` of the samples that `vit calibrate` used; empty if a run calibrated the model on its
        validation samples.
        """
        recorded = self.extra.get(CALIBRATED_ON)
        return recorded if isinstance(recorded, dict) else {}

    def tokenizer(self, side: str) -> Tokenizer:
        """The tokenizer of "source" or "target".

        Raises:
            BundleError: it was not saved, or has more tokens than the model.
        """
        if side not in self.tokenizers:
            raise BundleError(f"{self.path / CONFIG} has no {side} tokenizer, which texts need; save the model again "
                              f"with tokenizers={{{side!r}: ...}}")
        tokenizer, config = self.tokenizers[side], self.model.config
        vocab_size = config.vocab_size
        if side == "source":  # null if both sides have one vocabulary
            vocab_size = getattr(config, "source_vocab", None) or vocab_size
        if tokenizer.vocab_size > vocab_size:
            raise BundleError(f"{self.path / CONFIG}: the {side} tokenizer has {tokenizer.vocab_size} tokens, the "
                              f"model only {vocab_size}; it belongs to another model")
        return tokenizer


def load_bundle(path: str | PathLike[str]) -> Bundle:
    """Load a bundle from its folder, a run folder that contains it as `model/`, or one of its two files.

    Raises:
        FileNotFoundError: the path does not exist.
        BundleError: there is no bundle, it is damaged, or it has a newer format.
    """
    missing = False  # whether there was no such path in the try before
    for _ in range(TRIES):
        try:
            folder = find_bundle(path)
            with suppress(_Replaced), _unchanged(folder), torch_defaults():
                return _load(folder)
            missing = False
        except FileNotFoundError:
            if missing:
                raise
            missing = True
            time.sleep(PAUSE)
    raise BundleError(f"other processes keep replacing {path}; load it when they have finished")


class _Replaced(Exception):
    """The folder was replaced while it was being loaded."""


@contextmanager
def _unchanged(folder: Path) -> Iterator[None]:
    """Raises _Replaced if `folder` is another folder at the end of the block, even if the block raises something else.
    """
    opened = os.open(folder, os.O_RDONLY) if os.name != "nt" else None  # an open folder's inode number is not reused
    before = os.stat(folder).st_ino
    try:
        yield
    finally:
        try:
            changed = os.stat(folder).st_ino != before
        except FileNotFoundError:
            changed = True
        if opened is not None:
            os.close(opened)
        if changed:
            raise _Replaced


def _load(folder: Path) -> Bundle:
    record, text = read_record(folder)
    _check_weights(folder, record)
    try:
        bundle = _build(folder, record)
    except Exception as error:
        raise BundleError(f"{folder}: the model cannot be built from {CONFIG}: {one_line(error)}") from error
    check_checksum(text, record, folder / CONFIG)  # last, because every other error is more specific
    return bundle


def _check_weights(folder: Path, record: Mapping[str, Any]) -> None:
    actual = file_sha256(folder / WEIGHTS)
    if actual != record["sha256"]:
        with open_regular(folder / WEIGHTS) as file:
            if file.read(len(LFS)) == LFS:
                raise BundleError(f"{folder / WEIGHTS} is a Git LFS pointer and not the weights; fetch them with git "
                                  "lfs pull")
        raise BundleError(f"{folder / WEIGHTS} is damaged or belongs to another model: its SHA-256 is {actual[:16]}…, "
                          f"but {CONFIG} expects {str(record['sha256'])[:16]}…; copy the folder again")


def _build(folder: Path, record: dict[str, Any]) -> Bundle:
    """The bundle that a record describes, with the weights of the folder."""
    _check_size(record["model"], folder / WEIGHTS)
    with SkipInit():
        model = model_from_config(record["model"])
    preprocessing = preprocessing_from_dict(record["preprocessing"])
    tokenizers = {name: tokenizer_from_dict(each) for name, each in record.get("tokenizers", {}).items()}
    classes, thresholds = list(record["classes"]), tuple(record.get("thresholds", ()))
    check_classes(classes, num_outputs(model))
    if thresholds:
        check_thresholds(thresholds, classes)
    read_calibration = label_calibration_from_dict if thresholds else calibration_from_dict
    calibration = read_calibration(record.get("calibration"), classes)
    _load_weights(model, folder / WEIGHTS, record["names"])
    return Bundle(folder, model.eval(), classes, preprocessing, tokenizers, record["metrics"], record["extra"], record,
                  thresholds, calibration)


def _load_weights(model: nn.Module, file: Path, names: str) -> None:
    weights = read_file(file)
    if names == "timm" and model.config.kind == "vit":
        weights = from_timm(weights, model.config)
    tied = tied_weights(model)
    weights |= {name: weights[first] for name, first in tied.items()}
    expected = {name: tensor.dtype for name, tensor in model.state_dict().items() if name in weights}
    same_types = all(dtype == weights[name].dtype for name, dtype in expected.items())
    model.load_state_dict(weights, assign=same_types and not tied)  # assigned tensors would no longer be tied


def _check_size(config: dict[str, Any], weights: Path) -> None:
    """Checks, before the model is built, that its config does not describe a model far larger than its weights file.

    If the config has large numbers, the model is first built on the meta device to determine its size.

    Raises:
        BundleError: the described model is far larger than the file.
    """
    with safe_open(weights, framework="pt") as file:
        tensors = len(file.keys())
    member, count = config.get("member", {}), len(config.get("means", [None]))  # an ensemble has a mean per member
    if count > tensors:
        raise BundleError(f"it has {count:,} members, but {weights} has {tensors:,} tensors")
    for key, value in (*config.items(), *member.items()):
        if "depth" in key and isinstance(value, int) and value * count > tensors:
            of_each = f" in each of {count:,} members" if member else ""
            raise BundleError(f"{key} is {value:,}{of_each}, but {weights} has {tensors:,} tensors")
    if max(_numbers(config), default=0) <= LARGE:
        return
    with torch.device("meta"):
        model = model_from_config(config)
    size = sum(tensor.numel() * tensor.element_size() for tensor in (*model.parameters(), *model.buffers()))
    if size > unpacked_limit(weights.stat().st_size):
        raise BundleError(f"it describes a model of {megabytes(size)}, but {weights} has "
                          f"{megabytes(weights.stat().st_size)}")


def _numbers(values: Any) -> Iterator[float]:
    """Every number in nested mappings and lists."""
    if isinstance(values, Mapping):
        values = list(values.values())
    if isinstance(values, list):
        for value in values:
            yield from _numbers(value)
    elif isinstance(values, int | float):
        yield values


def model_kind(path: str | PathLike[str]) -> str | None:
    """The kind of model in a bundle, without reading its weights; None if there is no bundle."""
    try:
        return read_record(find_bundle(path))[0]["model"]["kind"]
    except (BundleError, FileNotFoundError, KeyError):
        return None


def is_bundle(path: str | PathLike[str]) -> bool:
    """Whether a folder has both files of a bundle; their content is not checked."""
    return all((Path(path) / name).is_file() for name in (CONFIG, WEIGHTS))


def find_bundle(path: str | PathLike[str]) -> Path:
    """The bundle folder of a path: the path itself, `model/` in a run folder, or the folder of one of its files.

    Raises:
        FileNotFoundError: the path does not exist.
        BundleError: there is no bundle.
    """
    path = Path(path).expanduser()
    real = Path(os.path.realpath(path))  # the name of a folder that is being replaced; `path` may be a link to it
    if not path.exists() and not recover_folder(real):
        raise FileNotFoundError(f"{path}: there is no such model; give a run folder or one with {CONFIG} and {WEIGHTS}")
    if path.is_file():
        if path.name not in (CONFIG, WEIGHTS):
            raise BundleError(f"{path} is a single file; a model is a folder with {CONFIG} and {WEIGHTS} "
                              "(in a run folder it is model/)")
        path = path.parent
    if not (path / CONFIG).exists():
        recover_folder(Path(os.path.realpath(path / "model")))
    for folder in (path, path / "model"):
        if (folder / CONFIG).exists():
            return folder
    raise BundleError(f"{path} holds no model: neither {CONFIG} nor model/{CONFIG} is there{models_inside(path)}")


def models_inside(path: Path) -> str:
    """The end of an error about a folder without a model: how to use or finish an unfinished run, or the subfolders
    that hold a model, such as the runs of one name; "" for any other folder.
    """
    for name in ("best.ckpt", "last.ckpt"):
        if (checkpoint := path / "checkpoints" / name).is_file():
            if (path / "metrics.json").exists():  # of a finished run, which is not resumed
                return f"; the run has ended, so its model is lost: copy the folder again, or use {checkpoint}"
            return f"; the run has not ended: finish it by vit train resume={path}, or use {checkpoint}"
    if all((path / name).is_file() for name in ("config.yaml", "environment.json")):
        return f"; the run has saved no checkpoint yet: finish it by vit train resume={path}, or use another run"
    found = []
    with suppress(OSError):  # no permission: the error ends without them
        found = [each.name for each in path.iterdir() if is_bundle(each) or is_bundle(each / "model")]
    return f"; models in it: {first_of(sorted(found, reverse=True), 3)}" if found else ""
