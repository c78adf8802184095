"""Jobs on images: what they share, and image classification."""

import logging
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

from pytorch_lightning import Callback
from torch import Tensor, nn

from vit.bundle import Calibration, load_bundle, save_bundle
from vit.data import BadImage, DataError, ImageDataset, Preprocessing, Source, Split
from vit.data.errors import printable
from vit.data.image_sources.files import summary
from vit.data.quality.audit import audit
from vit.data.quality.audit_report import AuditReport
from vit.data.splits.split import evenly_spaced
from vit.evaluation import evaluate
from vit.evaluation.classification import RunOptions
from vit.evaluation.progress import Progress
from vit.inference import Predictor
from vit.messages import mega, number_of
from vit.models import TimmConfig, VisionTransformerConfig, flops
from vit.models.config import ModelConfig
from vit.run.config.composing import ConfigError
from vit.run.config.overrides import yaml_text
from vit.run.jobs.base import Job, Tested
from vit.run.parts.batches import (
    build_augment,
    build_batches,
    build_crop,
    build_mixup,
    check_device_images,
    image_datasets,
)
from vit.run.parts.calibration import calibrate_images, calibration_choice, trained_copy
from vit.run.parts.data_source import check_validation, with_absolute_paths
from vit.run.parts.devices import Devices
from vit.run.parts.distillation import build_distillation, with_absolute_teacher, with_distillation_token
from vit.run.parts.head_fit import start_head
from vit.run.parts.init_from import Initial, load_initial_weights
from vit.run.parts.networks import (
    build_model,
    check_image_model,
    check_neighbours,
    check_patch_size,
    model_name,
    warn_of_other_values,
)
from vit.run.parts.packing import check_packing, drop_mixup, packed_preprocessing
from vit.run.parts.preprocessing import build_preprocessing
from vit.run.parts.recipe import (
    PROGRESSIVE,
    build_loss,
    build_progressive,
    check_progressive,
    check_width,
    is_progressive,
    warn_about_equal_copies,
)
from vit.run.records.folder import RunFolder
from vit.tasks import Batches, Classification
from vit.training import Progressive
from vit.weights import KeyReport

log = logging.getLogger("vit")

SAMPLES = 8  # written as files
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
        """Raises ConfigError: as `Job.check_config` and `check_image_model`, or for a key that does not fit
        `data.pack`.
        """
        super().check_config(config, devices)
        model = check_image_model(cls.network(config), config["data"], config["init_from"])
        if model is not None:
            cls.check_model(config, model)
        data = config["data"]
        if data.get("pack"):
            check_packing(config)
            return
        for key in ("min_patches", "max_patches"):
            if (value := data.get(key)) is not None:
                raise ConfigError(f"data.{key}={value} is for images that keep their aspect ratio; add "
                                  "data.pack=true, or choose another data.image_size")
        if data.get("cache") == "device":
            check_device_images(config)

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


