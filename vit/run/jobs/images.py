"""What the jobs on images share."""

import logging
from dataclasses import replace
from functools import cached_property

from vit.data import DataError, ImageDataset, Preprocessing, Source, Split
from vit.data.errors import printable
from vit.data.image_sources.files import summary
from vit.data.quality.audit import audit
from vit.data.quality.audit_report import AuditReport
from vit.messages import mega, number_of
from vit.models import TimmConfig, VisionTransformerConfig, flops
from vit.models.config import ModelConfig
from vit.run.config.composing import ConfigError
from vit.run.jobs.base import Job
from vit.run.parts.batches import build_batches, build_crop, check_device_images, image_datasets
from vit.run.parts.data_source import check_validation, with_absolute_paths
from vit.run.parts.devices import Devices
from vit.run.parts.init_from import Initial
from vit.run.parts.networks import check_image_model, check_named_size
from vit.run.parts.packing import check_packing, drop_mixup
from vit.run.parts.preprocessing import build_preprocessing
from vit.run.parts.recipe import check_width
from vit.run.records.folder import RunFolder
from vit.tasks import Batches

log = logging.getLogger("vit")

NAMED = 20  # unreadable images in the log


class ImageJob(Job):
    """A job on images, of one size or (`data.pack`) of varied aspect ratios."""

    split_class = Split
    model_configs = (VisionTransformerConfig, TimmConfig)
    accepts_auto = accepts_augment = accepts_repeats = True
    preprocessing: Preprocessing
    audit: AuditReport | None
    datasets: dict[str, ImageDataset]  # of training and validation; empty until they can be built

    @classmethod
    def check_config(cls, config: dict, devices: Devices) -> None:
        """Raises ConfigError: as `Job.check_config`, `check_named_size` and `check_image_model`, or for a key that does
        not fit `data.pack`.
        """
        super().check_config(config, devices)
        data = config["data"]
        if data.get("pack"):
            check_packing(config)
        else:
            for key in ("min_patches", "max_patches"):
                if (value := data.get(key)) is not None:
                    raise ConfigError(f"data.{key}={value} is for images that keep their aspect ratio; add "
                                      "data.pack=true, or choose another data.image_size")
            if data.get("cache") == "device":
                check_device_images(config)
        check_named_size(config)
        model = check_image_model(cls.network(config), data, config["init_from"])
        if model is not None:
            cls.check_model(config, model)

    @classmethod
    def check_model(cls, config: dict, model: ModelConfig) -> None:
        """Raises ConfigError for a recipe that does not fit the model of this config."""
        check_width(config["recipe"], model)

    @classmethod
    def check_recipe(cls, config: dict) -> None:
        """Raises ConfigError: as `Job.check_recipe`, or for an invalid `recipe.crop`."""
        super().check_recipe(config)
        if crop := config["recipe"]["crop"]:
            build_crop(crop, config["seed"])

    @staticmethod
    def network(config: dict) -> dict:
        """The `model` node with what other nodes add to it."""
        return config["model"]

    def check_source(self) -> None:
        """Nothing yet: the validation images are counted after the audit."""

    def stated_model(self) -> dict:
        return self.config["model"]

    def build_inputs(self, initial: Initial | None) -> None:
        self.preprocessing = build_preprocessing(self.config["data"], self.source, initial)
        self.datasets, self.audit = {}, None
        if any(split.pixels is None for split in self.source.splits.values()):  # others are in memory
            self.audit_files()
        check_validation(self.source, self.unit)

    def audit_files(self) -> None:
        """Audit the files: unreadable ones stop the run, or are left out with on_bad_sample=skip. Images that the audit
        decodes are cached in those data sets that hold their images in memory.

        Only images with an unreadable header are left out here, because they are the same in every process and in every
        resumed run. How many are decoded depends on the time, so damaged pixels are left out when training reads them.

        Raises:
            DataError: names the first unreadable file and how many there are.
        """
        data, self.datasets = self.config["data"], self.unfilled_datasets()
        caches = {key: each for key, each in self.datasets.items() if each.in_memory and not each.is_final_array}
        with self.progress_bar() as progress:
            self.audit = report = audit(
                self.source, self.preprocessing, data["audit_seconds"], progress, statistics=False, caches=caches)
        if report.unreadable and data["on_bad_sample"] == "error":
            raise DataError(report.problem())
        if report.left_out:
            log.info("left out %s: %s (listed in audit.json)", number_of(len(report.left_out), "file"),
                     summary(report.left_out))
        for sample in report.unreadable[:NAMED]:
            log.warning("left out %s: %s", printable(sample.name), sample.reason)
        if len(report.unreadable) > NAMED:
            log.warning("left out %d more unreadable images, listed in audit.json", len(report.unreadable) - NAMED)
        if counted := sum(sample.decoded for sample in report.unreadable):
            forms = ("has", "it", "it is") if counted == 1 else ("have", "them", "they are")
            log.info("%d of these files %s a readable header: the numbers of samples below include %s, and %s left out "
                     "when decoded", counted, *forms)
        if bad := report.bad_samples(decoded=False):
            self.source, self.datasets = self.source.without(bad), {}  # whose data sets have other rows

    def unfilled_datasets(self) -> dict[str, ImageDataset]:
        """The data sets that the audit fills with decoded images, so that no image is decoded twice. {} if images are
        not cached in memory, if their size depends on the model, or if a split is empty.
        """
        data, splits = self.config["data"], self.source.splits
        if data.get("pack") or data.get("cache", "auto") not in ("auto", "device"):
            return {}
        if not all(key in splits and len(splits[key]) for key in ("train", "val")):
            return {}
        return image_datasets(self.config, self.source, self.preprocessing)

    def complete_recipe(self) -> None:
        super().complete_recipe()
        if self.config["data"].get("pack"):
            drop_mixup(self.config)

    @property
    def cost(self) -> str:
        """FLOPs for the log, such as `, 1.62 MFLOPs per 8x8 image`."""
        height, width = self.preprocessing.size
        flops = self.sample_flops
        number = f"{mega(flops)} MFLOPs" if flops < 1e9 else f"{flops / 1e9:.3g} GFLOPs"
        return f", {number} per {height}x{width} image"

    @cached_property
    def sample_flops(self) -> float:
        # on the CPU counted by one forward pass, which is cheaper than a training step
        return flops(self.model, compute=self.devices.accelerator == "cpu")

    def resolve_data(self) -> dict:
        """The data node with absolute paths, the facts that identify the source, and the whole preprocessing."""
        facts = {**self.source.pinned, "preprocessing": self.preprocessing.to_dict()}
        return with_absolute_paths(self.config["data"]) | facts

    def build_batches(self) -> Batches:
        self.datasets = self.datasets or image_datasets(self.config, self.source, self.preprocessing)
        if not all(dataset.is_filled for dataset in self.datasets.values()):
            with self.progress_bar() as progress:
                for dataset in self.datasets.values():
                    dataset.fill(progress)
        return build_batches(self.config, self.datasets)

    def cached(self) -> Source:
        """The source with cached images in place of files, and the validation samples that are evaluated."""
        splits = {key: each.cached_split() for key, each in self.datasets.items()}
        return replace(self.source, splits={**self.source.splits, **splits, "val": self.limit(splits["val"])})

    def record_data(self, folder: RunFolder) -> None:
        self.record_samples(folder)
        if self.audit is not None:
            folder.write("audit.json", self.audit.to_dict())

    def omitted(self) -> list[tuple[str, str]]:
        """The images whose header cannot be read; audit.json lists them too."""
        return list(self.source.unreadable)
