"""Somebody's model, ready to answer: `vit.load` over every source that `import_weights` takes."""

import shlex
import warnings
from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import Any

from vit.bundle import CONFIG, WEIGHTS, Bundle, load_bundle
from vit.bundle.files import SourceError, read_json
from vit.data import Preprocessing
from vit.exchange import pixels
from vit.exchange.importing import Wanted, take
from vit.exchange.read import FILES, HUB, TIMM, Anything, Source, read
from vit.weights import KeyReport

PROJECTIONS = ("visual_projection.weight", "visual.proj", "proj", "visual.head.proj.weight")
GUESS = ("shorter", 0.875, "bicubic", *pixels.IMAGENET)


def open_model(source: Anything, *, num_heads: int | None = None, act: str | None = None) -> Bundle:
    """A bundle of ours as it is, anything else as the bundle it would be.

    What a source does not say about class names and preparation of images is told by a warning.

    Raises:
        SourceError, BundleError, FileNotFoundError: as `read`, `import_weights` and `load_bundle`.
    """
    if not is_foreign(source):
        return load_bundle(source)
    found = read(source)
    check_answers(found, found.model)
    model, report = take(found, Wanted(num_heads, act))
    check_answers(found, model.config.to_dict())
    if not model.config.num_classes or projects(report):
        raise SourceError(f"{found.name} has no classes to answer with; vit.import_weights gives it for its features, "
                          f"and {shlex.quote(f'init_from={found.name}')} begins a training with it")
    preparation = prepared(found, format_of(report), model.config)
    classes = named(found, model.config.num_classes)
    return Bundle(Path(found.name), model, classes, preparation, {}, {}, {}, {}, found.thresholds)


def check_answers(found: Source, model: Mapping[str, Any] | None) -> None:
    """Raises SourceError where weights alone do not make a model that answers; None where that is not known yet."""
    if model is None or model["kind"] in ("vit", "timm"):
        return
    why = ("needs a tokenizer that its weights do not bring;" if found.model is None else
           "answers from the folder of its run and not from weights alone; give that folder, or")
    raise SourceError(f"{found.name} is a model of kind {model['kind']}, which {why} begin a training with "
                      f"{shlex.quote(f'init_from={found.name}')}")


def projects(report: KeyReport) -> bool:
    """Whether the head is a CLIP's projection into the space that images and texts share."""
    return any(row.name == "head.weight" and set(row.sources) & set(PROJECTIONS) for row in report.rows)


def is_foreign(source: Anything) -> bool:
    """Whether this is something else than a folder of ours; what is not there at all counts as ours."""
    if not isinstance(source, str | PathLike):
        return True
    name, path = str(source), Path(source).expanduser()
    if name.startswith((TIMM, HUB)):
        return True
    if path.is_file():
        if path.name not in (CONFIG, WEIGHTS):
            return True
        path = path.parent
    if (path / CONFIG).is_file():
        return "vit" not in read_json(path / CONFIG)
    return path.is_dir() and not (path / "model" / CONFIG).is_file() and any((path / name).is_file() for name in FILES)


def format_of(report: KeyReport) -> str:
    """The name of the format that a report tells."""
    return next((note.removeprefix("format: ") for note in report.notes if note.startswith("format: ")), "")


def prepared(source: Source, format_name: str, config: Any) -> Preprocessing:
    """How its images are prepared, at the size and for the channels that the model was built for."""
    size = tuple(config.image_size)
    if source.preprocessing is not None:
        return source.preprocessing.replace(size=size)
    usual = pixels.usual(format_name, size) or Preprocessing(size, *GUESS)
    usual = usual.replace(**pixels.colours(usual.mean, usual.std, config.in_chans))
    warnings.warn(f"{source.name} does not say how images are prepared; taken: {usual.resize} to {size[0]}x{size[1]}, "
                  f"crop_pct {usual.crop_pct}, {usual.interpolation}, mean {usual.mean}, std {usual.std}", stacklevel=3)
    return usual


def named(source: Source, count: int) -> list[str]:
    """Its class names; numbers where there are none."""
    if len(source.classes) == count and len(set(source.classes)) == count:
        return source.classes
    names = f"names {len(set(source.classes))} classes and has {count}" if source.classes else (
        f"does not name its {count} classes")
    warnings.warn(f"{source.name} {names}; they are numbered", stacklevel=3)
    return [str(i) for i in range(count)]
