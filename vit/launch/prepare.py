"""The parts of a run, built in the order in which they need each other, all checks before the long work."""

import logging
import os
from dataclasses import dataclass
from functools import partial

from torch import nn

from vit.data import DataError, Preprocessing, Source
from vit.data.audit import AuditReport, audit
from vit.launch import build
from vit.launch.devices import Devices
from vit.launch.initial import load_initial
from vit.models import flops
from vit.tasks import Batches, Classification
from vit.weights import load_weights

log = logging.getLogger("vit")


@dataclass(frozen=True)
class Parts:
    """What a run is made of; `config` is completed with all that was found out on the way."""

    config: dict
    source: Source
    preprocessing: Preprocessing
    model: nn.Module
    task: Classification
    batches: Batches
    audit: AuditReport | None
    image_flops: int

    @property
    def name(self) -> str:
        return self.config["model_name"]

    @property
    def step_flops(self) -> int:
        """Operations of a training step, the backward pass counting twice the forward."""
        return 3 * self.image_flops * self.config["recipe"]["batch_size"]


def prepare(config: dict, devices: Devices, resuming: bool = False) -> Parts:
    """Data, preprocessing, model, task. A resumed run takes its weights from the checkpoint, not from `init_from`."""
    build.check_devices(config, devices.world)
    source = build.build_source(config["data"])
    initial = load_initial(config["init_from"]) if config["init_from"] and not resuming else None
    preprocessing = build.build_preprocessing(config["data"], source, initial)
    source, report = audited(source, preprocessing, config["data"])
    model = build.build_model(config["model"], config["data"]["patch_size"], preprocessing, source.classes, initial)
    if initial is not None:
        taking = partial(load_weights, model, head=initial.classes == source.classes, source_grid=initial.grid)
        taken = build.checked(f"init_from={initial.name}", taking, initial.state)
        log.info("weights from %s: %s", initial.name, taken.table())
    config = {
        **config,
        "model_name": config.get("model_name") or build.model_name(config["model"], initial),
        "model": model.config.to_dict(),
        "data": {**located(config["data"]), "preprocessing": preprocessing.to_dict()},
        "classes": source.classes,
    }
    work = flops(model)
    show(config, source, model, work)
    task = build.build_task(config, model, source, preprocessing)
    batches = build.build_batches(config, source, preprocessing)
    return Parts(config, source, preprocessing, model, task, batches, report, work)


def located(data: dict) -> dict:
    """The data set's place written in full, so that resuming and evaluating find it from any directory."""
    return {
        **data,
        **{key: os.path.abspath(os.path.expanduser(data[key])) for key in ("root", "path") if data.get(key)},
    }


def audited(source: Source, preprocessing: Preprocessing, data: dict) -> tuple[Source, AuditReport | None]:
    """Look at the files before training: unreadable ones stop the run, or are left out where the config says so.

    Left out now are those whose header tells: these are the same in every process and after every stop. What only decoding
    tells depends on the time there was; such images are left out as they are met.

    Raises:
        DataError: names the first unreadable file and how many there are.
    """
    if all(split.pixels is not None for split in source.splits.values()):
        return source, None
    report = audit(source, preprocessing, data["audit_seconds"])
    if report.unreadable and data["on_bad_sample"] == "error":
        raise DataError(report.problem())
    for name, reason in report.left_out[:5]:
        log.info("left out %s: %s", name, reason)
    for sample in report.unreadable:
        log.warning("left out %s: %s", sample.name, sample.reason)
    if report.duplicates:
        example = " = ".join(name for _, name in report.duplicates[0])
        log.warning("%d groups of images stand in more than one split, such as %s", len(report.duplicates), example)
    return source.without(report.bad_samples(decoded=False)), report


def show(config: dict, source: Source, model: nn.Module, work: int) -> None:
    """Data and model in two lines: sizes, parameters, FLOPs."""
    sizes = " / ".join(f"{len(split):,} {name}" for name, split in source.splits.items())
    parameters = sum(p.numel() for p in model.parameters())
    rows, columns = config["data"]["preprocessing"]["size"]
    log.info("data: %s, %s, %d classes", source.name, sizes, source.num_classes)
    log.info(
        "model: %s, %s parameters, %.3g GFLOPs per %dx%d image",
        describe(config),
        f"{parameters:,}",
        work / 1e9,
        rows,
        columns,
    )


def describe(config: dict) -> str:
    """The model in a few words: `vit_tiny, 64 wide, 4 deep, patches of 4x4`, or a timm name."""
    model = config["model"]
    if model["kind"] != "vit":
        return config["model_name"]
    rows, columns = model["patch_size"]
    return f"{config['model_name']}, {model['dim']} wide, {model['depth']} deep, patches of {rows}x{columns}"
