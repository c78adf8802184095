"""A job: the parts of one run of some task, and what only that task knows about saving, testing and showing them."""

import importlib
import logging
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence, Sized
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from pytorch_lightning import Callback
from torch import Tensor, nn

from vit.data import BadImage, CorpusSource, CorpusSplit, PairSource, PairSplit, Source, Split, TextSplit
from vit.data.recorded_splits import NEW
from vit.evaluation.progress import Progress
from vit.run.config.composing import ConfigError, nearest
from vit.run.ending import max_time
from vit.run.folder import RunFolder
from vit.run.parts.devices import Devices
from vit.run.parts.distillation import distill_kind
from vit.run.parts.finetuning import check_task
from vit.run.records import DataRecord, write_record
from vit.tasks import Batches, Task

log = logging.getLogger("vit")

JOBS = {  # task.name -> the module whose `prepare` makes the job; imported when it is needed
    "classification": "vit.run.jobs.classification",
    "seq2seq": "vit.run.jobs.pairs",
    "text_classification": "vit.run.jobs.texts",
    "masked_text": "vit.run.jobs.masked",
    "masked_image": "vit.run.jobs.masked_images",
}

IMAGES = ("classification", "masked_image")  # tasks whose recipe may say auto
TEXTS = ("text_classification", "masked_text")
Samples = Split | TextSplit | PairSplit | CorpusSplit
QUICK = 64  # samples that are measured with `debug`


class Tested(NamedTuple):
    """What a test found: numbers by their bare names, and what could not be read."""

    metrics: dict[str, Any]
    unreadable: Sequence[BadImage] = ()


@dataclass(frozen=True)
class Job(ABC):
    """What a run is made of; `config` is completed with all that was found out on the way."""

    config: dict
    model: nn.Module
    task: Task
    batches: Batches
    source: Source | PairSource | CorpusSource

    @property
    def split(self) -> str:
        """The split that the final numbers are measured on: test, or val where there is no test."""
        return "test" if "test" in self.source.splits else "val"

    @property
    def count(self) -> int:
        """How many samples the final numbers are measured on."""
        return len(self.samples)

    @property
    def samples(self) -> Samples:
        """What the final numbers are measured on."""
        return self.measured(self.split)

    def measured(self, split: str) -> Samples:
        """The samples of a split that the trained model is measured on: all, or with `debug` a few from all over it."""
        samples = self.source.splits[split]
        every, some = len(samples), self.few(len(samples))
        return samples if some == every else samples.take(np.arange(some) * every // some)

    def few(self, count: int) -> int:
        """How many of so many samples are measured."""
        return min(count, QUICK) if self.config["debug"] else count

    @property
    @abstractmethod
    def description(self) -> str:
        """A short description of the model."""

    @property
    @abstractmethod
    def sample_flops(self) -> float:
        """Operations of the forward pass of one sample; a typical one where they differ."""

    @property
    def batch_samples(self) -> float:
        """Samples of a global batch."""
        return self.config["recipe"]["batch_size"]

    @property
    def step_flops(self) -> float:
        """Operations of a training step, the backward pass counting twice the forward."""
        return 3 * self.sample_flops * self.batch_samples

    def write_facts(self, folder: RunFolder) -> None:
        """What is known before training: splits, and what is left out."""
        folder.log_left_out(self.omitted())
        write_record(folder, self.source, self.omitted())

    def callbacks(self, folder: RunFolder) -> list[Callback]:
        """What else happens while this job's model trains."""
        return []

    @abstractmethod
    def save(self, path: Path, weights: dict[str, Tensor], metrics: dict, extra: dict) -> None:
        """The bundle of the best epoch."""

    @abstractmethod
    def test(self, folder: RunFolder, settings: dict, progress: Progress) -> Tested:
        """Test the saved model and save its predictions and figures; `progress` gets the samples of each batch."""

    @abstractmethod
    def write_samples(self, folder: RunFolder) -> Path | None:
        """A few inputs as files: something to try the model on, where it has answers."""

    def next_words(self, folder: RunFolder, samples: Path | None) -> tuple:
        """The command that the run shows last."""
        return ("predict", folder.model, samples)

    @abstractmethod
    def headline(self, metrics: dict) -> dict[str, str]:
        """The result in a line or two of the final table."""

    def omitted(self) -> list[tuple[str, str]]:
        """(name, reason) of the samples that are left out from the start because they cannot be used."""
        return [(name, reason) for name, reason in self.source.left_out if reason != NEW]


def prepare(
    config: dict, devices: Devices, checkpoint: Path | None = None, record: DataRecord | None = None
) -> Job:
    """All parts of the run that a config asks for, every check before the long work.

    Args:
        record: of the samples of a run that goes on.
    """
    name = config["task"]["name"]
    if name not in JOBS:
        raise ConfigError(f"task.name={name}: must be one of {', '.join(JOBS)}{nearest(name, list(JOBS))}")
    check_task(config)
    distill_kind(config)
    max_time(config["trainer"]["max_time"])
    for key in () if name in IMAGES else ("batch_size", "epochs", "ema"):
        if config["recipe"].get(key) == "auto":
            raise ConfigError(f"recipe.{key}=auto is for task {', '.join(IMAGES)}; give a number")
    if name in TEXTS:
        check_no_augment(config["recipe"])
    return importlib.import_module(JOBS[name]).prepare(config, devices, checkpoint, record)


def check_no_augment(recipe: dict) -> None:
    """Raises ConfigError where image augmentation is asked for texts."""
    if steps := [key for key, step in (recipe.get("augment") or {}).items() if step is not None]:
        raise ConfigError(
            f"recipe.augment ({', '.join(steps)}) is for images, but this data is text; leave augment= out")


def completed(config: dict, model: nn.Module, name: str, **found: Any) -> dict:
    """The config with what a run records of its parts: the architecture, its name, and what was found out."""
    return {**config, "model_name": name, "model": model.config.to_dict(), **found}


def log_parts(
    name: str, splits: Mapping[str, Sized], facts: str, model: nn.Module, described: str, cost: str = ""
) -> None:
    """Logs data and model in two lines: sizes of the splits and other facts; a description, parameters and cost."""
    sizes = " / ".join(f"{len(split):,} {key}" for key, split in splits.items())
    log.info("data: %s, %s, %s", name, sizes, facts)
    log.info("model: %s, %s parameters%s", described, f"{sum(p.numel() for p in model.parameters()):,}", cost)
