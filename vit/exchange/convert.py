"""`vit convert`: any source of weights in the form of another library, or as a bundle of this project."""

import io
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from os import PathLike
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from safetensors import SafetensorError
from torch import nn

from vit.bundle import CONFIG, WEIGHTS, Bundle, BundleError, Calibration, save_bundle
from vit.bundle.files import SourceError, independent_tensors, save_tensors
from vit.bundle.label_calibration import LabelCalibration, raw_thresholds
from vit.data import AnyPreprocessing, Preprocessing
from vit.data.text.tokenizers import Tokenizer
from vit.exchange import preprocessing
from vit.exchange.checkpoint import Checkpoint, check_saved_values
from vit.exchange.export import onnx_and_torch_export as programs
from vit.exchange.export import transformers_tokenizer
from vit.exchange.export.comparing import check_same
from vit.exchange.export.pixel_differences import ProbabilityShift, timm_difference, transformers_difference
from vit.exchange.importing import at_stated_size, import_checkpoint
from vit.exchange.opening import resolve_class_names, resolve_preprocessing, resolve_thresholds
from vit.exchange.options import Changes, Hints, OptionError, Size, current_activation
from vit.exchange.read import MULTI_LABEL, THRESHOLDS, read_checkpoint, read_config
from vit.exchange.sources import PROCESSOR_FILE, WeightSource
from vit.files.strict_json import json_text
from vit.messages import one_line
from vit.models import model_from_config
from vit.weights import KeyReport, KeyRow, timm_arguments
from vit.weights.formats.torchvision import to_torchvision
from vit.weights.transformers_export import to_transformers

PROGRAMS = tuple(programs.ENDINGS)
FILE_ENDINGS = {"torchvision": (".safetensors", ".pth", ".pt"), **programs.ENDINGS}  # of targets that are one file


@dataclass(frozen=True)
class ExportedModel:
    """A model with everything that is exported beside its weights.

    Args:
        thresholds: thresholds of a multi-label model, for its probabilities with `calibration`.
        calibration: only for a program; other libraries do not apply it.
        extra: what a bundle records about the use of its model.
    """

    model: nn.Module
    classes: list[str]
    preprocessing: AnyPreprocessing | None
    tokenizers: dict[str, Tokenizer]
    thresholds: tuple[float, ...]
    calibration: Calibration | LabelCalibration | None
    extra: Mapping[str, Any]


def convert(
    source: WeightSource,
    dest: str | PathLike[str],
    to: str = "bundle",
    *,
    num_heads: int | None = None,
    activation: str | None = None,
    image_size: Size | None = None,
    patch_size: Size | None = None,
    in_chans: int | None = None,
    num_classes: int | None = None,
    strict: bool = True,
    act: str | None = None,
) -> KeyReport:
    """Save a source's model for another library: a folder, for torchvision a file with its state dict, or a program.

    Args:
        to: "timm", "transformers", "torchvision" or "bundle" (which is a timm folder where timm can express the model);
            "onnx" or "torch_export" for one file that runs without this project.
        num_heads, activation, image_size, patch_size, in_chans, num_classes, strict, act: as for `import_weights`.

    Raises:
        SourceError: a source that cannot be imported, a model that the target cannot express, a library that is not
            installed, or an existing `dest`.
    """
    dest = Path(dest).expanduser()
    check_target(dest, to)
    hints = Hints(num_heads, current_activation(activation, act), image_size)
    changes = Changes(image_size, patch_size, in_chans, num_classes)
    checkpoint = read_checkpoint(source, hints)
    if to in AS_SAVED and checkpoint.bundle is not None and changes == Changes():
        check_saved_values(checkpoint.hints, checkpoint.model_config, checkpoint.name)
        return AS_SAVED[to](dest, checkpoint.bundle)
    if image_size is None:
        checkpoint = at_stated_size(checkpoint)
    kind = (checkpoint.model_config or {}).get("kind")
    if kind == "ensemble":
        raise checkpoint.error("this is an ensemble, which other libraries do not have; convert its members one by "
                               f"one, or use --to {', '.join(AS_SAVED)} without other options")
    if to != "bundle" and kind == "timm":
        checkpoint = as_timm_module(checkpoint)
    model, report = import_checkpoint(checkpoint, changes, strict)
    export = with_metadata(checkpoint, model, to)
    EXPORTERS[to](dest, export)
    is_calibrated = checkpoint.calibration is not None and num_classes is None  # a new head never was
    for warning in conversion_warnings(dest, to, export, is_calibrated):
        warnings.warn(warning, stacklevel=2)
    return report


