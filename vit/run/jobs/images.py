"""Image classification: its parts, built in the order in which they need each other, and its test."""

import logging
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from vit.bundle import load_bundle, save_bundle
from vit.data import BadImage, DataError, Preprocessing, Source
from vit.data.audit import AuditReport, audit
from vit.data.errors import printable
from vit.data.images.files import summary
from vit.evaluation import evaluate
from vit.evaluation.progress import Progress
from vit.report.evaluation import write_evaluation
from vit.run.folder import RunFolder
from vit.run.jobs.base import Job, Tested
from vit.run.parts.data_source import with_absolute_paths
from vit.run.records import write_record

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


def recorded_data(data: dict, source: Source, preprocessing: Preprocessing) -> dict:
    """The data node as a run records it: absolute paths, what was found out about the source, all of preprocessing."""
    return {**with_absolute_paths(data), **source.pinned, "preprocessing": preprocessing.to_dict()}


def cost(work: int, size: tuple[int, int]) -> str:
    """`, 0.00162 GFLOPs per 8x8 image`"""
    return f", {work / 1e9:.3g} GFLOPs per {size[0]}x{size[1]} image"


def describe(config: dict) -> str:
    """A short description of the model: `vit_tiny, 64 wide, 4 deep, patches of 4x4`, or a timm name."""
    model = config["model"]
    if model["kind"] != "vit":
        return config["model_name"]
    rows, columns = model["patch_size"]
    return f"{config['model_name']}, {model['dim']} wide, {model['depth']} deep, patches of {rows}x{columns}"
