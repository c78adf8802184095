"""What writing and reading a bundle have in common: its files, its format, and what must agree in it."""

import hashlib
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from vit.data import LinePreprocessing, Preprocessing
from vit.files.strict_json import json_text

log = logging.getLogger("vit")

Contract = Preprocessing | LinePreprocessing
FORMAT = 1
WEIGHTS, CONFIG = "model.safetensors", "config.json"
SEAL, UNSEALED = "config_sha256", "0" * 64  # the key of config.json's own SHA-256, and its value while that is computed


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


def sealed(config: Mapping[str, Any]) -> str:
    """The text of config.json, with the SHA-256 of all the rest of it as `vit.config_sha256`."""
    content = {**config, "vit": {**config["vit"], SEAL: UNSEALED}}
    text = json_text(content) + "\n"
    return text.replace(UNSEALED, digest_of(text), 1)


def check_seal(text: str, record: Mapping[str, Any], file: Path) -> None:
    """Raises BundleError where the text of a config.json is not what was saved."""
    promised = record.get(SEAL)
    if promised is None:
        log.info("%s has no SHA-256 of its own (%s): changes in it go unnoticed", file, SEAL)
        return
    found = digest_of(text.replace("\r\n", "\n").replace(str(promised), UNSEALED, 1))
    if found != promised:
        raise BundleError(f"{file} was changed after it was saved: its SHA-256 is {found[:16]}…, but {SEAL} says "
                          f"{str(promised)[:16]}…; copy the folder again, or, if you edited it, remove the key {SEAL}")


def digest_of(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8")).hexdigest()
