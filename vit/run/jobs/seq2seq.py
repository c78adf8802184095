"""Sequence to sequence: texts to texts (translation) and images of text to texts (OCR)."""

import logging
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from pathlib import Path

import torch
from pytorch_lightning import Callback
from torch import Tensor, nn

from vit.bundle import load_bundle, save_bundle
from vit.data import BadImage, LinePreprocessing, PairDataset, PairEvalBatches, PairSplit, PairTrainBatches
from vit.data.splits.split import evenly_spaced
from vit.data.text.tokenizers import Tokenizer
from vit.evaluation import bleu_signature
from vit.evaluation.progress import Progress
from vit.evaluation.seq2seq import evaluate_seq2seq
from vit.generation import Generation
from vit.inference import Seq2SeqPredictor
from vit.models.flops import call_flops
from vit.models.seq2seq import EncoderDecoderConfig, ImageToTextConfig
from vit.run.config.composing import ConfigError
from vit.run.config.overrides import checked
from vit.run.jobs.base import Job, Tested
from vit.run.jobs.texts import ids
from vit.run.parts import networks, text_networks
from vit.run.parts.batches import build_augment, build_pair_datasets, check_no_augment
from vit.run.parts.data_source import truncates
from vit.run.parts.devices import Devices
from vit.run.parts.init_from import Initial, load_initial_weights
from vit.run.parts.preprocessing import build_line_preprocessing
from vit.run.parts.recipe import build_optimization, build_text_loss
from vit.run.parts.tokenizers import (
    build_tokenizers,
    check_embeddings,
    check_shared_embeddings,
    warn_of_lossy_texts,
    with_tokenizers,
)
from vit.run.records.folder import RunFolder
from vit.tasks import Batches, Seq2Seq, ValidationTexts
from vit.weights import KeyReport

log = logging.getLogger("vit")

SAMPLES = 8  # inputs that are saved to try the model on


