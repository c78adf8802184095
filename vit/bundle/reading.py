"""A bundle read back: a model with all that is needed to use it."""

import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from math import isfinite
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor, nn

import vit
from vit.bundle.files import read_file
from vit.bundle.record import (
    CONFIG,
    FORMAT,
    SEAL,
    WEIGHTS,
    BundleError,
    Contract,
    check_classes,
    check_seal,
    check_thresholds,
    log,
    outputs,
    sha256,
    tied,
)
from vit.bundle.replacing import recovered
from vit.data import LinePreprocessing, Preprocessing
from vit.data.text.tokenizers import Tokenizer, tokenizer_from_dict
from vit.files.untrusted import allowed, check_regular, megabytes, parse_json, read_text
from vit.messages import one_line
from vit.models import model_from_config
from vit.nn.init import SkipInit
from vit.weights.formats.timm import from_timm

REQUIRED = {"model", "names", "sha256", "classes", "preprocessing", "metrics", "extra"}
LARGE = 10_000  # pixels, channels, tokens or classes
TRIES = 100
MOMENT = 0.05  # seconds: where the system cannot exchange two folders, there is none while one replaces the other
KEYS = REQUIRED | {"format", "tokenizers", "thresholds", "versions", SEAL}
TYPES = {"model": dict, "classes": list, "metrics": dict, "extra": dict, "tokenizers": dict, "thresholds": list}


@dataclass(frozen=True)
class Bundle:
    """A model read back from disk, in eval mode, with all that is needed to use it.

    `classes` is empty where texts are written, `preprocessing` None where none but texts are read; `tokenizers` are
    those of "source" and "target" as there are. `thresholds`, one per class, are there where an image may have several
    labels. `record` is everything under the key `vit` of config.json; `extra` the part of it that the writer added.
    """

    path: Path
    model: nn.Module
    classes: list[str]
    preprocessing: Contract | None
    tokenizers: dict[str, Tokenizer]
    metrics: dict[str, float]
    extra: dict[str, Any]
    record: dict[str, Any]
    thresholds: tuple[float, ...] = ()

    def tokenizer(self, side: str) -> Tokenizer:
        """The tokenizer of "source" or "target"; raises BundleError where it was not saved or is not the model's."""
        if side not in self.tokenizers:
            raise BundleError(f"{self.path / CONFIG} has no {side} tokenizer, which texts need; save the model again "
                              f"with tokenizers={{{side!r}: ...}}")
        found, config = self.tokenizers[side], self.model.config
        known = (side == "source" and getattr(config, "source_vocab", None)) or config.vocab_size
        if found.vocab_size > known:
            raise BundleError(f"{self.path / CONFIG}: the {side} tokenizer has {found.vocab_size} tokens, the model "
                              f"only {known}; it belongs to another model")
        return found


def load_bundle(path: str | PathLike[str]) -> Bundle:
    """Read a bundle: the folder, a run folder that holds it as `model/`, or one of its two files.

    Raises:
        FileNotFoundError: nothing is there.
        BundleError: no bundle, a damaged one, or one of a newer format.
    """
    missing = False
    for _ in range(TRIES):
        try:
            folder = find_bundle(path)
            with suppress(_Replaced), _unchanged(folder):
                return _load(folder)
            missing = False
        except FileNotFoundError:
            if missing:
                raise
            missing = True
            time.sleep(MOMENT)
    raise BundleError(f"{path} is replaced by other processes all the time; load it when they have ended")


class _Replaced(Exception):
    """The folder was replaced while it was read."""


@contextmanager
def _unchanged(folder: Path) -> Iterator[None]:
    """Raises _Replaced, whatever else the block raises, where `folder` is another folder in the end."""
    held = os.open(folder, os.O_RDONLY) if os.name != "nt" else None  # while it is open its number is not used again
    before = os.stat(folder).st_ino
    try:
        yield
    finally:
        try:
            changed = os.stat(folder).st_ino != before
        except FileNotFoundError:
            changed = True
        if held is not None:
            os.close(held)
        if changed:
            raise _Replaced


def _load(folder: Path) -> Bundle:
    record, text = _read_record(folder)
    check_regular(folder / WEIGHTS)
    digest = sha256(folder / WEIGHTS)
    if digest != record["sha256"]:
        raise BundleError(f"{folder / WEIGHTS} is damaged or belongs to another model: its SHA-256 is {digest[:16]}…, "
                          f"but {CONFIG} promises {str(record['sha256'])[:16]}…; copy the folder again")
    try:
        _check_size(record["model"], folder / WEIGHTS)
        with SkipInit():
            model = model_from_config(record["model"])
        preprocessing = contract(record["preprocessing"])
        tokenizers = {name: tokenizer_from_dict(each) for name, each in record.get("tokenizers", {}).items()}
        classes, thresholds = list(record["classes"]), tuple(record.get("thresholds", ()))
        check_classes(classes, outputs(model))
        check_thresholds(thresholds, classes)
        weights = read_file(folder / WEIGHTS)
        if record["names"] == "timm" and model.config.kind == "vit":
            weights = from_timm(weights, model.config)
        once = tied(model)  # such weights must stay one: what is assigned would become two
        weights |= {name: weights[first] for name, first in once.items()}
        model.load_state_dict(weights, assign=not once and same_types(model, weights))
    except Exception as error:
        raise BundleError(f"{folder}: the model cannot be built from {CONFIG}: {one_line(error)}") from error
    check_seal(text, record, folder / CONFIG)  # last, because any other fault says more
    return Bundle(folder, model.eval(), classes, preprocessing, tokenizers, record["metrics"], record["extra"], record,
                  thresholds)


