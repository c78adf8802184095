"""Image classification: its parts, built in the order in which they need each other, and its test."""

import logging
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from torch import Tensor, nn

from vit.bundle import load_bundle, save_bundle
from vit.data import BadImage, DataError, Preprocessing, Source
from vit.data.audit import AuditReport, audit
from vit.data.errors import printable
from vit.data.images.files import summary
from vit.evaluation import evaluate
from vit.evaluation.progress import Progress
from vit.models import flops
from vit.report.evaluation import write_evaluation
from vit.run.config.composing import ConfigError
from vit.run.folder import RunFolder
from vit.run.jobs.base import Job, Tested
from vit.run.parts import build, networks
from vit.run.parts.auto_values import fit_recipe
from vit.run.parts.devices import Devices
from vit.run.parts.distillation import build_distillation, located, with_token
from vit.run.parts.finetuning import start_finetuning
from vit.run.parts.head_fit import start_head
from vit.run.parts.init_from import load_initial
from vit.run.records import DataRecord, write_record
from vit.weights import load_weights

log = logging.getLogger("vit")

SAMPLES = 8  # written as files
NAMED = 20  # unreadable images in the log


@dataclass(frozen=True)
class ImageJob(Job):
    """Whatever reads images of one size, one a sample."""

    preprocessing: Preprocessing
    audit: AuditReport | None
    image_flops: int

    @property
    def sample_flops(self) -> float:
        return self.image_flops

    def write_facts(self, folder: RunFolder) -> None:
        write_record(folder, self.source, self.omitted())
        if self.audit is not None:
            folder.write("audit.json", self.audit.to_dict())

    def omitted(self) -> list[tuple[str, str]]:
        """Those whose header cannot be read; audit.json has them too."""
        return list(self.source.unreadable)


@dataclass(frozen=True)
class ImageClassification(ImageJob):
    """Images to class names."""

    @property
    def description(self) -> str:
        return describe(self.config)

    def save(self, path: Path, weights: dict[str, Tensor], metrics: dict, extra: dict) -> None:
        save_bundle(path, self.model, self.source.classes, self.preprocessing, metrics, extra, weights)

    def test(self, folder: RunFolder, settings: dict, progress: Progress) -> Tested:
        bundle = load_bundle(folder.model)
        samples = self.samples
        evaluation = evaluate(
            bundle.model,
            bundle.preprocessing,
            samples,
            bundle.classes,
            **settings,
            on_bad_sample=self.config["data"]["on_bad_sample"],
            progress=progress,
        )
        heading = f"{self.config['name']}, {self.split}"
        write_evaluation(folder.path, evaluation, samples, bundle.preprocessing, heading)
        return Tested(evaluation.metrics, evaluation.unreadable)

    def write_samples(self, folder: RunFolder) -> Path:
        """A few images of the split, evenly chosen, as files."""
        samples = self.source.splits[self.split]
        target = folder.path / "samples"
        target.mkdir(exist_ok=True)
        step = max(1, len(samples) // SAMPLES)
        for i in range(0, min(len(samples), step * SAMPLES), step):
            label = self.source.label_text(self.split, i)
            name = "".join(sign if sign.isalnum() or sign in "-_" else "_" for sign in label)[:80]
            with suppress(BadImage):
                self.preprocessing.decode(samples.read(i), samples.names[i]).save(target / f"{i:05d}_{name}.png")
        return target

    def next_words(self, folder: RunFolder, samples: Path | None) -> tuple:
        return ("predict", folder.model, samples, "--top-k", 3)

    def headline(self, metrics: dict) -> dict[str, str]:
        images = metrics[f"{self.split}/images"]
        return {f"{self.split} accuracy": f"{metrics[f'{self.split}/accuracy']:.2%} of {images:,} images"}


def prepare(
    config: dict, devices: Devices, checkpoint: Path | None = None, record: DataRecord | None = None
) -> ImageClassification:
    """Data, preprocessing, model, task. A resumed run takes nothing from `init_from`, but all from its checkpoint."""
    from vit.run.jobs import label_sets  # it builds on this module

    source = build.build_source(config["data"], record)
    if not source.classes:
        raise ConfigError(f"data={config['data']['name']}: its images have no labels, which task=classification needs; "
                          "take data=folder or data=table, or pre-train on them with task=masked_image model=mae")
    initial = load_initial(config, checkpoint, config["model"])
    preprocessing = build.build_preprocessing(config["data"], source, initial)
    source, report = audited(source, preprocessing, config["data"])
    config = fit_recipe(config, len(source.splits["train"]), devices.world)
    build.check_devices(config, devices.world)
    patch_size = config["data"]["patch_size"]
    model = networks.build_model(with_token(config), patch_size, preprocessing, source.classes, initial)
    taken = None
    if initial is not None:
        taking = partial(load_weights, model, head=initial.classes == source.classes, source_grid=initial.grid)
        taken = build.checked(f"init_from={initial.name}", taking, initial.state)
        log.info("weights from %s: %s", initial.name, taken.table())
    config = {
        **config,
        "model_name": config.get("model_name") or networks.model_name(config["model"], initial),
        "model": model.config.to_dict(),
        "data": {**build.located(config["data"]), **source.pinned, "preprocessing": preprocessing.to_dict()},
        "classes": source.classes,
        "distill": located(config.get("distill")),
    }
    if source.multi_label:
        config = label_sets.settled(config, source)
    work = flops(model)
    show(config, source, model, work)
    config = start_finetuning(config, model, taken, partial(start_head, model, source, preprocessing, devices,
                                                            config["data"]["on_bad_sample"]))
    distillation = build_distillation(config, model, source, preprocessing)
    task = build.build_task(config, model, source, preprocessing, distillation)
    batches = build.build_batches(config, source, preprocessing)
    job = label_sets.LabelSets if source.multi_label else ImageClassification
    return job(config, model, task, batches, source, preprocessing, report, work)


def audited(source: Source, preprocessing: Preprocessing, data: dict) -> tuple[Source, AuditReport | None]:
    """Look at the files before training: unreadable ones stop the run, or are left out where the config says so.

    Left out now are those whose header tells: these are the same in every process and after every stop. What only
    decoding tells depends on the time there was; such images are left out as they are met.

    Raises:
        DataError: names the first unreadable file and how many there are.
    """
    if all(split.pixels is not None for split in source.splits.values()):
        return source, None
    report = audit(source, preprocessing, data["audit_seconds"])
    if report.unreadable and data["on_bad_sample"] == "error":
        raise DataError(report.problem())
    if report.left_out:
        log.info("left out %d: %s (listed in audit.json)", len(report.left_out), summary(report.left_out))
    for sample in report.unreadable[:NAMED]:
        log.warning("left out %s: %s", printable(sample.name), sample.reason)
    if len(report.unreadable) > NAMED:
        log.warning("left out %d more unreadable images, listed in audit.json", len(report.unreadable) - NAMED)
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