def conversion_warnings(dest: Path, to: str, export: ExportedModel, is_calibrated: bool) -> Iterator[str]:
    """A sentence about each property of the source that the saved model lacks.

    Args:
        is_calibrated: whether the source has a calibration of this model.
    """
    if text := preprocessing_difference(dest, to, export):
        yield text
    if is_calibrated:
        fix = "vit calibrate calibrates the changed model, as a bundle" if to in AS_SAVED else (
            f"--to {', '.join(AS_SAVED)} keeps it")
        yield f"{dest} has no calibration: its probabilities are those of the model before it was calibrated; {fix}"
    if to == "bundle" and hasattr(export.model.config, "vocab_size") and not export.tokenizers:
        yield (f"{dest} has no tokenizer, since the source has none or one of another library, which is not read: it "
               "computes from token ids, and vit predict cannot read texts with it")


def with_metadata(checkpoint: Checkpoint, model: nn.Module, to: str) -> ExportedModel:
    """The model with the class names, preprocessing, tokenizers and thresholds that the source states. A calibration is
    dropped: it does not hold for a changed model, and other libraries do not apply it.
    """
    prepared, classes = checkpoint.stated_preprocessing, checkpoint.class_names
    if model.config.kind in ("vit", "timm") and to != "torchvision":  # torchvision files hold tensors only
        prepared = resolve_preprocessing(checkpoint, model.config)
        classes = resolve_class_names(checkpoint, model.config.num_classes) if model.config.num_classes else []
    thresholds = tuple(raw_thresholds(*resolve_thresholds(checkpoint, len(classes))))
    return ExportedModel(model, classes, prepared, checkpoint.tokenizers, thresholds, None, checkpoint.extra)


def check_target(dest: Path, to: str) -> None:
    """Raises SourceError for an unknown `to`, a wrong file ending, a missing library or an existing `dest`, before the
    long work.
    """
    if to not in EXPORTERS:
        raise OptionError(f"--to {to} is unknown; it must be one of {', '.join(EXPORTERS)}")
    if to in FILE_ENDINGS and dest.suffix not in FILE_ENDINGS[to]:
        raise SourceError(f"{dest} has no file ending of --to {to}; use one of {', '.join(FILE_ENDINGS[to])}")
    if to in PROGRAMS:
        programs.check_libraries(to)
    if dest.exists() and (dest.is_file() or any(dest.iterdir())):
        raise SourceError(f"{dest} exists and is not overwritten; choose another path")


def copy_bundle(dest: Path, bundle: Bundle) -> KeyReport:
    """Copy a bundle with all it holds."""
    with verified_target(dest, partial(check_same, to="bundle", model=bundle.model)) as path:
        save_bundle(path, bundle.model, bundle.classes, bundle.preprocessing, bundle.metrics, bundle.extra,
                    tokenizers=bundle.tokenizers, thresholds=bundle.thresholds, calibration=bundle.calibration)
    return report_unchanged(bundle.model)


def bundle_program(dest: Path, bundle: Bundle, to: str) -> KeyReport:
    """Write a saved bundle as a program, with its calibration."""
    export_program(dest, ExportedModel(bundle.model, bundle.classes, bundle.preprocessing, bundle.tokenizers,
                                bundle.thresholds, bundle.calibration, bundle.extra), to)
    return report_unchanged(bundle.model)


def report_unchanged(model: nn.Module) -> KeyReport:
    """The report of a model whose tensors are all loaded as they are."""
    shapes = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    return KeyReport([KeyRow(name, "loaded", shape, shape) for name, shape in shapes.items()])


def as_timm_module(checkpoint: Checkpoint) -> Checkpoint:
    """A bundle that holds a timm model by its name, as a checkpoint of the module itself."""
    module = model_from_config(checkpoint.model_config)
    module.load_state_dict(checkpoint.state)
    return replace(checkpoint, model_config=None, source_config={"module": module})


@contextmanager
def verified_target(dest: Path, check: Callable[[Path], None]) -> Iterator[Path]:
    """A temporary path to save to; it is renamed to `dest` once `check` found that it computes what the model does.

    Raises:
        BundleError: the bundle cannot be saved or read again.
        SourceError: the files cannot be written.
    """
    dest.parent.mkdir(parents=True, exist_ok=True)
    try:
        with TemporaryDirectory(prefix=f".{dest.name}.part-", dir=dest.parent) as part:
            path = Path(part) / dest.name
            yield path
            check(path)
            if dest.is_dir():
                dest.rmdir()  # an empty one, as `check_target` made sure
            path.rename(dest)
    except BundleError as error:  # which names the temporary folder
        raise BundleError(str(error).replace(str(path.absolute()), str(dest))) from error
    except (OSError, SafetensorError) as error:
        raise SourceError(f"cannot write {dest}: {one_line(error)}; nothing was saved") from error


