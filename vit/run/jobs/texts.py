"""Classification of texts and of pairs of texts: its parts, and its test."""

import logging
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from torch import Tensor, nn

from vit.bundle import load_bundle, save_bundle
from vit.data import Source, TextDataset
from vit.data.text.tokenizers import Tokenizer
from vit.evaluation.progress import Progress
from vit.evaluation.text_classification import evaluate_texts
from vit.inference import TextPredictor
from vit.models.text import TextClassifierConfig
from vit.report.evaluation import write_text_evaluation
from vit.run.folder import RunFolder
from vit.run.jobs.base import Job, Tested, completed, log_parts
from vit.run.parts import networks
from vit.run.parts.auto_values import fit_recipe, steps_per_epoch
from vit.run.parts.batches import check_devices, check_splits, micro_batch, train_loader, val_loader
from vit.run.parts.data_source import build_source, truncates, with_absolute_paths
from vit.run.parts.devices import Devices
from vit.run.parts.finetuning import start_finetuning
from vit.run.parts.init_from import Initial, load_initial, load_weights_of
from vit.run.parts.optimization import build_loss, build_optimization
from vit.run.parts.tokenizers import build_tokenizer, with_tokenizers
from vit.run.records import DataRecord
from vit.tasks import Batches, TextClassification

log = logging.getLogger("vit")

SAMPLES = 8  # lines in samples/lines.txt


@dataclass(frozen=True)
class Texts(Job):
    """Texts, or pairs of them, to class names."""

    tokenizer: Tokenizer
    train: TextDataset

    @property
    def description(self) -> str:
        return describe(self.model)

    @property
    def sample_flops(self) -> float:
        return networks.matrix_flops(self.model) * float(self.train.inputs.tokens.lengths.mean())

    def save(self, path: Path, weights: dict[str, Tensor], metrics: dict, extra: dict) -> None:
        extra = extra | self.task.config["use"]
        save_bundle(path, self.model, self.source.classes, None, metrics, extra, weights, {"source": self.tokenizer})

    def test(self, folder: RunFolder, settings: dict, progress: Progress) -> Tested:
        predictor = TextPredictor(load_bundle(folder.model), precision=settings["precision"])
        samples = self.samples
        evaluation = evaluate_texts(predictor, samples, settings["batch_size"], progress)
        write_text_evaluation(folder.path, evaluation, samples, f"{self.config['name']}, {self.split}")
        return Tested(evaluation.metrics)

    def write_samples(self, folder: RunFolder) -> Path:
        """A few lines of the split, evenly chosen, the texts of a pair with a tab between them."""
        samples, file = self.source.splits[self.split], folder.path / "samples" / "lines.txt"
        file.parent.mkdir(exist_ok=True)
        rows = range(0, len(samples), max(1, len(samples) // SAMPLES))[:SAMPLES]
        lines = ["\t".join(column[i] for column in samples.texts) for i in rows]
        file.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        return file

    def headline(self, metrics: dict) -> dict[str, str]:
        texts = self.count
        return {f"{self.split} accuracy": f"{metrics[f'{self.split}/accuracy']:.2%} of {texts:,} texts"}

    def omitted(self) -> list[tuple[str, str]]:
        return [*super().omitted(), *self.train.left_out]


def prepare(
    config: dict, devices: Devices, checkpoint: Path | None = None, record: DataRecord | None = None
) -> Texts:
    """Data, tokenizer, model, task. A resumed run takes nothing from `init_from`, but all from its checkpoint."""
    data, recipe = config["data"], config["recipe"]
    check_devices(config, devices.world)
    source = build_source(data, record)
    initial = load_initial(config, checkpoint)
    texts = [text for column in source.splits["train"].texts for text in column]
    tokenizer = build_tokenizer(config, texts, initial, checkpoint)
    model = build_model(config, source, tokenizer, initial)
    if checkpoint is None:
        networks.start_from_vectors(model, config["model"].get("vectors"), tokenizer)
    loaded = load_weights_of(initial, model, head=initial is not None and initial.classes == source.classes)
    datasets = build_datasets(source, tokenizer, model.config.max_len, data["on_long"])
    config = fit_recipe(config, len(datasets["train"]), devices.world, "texts")
    check_splits(source, recipe, "texts")
    name = config.get("model_name") or config["model"].get("name") or TextClassifierConfig.kind
    config = completed(config, model, name, data=with_absolute_paths(data), classes=source.classes)
    facts = f"{source.num_classes} classes, {tokenizer.vocab_size:,} {tokenizer.kind} tokens"
    log_parts(source.name, source.splits, facts, model, describe(model))
    config = start_finetuning(config, model, loaded)
    batches = build_batches(config, datasets)
    use = {"columns": len(source.splits["train"].texts), "cuts": truncates(data)}
    task = TextClassification(
        model,
        source.num_classes,
        build_loss(recipe["loss"], source, data["balance"]),
        build_optimization(recipe, model, steps_per_epoch(recipe, len(datasets["train"]))),
        seed=config["seed"],
        config=with_tokenizers(config, {"source": tokenizer}, use),
    )
    return Texts(config, model, task, batches, source, tokenizer, datasets["train"])


def build_model(config: dict, source: Source, tokenizer: Tokenizer, initial: Initial | None) -> nn.Module:
    """The network of `model`, with the sizes of a pre-trained one, for these tokens and classes."""
    known = (initial.model or {}) if initial is not None else {}
    fits = {"vocab_size": tokenizer.vocab_size, "num_classes": source.num_classes}
    fits["max_len"] = known.get("max_len", config["data"]["max_len"])
    return networks.text_model(config, fits, TextClassifierConfig, initial)


def build_datasets(source: Source, tokenizer: Tokenizer, max_len: int, on_long: str) -> dict[str, TextDataset]:
    """All splits, so that what is wrong in one is told now; what is measured is cut where training leaves out."""
    measured = "cut" if on_long == "skip" else on_long
    made = {
        key: TextDataset(split, tokenizer, max_len, on_long if key == "train" else measured)
        for key, split in source.splits.items()
    }
    for key, dataset in made.items():
        if dataset.cut:
            log.warning("%d texts of %s are cut, such as %s: %s", len(dataset.cut), key, *dataset.cut[0])
    return made


def build_batches(config: dict, datasets: dict[str, TextDataset]) -> Batches:
    """The training and validation loaders; `recipe.batch_size` counts all devices and accumulated micro-batches."""
    data, recipe = config["data"], config["recipe"]
    return Batches(
        partial(train_loader, datasets["train"], recipe, config["seed"], data["workers"], data["balance"]),
        partial(val_loader, datasets["val"], micro_batch(recipe), data["workers"]),
    )


def describe(model: nn.Module) -> str:
    config = model.config
    return f"{config.kind}, {config.dim} wide, {config.depth} deep, pool {config.pool}"
