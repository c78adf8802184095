"""Image classification with several labels per image, with a threshold per class."""

import logging
from pathlib import Path

import numpy as np
from pytorch_lightning import Callback
from torch import Tensor

from vit.bundle import load_bundle, save_bundle
from vit.bundle.label_calibration import calibrated_thresholds
from vit.data import DataError
from vit.evaluation import best_thresholds, evaluate_multi_label
from vit.evaluation.calibration.outputs import LabelOutputs, label_outputs
from vit.evaluation.progress import Progress, as_stage
from vit.inference import MultiLabelPredictor
from vit.messages import first_of, number_of
from vit.run.config.composing import ConfigError, stated
from vit.run.jobs.base import Tested
from vit.run.jobs.classification import ImageClassificationJob
from vit.run.parts.calibration import calibrate_labels, calibration_choice, trained_copy
from vit.run.records.folder import RunFolder
from vit.tasks import MultiLabel
from vit.weights import KeyReport

log = logging.getLogger("vit")

MIN_IMAGES = 5  # a threshold from fewer images of a class is logged as unreliable
SHOWN = 5  # classes named in a warning


class MultiLabelJob(ImageClassificationJob):
    """Multi-label classification: images to any number of class names."""

    task_class = MultiLabel

    @property
    def film_class(self) -> type[Callback]:
        from vit.run.film import MultiLabelFilm

        return MultiLabelFilm

    def complete_recipe(self) -> None:
        """Complete the recipe as for one label per image, with the loss and the monitored metric of this task, and
        warn of a threshold of mixed targets, which this loss does not have.

        Raises:
            ConfigError: an override selects another loss.
            DataError: no validation image has a label, so the best epoch cannot be chosen.
        """
        super().complete_recipe()
        source, overrides, loss = self.source, self.config["overrides"], self.config["recipe"]["loss"]
        if not source.splits["val"].labels.any():
            raise DataError(f"{source.name}: none of its {number_of(len(source.splits['val']), 'validation image')} "
                            "has a label, so the best epoch cannot be chosen; increase the second value of "
                            "data.fractions, or choose other images")
        if loss["name"] != "bce" and "name" in stated(overrides, "recipe.loss"):
            raise ConfigError(f"recipe.loss.name={loss['name']}: images with several labels each need bce")
        loss["name"] = "bce"
        if (threshold := loss.get("target_threshold")) is not None:
            log.warning("recipe.loss.target_threshold=%g has no effect on images with several labels each, whose mixed "
                        "targets keep their ratios; set it to null", threshold)
            loss["target_threshold"] = None
        callbacks = self.config["callbacks"]
        if callbacks["monitor"] == "val/accuracy" and "monitor" not in stated(overrides, "callbacks"):
            callbacks["monitor"] = "val/map"
        labels = np.concatenate([split.labels.sum(axis=1) for split in source.splits.values()])
        log.info("labels: %.2f per image, %s images without any; binary cross entropy per class, monitored: %s",
                 labels.mean(), f"{int((labels == 0).sum()):,}", callbacks["monitor"])

    def resolve_config(self, loaded: KeyReport | None) -> dict:
        return {**super().resolve_config(loaded), "multi_label": True}  # for a checkpoint without its data

    def save(self, path: Path, weights: dict[str, Tensor], metrics: dict, extra: dict) -> None:
        """Save the bundle, with a calibration and a threshold per class from one pass over the validation images."""
        model, classes, val = trained_copy(self.model, weights), self.source.classes, self.cached().splits["val"]
        with self.progress_bar() as progress:
            options = self.run_options(extra["evaluation"], as_stage(progress, "calibration", len(val)))
            outputs = label_outputs(model, self.preprocessing, val, classes, options)
        calibration = calibrate_labels(outputs, classes, calibration_choice(self.config))
        thresholds = calibrated_thresholds(self.thresholds(outputs), calibration)
        save_bundle(path, model, classes, self.preprocessing, metrics, extra, thresholds=thresholds,
                    calibration=calibration)

    def thresholds(self, outputs: LabelOutputs) -> list[float]:
        """The threshold of each class that gives the best F1 on the validation images."""
        images = dict(zip(self.source.classes, outputs.truth.sum(dim=0).tolist(), strict=True))
        if absent := [repr(name) for name, count in images.items() if not count]:
            log.warning("no validation image has %s: threshold one half", first_of(absent, SHOWN))
        if few := [repr(name) for name, count in images.items() if 0 < count < MIN_IMAGES]:
            log.warning("fewer than %d validation images have %s: a threshold from so few is unreliable", MIN_IMAGES,
                        first_of(few, SHOWN))
        return best_thresholds(outputs.truth.numpy(), outputs.probabilities.numpy())

    def test(self, folder: RunFolder, settings: dict, progress: Progress) -> Tested:
        from vit.report.multi_label import write_multi_label_evaluation

        bundle = load_bundle(folder.model)
        samples = self.evaluated(self.split)
        evaluation = evaluate_multi_label(bundle.model, bundle.preprocessing, samples, bundle.classes,
                                          bundle.thresholds, **self.evaluation_options(settings, progress),
                                          calibration=bundle.calibration)
        write_multi_label_evaluation(folder.path, evaluation, samples, bundle.preprocessing, self.title)
        predictor = MultiLabelPredictor(bundle, self.devices.evaluation, precision=settings["precision"])
        return Tested(evaluation.metrics, evaluation.unreadable, predictor, evaluation)

    def next_command(self, folder: RunFolder, samples: Path | None) -> tuple:
        return ("predict", folder.model, samples)

    def headline(self, metrics: dict) -> dict[str, str]:
        images = metrics[f"{self.split}/images"]
        return {
            f"{self.split} mAP": f"{metrics[f'{self.split}/map']:.4f}, {number_of(images, 'image')}",
            f"{self.split} F1": f"{metrics[f'{self.split}/f1']:.4f} (mean over labels, thresholds of validation)",
        }
