"""Pre-training on running text: masked tokens and sentence pairs (BERT, arXiv 1810.04805)."""

import logging
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from vit.bundle import load_bundle, save_bundle
from vit.data import CorpusSplit, MaskedDataset, MaskedTrainBatches
from vit.evaluation.masked_tokens import evaluate_masked_tokens
from vit.evaluation.progress import Progress
from vit.messages import agree, number_of
from vit.models.flops import call_flops
from vit.models.masked import MaskedTextConfig
from vit.run.config.composing import ConfigError
from vit.run.config.overrides import override_text
from vit.run.jobs.base import Tested
from vit.run.jobs.texts import TextJob, ids
from vit.run.parts import text_networks
from vit.run.parts.batches import micro_batch, val_loader
from vit.run.parts.data_source import check_validation
from vit.run.parts.devices import Devices
from vit.run.parts.init_from import Initial
from vit.run.parts.tokenizers import build_tokenizers, with_tokenizers
from vit.run.records.folder import RunFolder
from vit.tasks import Batches, MaskedTokens
from vit.weights import KeyReport

log = logging.getLogger("vit")

COUNTED = 256  # pairs of sentences whose mean length has the stated number of operations
LOSS_WEIGHTS = ("token_loss", "pair_loss")  # keys of the task


class MaskedTextJob(TextJob):
    """Pre-training for text classifiers: predict masked tokens, and whether two sentences are consecutive."""

    split_class = CorpusSplit
    model_configs = (MaskedTextConfig,)
    unit = "sentence pairs"
    finetunes = False

    @classmethod
    def check_config(cls, config: dict, devices: Devices) -> None:
        """Raises ConfigError: as `Job.check_config` and `check_text_model`, or both losses have the weight 0."""
        super().check_config(config, devices)
        required = {"vocab_size": 1, "max_len": config["data"]["max_len"]}
        text_networks.check_text_model(config, MaskedTextConfig, required)
        if not any(loss_weights(config)):
            raise ConfigError("task.token_loss and task.pair_loss are both 0, so there is nothing to learn; set one of "
                              "them to 1")

    def check_source(self) -> None:
        check_validation(self.source, "sentences")

    def build_inputs(self, initial: Initial | None) -> None:
        texts = self.source.splits["train"].texts
        with self.progress_bar() as progress:
            self.tokenizers = build_tokenizers(self.config, {"source": texts}, initial, self.checkpoint, progress)

    def build_model(self, initial: Initial | None) -> nn.Module:
        required = {"vocab_size": self.tokenizer.vocab_size, "max_len": self.config["data"]["max_len"]}
        return text_networks.text_model(self.config, required, MaskedTextConfig, initial)

    def load_weights(self, initial: Initial | None) -> KeyReport | None:
        return self.load_text_weights(initial)

    def build_datasets(self) -> None:
        data, seed = self.config["data"], self.config["seed"]
        with self.progress_bar() as progress:
            self.datasets = {
                key: MaskedDataset(split, self.tokenizer, data["max_len"], data["mask_ratio"], seed, progress)
                for key, split in self.source.splits.items()
            }
        for key, dataset in self.datasets.items():
            if dataset.cut:
                log.warning("%s of %s %s longer than data.max_len=%d allows, and their ends are not used; raise it, or "
                            "write one sentence per line", number_of(dataset.cut, "sentence"), key,
                            agree(dataset.cut, "is", "are"), data["max_len"])

    def resolve_config(self, loaded: KeyReport | None) -> dict:
        task = {**self.config["task"], **dict(zip(LOSS_WEIGHTS, loss_weights(self.config), strict=True))}
        return {**super().resolve_config(loaded), "task": task}

    def scoring_values(self, config: dict) -> dict[str, Any]:
        """The masks depend on the seed. Checkpoints of versions without weights of the losses have scores of masked
        tokens alone.
        """
        values = {"seed": config.get("seed"), **super().scoring_values(config)}
        return {"task.token_loss": 1.0, "task.pair_loss": 0.0, **values}

    def name_model(self, initial: Initial | None) -> str:
        return MaskedTextConfig.kind

    @property
    def data_facts(self) -> str:
        return f"sentence pairs, {self.tokenizer.vocab_size:,} {self.tokenizer.kind} tokens"

    @property
    def description(self) -> str:
        config = self.model.config
        return f"{config.kind}, {config.dim} wide, {config.depth} deep"

    @property
    def sample_flops(self) -> float:
        return text_networks.matrix_flops(self.model) * 2 * float(self.datasets["train"].tokens.lengths.mean())

    def count_flops(self, bundle: Path) -> float:
        """As `Job.count_flops`, of the mean pair of sentences and number of masked tokens among the first pairs."""
        dataset = self.datasets["train"]
        pairs = dataset.__getitems__(np.stack([np.zeros(COUNTED, np.int64), np.arange(COUNTED) % len(dataset)], axis=1))
        length, masked = (float(each.sum(1).double().mean()) for each in (pairs["source_mask"], pairs["masked"] >= 0))
        source = ids(length)
        return call_flops(load_bundle(bundle).model, source, None, None, torch.arange(round(masked)))

    @property
    def count(self) -> int:
        return self.limited(len(self.datasets[self.split]))

    def build_task(self) -> MaskedTokens:
        config = with_tokenizers(self.config, self.tokenizers)
        return MaskedTokens(self.model, self.build_optimization(), config["seed"], config, *loss_weights(config))

    def build_batches(self) -> Batches:
        recipe, seed, workers = self.config["recipe"], self.config["seed"], self.config["data"]["workers"]
        return Batches(
            partial(train_loader, self.datasets["train"], recipe, seed, workers),
            partial(val_loader, self.datasets["val"], micro_batch(recipe), workers),
        )

    def save(self, path: Path, weights: dict[str, Tensor], metrics: dict, extra: dict) -> None:
        extra = extra | {"seed": self.config["seed"], "loss_weights": loss_weights(self.config),  # of the evaluation
                         "mask_ratio": self.config["data"]["mask_ratio"]}
        save_bundle(path, self.model, (), None, metrics, extra, weights, self.tokenizers)

    def test(self, folder: RunFolder, settings: dict, progress: Progress) -> Tested:
        model, dataset = load_bundle(folder.model).model, self.datasets[self.split]
        return Tested(evaluate_masked_tokens(model, dataset, **settings, limit=self.count, progress=progress,
                                             device=self.devices.evaluation, weights=loss_weights(self.config)))

    def next_command(self, folder: RunFolder, samples: Path | None) -> tuple:
        table = ["data.path=TABLE"] if self.config["data"].get("root") else []  # else the generated questions
        return ("train", "data=text_table", *table, override_text("init_from", str(folder.path)))

    def headline(self, metrics: dict) -> dict[str, str]:
        named = {"masked tokens": "token_accuracy", "sentence pairs": "pair_accuracy"}
        return {f"{text} predicted": f"{metrics[f'{self.split}/{name}']:.2%}" for text, name in named.items()}


def loss_weights(config: dict) -> list[float]:
    """Weights of the losses of masked tokens and of sentence pairs; runs saved before these keys have 1."""
    return [config["task"].get(key, 1.0) for key in LOSS_WEIGHTS]


def train_loader(
    dataset: MaskedDataset, recipe: dict, seed: int, workers: int | str, rank: int, world: int
) -> MaskedTrainBatches:
    return MaskedTrainBatches(
        dataset, recipe["batch_size"], seed, rank, world, workers, accumulate=recipe["accumulate"],
        drop_last=recipe.get("drop_last", True),
    )
