"""The bundle: one folder that explains itself, `model.safetensors` + `config.json`.

Where timm can express the model, the folder is a timm folder, which timm and transformers load as it is; our own record
stands under the key `vit`. In memory the names are ours; on disk they are the ones that `vit.weights` says.
"""

import hashlib
import json
import os
import platform
import shutil
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

import vit
from vit.data import LinePreprocessing, Preprocessing
from vit.data.text import Tokenizer, tokenizer_from_dict
from vit.exchange.files import read_file
from vit.models import model_from_config
from vit.nn.init import Unfilled
from vit.weights.timm import from_timm, timm_arguments, to_timm

Contract = Preprocessing | LinePreprocessing
FORMAT = 1
WEIGHTS, CONFIG = "model.safetensors", "config.json"
CROP_MODES = {"squash": "squash", "none": "squash", "shorter": "center", "pad": "border"}  # our resize rule -> timm's


class BundleError(ValueError):
    """A folder that is no bundle, or a damaged one; the text is one sentence that names the file."""


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
    _check_classes(classes, outputs(model))
    _check_thresholds(thresholds, classes)
    _check_target(path)
    classifies = isinstance(preprocessing, Preprocessing) and model.config.kind != "mae"
    foreign = timm_folder(model, classes, preprocessing) if classifies else None
    once = tied(model)
    weights = _plain({k: v for k, v in (state or model.state_dict()).items() if k not in once})
    if foreign and model.config.kind == "vit":
        weights = to_timm(weights, model.config)
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.part-{os.getpid()}")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir()
    try:
        save_file(weights, part / WEIGHTS, metadata={"format": "pt"})
        record = {
            "format": FORMAT,
            "model": model.config.to_dict(),
            "names": "timm" if foreign else "vit",
            "sha256": _sha256(part / WEIGHTS),
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
        config = {**(foreign or names), **kind, "vit": record}
        (part / CONFIG).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
        _replace(part, path)
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return path


def load_bundle(path: str | PathLike[str]) -> Bundle:
    """Read a bundle: the folder, a run folder that holds it as `model/`, or one of its two files.

    Raises:
        FileNotFoundError: nothing is there.
        BundleError: no bundle, a damaged one, or one of a newer format.
    """
    folder = find_bundle(path)
    record = _read_record(folder)
    digest = _sha256(folder / WEIGHTS)
    if digest != record["sha256"]:
        raise BundleError(f"{folder / WEIGHTS} is damaged or belongs to another model: its SHA-256 is {digest[:16]}…, "
                          f"but {CONFIG} promises {str(record['sha256'])[:16]}…; copy the folder again")
    try:
        with Unfilled():
            model = model_from_config(record["model"])
        preprocessing = contract(record["preprocessing"])
        tokenizers = {name: tokenizer_from_dict(each) for name, each in record.get("tokenizers", {}).items()}
        classes, thresholds = list(record["classes"]), tuple(record.get("thresholds", ()))
        _check_classes(classes, outputs(model))
        _check_thresholds(thresholds, classes)
        weights = read_file(folder / WEIGHTS)
        if record["names"] == "timm" and model.config.kind == "vit":
            weights = from_timm(weights, model.config)
        once = tied(model)  # such weights must stay one: what is assigned would become two
        weights |= {name: weights[first] for name, first in once.items()}
        model.load_state_dict(weights, assign=not once and same_types(model, weights))
    except Exception as error:
        raise BundleError(f"{folder}: the model cannot be built from {CONFIG}: {_one_line(error)}") from error
    return Bundle(folder, model.eval(), classes, preprocessing, tokenizers, record["metrics"], record["extra"], record,
                  thresholds)


def tied(model: nn.Module) -> dict[str, str]:
    """Names of weights that are another one's as well -> that one's first name, under which they are saved once."""
    first: dict[Tensor, str] = {}
    names = {name: first.setdefault(tensor, name) for name, tensor in model.state_dict(keep_vars=True).items()}
    return {name: known for name, known in names.items() if name != known}


def same_types(model: nn.Module, weights: Mapping[str, Tensor]) -> bool:
    """Whether a model can take these tensors themselves, and no copies of another type."""
    return all(tensor.dtype == weights[name].dtype for name, tensor in model.state_dict().items() if name in weights)


def outputs(model: nn.Module) -> int:
    """How many class names a model needs."""
    return getattr(model.config, "num_classes", 0)


def contract(values: dict[str, Any] | None) -> Contract | None:
    """The preprocessing that `to_dict` described: of images of one size, or of line images as wide as they are."""
    if values is None:
        return None
    return (LinePreprocessing if "max_width" in values else Preprocessing).from_dict(values)


def model_kind(path: str | PathLike[str]) -> str | None:
    """The kind of model that a bundle holds, its weights left unread; None where there is no bundle."""
    try:
        return _read_record(find_bundle(path))["model"]["kind"]
    except (BundleError, FileNotFoundError):
        return None


def is_bundle(path: str | PathLike[str]) -> bool:
    """Whether the folder itself holds the two files of a bundle; says nothing about what is in them."""
    return all((Path(path) / name).is_file() for name in (CONFIG, WEIGHTS))


def find_bundle(path: str | PathLike[str]) -> Path:
    """The bundle folder that a path means: itself, `model/` inside a run folder, or the folder of a file in it."""
    path = Path(path).expanduser()
    if not path.exists():
        raise FileNotFoundError(f"{path}: there is no such model; give a run folder or one with {CONFIG} and {WEIGHTS}")
    if path.is_file():
        if path.name not in (CONFIG, WEIGHTS):
            raise BundleError(f"{path} is a single file; a model is a folder with {CONFIG} and {WEIGHTS} "
                              "(a run keeps it in model/)")
        path = path.parent
    for folder in (path, path / "model"):
        if (folder / CONFIG).is_file():
            return folder
    raise BundleError(f"{path} holds no model: neither {CONFIG} nor model/{CONFIG} is there")


def timm_folder(model: nn.Module, classes: Sequence[str], preprocessing: Preprocessing) -> dict[str, Any] | None:
    """What config.json says to timm and transformers; None, and a warning why, where timm has no words for it."""
    arguments = timm_arguments(model.config)
    if isinstance(arguments, str):
        warnings.warn(f"saved under our own names, timm and transformers cannot load it: {arguments}", stacklevel=3)
        return None
    if unsaid := _beyond_timm(preprocessing):
        text = f"timm and transformers will load this model, but prepare images another way: {unsaid}"
        warnings.warn(text, stacklevel=3)
    heads = ["head", "head_dist"] if getattr(model.config, "dist_token", False) else "head"
    cfg = getattr(model, "pretrained_cfg", None) or {"first_conv": "patch_embed.proj", "classifier": heads}
    height, width = preprocessing.size
    return {
        "architecture": arguments["architecture"],
        "num_classes": len(classes),
        "label_names": list(classes),
        "model_args": arguments["model_args"],
        "pretrained_cfg": {
            "input_size": [model.config.in_chans, height, width],
            "fixed_input_size": "img_size" in arguments["model_args"],
            "interpolation": preprocessing.interpolation,
            "crop_pct": preprocessing.crop_pct if preprocessing.resize != "none" else 1.0,
            "crop_mode": CROP_MODES[preprocessing.resize],
            "mean": list(preprocessing.mean),
            "std": list(preprocessing.std),
            "num_classes": len(classes),
            "pool_size": None,
            "first_conv": cfg["first_conv"],
            "classifier": cfg["classifier"],
        },
    }


def _beyond_timm(preprocessing: Preprocessing) -> str:
    """What timm's words cannot say about our preprocessing; nothing where they say it all."""
    mean = tuple(round(255 * value) for value in preprocessing.mean)
    if preprocessing.mode != "RGB":
        return f"they read RGB, this one {preprocessing.mode}"
    if preprocessing.resize == "pad" and preprocessing.background != mean:
        return f"they pad with the mean colour {mean}, not with the background {preprocessing.background}"
    return ""


def _check_classes(classes: Sequence[str], outputs: int) -> None:
    if len(classes) != outputs:
        raise BundleError(f"the model has {outputs} outputs, but {len(classes)} class names were given")
    seen = set()
    for name in classes:
        if name in seen:
            raise BundleError(f"class name {name!r} is given twice; names must differ")
        seen.add(name)


def _check_thresholds(thresholds: Sequence[float], classes: Sequence[str]) -> None:
    if thresholds and len(thresholds) != len(classes):
        raise BundleError(f"{len(thresholds)} thresholds were given for {len(classes)} classes")
    wrong = [value for value in thresholds if not 0 <= value <= 1]
    if wrong:
        raise BundleError(f"threshold {wrong[0]} is no probability; it must lie in 0..1")


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


def _read_record(folder: Path) -> dict[str, Any]:
    file = folder / CONFIG
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise BundleError(f"{file} cannot be read: {_one_line(error)}") from None
    record = config.get("vit") if isinstance(config, dict) else None
    if not isinstance(record, dict):
        raise BundleError(f"{file} was not written by this program: it has no key vit")
    if record.get("format") != FORMAT:
        raise BundleError(f"{file} has bundle format {record.get('format')}, but vit {vit.__version__} reads {FORMAT}; "
                          "update vit")
    missing = {"model", "names", "sha256", "classes", "preprocessing", "metrics", "extra"} - set(record)
    if missing:
        raise BundleError(f"{file} is incomplete: vit.{sorted(missing)[0]} is missing")
    if not (folder / WEIGHTS).is_file():
        raise BundleError(f"{folder} has a {CONFIG}, but no {WEIGHTS}; copy the folder again")
    return record


def _sha256(file: Path) -> str:
    with open(file, "rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _versions() -> dict[str, str]:
    packages = {name: metadata.version(name) for name in ("timm", "safetensors", "pillow")}
    return {"vit": vit.__version__, "python": platform.python_version(), "torch": torch.__version__, **packages}


def _one_line(error: Exception) -> str:
    """The error's text on one line, with its kind where the text alone says nothing."""
    text = " ".join(str(error).split())
    return (text if len(text) > 20 else f"{type(error).__name__}: {text}")[:300]
