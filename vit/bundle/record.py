"""What writing and reading a bundle have in common: its files, its format, and what must agree in it."""

import hashlib
from collections.abc import Sequence
from pathlib import Path

from torch import Tensor, nn

from vit.data import LinePreprocessing, Preprocessing

Contract = Preprocessing | LinePreprocessing
FORMAT = 1
WEIGHTS, CONFIG = "model.safetensors", "config.json"


class BundleError(ValueError):
    """A folder that is no bundle, or a damaged one; the text is one sentence that names the file."""


def outputs(model: nn.Module) -> int:
    """How many class names a model needs."""
    return getattr(model.config, "num_classes", 0)


def tied(model: nn.Module) -> dict[str, str]:
    """Names of weights that are another one's as well -> that one's first name, under which they are saved once."""
    first: dict[Tensor, str] = {}
    names = {name: first.setdefault(tensor, name) for name, tensor in model.state_dict(keep_vars=True).items()}
    return {name: known for name, known in names.items() if name != known}


def check_classes(classes: Sequence[str], outputs: int) -> None:
    if len(classes) != outputs:
        raise BundleError(f"the model has {outputs} outputs, but {len(classes)} class names were given")
    seen = set()
    for name in classes:
        if name in seen:
            raise BundleError(f"class name {name!r} is given twice; names must differ")
        seen.add(name)


def check_thresholds(thresholds: Sequence[float], classes: Sequence[str]) -> None:
    if thresholds and len(thresholds) != len(classes):
        raise BundleError(f"{len(thresholds)} thresholds were given for {len(classes)} classes")
    wrong = [value for value in thresholds if not 0 <= value <= 1]
    if wrong:
        raise BundleError(f"threshold {wrong[0]} is no probability; it must lie in 0..1")


def sha256(file: Path) -> str:
    with open(file, "rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
