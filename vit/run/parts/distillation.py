"""From the `distill` node of a config to a teacher whose classes are the data's."""

import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from torch import nn

from vit.data import Preprocessing, Source
from vit.exchange import import_weights, pixels
from vit.exchange.read import TIMM, pretrained, read
from vit.models import model_from_config
from vit.run.config.checked import checked
from vit.run.config.composing import ConfigError, nearest
from vit.run.parts.init_from import told
from vit.tasks.distillation import Distillation, Teacher

log = logging.getLogger("vit")

KINDS = ("none", "soft", "hard", "token")


@dataclass(frozen=True)
class Taught:
    """A classifier that was trained somewhere, and what it says of itself."""

    model: nn.Module
    preprocessing: Preprocessing | None
    classes: Sequence[str]


def distill_kind(config: dict) -> str:
    """What the config says; runs made before there was a choice have no teacher.

    Raises:
        ConfigError: an unknown kind of distillation, or a task without distillation.
    """
    kind, task = (config.get("distill") or {"kind": "none"})["kind"], config["task"]["name"]
    if kind not in KINDS:
        raise ConfigError(f"distill.kind={kind}: must be one of {', '.join(KINDS)}{nearest(str(kind), list(KINDS))}")
    if kind != "none" and task != "classification":
        raise ConfigError(f"distill={kind} is for task=classification; {task} has no teacher")
    return kind


def with_token(config: dict) -> dict:
    """The `model` node; for `distill=token` one of ours with a distillation token, unless it is told otherwise."""
    model = config["model"]
    if distill_kind(config) != "token" or model.get("kind") or model.get("library") == "timm":
        return model
    return {"dist_token": True, **model}


def build_distillation(
    config: dict, model: nn.Module, source: Source, preprocessing: Preprocessing
) -> Distillation | None:
    """The loss with a teacher in it; None without one.

    Raises:
        ConfigError: no teacher, one that does not know the data's classes, a student without a token to learn by.
    """
    kind = distill_kind(config)
    if kind == "none":
        return None
    node = config["distill"]
    if not node["teacher"]:
        raise ConfigError(f"distill={kind} needs a teacher: distill.teacher=RUN, a saved model, or timm:NAME")
    if source.multi_label:
        raise ConfigError(f"distill={kind} is for one label per image, and {source.name} has several")
    if kind == "token":
        if getattr(model, "head_dist", None) is None:
            raise ConfigError("distill=token needs a student with a distillation token: model.dist_token=true, or one "
                              "of timm's deit_*_distilled")
        model.set_distilled_training(True)
    name = str(node["teacher"])
    try:
        taught = load_taught(name)
    except ValueError as error:
        raise ConfigError(f"distill.teacher={name}: {str(error).removeprefix(f'{name}: ')}") from None
    columns = matched(taught, source.classes, name)
    theirs = fitting_pixels(taught.preprocessing, preprocessing, name)
    teacher = Teacher(taught.model, theirs, preprocessing, columns)
    parameters = sum(parameter.numel() for parameter in taught.model.parameters())
    log.info("teacher: %s, %s parameters, %d classes, distill=%s", name, f"{parameters:,}",
             len(taught.classes), kind)
    values = {key: node[key] for key in ("target", "alpha", "tau")}
    return checked("distill", partial(Distillation, teacher), values, spread=True)


def load_taught(name: str) -> Taught:
    """A run, a bundle, a checkpoint, weights of any format that is read here, a timm folder, or `timm:NAME`."""
    if name.startswith(TIMM):
        return of_timm(pretrained(name.removeprefix(TIMM)))
    found = read(name)
    if found.model is not None:
        if found.model["kind"] not in ("vit", "timm"):
            raise ValueError(f"it is no image classifier, but {found.model['kind']}")
        if found.thresholds:
            raise ValueError("it gives an image several labels, and distillation is for one")
        model = model_from_config(found.model)
        model.load_state_dict(found.state)
        return Taught(model, found.preprocessing, found.classes)
    if "architecture" in found.config and Path(name).expanduser().is_dir():  # of timm: any network, not only ours
        import timm

        return of_timm(timm.create_model(f"local-dir:{Path(name).expanduser()}", pretrained=True))
    return Taught(import_weights(name)[0], told(found, {})[1], found.classes)


def of_timm(model: nn.Module) -> Taught:
    """With the names that its config gives its classes, else those of the ImageNet that so many classes are of."""
    import timm

    names = model.pretrained_cfg.get("label_names") or []
    subset = None if names else timm.data.infer_imagenet_subset(model)
    names = timm.data.ImageNetInfo(subset).label_names() if subset else names
    return Taught(model, pixels.of_timm(timm.data.resolve_model_data_config(model)), list(names))


def matched(taught: Taught, classes: Sequence[str], name: str) -> list[int]:
    """Where the teacher has the data's classes, by their names; it may know others besides."""
    if not taught.classes:
        raise ConfigError(f"distill.teacher={name} does not say the names of its classes; take a run or a saved model, "
                          "or write them into its config.json as label_names")
    missing = [each for each in classes if each not in taught.classes]
    if missing:
        known = ", ".join(taught.classes[:5]) + (", ..." if len(taught.classes) > 5 else "")
        raise ConfigError(f"distill.teacher={name} does not know class {missing[0]!r} ({len(missing)} of "
                          f"{len(classes)} classes of the data are unknown to it); it knows {known}")
    return [list(taught.classes).index(each) for each in classes]


def fitting_pixels(theirs: Preprocessing | None, ours: Preprocessing, name: str) -> Preprocessing:
    """How the teacher wants its images, where that can be had from the student's."""
    if theirs is None:
        raise ConfigError(f"distill.teacher={name} does not say how its images are prepared; take a run, a saved "
                          "model, or a folder whose config says it")
    if theirs.mode != ours.mode:
        raise ConfigError(f"distill.teacher={name} reads {theirs.mode}, but the data is read as {ours.mode}; set "
                          f"data.preprocessing.mode={theirs.mode}")
    return theirs


def with_absolute_teacher(node: dict | None) -> dict:
    """The `distill` node with the absolute path of the teacher, so that a resumed run finds it from any folder."""
    node = dict(node or {"kind": "none"})
    place = Path(str(node.get("teacher"))).expanduser()
    return {**node, "teacher": os.path.abspath(place)} if node.get("teacher") and place.exists() else node
