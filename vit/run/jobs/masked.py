"""Pre-training on running text: hidden tokens and sentence pairs; its parts, and its test."""

import logging
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from torch import Tensor, nn

from vit.bundle import load_bundle, save_bundle
from vit.data import MaskedDataset, MaskedTrainBatches
from vit.data.text.tokenizers import Tokenizer
from vit.evaluation.masked_tokens import evaluate_masked_tokens
from vit.evaluation.progress import Progress
from vit.models.masked import MaskedTextConfig
from vit.run.config.overrides import override_text
from vit.run.folder import RunFolder
from vit.run.jobs.base import Job, Tested, completed, log_parts
from vit.run.parts import networks
from vit.run.parts.auto_values import fit_recipe, steps_per_epoch
from vit.run.parts.batches import check_batch, check_devices, micro_batch, val_loader
from vit.run.parts.data_source import build_source, check_validation, with_absolute_paths
from vit.run.parts.devices import Devices
from vit.run.parts.init_from import load_initial, load_weights_of
from vit.run.parts.optimization import build_optimization
from vit.run.parts.tokenizers import build_tokenizer, with_tokenizers
from vit.run.records import DataRecord
from vit.tasks import Batches, MaskedTokens

log = logging.getLogger("vit")


@dataclass(frozen=True)
class Masked(Job):
    """Running text, to learn from what is hidden in it; its model is the beginning of others."""

    tokenizer: Tokenizer
    datasets: dict[str, MaskedDataset]

    @property
    def description(self) -> str:
        return describe(self.model)

    @property
    def sample_flops(self) -> float:
        return networks.matrix_flops(self.model) * 2 * float(self.datasets["train"].tokens.lengths.mean())

    @property
    def count(self) -> int:
        return self.few(len(self.datasets[self.split]))

    def save(self, path: Path, weights: dict[str, Tensor], metrics: dict, extra: dict) -> None:
        save_bundle(path, self.model, (), None, metrics, extra, weights, {"source": self.tokenizer})

    def test(self, folder: RunFolder, settings: dict, progress: Progress) -> Tested:
        model = load_bundle(folder.model).model
        dataset = self.datasets[self.split]
        return Tested(evaluate_masked_tokens(model, dataset, **settings, limit=self.count, progress=progress))

    def write_samples(self, folder: RunFolder) -> Path | None:
        return None

    def next_words(self, folder: RunFolder, samples: Path | None) -> tuple:
        return ("train", "data=text_table", override_text("init_from", str(folder.path)))

    def headline(self, metrics: dict) -> dict[str, str]:
        named = {"hidden tokens found": "token_accuracy", "pairs told right": "pair_accuracy"}
        return {text: f"{metrics[f'{self.split}/{name}']:.2%}" for text, name in named.items()}


def prepare(
    config: dict, devices: Devices, checkpoint: Path | None = None, record: DataRecord | None = None
) -> Masked:
    """Data, tokenizer, model, task. A resumed run takes nothing from `init_from`, but all from its checkpoint."""
    data, recipe = config["data"], config["recipe"]
    check_devices(config, devices.world)
    source = build_source(data, record)
    check_validation(source, "sentences")
    initial = load_initial(config, checkpoint)
    tokenizer = build_tokenizer(config, source.splits["train"].texts, initial, checkpoint)
    fits = {"vocab_size": tokenizer.vocab_size, "max_len": data["max_len"]}
    model = networks.text_model(config, fits, MaskedTextConfig, initial)
    if checkpoint is None:
        networks.start_from_vectors(model, config["model"].get("vectors"), tokenizer)
    load_weights_of(initial, model)
    datasets = {
        key: MaskedDataset(split, tokenizer, data["max_len"], data["masked"], config["seed"])
        for key, split in source.splits.items()
    }
    config = fit_recipe(config, len(datasets["train"]), devices.world, "sentence pairs")
    check_batch(recipe, len(datasets["train"]), "sentence pairs")
    name = config.get("model_name") or MaskedTextConfig.kind
    config = completed(config, model, name, data=with_absolute_paths(data))
    facts = f"sentence pairs, {tokenizer.vocab_size:,} {tokenizer.kind} tokens"
    log_parts(source.name, datasets, facts, model, describe(model))
    batches = Batches(
        partial(train_loader, datasets["train"], recipe, config["seed"], data["workers"]),
        partial(val_loader, datasets["val"], micro_batch(recipe), data["workers"]),
    )
    optimization = build_optimization(recipe, model, steps_per_epoch(recipe, len(datasets["train"])))
    stored = with_tokenizers(config, {"source": tokenizer})
    task = MaskedTokens(model, optimization, seed=config["seed"], config=stored)
    return Masked(config, model, task, batches, source, tokenizer, datasets)


def train_loader(dataset, recipe: dict, seed: int, workers, rank: int, world: int) -> MaskedTrainBatches:
    return MaskedTrainBatches(
        dataset, recipe["batch_size"], seed, rank, world, workers, accumulate=recipe["accumulate"],
        drop_last=recipe.get("drop_last", True),
    )


def describe(model: nn.Module) -> str:
    config = model.config
    return f"{config.kind}, {config.dim} wide, {config.depth} deep"