class ImageClassificationJob(ImageJob):
    """Images to class names, one label per image."""

    accepts_progressive = True
    recipe_keys = ("augment", "crop", "loss.name", "mixup")
    task_class: type[Classification] = Classification
    progressive: Progressive | None

    @classmethod
    def check_config(cls, config: dict, devices: Devices) -> None:
        """Raises ConfigError: as `Job.check_config`, or for the data set of the project that has no labels."""
        super().check_config(config, devices)
        if config["data"]["_target_"] == "vit.data.unlabelled_images":
            raise without_labels(config["data"])
        cls.check_patch_dropout(config, config["model"])

    @classmethod
    def check_model(cls, config: dict, model: ModelConfig) -> None:
        super().check_model(config, model)
        if is_progressive(config["recipe"]):
            check_progressive(config["recipe"], model)

    @classmethod
    def check_recipe(cls, config: dict) -> None:
        """Raises ConfigError: as `ImageJob.check_recipe`, or for an invalid `recipe.mixup`."""
        super().check_recipe(config)
        if mixup := config["recipe"]["mixup"]:
            build_mixup(mixup, 2)  # the classes are not known yet

    @staticmethod
    def network(config: dict) -> dict:
        node = config["model"]
        return with_distillation_token(node) if config["distill"]["kind"] == "token" else node

    @staticmethod
    def check_patch_dropout(config: dict, model: Mapping[str, Any]) -> None:
        """Raises ConfigError if a new run would drop patches of a model whose layers depend on their neighbours."""
        if config.get("resumed"):
            return
        drops = (config["recipe"].get("progressive") or {}).get("patch_drop")
        if rate := model.get("patch_dropout"):
            check_neighbours(model, f"model.patch_dropout={rate}", "model.patch_dropout=0")
        if drops is not None:
            key = f"{PROGRESSIVE}.patch_drop"
            check_neighbours(model, f"{key}={yaml_text(drops)}", f"{key}=null")

    def check_source(self) -> None:
        """Raises ConfigError for images without labels."""
        if not self.source.classes:
            raise without_labels(self.config["data"])

    def complete_recipe(self) -> None:
        super().complete_recipe()
        if self.config["data"].get("min_patches") is None:  # otherwise copies have different sizes
            warn_about_equal_copies(self.config["recipe"])

    def build_model(self, initial: Initial | None) -> nn.Module:
        patch_size, classes = self.config["data"]["patch_size"], self.source.classes
        model = build_model(self.network(self.config), patch_size, self.preprocessing, classes, initial)
        check_patch_size(self.config, model)
        self.check_patch_dropout(self.config, model.config.to_dict())  # its values may be those of init_from
        if initial is not None:
            warn_of_other_values(self.config, model, initial)
        if self.config["data"].get("pack"):
            self.preprocessing = packed_preprocessing(self.config["data"], self.preprocessing, model)
        recipe = self.config["recipe"]
        self.progressive = build_progressive(recipe, model) if is_progressive(recipe) else None
        return model

    def load_weights(self, initial: Initial | None) -> KeyReport | None:
        return initial and load_initial_weights(initial, self.model, classes=self.source.classes)

    def name_model(self, initial: Initial | None) -> str:
        return model_name(self.config["model"], initial)

    @property
    def data_facts(self) -> str:
        return f"{number_of(self.source.num_classes, 'class')}"

    @property
    def description(self) -> str:
        """`vit_micro, 64 wide, 4 deep, patches of 4x4`, or the name in timm."""
        config = self.model.config
        if config.kind != "vit":
            return self.model_name
        rows, columns = config.patch_size
        return f"{self.model_name}, {config.dim} wide, {config.depth} deep, patches of {rows}x{columns}"

    def resolve_config(self, loaded: KeyReport | None) -> dict:
        found = {**super().resolve_config(loaded), "classes": self.source.classes}
        if found["distill"]["kind"] == "none":
            return found
        return {**found, "distill": with_absolute_teacher(found["distill"])}

    def fit_head(self) -> object | None:
        on_bad_sample = self.config["data"]["on_bad_sample"]
        return start_head(self.model, self.source, self.preprocessing, self.devices, on_bad_sample)

    def build_task(self) -> Classification:
        recipe, distillation = self.config["recipe"], None
        if self.config["distill"]["kind"] != "none":
            check, expected = (None, self.recorded_teacher) if self.checkpoint else (self.check_leakage, None)
            distillation, found = build_distillation(self.config["distill"], self.model, self.source,
                                                     self.preprocessing, check, expected)
            self.config = {**self.config, "teacher_sha256": found}
        config = self.config  # with the leakage of the teacher
        return self.task_class(
            self.model,
            self.preprocessing,
            self.source.num_classes,
            build_loss(recipe["loss"], self.source, config["data"]["balance"]),
            self.build_optimization(),
            augment=build_augment(recipe["augment"], config["seed"], bool(config["data"].get("pack"))),
            mixup=build_mixup(recipe["mixup"], self.source.num_classes) if recipe["mixup"] else None,
            seed=config["seed"],
            config=config,
            distillation=distillation,
            progressive=self.progressive,
        )

    @property
    def recorded_teacher(self) -> str | None:
        """The fingerprint of the teacher of a resumed run; None if another one is allowed, or none is recorded."""
        return None if "distill.teacher" in self.config["allow_change"] else self.config.get("teacher_sha256")

    @property
    def film_class(self) -> type[Callback]:
        from vit.run.film import ImageFilm

        return ImageFilm

    def film(self, folder: RunFolder, count: int) -> Callback:
        split, metric = self.source.splits["val"], self.config["callbacks"]["monitor"]
        return self.film_class(folder.path, metric, split, self.source.classes, self.preprocessing, count)

    def save(self, path: Path, weights: dict[str, Tensor], metrics: dict, extra: dict) -> None:
        calibration = self.calibrate(weights, extra["evaluation"])
        save_bundle(
            path, self.model, self.source.classes, self.preprocessing, metrics, extra, weights, calibration=calibration
        )

    def calibrate(self, weights: dict[str, Tensor], settings: dict) -> Calibration | None:
        """The calibration of the weights on the validation images."""
        model, options = trained_copy(self.model, weights), self.run_options(settings)
        with self.progress_bar() as progress:
            return calibrate_images(model, self.preprocessing, self.cached(), calibration_choice(self.config), options,
                                    progress=progress, most=self.limited(len(self.source.splits["train"])))

    def run_options(self, settings: dict, progress: Progress | None = None) -> RunOptions:
        """How the images of a split are evaluated."""
        return RunOptions(**settings, on_bad_sample=self.config["data"]["on_bad_sample"],
                          device=self.devices.evaluation, progress=progress)

    def test(self, folder: RunFolder, settings: dict, progress: Progress) -> Tested:
        from vit.report.evaluation import write_evaluation

        bundle = load_bundle(folder.model)
        samples = self.evaluated(self.split)
        evaluation = evaluate(
            bundle.model,
            bundle.preprocessing,
            samples,
            bundle.classes,
            **settings,
            on_bad_sample=self.config["data"]["on_bad_sample"],
            device=self.devices.evaluation,
            progress=progress,
            calibration=bundle.calibration,
        )
        write_evaluation(folder.path, evaluation, samples, bundle.preprocessing, self.title)
        predictor = Predictor(bundle, self.devices.evaluation, precision=settings["precision"])
        return Tested(evaluation.metrics, evaluation.unreadable, predictor, evaluation)

    def save_samples(self, folder: RunFolder) -> Path:
        """A few evenly spaced images of the split."""
        samples = self.source.splits[self.split]
        target = folder.path / "samples"
        target.mkdir(exist_ok=True)
        for i in evenly_spaced(len(samples), SAMPLES):
            label = self.source.label_text(self.split, i)
            name = "".join(sign if sign.isalnum() or sign in "-_" else "_" for sign in label)[:80]
            with suppress(BadImage):
                self.preprocessing.decode(samples.read(i), samples.names[i]).save(target / f"{i:05d}_{name}.png")
        return target

    def next_command(self, folder: RunFolder, samples: Path | None) -> tuple:
        return ("predict", folder.model, samples, "--top-k", 3)

    def headline(self, metrics: dict) -> dict[str, str]:
        images = metrics[f"{self.split}/images"]
        return {f"{self.split} accuracy": f"{metrics[f'{self.split}/accuracy']:.2%} of {number_of(images, 'image')}"}


def without_labels(data: dict) -> ConfigError:
    """The error of a classification of images without labels."""
    return ConfigError(f"data={data['name']}: its images have no labels, which task=classification needs; use "
                       "data=folder or data=table, or pre-train on them with task=masked_image model=mae")
