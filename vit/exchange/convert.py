"""`vit convert`: any source written as somebody else opens it, or as a bundle of ours."""

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from vit.bundle import CONFIG, WEIGHTS, Contract, load_bundle, save_bundle
from vit.bundle.files import SourceError
from vit.data import Preprocessing
from vit.data.text.tokenizers import Tokenizer
from vit.exchange import pixels, tokens
from vit.exchange.comparing import check_same, described
from vit.exchange.importing import Size, Wanted, take
from vit.exchange.opening import format_of, is_foreign, named, prepared
from vit.exchange.pixel_differences import Answers, by_timm, by_transformers
from vit.exchange.read import MULTI_LABEL, PIXELS, THRESHOLDS, Anything, Source, read
from vit.files.strict_json import json_text
from vit.weights import KeyReport, timm_arguments
from vit.weights.formats.torchvision import to_torchvision
from vit.weights.transformers_export import to_transformers

TARGETS = ("timm", "transformers", "torchvision", "bundle")
FILES = (".safetensors", ".pth", ".pt")


@dataclass(frozen=True)
class Outgoing:
    """A model with what goes with it, on its way to a file or folder."""

    model: nn.Module
    classes: list[str]
    preprocessing: Contract | None
    tokenizers: dict[str, Tokenizer]
    thresholds: tuple[float, ...]
    use: Mapping[str, Any]  # what a bundle tells of how its model is used


def convert(
    source: Anything,
    dest: str | PathLike[str],
    to: str = "bundle",
    *,
    num_heads: int | None = None,
    act: str | None = None,
    image_size: Size | None = None,
    patch_size: Size | None = None,
    in_chans: int | None = None,
    num_classes: int | None = None,
    strict: bool = True,
) -> KeyReport:
    """Write a source's model for others: a folder, or for torchvision a file of its state dict.

    Args:
        to: "timm", "transformers", "torchvision" or "bundle" (which is a timm folder where timm can express the model).
        num_heads, act, image_size, patch_size, in_chans, num_classes, strict: as for `import_weights`.

    Raises:
        SourceError: a source that cannot be taken, a model that the target cannot express, something in the way.
    """
    dest = Path(dest).expanduser()
    check_target(dest, to)
    wanted = Wanted(num_heads, act, image_size, patch_size, in_chans, num_classes)
    if to == "bundle" and not is_foreign(source) and wanted == Wanted() and Path(source).expanduser().exists():
        return copy_bundle(source, dest)
    found = read(source)
    if to != "bundle" and (found.model or {}).get("kind") == "timm":
        found = as_timm_module(found)
    model, report = take(found, replace(wanted, strict=strict))
    preparation, classes = found.preprocessing, found.classes
    if model.config.kind in ("vit", "timm") and to != "torchvision":  # whose files hold nothing but tensors
        preparation = prepared(found, format_of(report), model.config)
        classes = named(found, model.config.num_classes) if model.config.num_classes else []
    several = found.thresholds if len(found.thresholds) == len(classes) else ()
    out = Outgoing(model, classes, preparation, found.tokenizers, several, found.use)
    WRITERS[to](dest, out)
    if said := differences(dest, to, out):
        warnings.warn(said, stacklevel=2)
    return report


def check_target(dest: Path, to: str) -> None:
    """What would stop the writing in the end is said first."""
    if to not in TARGETS:
        raise SourceError(f"--to {to} is unknown; it must be one of {', '.join(TARGETS)}")
    if to == "torchvision" and dest.suffix not in FILES:
        raise SourceError(f"torchvision's models are files: let {dest} end with one of {', '.join(FILES)}")
    if dest.exists() and (dest.is_file() or any(dest.iterdir())):
        raise SourceError(f"{dest} is there already and is left as it is; choose another place")


def copy_bundle(source: str | PathLike[str], dest: Path) -> KeyReport:
    """A bundle with all it holds; its report is that of nothing changed."""
    bundle = load_bundle(source)
    with checked(dest, "bundle", bundle.model) as place:
        save_bundle(place, bundle.model, bundle.classes, bundle.preprocessing, bundle.metrics, bundle.extra,
                    tokenizers=bundle.tokenizers, thresholds=bundle.thresholds)
    return take(read(bundle.model))[1]


