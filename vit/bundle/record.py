"""The record of a bundle: the values under the key `vit` of config.json, their checks, and the checksums."""

import hashlib
import logging
from collections.abc import Mapping, Sequence
from math import isfinite
from pathlib import Path
from typing import Any

from torch import Tensor, nn

import vit
from vit.data import AnyPreprocessing, LinePreprocessing, PackedPreprocessing, Preprocessing
from vit.files.strict_json import json_text
from vit.files.untrusted import parse_json, read_text
from vit.messages import agree, number_of, one_line

log = logging.getLogger("vit")

FORMAT = 1
WEIGHTS, CONFIG = "model.safetensors", "config.json"
CHECKSUM, NO_CHECKSUM = "config_sha256", "0" * 64  # key of config.json's own SHA-256, and its value while computing it
REQUIRED = {"model", "names", "sha256", "classes", "preprocessing", "metrics", "extra"}
KEYS = REQUIRED | {"format", "tokenizers", "thresholds", "calibration", "versions", CHECKSUM}
TYPES = {"model": dict, "classes": list, "metrics": dict, "extra": dict, "tokenizers": dict, "thresholds": list,
         "calibration": dict}


class BundleError(ValueError):
    """A folder that is not a bundle or a damaged one, or a model that cannot be saved; the text is one sentence that
    names the file or folder.
    """


def read_record(folder: Path) -> tuple[dict[str, Any], str]:
    """The record of a bundle, and the whole text of its config.json.

    Raises:
        BundleError: there is none, it is incomplete or of another format, or the weights are missing.
    """
    file, constants = folder / CONFIG, []

    def record_constant(name: str) -> float:
        constants.append(name)
        return float(name)

    try:
        text = read_text(file)
        config = parse_json(text, record_constant)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or one_line(error)
        raise BundleError(f"{file} cannot be read: {reason}; copy the folder again") from None
    record = config.get("vit") if isinstance(config, dict) else None
    if not isinstance(record, dict):
        raise BundleError(f"{file} was not written by this program: it has no key vit")
    check_record(record, file)
    if constants:
        record["metrics"] = _finite_metrics(record, constants, file)
    if not (folder / WEIGHTS).is_file():
        raise BundleError(f"{folder} has a {CONFIG}, but no {WEIGHTS}; copy the folder again")
    return record, text


def check_record(record: Mapping[str, Any], file: Path) -> None:
    """Checks that a record has the supported format, all keys, and values of the right types.

    Raises:
        BundleError: it does not.
    """
    if (version := record.get("format")) != FORMAT:
        fix = "update vit" if isinstance(version, int) and version > FORMAT else "copy the folder again"
        raise BundleError(f"{file} has bundle format {version!r}, but vit {vit.__version__} reads {FORMAT}; {fix}")
    if missing := REQUIRED - set(record):
        raise BundleError(f"{file} is incomplete: vit.{sorted(missing)[0]} is missing")
    if CHECKSUM not in record and (unknown := set(record) - KEYS):
        raise BundleError(f"{file} has an unknown key vit.{sorted(unknown)[0]} and no {CHECKSUM}; it is damaged or "
                          "from a newer version: copy the folder again")
    for key, kind in TYPES.items():
        if not isinstance(record.get(key, kind()), kind):
            raise BundleError(f"{file}: vit.{key} must be a {kind.__name__}, not {type(record[key]).__name__}")


def _finite_metrics(record: Mapping[str, Any], constants: list[str], file: Path) -> dict[str, Any]:
    """The metrics without NaN and infinite ones, which older versions saved.

    Args:
        constants: every NaN and Infinity of the whole file.

    Raises:
        BundleError: one of them is not a metric, or the file is of a version that saves null instead.
    """
    wrong = {name: each for name, each in record["metrics"].items() if isinstance(each, float) and not isfinite(each)}
    if CHECKSUM in record or len(wrong) < len(constants):
        raise BundleError(f"{file} cannot be read: {constants[0]} is not a JSON number; write null")
    for name, value in wrong.items():
        log.warning("%s, of an older version: %s is %s and is ignored", file, name, value)
    return {name: value for name, value in record["metrics"].items() if name not in wrong}


