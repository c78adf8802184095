"""Knowledge distillation: from the `distill` node of a config to the loss with its teacher."""

import hashlib
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from vit.data import Preprocessing, Source
from vit.data.decoding.bit_depth import FULL
from vit.data.statistics import find_range
from vit.exchange.checkpoint import ConfigMismatchError
from vit.exchange.imagenet_classes import imagenet_synsets
from vit.exchange.importing import at_stated_size, import_checkpoint
from vit.exchange.preprocessing import assumed_preprocessing, from_timm
from vit.exchange.read import read_checkpoint
from vit.exchange.source_names import TIMM
from vit.messages import override_for_shell
from vit.models import EnsembleConfig, TimmConfig, VisionTransformerConfig
from vit.run.config.composing import ConfigError
from vit.run.config.overrides import checked
from vit.run.parts.init_from import source_error
from vit.tasks.distillation import Distillation, Teacher

log = logging.getLogger("vit")


@dataclass(frozen=True)
class TeacherModel:
    """A trained classifier with its preprocessing and class names, as far as its source states them.

    Args:
        extra: what a bundle of this project records about the use of its model.
        kind: `kind` of the model's config.
        sha256: of the tensors, as `state_sha256`.
    """

    model: nn.Module
    preprocessing: Preprocessing | None
    classes: Sequence[str]
    extra: Mapping[str, Any] = field(default_factory=dict)
    kind: str = ""
    sha256: str = ""


def with_distillation_token(model: dict) -> dict:
    """The `model` node for `distill=token`: with a distillation token unless the node sets `dist_token`; timm models
    and other kinds are unchanged.
    """
    return model if model.get("kind") or model.get("library") == "timm" else {"dist_token": True, **model}


def build_distillation(
    node: dict, model: nn.Module, source: Source, preprocessing: Preprocessing,
    check_leakage: Callable[[str, str, Mapping[str, Any], str], None] | None = None,
    expected: str | None = None,
) -> tuple[Distillation, str]:
    """The loss with its teacher, and the teacher's fingerprint for the record of the run.

    Args:
        check_leakage: called with the key, path, record and kind of the teacher; None in a resumed run.
        expected: the fingerprint that the teacher of a resumed run must have; None accepts any.

    Raises:
        ConfigError: a teacher that lacks classes of the data or is not the expected one, or a student without a
            distillation token.
    """
    kind, name = node["kind"], str(node["teacher"])
    if source.multi_label:
        raise ConfigError(f"distill={kind} is for one label per image, and {source.name} has several")
    if kind == "token":
        if getattr(model, "head_dist", None) is None:
            raise ConfigError("distill=token needs a student with a distillation token: model.dist_token=true, or one "
                              "of timm's deit_*_distilled")
        model.set_distilled_training(True)
    try:
        loaded = load_teacher(name)
    except ValueError as error:
        raise source_error("distill.teacher", name, error) from None
    columns = match_classes(loaded, source.classes, name)
    if check_leakage is not None:
        check_leakage("distill.teacher", name, loaded.extra, loaded.kind)
    prepared = check_preprocessing(loaded.preprocessing, preprocessing, name)
    check_pixel_range(prepared, preprocessing, source, name)
    found = fingerprint(loaded.sha256, prepared, columns)
    check_fingerprint(found, expected, name)
    teacher = Teacher(loaded.model, prepared, preprocessing, columns)
    parameters = sum(parameter.numel() for parameter in loaded.model.parameters())
    log.info("teacher: %s, %s parameters, %d classes, distill=%s", name, f"{parameters:,}",
             len(loaded.classes), kind)
    values = {key: node[key] for key in ("target", "alpha", "tau")}
    return checked("distill", partial(Distillation, teacher), values, unpack=True), found


def load_teacher(name: str) -> TeacherModel:
    """The image classifier in any source that `import_weights` accepts, an ensemble, or a folder of any timm network.

    Raises:
        SourceError, BundleError: no such source, or one that is not an image classifier with one label per image.
    """
    read = read_checkpoint(name)
    sha256, checkpoint = state_sha256(read.state), at_stated_size(read)
    error = checkpoint.architecture.error
    of_timm = "architecture" in checkpoint.source_config or checkpoint.name.startswith(TIMM)
    folder = Path(name).expanduser()
    if error is not None and of_timm and not isinstance(error, ConfigMismatchError) and folder.is_dir():
        return replace(timm_folder_teacher(folder), sha256=sha256)
    kind = checkpoint.config["kind"]
    if kind not in (VisionTransformerConfig.kind, TimmConfig.kind, EnsembleConfig.kind):
        raise checkpoint.error(f"it is not an image classifier, but of kind {kind}")
    if checkpoint.thresholds:
        raise checkpoint.error("it predicts several labels per image, and distillation is for one")
    if kind == EnsembleConfig.kind:
        return TeacherModel(checkpoint.bundle.model, checkpoint.preprocessing, checkpoint.class_names, checkpoint.extra,
                            kind, sha256)
    model, _ = import_checkpoint(checkpoint)
    preprocessing, classes = checkpoint.preprocessing, checkpoint.class_names
    if of_timm:
        config = model.config
        preprocessing = preprocessing or assumed_preprocessing("timm", config.image_size, config.in_chans)
        classes = classes or imagenet_synsets(config.num_classes)
    if preprocessing is not None:
        preprocessing = preprocessing.replace(size=tuple(model.config.image_size))
    return TeacherModel(model, preprocessing, classes, checkpoint.extra, kind, sha256)


