"""Jobs on texts: what those on single texts share, and the classification of texts and of pairs of texts."""

import re
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
from pytorch_lightning import Callback
from torch import Tensor, nn

from vit.bundle import Calibration, load_bundle, save_bundle
from vit.data import TextDataset, TextSplit
from vit.data.splits.split import evenly_spaced
from vit.data.text.tokenizers import EOS, Tokenizer
from vit.evaluation.progress import Progress
from vit.evaluation.text_classification import evaluate_texts
from vit.inference import TextPredictor
from vit.messages import number_of
from vit.models.flops import call_flops
from vit.models.text import TextClassifierConfig
from vit.run.config.composing import ConfigError, stated
from vit.run.jobs.base import Job, Tested
from vit.run.parts import text_networks
from vit.run.parts.batches import micro_batch, train_loader, val_loader, warn_about_cut_texts
from vit.run.parts.calibration import calibrate_texts, calibration_choice, trained_copy
from vit.run.parts.data_source import truncates
from vit.run.parts.devices import Devices
from vit.run.parts.init_from import Initial, load_initial_weights
from vit.run.parts.recipe import build_loss
from vit.run.parts.tokenizers import build_tokenizers, check_embeddings, with_tokenizers
from vit.run.records.folder import RunFolder
from vit.tasks import Batches, TextClassification
from vit.weights import KeyReport

SAMPLES = 8  # lines in samples/lines.txt


def ids(length: float) -> Tensor:
    """Token ids (1,length) of a text that has no meaning, to count operations; the length is rounded."""
    return torch.full((1, max(1, round(float(length)))), EOS)


class TextJob(Job):
    """A job on texts for a single encoder; `tokenizers` has the side "source" only."""

    tokenizes = True
    tokenizers: dict[str, Tokenizer]
    datasets: dict

    @property
    def tokenizer(self) -> Tokenizer:
        return self.tokenizers["source"]

    @property
    def train_samples(self) -> int:
        return len(self.datasets["train"])

    def load_text_weights(self, initial: Initial | None, classes: list[str] | None = None) -> KeyReport | None:
        """Load word vectors, then the weights of `init_from`."""
        if self.checkpoint is None:
            text_networks.start_from_vectors(self.model, self.config["model"].get("vectors"), self.tokenizer)
        if initial is None:
            return None
        loaded = load_initial_weights(initial, self.model, classes=classes)
        return check_embeddings(self.config, self.tokenizers, initial, loaded)