def num_outputs(model: nn.Module) -> int:
    """The number of class names that a model needs."""
    return getattr(model.config, "num_classes", 0)


def tied_weights(model: nn.Module) -> dict[str, str]:
    """Name of each repeated occurrence of a tied weight -> its first name, under which it is saved once."""
    first: dict[Tensor, str] = {}
    names = {name: first.setdefault(tensor, name) for name, tensor in model.state_dict(keep_vars=True).items()}
    return {name: known for name, known in names.items() if name != known}


def check_classes(classes: Sequence[str], outputs: int) -> None:
    """Checks that there is one class name per output, and no name twice.

    Raises:
        BundleError: their number differs, or a name occurs twice.
    """
    if len(classes) != outputs:
        raise BundleError(f"the model has {number_of(outputs, 'output')}, but {number_of(len(classes), 'class name')} "
                          f"{agree(len(classes), 'was', 'were')} given")
    seen = set()
    for name in classes:
        if name in seen:
            raise BundleError(f"class name {name!r} is given twice; names must differ")
        seen.add(name)


def check_thresholds(thresholds: Sequence[float], classes: Sequence[str]) -> None:
    """Checks that there is no threshold, or one probability per class.

    Raises:
        BundleError: their number differs, or a value is outside 0..1.
    """
    if thresholds and len(thresholds) != len(classes):
        count = len(thresholds)
        raise BundleError(f"{number_of(count, 'threshold')} {agree(count, 'was', 'were')} given for "
                          f"{number_of(len(classes), 'class')}")
    wrong = [value for value in thresholds if not 0 <= value <= 1]
    if wrong:
        raise BundleError(f"threshold {wrong[0]} is not a probability; it must be in 0..1")


def preprocessing_from_dict(values: dict[str, Any] | None) -> AnyPreprocessing | None:
    """The preprocessing that `to_dict` described: of line images of any width, of images that keep their aspect ratio,
    or of images of one size.

    Raises:
        ValueError: it is no dict, a key is unknown or missing, or a value is invalid.
    """
    if values is None:
        return None
    if not isinstance(values, dict):
        raise ValueError(f"preprocessing is {values!r}; it must be an object with the keys of the preprocessing")
    if "max_width" in values:
        return LinePreprocessing.from_dict(values)
    return (PackedPreprocessing if "max_patches" in values else Preprocessing).from_dict(values)


def text_with_checksum(config: Mapping[str, Any]) -> str:
    """The text of config.json; `vit.config_sha256` is the SHA-256 of the text with zeros in its place."""
    content = {**config, "vit": {**config["vit"], CHECKSUM: NO_CHECKSUM}}
    text = json_text(content) + "\n"
    return text.replace(NO_CHECKSUM, text_sha256(text), 1)


def check_checksum(text: str, record: Mapping[str, Any], file: Path) -> None:
    """Checks that the text of a config.json is what was saved; line endings may differ.

    Raises:
        BundleError: it was changed.
    """
    expected = record.get(CHECKSUM)
    if expected is None:
        log.info("%s has no SHA-256 of its own (%s): changes in it are not detected", file, CHECKSUM)
        return
    actual = text_sha256(text.replace("\r\n", "\n").replace(str(expected), NO_CHECKSUM, 1))
    if actual != expected:
        raise BundleError(f"{file} was changed after it was saved: its SHA-256 is {actual[:16]}…, but {CHECKSUM} is "
                          f"{str(expected)[:16]}…; copy the folder again, or, if you edited it, remove the key "
                          f"{CHECKSUM}")


def text_sha256(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8")).hexdigest()
