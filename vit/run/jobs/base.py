"""A job: the parts of one run, built in one order for all tasks, and how its model is saved, tested and shown."""

import logging
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from pytorch_lightning import Callback
from torch import Tensor, nn

from vit.data import BadImage, CorpusSource, CorpusSplit, PairSource, PairSplit, Source, Split, TextSplit
from vit.data.splits.recorded import NEW, Entry
from vit.data.splits.split import evenly_spaced
from vit.data.threads import StageProgress
from vit.evaluation.progress import Progress
from vit.run.changes_on_resuming import from_to, scoring_values
from vit.run.config.overrides import ConfigError, dotted_items
from vit.run.console import console, stage_bar
from vit.run.parts.batches import check_batch, check_devices
from vit.run.parts.data_source import check_validation, with_absolute_paths
from vit.run.parts.devices import Devices
from vit.run.parts.finetuning import start_finetuning
from vit.run.parts.init_from import Initial, load_initial
from vit.run.parts.networks import check_options
from vit.run.parts.recipe import build_optimization, check_rate, fit_recipe, steps_per_epoch
from vit.run.records.folder import RunFolder
from vit.run.records.reading import in_current_names
from vit.run.records.splits import uses_labels, write_record
from vit.tasks import Batches, Optimization, Task
from vit.weights import KeyReport

log = logging.getLogger("vit")

AnySplit = Split | TextSplit | PairSplit | CorpusSplit
QUICK = 64  # samples that are evaluated with `debug`


class Tested(NamedTuple):
    """The result of a test: metrics by their bare names, and the images that could not be read; for the report also the
    predictor and its evaluation, where the task has a report.
    """

    metrics: dict[str, Any]
    unreadable: Sequence[BadImage] = ()
    predictor: Any = None
    evaluation: Any = None