def _check_size(config: dict[str, Any], weights: Path) -> None:
    """Raises BundleError where a config asks for a model far larger than the file of its weights, before it is built.

    Only large numbers are looked into: then the model is built without memory and its tensors are counted.
    """
    with safe_open(weights, framework="pt") as file:
        tensors = len(file.keys())
    for key, value in config.items():
        if "depth" in key and isinstance(value, int) and value > tensors:
            raise BundleError(f"{key} is {value:,}, but {weights} has {tensors:,} tensors")
    if max(_numbers(config), default=0) <= LARGE:
        return
    with torch.device("meta"):
        parts = model_from_config(config)
    size = sum(tensor.numel() * tensor.element_size() for tensor in (*parts.parameters(), *parts.buffers()))
    if size > allowed(weights.stat().st_size):
        raise BundleError(f"it describes a model of {megabytes(size)}, but {weights} has "
                          f"{megabytes(weights.stat().st_size)}")


def _numbers(values: Any) -> Iterator[float]:
    if isinstance(values, Mapping | list):
        for value in values.values() if isinstance(values, Mapping) else values:
            yield from _numbers(value)
    elif isinstance(values, int | float):
        yield values


def same_types(model: nn.Module, weights: Mapping[str, Tensor]) -> bool:
    """Whether a model can take these tensors themselves, and no copies of another type."""
    return all(tensor.dtype == weights[name].dtype for name, tensor in model.state_dict().items() if name in weights)


def contract(values: dict[str, Any] | None) -> Contract | None:
    """The preprocessing that `to_dict` described: of images of one size, or of line images as wide as they are."""
    if values is None:
        return None
    return (LinePreprocessing if "max_width" in values else Preprocessing).from_dict(values)


def model_kind(path: str | PathLike[str]) -> str | None:
    """The kind of model that a bundle holds, its weights left unread; None where there is no bundle."""
    try:
        return _read_record(find_bundle(path))[0]["model"]["kind"]
    except (BundleError, FileNotFoundError, KeyError):
        return None


def is_bundle(path: str | PathLike[str]) -> bool:
    """Whether the folder itself holds the two files of a bundle; says nothing about what is in them."""
    return all((Path(path) / name).is_file() for name in (CONFIG, WEIGHTS))


def find_bundle(path: str | PathLike[str]) -> Path:
    """The bundle folder that a path means: itself, `model/` inside a run folder, or the folder of a file in it."""
    path = Path(path).expanduser()
    if not path.exists() and not recovered(path):
        raise FileNotFoundError(f"{path}: there is no such model; give a run folder or one with {CONFIG} and {WEIGHTS}")
    if path.is_file():
        if path.name not in (CONFIG, WEIGHTS):
            raise BundleError(f"{path} is a single file; a model is a folder with {CONFIG} and {WEIGHTS} "
                              "(a run keeps it in model/)")
        path = path.parent
    if not (path / CONFIG).exists():
        recovered(path / "model")
    for folder in (path, path / "model"):
        if (folder / CONFIG).exists():
            return folder
    raise BundleError(f"{path} holds no model: neither {CONFIG} nor model/{CONFIG} is there")


def _read_record(folder: Path) -> tuple[dict[str, Any], str]:
    """What stands under the key `vit` of config.json, and the whole text of that file."""
    file, constants = folder / CONFIG, []
    try:
        text = read_text(file)
        config = parse_json(text, lambda name: constants.append(name) or float(name))
    except (OSError, ValueError) as error:
        raise BundleError(f"{file} cannot be read: {getattr(error, 'strerror', None) or one_line(error)}") from None
    record = config.get("vit") if isinstance(config, dict) else None
    if not isinstance(record, dict):
        raise BundleError(f"{file} was not written by this program: it has no key vit")
    if record.get("format") != FORMAT:
        raise BundleError(f"{file} has bundle format {record.get('format')}, but vit {vit.__version__} reads {FORMAT}; "
                          "update vit")
    missing = REQUIRED - set(record)
    if missing:
        raise BundleError(f"{file} is incomplete: vit.{sorted(missing)[0]} is missing")
    if SEAL not in record and (unknown := set(record) - KEYS):
        raise BundleError(f"{file} has an unknown key vit.{sorted(unknown)[0]} and no {SEAL}; it is damaged or from a "
                          "newer version: copy the folder again")
    for key, kind in TYPES.items():
        if not isinstance(record.get(key, kind()), kind):
            raise BundleError(f"{file}: vit.{key} must be a {kind.__name__}, not {type(record[key]).__name__}")
    if constants:
        record["metrics"] = _finite_metrics(record, constants, file)
    if not (folder / WEIGHTS).is_file():
        raise BundleError(f"{folder} has a {CONFIG}, but no {WEIGHTS}; copy the folder again")
    return record, text


def _finite_metrics(record: dict[str, Any], constants: list[str], file: Path) -> dict[str, Any]:
    """The metrics without those that are NaN or infinite, which older versions saved, and nothing else so.

    Raises:
        BundleError: NaN or infinity stands elsewhere, or in the file of a version that saves null.
    """
    wrong = {name: each for name, each in record["metrics"].items() if isinstance(each, float) and not isfinite(each)}
    if SEAL in record or len(wrong) < len(constants):
        raise BundleError(f"{file} cannot be read: {constants[0]} is no JSON number; write null")
    for name, value in wrong.items():
        log.warning("%s, of an older version: %s is %s and is left out", file, name, value)
    return {name: value for name, value in record["metrics"].items() if name not in wrong}