def export_bundle(dest: Path, export: ExportedModel, to: str = "bundle") -> None:
    """Save as a bundle.

    Raises:
        SourceError: the saved model computes something else.
    """
    with verified_target(dest, partial(check_same, to=to, model=export.model)) as path:
        save_bundle(path, export.model, export.classes, export.preprocessing, extra=export.extra,
                    tokenizers=export.tokenizers, thresholds=export.thresholds)


def export_timm(dest: Path, export: ExportedModel) -> None:
    """A bundle that must be a timm folder.

    Raises:
        SourceError: timm does not support the model.
    """
    if isinstance(reason := timm_arguments(export.model.config), str):
        raise SourceError(f"{reason}; --to bundle saves it under vit's own names")
    export_bundle(dest, export, "timm")


def export_torchvision(dest: Path, export: ExportedModel) -> None:
    """One file, for `load_state_dict` of `torchvision.models.vit_b_16()` and the other sizes.

    Raises:
        SourceError: torchvision does not support the model.
    """
    try:
        weights = independent_tensors(to_torchvision(export.model.state_dict(), export.model.config))
    except ValueError as error:
        raise SourceError(f"{error}; --to bundle saves it unchanged") from None
    with verified_target(dest, partial(check_same, to="torchvision", model=export.model)) as path:
        if dest.suffix == ".safetensors":
            save_tensors(weights, path)
        else:
            buffer = io.BytesIO()  # torch's own writer ends the process where the disk is full
            torch.save(weights, buffer)
            path.write_bytes(buffer.getbuffer())


def export_transformers(dest: Path, export: ExportedModel) -> None:
    """A folder that transformers opens as a model of its own, without timm.

    Raises:
        SourceError: transformers does not support the model.
    """
    try:
        config, weights = to_transformers(export.model.state_dict(), export.model.config)
    except ValueError as error:
        known = not isinstance(timm_arguments(export.model.config), str)
        way = "timm saves a folder that transformers opens through timm" if known else "bundle saves it unchanged"
        raise SourceError(f"{error}; --to {way}") from None
    if export.classes:
        labels = dict(enumerate(export.classes))
        config |= {"id2label": labels, "label2id": {name: i for i, name in labels.items()}}
    if export.thresholds:
        config |= {"problem_type": MULTI_LABEL, THRESHOLDS: list(export.thresholds)}
    files = {CONFIG: config}
    if export.preprocessing is not None:
        files[PROCESSOR_FILE], _ = preprocessing.to_transformers(export.preprocessing)
    if (tokenizer := export.tokenizers.get("source")) is not None:
        files |= transformers_tokenizer.tokenizer_files(tokenizer, export.model.config.max_len)
    with verified_target(dest, partial(check_same, to="transformers", model=export.model)) as path:
        path.mkdir()
        save_tensors(independent_tensors(weights), path / WEIGHTS, metadata={"format": "pt"})
        for name, values in files.items():
            (path / name).write_text(json_text(values, ascii_only=False) + "\n", encoding="utf-8")


def export_program(dest: Path, export: ExportedModel, to: str) -> None:
    """One file that maps pixels to probabilities.

    Raises:
        SourceError: the model is not an image classifier, or a layer cannot be exported.
    """
    program = programs.image_program(export.model, export.preprocessing, export.classes, export.thresholds,
                                     export.calibration)
    with verified_target(dest, partial(programs.check_program, to=to, program=program)) as path:
        programs.WRITERS[to](path, program, programs.metadata(
            export.preprocessing, export.classes, export.thresholds, export.calibration is not None))


def preprocessing_difference(dest: Path, to: str, export: ExportedModel) -> str:
    """The measured difference of the preprocessing of the library that opens `dest`; "" where there is none."""
    if not isinstance(export.preprocessing, Preprocessing) or to in PROGRAMS:
        return ""
    shift = ProbabilityShift(export.model, multi_label=bool(export.thresholds)) if export.classes else None
    if to == "transformers":
        return transformers_difference(export.preprocessing, dest, shift)
    return timm_difference(export.preprocessing, dest, shift) if "architecture" in read_config(dest) else ""


EXPORTERS = {"timm": export_timm, "transformers": export_transformers, "torchvision": export_torchvision,
             "bundle": export_bundle, **{to: partial(export_program, to=to) for to in PROGRAMS}}
# targets that hold all that a bundle does, or run it: its model is not read as weights of a known architecture
AS_SAVED = {"bundle": copy_bundle, **{to: partial(bundle_program, to=to) for to in PROGRAMS}}