class Job(ABC):
    """The parts of a run: data, model, task and batches.

    The constructor builds them, with every check before the long work. The order is the same for all tasks; subclasses
    implement the steps. Afterwards `config` is the resolved config that the run records: `complete_recipe` replaces
    `auto` in the recipe, in place, and `resolve_config` then sets all other resolved values.

    Args:
        config: config of the run, as plain values.
        source: the data set; in a resumed run its recorded samples.
        checkpoint: the checkpoint from which the run is resumed; then nothing is loaded from `init_from`.
    """

    split_class: type  # class of the splits of this task
    model_configs: tuple[type, ...]  # classes of the configs of its models
    unit = "images"  # what a sample is, in messages
    accepts_auto = False  # whether the recipe may have `auto` as batch size, epochs and average
    accepts_augment = False  # whether the recipe may have image augmentation
    accepts_progressive = False  # whether the recipe may scale images and drop patches by a schedule
    accepts_repeats = False  # whether the recipe may have several copies of a sample in a batch
    finetunes = True  # whether `finetune=` may freeze weights
    recipe_keys: tuple[str, ...] = ()  # keys that this task needs and some recipes lack
    tokenizes = False  # whether the samples are texts, some of which may be left out of training for their length

    def __init__(
        self, config: dict, source: Source | PairSource | CorpusSource, devices: Devices, checkpoint: Path | None
    ):
        self.config, self.source, self.devices, self.checkpoint = config, source, devices, checkpoint
        self.check_source()
        initial = None
        if config["init_from"] and checkpoint is None:  # the checkpoint of a resumed run holds all weights
            initial = load_initial(config["init_from"], self.stated_model())
        self.build_inputs(initial)
        self.earlier: list[Entry] = []  # samples that the initial weights or a teacher were trained on
        if initial is not None:
            checkpoint = initial.checkpoint
            self.check_leakage("init_from", checkpoint.name, checkpoint.extra, (initial.model or {}).get("kind", ""))
        if not self.tokenizes:
            self.complete_recipe()  # first, so that an error of the model can name the batch size
        self.model: nn.Module = self.build_model(initial)
        loaded = self.load_weights(initial)
        if self.tokenizes:
            self.build_datasets()
            self.complete_recipe()
        self.model_name: str = config.get("model_name") or self.name_model(initial)
        self.log_parts()
        self.config = self.resolve_config(loaded)
        self.task: Task = self.build_task()
        self.batches: Batches = self.build_batches()

    # the steps of construction, in their order

    @classmethod
    def check_config(cls, config: dict, devices: Devices) -> None:
        """Checks what can be checked before the data is read.

        Raises:
            ConfigError: names the key.
        """
        check_devices(config, devices.world)
        check_options(config["model"], cls.model_configs)

    def check_source(self) -> None:
        """Checks that the task can use this data.

        Raises:
            ConfigError, DataError: it cannot.
        """
        check_validation(self.source, self.unit)

    @classmethod
    def check_recipe(cls, config: dict) -> None:
        """Checks that the recipe has what the task needs.

        Raises:
            ConfigError: it is the recipe of another task, or there is no learning rate.
        """
        known = dict(dotted_items(config["recipe"]))
        for key in cls.recipe_keys:
            if key not in known:
                raise ConfigError(f"this recipe has no key {key}, so it is not for task={config['task']['name']}; "
                                  "choose another one with recipe=")
        check_rate(config["recipe"])

    def check_leakage(self, key: str, path: str, extra: Mapping[str, Any], kind: str) -> None:
        """Checks that the model that a key names was not trained on samples of val or test, and records which samples
        it was trained on.

        Raises:
            ConfigError: it was, and `on_leakage` is "error".
        """
        from vit.run.records.leakage import check_leakage
        from vit.run.records.members import Origin

        decisive = ("val", "test") if key == "init_from" else (self.split,)
        origin = Origin(Path(path).expanduser(), extra, kind)
        counts, trained = check_leakage(key, origin, self.source, self.config, decisive)
        self.earlier += trained
        former = self.config.get("leakage") or {}
        if counts:
            self.config = {**self.config, "leakage": {**former, **{split: max(count, former.get(split, 0))
                                                                  for split, count in counts.items()}}}

    def stated_model(self) -> dict | None:
        """The values of the `model` node that complete an architecture inferred from the tensors of `init_from`."""
        return None

    @abstractmethod
    def build_inputs(self, initial: Initial | None) -> None:
        """The preprocessing of images, the tokenizers of texts."""

    @abstractmethod
    def build_model(self, initial: Initial | None) -> nn.Module:
        """The network, with random weights."""

    @abstractmethod
    def load_weights(self, initial: Initial | None) -> KeyReport | None:
        """Load the weights of `init_from`; the report on them, None without `init_from`."""

    def build_datasets(self) -> None:  # noqa: B027  called for texts only
        """The tokenized splits of texts."""

    def progress_bar(self) -> AbstractContextManager[StageProgress | None]:
        """A progress bar of the first process while samples are read."""
        return nullcontext() if self.devices.rank else stage_bar(console, self.unit)

    def complete_recipe(self) -> None:
        """Replace `auto` in the recipe, in place, and check that the samples fill a batch.

        Raises:
            ConfigError: names the key and a valid value.
        """
        fit_recipe(self.config, self.train_samples, self.devices.world, self.unit)
        check_batch(self.config["recipe"], self.train_samples, self.unit, self.devices.world)

    @property
    def train_samples(self) -> int:
        return len(self.source.splits["train"])

    @abstractmethod
    def name_model(self, initial: Initial | None) -> str:
        """The name of the architecture, as the run reports it."""

    def log_parts(self) -> None:
        """Logs data and model in two lines: sizes of the splits and other facts; a description and parameters."""
        sizes = " / ".join(f"{len(split):,} {key}" for key, split in self.source.splits.items())
        log.info("data: %s, %s, %s", self.source.name, sizes, self.data_facts)
        parameters = f"{sum(parameter.numel() for parameter in self.model.parameters()):,}"
        log.info("model: %s, %s parameters%s", self.description, parameters, self.cost)

    @property
    @abstractmethod
    def data_facts(self) -> str:
        """Further facts about the data, for the log."""

    @property
    def cost(self) -> str:
        """The cost of a forward pass, for the log; empty where it differs between samples."""
        return ""

    def resolve_config(self, loaded: KeyReport | None) -> dict:
        """The config that the run records: the architecture, and what was null, auto or relative, as values. What
        depends on the machine, such as `precision=auto`, stays as it is.
        """
        found = {"model_name": self.model_name, "model": self.model.config.to_dict(), "data": self.resolve_data()}
        if self.finetunes:
            found["finetune"] = start_finetuning(self.config, self.model, loaded, self.fit_head)
        return {**self.config, **found}

    def resolve_data(self) -> dict:
        return with_absolute_paths(self.config["data"])

    def fit_head(self) -> object | None:
        """Fit a new head to the features of the training images; None where that is not possible."""
        return None

    @abstractmethod
    def build_task(self) -> Task:
        """The training step with its loss, optimizer and metrics."""

    def build_optimization(self) -> Optimization:
        """Optimizer, schedule and clipping."""
        recipe = self.config["recipe"]
        return build_optimization(recipe, self.model, steps_per_epoch(recipe, self.train_samples))

    @abstractmethod
    def build_batches(self) -> Batches:
        """The training and validation loaders."""

    # the samples of the final numbers

    @property
    def split(self) -> str:
        """The split that the final numbers are measured on: test, or val where there is no test."""
        return "test" if "test" in self.source.splits else "val"

    @property
    def title(self) -> str:
        """Data and split of the final numbers, `photos, test`, as in the report and `vit evaluate`."""
        return f"{self.source.name}, {self.split}"

    @property
    def count(self) -> int:
        """The number of samples that the final numbers are measured on."""
        return len(self.evaluated(self.split))

    def evaluated(self, split: str) -> AnySplit:
        """The samples of a split that the trained model is evaluated on: all, or `QUICK` evenly spaced with `debug`."""
        return self.limit(self.source.splits[split])

    def limit(self, samples: AnySplit) -> AnySplit:
        total, count = len(samples), self.limited(len(samples))
        return samples if count == total else samples.take(np.array(evenly_spaced(total, count)))

    def limited(self, count: int) -> int:
        return min(count, QUICK) if self.config["debug"] else count

    # what the trainer and the last steps of a run need

    def scoring_values(self, config: dict) -> dict[str, Any]:
        """The keys of this run's config, or of that of a checkpoint, that determine the values of the monitored metric
        for a given model, and their values.
        """
        return scoring_values(config)

    def changed_scoring(self) -> str:
        """The changes since the checkpoint after which values of the monitored metric are not comparable with those
        before; empty without any.
        """
        if self.task.resumed is None:
            return ""
        now, before = (self.scoring_values(config) for config in
                       (self.config, in_current_names(self.task.resumed.get("config") or {})))
        changes = {key: from_to(key, before[key], value) for key, value in now.items() if key in before}
        return ", ".join(text for key, text in changes.items() if text != from_to(key, now[key], now[key]))

    @property
    @abstractmethod
    def description(self) -> str:
        """A short description of the model."""

    @property
    @abstractmethod
    def sample_flops(self) -> float:
        """Operations of the forward pass of one sample, the mean where they differ. For texts it is an estimate
        that needs no forward pass; `count_flops` has the number of a finished run.
        """

    def count_flops(self, bundle: Path) -> float:
        """Operations of the forward pass of one sample, of mean length where they differ, by the saved model."""
        return self.sample_flops

    @property
    def batch_samples(self) -> float:
        """Samples of a global batch."""
        return self.config["recipe"]["batch_size"]

    @property
    def step_flops(self) -> float:
        """Operations of a training step; the backward pass counts twice the forward pass."""
        return 3 * self.sample_flops * self.batch_samples

    def record_data(self, folder: RunFolder) -> None:
        """Writes the samples of each split, and those that are left out."""
        folder.log_left_out(self.omitted())
        self.record_samples(folder)

    def record_samples(self, folder: RunFolder) -> None:
        with self.progress_bar() as progress:
            write_record(folder, self.source, self.omitted(), self.earlier, uses_labels(self.config), progress)

    def omitted(self) -> list[tuple[str, str]]:
        """(name, reason) of the samples that are left out from the start because they cannot be used."""
        return [(name, reason) for name, reason in self.source.left_out if reason != NEW]

    def callbacks(self, folder: RunFolder) -> list[Callback]:
        """Callbacks of this task alone."""
        return []

    def film(self, folder: RunFolder, count: int) -> Callback:
        """The callback that records a film of `count` validation samples.

        Raises:
            ConfigError: the task or the model has nothing to show.
        """
        raise ConfigError(f"callbacks.film={count} records images, texts with labels, and pairs, but task="
                          f"{self.config['task']['name']} has none of them; leave callbacks.film out")

    @abstractmethod
    def save(self, path: Path, weights: dict[str, Tensor], metrics: dict, extra: dict) -> None:
        """Save the bundle of the best epoch."""

    @abstractmethod
    def test(self, folder: RunFolder, settings: dict, progress: Progress) -> Tested:
        """Test the saved model, save its predictions and figures; `progress` is called with the samples of a batch."""

    def save_samples(self, folder: RunFolder) -> Path | None:
        """Save a few inputs as files to try the model on; None where the model predicts nothing."""
        return None

    def next_command(self, folder: RunFolder, samples: Path | None) -> tuple:
        """The arguments of `python -m vit` in the command that the run shows last."""
        return ("predict", folder.model, samples)

    @abstractmethod
    def headline(self, metrics: dict) -> dict[str, str]:
        """The result in a line or two of the final table."""