def as_timm_module(found: Source) -> Source:
    """A bundle that holds a timm model by its name, read as the module that it is."""
    from vit.models import model_from_config

    module = model_from_config(found.model)
    module.load_state_dict(found.state)
    return replace(found, model=None, config={"module": module})


@contextmanager
def checked(dest: Path, to: str, model: nn.Module) -> Iterator[Path]:
    """A place to write to; what is there in the end takes the place of `dest`, once it computes what the model does."""
    dest.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(prefix=f".{dest.name}.part-", dir=dest.parent) as part:
        place = Path(part) / dest.name
        yield place
        check_same(place, to, model)
        if dest.is_dir():
            dest.rmdir()  # an empty one, as `check_target` saw
        place.rename(dest)


def write_bundle(dest: Path, out: Outgoing) -> None:
    with checked(dest, "bundle", out.model) as place:
        write_any_bundle(place, out)


def write_any_bundle(place: Path, out: Outgoing) -> None:
    save_bundle(place, out.model, out.classes, out.preprocessing, extra=out.use, tokenizers=out.tokenizers,
                thresholds=out.thresholds)


def write_timm(dest: Path, out: Outgoing) -> None:
    """A bundle that must be a timm folder."""
    if isinstance(reason := timm_arguments(out.model.config), str):
        raise SourceError(f"{reason}; --to bundle writes it under our own names")
    with checked(dest, "timm", out.model) as place:
        write_any_bundle(place, out)


def write_torchvision(dest: Path, out: Outgoing) -> None:
    """One file, for `torchvision.models.vit_b_16()` and its sisters to `load_state_dict`."""
    try:
        weights = plain(to_torchvision(out.model.state_dict(), out.model.config))
    except ValueError as error:
        raise SourceError(f"{error}; --to bundle keeps it as it is") from None
    with checked(dest, "torchvision", out.model) as place:
        save_file(weights, place) if dest.suffix == ".safetensors" else torch.save(weights, place)


def write_transformers(dest: Path, out: Outgoing) -> None:
    """A folder that transformers opens as a model of its own, without timm."""
    try:
        config, weights = to_transformers(out.model.state_dict(), out.model.config)
    except ValueError as error:
        image = out.model.config.kind in ("vit", "timm")
        way = "timm writes a folder that transformers opens through timm" if image else "bundle keeps it as it is"
        raise SourceError(f"{error}; --to {way}") from None
    if out.classes:
        labels = dict(enumerate(out.classes))
        config |= {"id2label": labels, "label2id": {name: i for i, name in labels.items()}}
    if out.thresholds:
        config |= {"problem_type": MULTI_LABEL, THRESHOLDS: list(out.thresholds)}
    files = {CONFIG: config}
    if out.preprocessing is not None:
        files[PIXELS], _ = pixels.for_transformers(out.preprocessing)
    if (tokenizer := out.tokenizers.get("source")) is not None:
        files |= tokens.for_transformers(tokenizer, out.model.config.max_len)
    with checked(dest, "transformers", out.model) as place:
        place.mkdir()
        save_file(plain(weights), place / WEIGHTS, metadata={"format": "pt"})
        for name, values in files.items():
            (place / name).write_text(json_text(values, ascii_only=False) + "\n", encoding="utf-8")


def differences(dest: Path, to: str, out: Outgoing) -> str:
    """How the library that opens `dest` prepares images differently, measured; "" where it does not."""
    if not isinstance(out.preprocessing, Preprocessing):
        return ""
    answers = Answers(out.model, several=bool(out.thresholds)) if out.classes else None
    if to == "transformers":
        return by_transformers(out.preprocessing, dest, answers)
    return by_timm(out.preprocessing, dest, answers) if "architecture" in described(dest) else ""


def plain(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Contiguous tensors, each with memory of its own, as safetensors wants them."""
    return {name: tensor.detach().cpu().clone(memory_format=torch.contiguous_format) for name, tensor in state.items()}


WRITERS = {"bundle": write_bundle, "timm": write_timm, "torchvision": write_torchvision,
           "transformers": write_transformers}