class Seq2SeqJob(Job):
    """Texts, or images of text, to texts. `preprocessing` is None for texts."""

    split_class = PairSplit
    model_configs = (EncoderDecoderConfig, ImageToTextConfig)
    unit = "pairs"
    tokenizes = True
    accepts_augment = True  # of images of text; `build_inputs` rejects it for texts
    recipe_keys = ("augment", "batch_tokens", "loss")
    tokenizers: dict[str, Tokenizer]
    preprocessing: LinePreprocessing | None
    datasets: dict[str, PairDataset]

    @classmethod
    def check_config(cls, config: dict, devices: Devices) -> None:
        """Raises ConfigError: as `check_options` and, for data of this project, `check_text_model`; or neither samples
        nor tokens limit a batch.
        """
        recipe = config["recipe"]
        if recipe["batch_size"] is None and recipe["batch_tokens"] is None:
            raise ConfigError("recipe.batch_size and recipe.batch_tokens are both null; set one of them")
        networks.check_options(config["model"], cls.model_configs)
        data = config["data"]
        if str(data["_target_"]).startswith("vit.data."):  # otherwise only the source shows whether it is images
            required = {"vocab_size": 1, "max_len": max(data["max_source_len"] or 2, data["max_target_len"] or 2)}
            if "preprocessing" in data:
                required |= dict.fromkeys(("image_size", "patch_size"), data["patch_size"]) | {"in_chans": 3}
            kind = ImageToTextConfig if "preprocessing" in data else EncoderDecoderConfig
            text_networks.check_text_model(config, kind, required)

    def check_source(self) -> None:
        self.source.check_train()
        super().check_source()

    def stated_model(self) -> dict:
        return networks.stated_values(self.config)

    def build_inputs(self, initial: Initial | None) -> None:
        """Build preprocessing and tokenizers.

        Raises:
            ConfigError: word vectors for the source are configured, and the sources are images.
        """
        config, source = self.config, self.source
        self.preprocessing = build_line_preprocessing(config["data"], source, initial) if source.images else None
        if source.images and (vectors := config["model"].get("vectors")):
            raise ConfigError(f"model.vectors={vectors} are word vectors of the source, but this data is images; set "
                              "model.vectors=null")
        if not source.images:
            check_no_augment(config["recipe"])
        train = source.splits["train"]
        texts = {"target": train.targets} if source.images else {"source": train.sources, "target": train.targets}
        with self.progress_bar() as progress:
            self.tokenizers = build_tokenizers(config, texts, initial, self.checkpoint, progress)

    def build_model(self, initial: Initial | None) -> nn.Module:
        model = text_networks.seq2seq_model(self.config, self.preprocessing, self.tokenizers, initial)
        if getattr(model.config, "tied", None) == "all":
            check_shared_embeddings(self.config, self.tokenizers, initial, self.checkpoint)
        return model

    def load_weights(self, initial: Initial | None) -> KeyReport | None:
        if self.preprocessing is None and self.checkpoint is None:
            text_networks.start_from_vectors(self.model, self.config["model"].get("vectors"), self.tokenizers["source"])
        if initial is None:
            return None
        target = self.model if initial.generates_text else self.model.source_encoder  # a classifier has only an encoder
        loaded = load_initial_weights(initial, target)
        return check_embeddings(self.config, self.tokenizers, initial, loaded)

    def build_datasets(self) -> None:
        config = self.config
        augment = build_augment(config["recipe"]["augment"], config["seed"])
        with self.progress_bar() as progress:
            self.datasets = build_pair_datasets(config["data"], self.source, self.preprocessing, self.tokenizers,
                                                self.model.config.max_len, augment, progress)

    def complete_recipe(self) -> None:
        """Does nothing: no value is `auto`, and batches may be limited by tokens instead of samples."""

    def name_model(self, initial: Initial | None) -> str:
        return "encoder_decoder"

    @property
    def data_facts(self) -> str:
        """Vocabularies and lengths."""
        kinds = ", ".join(f"{each.vocab_size:,} {each.kind} tokens ({side})" for side, each in self.tokenizers.items())
        lengths = self.datasets["train"].lengths
        mean, longest = lengths.mean(0), lengths.max(0)
        return (f"{kinds}, {mean[0]:.1f} source and {mean[1]:.1f} target tokens on average, "
                f"{longest[0]} and {longest[1]} at most")

    @property
    def description(self) -> str:
        config = self.model.config
        return f"encoder-decoder, {config.dim} wide, {config.depth} + {config.decoder_depth} blocks"

    @property
    def count(self) -> int:
        """The number of sources, which may have several references each."""
        return len(self.evaluated(self.split).by_source())

    @property
    def sample_flops(self) -> float:
        return text_networks.matrix_flops(self.model) * float(self.datasets["train"].lengths.max(1).mean())

    def count_flops(self, bundle: Path) -> float:
        train = self.datasets["train"]
        size, length = train.lengths[train.rows].mean(axis=0)  # tokens or patches, tokens to predict
        source = ids(size) if self.preprocessing is None else blank_image(self.preprocessing, size)
        return call_flops(load_bundle(bundle).model, source, ids(length))

    @property
    def batch_samples(self) -> float:
        recipe, longest = self.config["recipe"], self.datasets["train"].lengths.max(1)
        return recipe["batch_tokens"] / longest.mean() if recipe["batch_tokens"] else recipe["batch_size"]

    def resolve_config(self, loaded: KeyReport | None) -> dict:
        config = super().resolve_config(loaded)
        decode = {**config["task"]["decode"], "ctc": ctc_weight(config)}
        return {**config, "task": {**config["task"], "decode": decode}}

    def resolve_data(self) -> dict:
        found = {"preprocessing": self.preprocessing.to_dict()} if self.preprocessing is not None else {}
        return {**super().resolve_data(), **found}

    def build_generation(self) -> Generation:
        """The settings of decoding in validation, in the test and in the saved model.

        Raises:
            ConfigError: a setting that the model or the data does not support.
        """
        config, data = self.config, self.config["data"]
        values = {key: value for key, value in config["task"]["decode"].items() if value is not None}
        if self.preprocessing is None and values.get("tta", 1) != 1:
            raise ConfigError(f"task.decode.tta={values['tta']} is for images of text, but this data is text; set "
                              "task.decode.tta=1")
        longest = data["max_target_len"] or self.model.config.max_len
        return checked("task.decode", Generation, {"max_len": longest, **values}, unpack=True)

    def build_task(self) -> Seq2Seq:
        config, preprocessing, train = self.config, self.preprocessing, self.datasets["train"]
        recipe, task, data = config["recipe"], config["task"], config["data"]
        loss = build_text_loss(recipe["loss"], preprocessing, train)
        val = self.source.splits["val"]
        warn_of_lossy_texts(self.tokenizers["target"], val.targets)
        generation = self.build_generation()
        if recipe["loss"].get("ctc") and not generation.ctc:
            log.warning("task.decode.ctc=0: the CTC output, which recipe.loss.ctc=%g trains, is not used to generate "
                        "texts", recipe["loss"]["ctc"])
        use = {"generation": asdict(generation), "cuts": truncates(data), "ctc_loss": recipe["loss"].get("ctc", 0.0)}
        if preprocessing is None:
            use["max_source_len"] = data["max_source_len"] or self.model.config.max_len
            use["strip"] = bool(data.get("strip"))
        rows = 0 if config["strategy"]["name"] == "fsdp" else task["decode_rows"]
        if rows < task["decode_rows"]:
            log.info("strategy=fsdp: no texts are generated in validation, because sharded weights are gathered for "
                     "whole forward passes only")
        references, rows = validation_references(val, rows)
        batches = len(train_loader(train, recipe, config["seed"], data["workers"], 0, self.devices.world))
        return Seq2Seq(
            self.model,
            self.tokenizers["target"],
            build_optimization(recipe, self.model, batches // recipe["accumulate"]),
            ValidationTexts(references, generation, rows, task["examples"]),
            prepare=preprocessing.normalize if preprocessing else None,
            loss=loss,
            unit="images" if preprocessing else "sentences",
            seed=config["seed"],
            config=with_tokenizers(config, self.tokenizers, use),
        )

    def build_batches(self) -> Batches:
        recipe, workers = self.config["recipe"], self.config["data"]["workers"]
        return Batches(
            partial(train_loader, self.datasets["train"], recipe, self.config["seed"], workers),
            partial(val_loader, self.datasets["val"], recipe, workers),
        )

    def omitted(self) -> list[tuple[str, str]]:
        return [*super().omitted(), *(each for dataset in self.datasets.values() for each in dataset.left_out)]

    def film(self, folder: RunFolder, count: int) -> Callback:
        """Raises ConfigError: the weights are sharded, so no texts can be generated in validation."""
        from vit.run.film import Seq2SeqFilm

        if self.config["strategy"]["name"] == "fsdp":
            raise ConfigError(f"callbacks.film={count} generates texts, but strategy=fsdp gathers sharded weights for "
                              "whole forward passes only; leave callbacks.film out or use strategy=ddp")
        metric = self.config["callbacks"]["monitor"]
        return Seq2SeqFilm(folder.path, metric, self.datasets["val"], self.tokenizers.get("source"), count)

    def save(self, path: Path, weights: dict[str, Tensor], metrics: dict, extra: dict) -> None:
        extra = extra | self.task.config["use"]
        save_bundle(path, self.model, (), self.preprocessing, metrics, extra, weights, self.tokenizers)

    def test(self, folder: RunFolder, settings: dict, progress: Progress) -> Tested:
        from vit.report.seq2seq import write_seq2seq_evaluation

        bundle = load_bundle(folder.model)
        predictor = Seq2SeqPredictor(bundle, self.devices.evaluation, precision=settings["precision"])
        samples = self.evaluated(self.split)
        batch_size, on_bad_sample = settings["batch_size"] or 64, self.config["data"]["on_bad_sample"]
        evaluation = evaluate_seq2seq(predictor, samples, batch_size, on_bad_sample, progress)
        write_seq2seq_evaluation(folder.path, evaluation, samples, predictor.preprocessing)
        metrics = evaluation.metrics | {"bleu_signature": bleu_signature(evaluation.all_references)}
        return Tested(metrics, evaluation.unreadable, predictor, evaluation)

    def save_samples(self, folder: RunFolder) -> Path:
        """A few evenly spaced sources of the split: image files, or lines of one file, with spaces for line breaks."""
        split, target = self.source.splits[self.split], folder.path / "samples"
        target.mkdir(exist_ok=True)
        firsts = [rows[0] for rows in split.by_source()]
        rows = [firsts[i] for i in evenly_spaced(len(firsts), SAMPLES)]
        if split.read is None:
            lines = [re.sub(r"[\r\n]", " ", split.sources[i]) for i in rows]
            (target / "lines.txt").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
            return target / "lines.txt"
        for i in rows:
            with suppress(BadImage):
                self.preprocessing.pixels.decode(split.image(i), split.names[i]).save(target / f"{i:05d}.png")
        return target

    def headline(self, metrics: dict) -> dict[str, str]:
        """Exact match, character errors, and BLEU or, where BLEU is 0 because no text has four words, chrF."""
        pairs = f"of {metrics[f'{self.split}/{self.task.unit}']:,} {self.task.unit}"
        name = "bleu" if metrics[f"{self.split}/bleu"] else "chrf"
        return {
            f"{self.split} exact match": f"{metrics[f'{self.split}/exact_match']:.2%} {pairs}",
            "character errors": f"{metrics[f'{self.split}/cer']:.2%}",
            {"bleu": "BLEU", "chrf": "chrF"}[name]: f"{metrics[f'{self.split}/{name}']:.2%}",
        }


def validation_references(val: PairSplit, count: int) -> tuple[Sequence[str | list[str] | None], int]:
    """The references of the first row of each source, None for its other rows, and the number of rows that contain the
    first `count` sources.
    """
    groups = val.by_source()
    if len(groups) == len(val):
        return val.targets, count
    references: list[list[str] | None] = [None] * len(val)
    for rows in groups:
        references[rows[0]] = [val.targets[row] for row in rows]
    return references, groups[min(count, len(groups)) - 1][0] + 1 if count else 0


def blank_image(preprocessing: LinePreprocessing, patches: float) -> Tensor:
    """An image (1,C,H,W) of a line with a number of patches, rounded to whole columns."""
    columns = max(1, round(patches / preprocessing.rows))
    return torch.zeros(1, preprocessing.channels, preprocessing.height, columns * preprocessing.patch_size[1])


def ctc_weight(config: dict) -> float:
    """`task.decode.ctc`; where it is null, the weight of the CTC loss that the model is trained with.

    Raises:
        ConfigError: the model is trained without a CTC loss.
    """
    trained, weight = config["recipe"]["loss"].get("ctc") or 0.0, config["task"]["decode"].get("ctc")
    if weight and not trained:
        raise ConfigError(f"task.decode.ctc={weight} needs a model trained with a CTC loss, but recipe.loss.ctc=0; set "
                          "recipe.loss.ctc=0.5 or task.decode.ctc=0")
    return trained if weight is None else weight


def train_loader(
    dataset: PairDataset, recipe: dict, seed: int, workers: int | str, rank: int, world: int
) -> PairTrainBatches:
    tokens = recipe["batch_tokens"]
    limits = (tokens, None if tokens else recipe["batch_size"])
    return PairTrainBatches(dataset, *limits, seed, rank, world, workers, recipe["accumulate"])


def val_loader(dataset: PairDataset, recipe: dict, workers: int | str, rank: int, world: int) -> PairEvalBatches:
    tokens = recipe["batch_tokens"]
    return PairEvalBatches(dataset, tokens, None if tokens else recipe["batch_size"], rank, world, workers)