def timm_folder_teacher(folder: Path) -> TeacherModel:
    """A timm network with arguments that `TimmConfig` cannot record, which a teacher does not need."""
    import timm

    model = timm.create_model(f"local-dir:{folder}", pretrained=True)
    preprocessing = from_timm(timm.data.resolve_model_data_config(model))
    classes = model.pretrained_cfg.get("label_names") or imagenet_synsets(model.num_classes)
    return TeacherModel(model, preprocessing, list(classes))


def match_classes(teacher: TeacherModel, classes: Sequence[str], name: str) -> list[int]:
    """The indices of the teacher's outputs, in the order of `classes`; the teacher may have more classes.

    Raises:
        ConfigError: the teacher has no class names, or a class of the data is the name of none or several of its
            outputs.
    """
    if not teacher.classes:
        raise ConfigError(f"distill.teacher={name} does not state its class names; use a run or a saved model, or add "
                          "them to its config.json as label_names")
    outputs = {}
    for index, each in enumerate(teacher.classes):
        outputs.setdefault(each, []).append(index)
    missing = [each for each in classes if each not in outputs]
    if missing:
        known = ", ".join(teacher.classes[:5]) + (", ..." if len(teacher.classes) > 5 else "")
        raise ConfigError(f"distill.teacher={name} has no class {missing[0]!r} ({len(missing)} of {len(classes)} "
                          f"classes of the data are missing); it has {known}; use a teacher that was trained on these "
                          "classes, or data with the classes of the teacher")
    repeated = next((each for each in classes if len(outputs[each]) > 1), None)
    if repeated is not None:
        raise ConfigError(f"distill.teacher={name} has {len(outputs[repeated])} outputs with the class name "
                          f"{repeated!r}, {', '.join(map(str, outputs[repeated]))}; give them different names in its "
                          "config.json")
    return [outputs[each][0] for each in classes]


def check_preprocessing(teacher: Preprocessing | None, student: Preprocessing, name: str) -> Preprocessing:
    """The teacher's preprocessing, where its images can be computed from the student's.

    Raises:
        ConfigError: the teacher states none, or needs another colour mode.
    """
    if teacher is None:
        raise ConfigError(f"distill.teacher={name} does not state its preprocessing; use a run, a saved model, or a "
                          "folder with a config that does")
    if teacher.mode != student.mode:
        raise ConfigError(f"distill.teacher={name} reads {teacher.mode}, but the data is read as {student.mode}; set "
                          f"data.preprocessing.mode={teacher.mode}")
    return teacher


def check_pixel_range(teacher: Preprocessing, student: Preprocessing, source: Source, name: str) -> None:
    """Checks that images of more than 8 bits are mapped to the pixel values that the teacher was trained on. As with
    `init_from`, the range `full` of a teacher states nothing: models of images of 8 bits have it, too.

    Raises:
        ConfigError: the data has such images, and another range.
    """
    if teacher.range in (FULL, student.range):
        return
    if student.range == FULL and find_range(source.splits["train"], student, FULL) is None:
        return
    theirs, own = (each if each == FULL else "[{:g},{:g}]".format(*each) for each in (teacher.range, student.range))
    raise ConfigError(f"distill.teacher={name} has range={theirs} for images of more than 8 bits, but the data has "
                      f"{own}; set {override_for_shell('data.preprocessing.range', list(teacher.range))}")


def state_sha256(state: Mapping[str, Tensor]) -> str:
    """The SHA-256 of the tensors of a state dict, whatever their names and order, which differ between versions."""
    tensors = (tensor.detach().cpu().contiguous() for tensor in state.values())
    digests = sorted(hashlib.sha256(each.view(-1).view(torch.uint8).numpy()).digest() for each in tensors)
    return hashlib.sha256(b"".join(digests)).hexdigest()


def fingerprint(sha256: str, preprocessing: Preprocessing, columns: Sequence[int]) -> str:
    """The SHA-256 of what determines the teacher's logits: its weights, its input and the order of its classes."""
    size, mean, std = ([float(each) for each in values] for values in
                       (preprocessing.size, preprocessing.mean, preprocessing.std))
    return hashlib.sha256(repr((sha256, size, mean, std, list(columns))).encode()).hexdigest()


def check_fingerprint(found: str, expected: str | None, name: str) -> None:
    """Checks that the teacher of a resumed run is the one with which the run began.

    Args:
        expected: as for `build_distillation`.

    Raises:
        ConfigError: it has another fingerprint.
    """
    if expected is not None and expected != found:
        raise ConfigError(f"distill.teacher={name} is not the teacher that this run began with: its fingerprint is "
                          f"{found[:16]}…, and the run has recorded {expected[:16]}… (SHA-256 of weights, class order, "
                          "image size and normalization); restore it, or add allow_change=distill.teacher to continue "
                          "with it, which changes the results")


def with_absolute_teacher(node: dict) -> dict:
    """The `distill` node with the absolute path of the teacher, so that a resumed run finds it from any folder."""
    path = Path(str(node.get("teacher"))).expanduser()
    return {**node, "teacher": os.path.abspath(path)} if node.get("teacher") and path.exists() else node
