"""Image classification."""

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from pytorch_lightning import Callback
from torch import Tensor, nn

from vit.bundle import Calibration, load_bundle, save_bundle
from vit.data import BadImage
from vit.data.splits.split import evenly_spaced
from vit.evaluation import evaluate
from vit.evaluation.classification import RunOptions
from vit.evaluation.progress import Progress
from vit.inference import Predictor
from vit.messages import number_of
from vit.models.config import ModelConfig
from vit.run.config.composing import ConfigError
from vit.run.config.overrides import yaml_text
from vit.run.jobs.base import Tested
from vit.run.jobs.images import ImageJob
from vit.run.parts.batches import build_augment, build_mixup
from vit.run.parts.calibration import calibrate_images, calibration_choice, trained_copy
from vit.run.parts.devices import Devices
from vit.run.parts.distillation import build_distillation, with_absolute_teacher, with_distillation_token
from vit.run.parts.head_fit import start_head
from vit.run.parts.init_from import Initial, load_initial_weights
from vit.run.parts.networks import build_model, check_neighbours, check_patch_size, model_name, warn_of_other_values
from vit.run.parts.packing import packed_preprocessing
from vit.run.parts.recipe import (
    PROGRESSIVE,
    build_loss,
    build_progressive,
    check_progressive,
    is_progressive,
    warn_about_equal_copies,
)
from vit.run.records.folder import RunFolder
from vit.tasks import Classification
from vit.training import Progressive
from vit.weights import KeyReport

SAMPLES = 8  # written as files


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
        return RunOptions(**self.evaluation_options(settings, progress))

    def evaluation_options(self, settings: dict, progress: Progress | None) -> dict[str, Any]:
        """The fields of `RunOptions`, which are arguments of `evaluate` and `evaluate_multi_label` too."""
        return {**settings, "on_bad_sample": self.config["data"]["on_bad_sample"],
                "device": self.devices.evaluation, "progress": progress}

    def test(self, folder: RunFolder, settings: dict, progress: Progress) -> Tested:
        from vit.report.evaluation import write_evaluation

        bundle = load_bundle(folder.model)
        samples = self.evaluated(self.split)
        evaluation = evaluate(bundle.model, bundle.preprocessing, samples, bundle.classes,
                              **self.evaluation_options(settings, progress), calibration=bundle.calibration)
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