class TextClassificationJob(TextJob):
    """Texts, or pairs of texts, to class names."""

    split_class = TextSplit
    model_configs = (TextClassifierConfig,)
    unit = "texts"
    recipe_keys = ("loss.name",)

    @classmethod
    def check_config(cls, config: dict, devices: Devices) -> None:
        """Raises ConfigError: as `Job.check_config` and `check_text_model`."""
        super().check_config(config, devices)
        required = {"vocab_size": 1, "num_classes": 2, "max_len": config["data"]["max_len"]}
        text_networks.check_text_model(config, TextClassifierConfig, required)

    def build_inputs(self, initial: Initial | None) -> None:
        texts = [text for column in self.source.splits["train"].texts for text in column]
        with self.progress_bar() as progress:
            self.tokenizers = build_tokenizers(self.config, {"source": texts}, initial, self.checkpoint, progress)

    def build_model(self, initial: Initial | None) -> nn.Module:
        """The network of `model`, with the sizes of a pretrained one if there is one, for these tokens and classes. The
        maximum length is that of the pretrained network unless an override sets it.
        """
        max_len = self.config["data"]["max_len"]
        if initial is not None and "max_len" not in stated(self.config["overrides"], "data"):
            max_len = (initial.model or {}).get("max_len", max_len)
        required = {"vocab_size": self.tokenizer.vocab_size, "num_classes": self.source.num_classes, "max_len": max_len}
        return text_networks.text_model(self.config, required, TextClassifierConfig, initial)

    def load_weights(self, initial: Initial | None) -> KeyReport | None:
        return self.load_text_weights(initial, self.source.classes)

    def build_datasets(self) -> None:
        """All splits, so that an error in any of them is raised before training. With data.on_long=skip long texts are
        left out of training, and truncated in the other splits.
        """
        on_long, max_len = self.config["data"]["on_long"], self.model.config.max_len
        evaluated = "cut" if on_long == "skip" else on_long
        with self.progress_bar() as progress:
            self.datasets = {
                key: TextDataset(split, self.tokenizer, max_len, on_long if key == "train" else evaluated, progress)
                for key, split in self.source.splits.items()
            }
        for key, dataset in self.datasets.items():
            warn_about_cut_texts(dataset.cut, key)

    def name_model(self, initial: Initial | None) -> str:
        return self.config["model"].get("name") or TextClassifierConfig.kind

    @property
    def data_facts(self) -> str:
        tokens = f"{self.tokenizer.vocab_size:,} {self.tokenizer.kind} tokens"
        return f"{number_of(self.source.num_classes, 'class')}, {tokens}"

    @property
    def description(self) -> str:
        config = self.model.config
        return f"{config.kind}, {config.dim} wide, {config.depth} deep, pool {config.pool}"

    @property
    def sample_flops(self) -> float:
        return text_networks.matrix_flops(self.model) * float(self.datasets["train"].inputs.tokens.lengths.mean())

    def count_flops(self, bundle: Path) -> float:
        return call_flops(load_bundle(bundle).model, ids(self.datasets["train"].inputs.tokens.lengths.mean()))

    def resolve_config(self, loaded: KeyReport | None) -> dict:
        return {**super().resolve_config(loaded), "classes": self.source.classes}

    def resolve_data(self) -> dict:
        return {**super().resolve_data(), "max_len": self.model.config.max_len}

    def build_task(self) -> TextClassification:
        config, data = self.config, self.config["data"]
        use = {"columns": len(self.source.splits["train"].texts), "cuts": truncates(data)}
        return TextClassification(
            self.model,
            self.source.num_classes,
            build_loss(config["recipe"]["loss"], self.source, data["balance"]),
            self.build_optimization(),
            seed=config["seed"],
            config=with_tokenizers(config, self.tokenizers, use),
        )

    def build_batches(self) -> Batches:
        """`recipe.batch_size` counts all devices and accumulated micro-batches."""
        data, recipe, seed = self.config["data"], self.config["recipe"], self.config["seed"]
        return Batches(
            partial(train_loader, self.datasets["train"], recipe, seed, data["workers"], data["balance"]),
            partial(val_loader, self.datasets["val"], micro_batch(recipe), data["workers"]),
        )

    def omitted(self) -> list[tuple[str, str]]:
        return [*super().omitted(), *self.datasets["train"].left_out]

    def film(self, folder: RunFolder, count: int) -> Callback:
        """Raises ConfigError: the model has no attention."""
        from vit.report.attention.recording import has_scores
        from vit.run.film import TextFilm

        if not has_scores(self.model):
            raise ConfigError(f"callbacks.film={count} shows the attention between tokens, but model.mixer="
                              f"{self.model.config.mixer} has none; leave callbacks.film out or use "
                              "model.mixer=attention or model.pool=attention")
        metric = self.config["callbacks"]["monitor"]
        return TextFilm(folder.path, metric, self.datasets["val"], self.source.classes, self.tokenizer, count)

    def save(self, path: Path, weights: dict[str, Tensor], metrics: dict, extra: dict) -> None:
        extra = extra | self.task.config["use"]
        arguments = self.source.classes, None, metrics, extra
        model = trained_copy(self.model, weights)
        save_bundle(path, model, *arguments, tokenizers=self.tokenizers)
        if calibration := self.calibrate(path, extra["evaluation"]):
            save_bundle(path, model, *arguments, tokenizers=self.tokenizers, calibration=calibration)

    def calibrate(self, path: Path, settings: dict) -> Calibration | None:
        """The calibration of a saved model on the validation texts; those longer than its limit are cut."""
        predictor = TextPredictor(load_bundle(path), self.devices.evaluation, precision=settings["precision"])
        predictor.truncate = True
        source = replace(self.source, splits={**self.source.splits, "val": self.evaluated("val")})
        with self.progress_bar() as progress:
            return calibrate_texts(predictor, source, calibration_choice(self.config), settings["batch_size"],
                                   progress=progress, most=self.limited(len(source.splits["train"])))

    def test(self, folder: RunFolder, settings: dict, progress: Progress) -> Tested:
        from vit.report.evaluation import write_text_evaluation

        predictor = TextPredictor(load_bundle(folder.model), self.devices.evaluation, precision=settings["precision"])
        samples = self.evaluated(self.split)
        evaluation = evaluate_texts(predictor, samples, settings["batch_size"], progress)
        write_text_evaluation(folder.path, evaluation, samples, self.title)
        return Tested(evaluation.metrics, (), predictor, evaluation)

    def save_samples(self, folder: RunFolder) -> Path:
        """A few evenly spaced texts of the split, a line each, with a tab between the texts of a pair. Line breaks and
        tabs in a text are spaces there.
        """
        samples, file = self.source.splits[self.split], folder.path / "samples" / "lines.txt"
        file.parent.mkdir(exist_ok=True)
        rows = evenly_spaced(len(samples), SAMPLES)
        lines = ["\t".join(re.sub(r"[\t\r\n]", " ", column[i]) for column in samples.texts) for i in rows]
        file.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        return file

    def headline(self, metrics: dict) -> dict[str, str]:
        return {f"{self.split} accuracy": f"{metrics[f'{self.split}/accuracy']:.2%} of {number_of(self.count, 'text')}"}
