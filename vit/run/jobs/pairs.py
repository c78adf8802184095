"""Sequence to sequence: texts to texts and images to texts; its parts, and its test."""

import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

from torch import Tensor, nn

from vit.bundle import load_bundle, save_bundle
from vit.data import (
    Augment,
    BadImage,
    LinePreprocessing,
    PairDataset,
    PairEvalBatches,
    PairSource,
    PairTrainBatches,
)
from vit.data.text.tokenizers import Tokenizer
from vit.evaluation import bleu_signature
from vit.evaluation.progress import Progress
from vit.evaluation.seq2seq import evaluate_seq2seq
from vit.generation import Generation
from vit.inference import Seq2SeqPredictor
from vit.models.seq2seq import EncoderDecoderConfig
from vit.report.seq2seq import write_seq2seq_evaluation
from vit.run.config.checked import checked
from vit.run.config.composing import ConfigError
from vit.run.folder import RunFolder
from vit.run.jobs.base import Job, Tested, check_no_augment, completed, log_parts
from vit.run.parts import networks
from vit.run.parts.batches import build_augment
from vit.run.parts.data_source import build_source, check_validation, truncates, with_absolute_paths
from vit.run.parts.devices import Devices
from vit.run.parts.finetuning import start_finetuning
from vit.run.parts.init_from import Initial, load_initial, load_weights_of
from vit.run.parts.optimization import build_optimization
from vit.run.parts.preprocessing import blank, stated_preprocessing, with_range, with_statistics
from vit.run.parts.tokenizers import build_tokenizers, with_tokenizers
from vit.run.records import DataRecord
from vit.tasks import Batches, Seq2Seq, TextLoss, ValidationTexts

log = logging.getLogger("vit")

SAMPLES = 8  # written as files
SHOWN = 1000  # texts whose tokens are tried


@dataclass(frozen=True)
class Pairs(Job):
    """Texts, or images of writing, to texts."""

    tokenizers: dict[str, Tokenizer]
    line: LinePreprocessing | None
    datasets: dict[str, PairDataset]

    @property
    def description(self) -> str:
        return describe(self.model)

    @property
    def sample_flops(self) -> float:
        return networks.matrix_flops(self.model) * float(self.datasets["train"].lengths.max(1).mean())

    @property
    def batch_samples(self) -> float:
        recipe, longest = self.config["recipe"], self.datasets["train"].lengths.max(1)
        return recipe["batch_tokens"] / longest.mean() if recipe["batch_tokens"] else recipe["batch_size"]

    def save(self, path: Path, weights: dict[str, Tensor], metrics: dict, extra: dict) -> None:
        extra = extra | self.task.config["use"]
        save_bundle(path, self.model, (), self.line, metrics, extra, weights, self.tokenizers)

    def test(self, folder: RunFolder, settings: dict, progress: Progress) -> Tested:
        predictor = Seq2SeqPredictor(load_bundle(folder.model), precision=settings["precision"])
        split = self.samples
        batch_size, on_bad_sample = settings["batch_size"] or 64, self.config["data"]["on_bad_sample"]
        evaluation = evaluate_seq2seq(predictor, split, batch_size, on_bad_sample, progress)
        write_seq2seq_evaluation(folder.path, evaluation, split, predictor.preprocessing)
        return Tested(evaluation.metrics | {"bleu_signature": bleu_signature()}, evaluation.unreadable)

    def write_samples(self, folder: RunFolder) -> Path:
        """A few sources of the split, evenly chosen: image files, or lines of one file."""
        split, target = self.source.splits[self.split], folder.path / "samples"
        target.mkdir(exist_ok=True)
        rows = range(0, len(split), max(1, len(split) // SAMPLES))[:SAMPLES]
        if split.read is None:
            (target / "lines.txt").write_text("".join(f"{split.sources[i]}\n" for i in rows), encoding="utf-8")
            return target / "lines.txt"
        for i in rows:
            with suppress(BadImage):
                self.line.pixels.decode(split.image(i), split.names[i]).save(target / f"{i:05d}.png")
        return target

    def headline(self, metrics: dict) -> dict[str, str]:
        pairs = f"of {self.count:,} {self.task.unit}"
        return {
            f"{self.split} exact match": f"{metrics[f'{self.split}/exact_match']:.2%} {pairs}",
            "character errors": f"{metrics[f'{self.split}/cer']:.2%}",
            "BLEU": f"{100 * metrics[f'{self.split}/bleu']:.2f}",
        }

    def omitted(self) -> list[tuple[str, str]]:
        return [*super().omitted(), *(each for dataset in self.datasets.values() for each in dataset.left_out)]


def prepare(
    config: dict, devices: Devices, checkpoint: Path | None = None, record: DataRecord | None = None
) -> Pairs:
    """Data, tokenizers, model, task. A resumed run takes nothing from `init_from`, but all from its checkpoint."""
    data, recipe = config["data"], config["recipe"]
    check_batches(recipe)
    source = build_source(data, record)
    check_validation(source, "pairs")
    named = networks.stated_values(config)
    initial = load_initial(config, checkpoint, named)
    line = build_line(data, source, initial) if source.images else None
    if line is not None and (vectors := config["model"].get("vectors")):
        raise ConfigError(f"model.vectors={vectors} are of words that are read, but this data is images; set "
                          "model.vectors=null")
    tokenizers = build_tokenizers(config, source, initial, checkpoint)
    model = build_model(config, line, tokenizers, initial)
    if line is None and checkpoint is None:
        networks.start_from_vectors(model, config["model"].get("vectors"), tokenizers["source"])
    loaded = None
    if initial is not None:  # of a classifier, the weights of the encoder
        target = model if initial.writes else model.source_encoder
        loaded = load_weights_of(initial, target, source_grid=initial.grid)
    if line is None:
        check_no_augment(recipe)
    augment = build_augment(recipe["augment"], config["seed"])
    datasets = build_datasets(data, source, line, tokenizers, model.config, augment)
    recorded = with_absolute_paths(data) | ({"preprocessing": line.to_dict()} if line else {})
    config = completed(config, model, config.get("model_name") or "encoder_decoder", data=recorded)
    train = partial(train_loader, datasets["train"], recipe, config["seed"], data["workers"])
    val = partial(val_loader, datasets["val"], recipe, data["workers"])
    log_parts(source.name, source.splits, text_facts(tokenizers, datasets["train"]), model, describe(model))
    config = start_finetuning(config, model, loaded)
    loss = build_loss(recipe["loss"], line, datasets["train"])
    references = source.splits["val"].targets
    warn_of_unlike(tokenizers["target"], references)
    decode = build_decode(config, data["max_target_len"] or model.config.max_len, line)
    use = {"generation": asdict(decode), "cuts": truncates(data)}
    if line is None:
        use["max_source_len"] = data["max_source_len"] or model.config.max_len
    stored, steps = with_tokenizers(config, tokenizers, use), len(train(0, devices.world))
    task = build_task(stored, model, tokenizers["target"], line, loss, decode, references, steps)
    return Pairs(config, model, task, Batches(train, val), source, tokenizers, line, datasets)


def check_batches(recipe: dict) -> None:
    for key in ("epochs", "batch_size", "batch_tokens", "accumulate"):
        if recipe[key] is not None and recipe[key] < 1:
            raise ConfigError(f"recipe.{key}={recipe[key]}: must be 1 or more")
    if recipe["batch_size"] is None and recipe["batch_tokens"] is None:
        raise ConfigError("recipe.batch_size and recipe.batch_tokens are both null; one must say how large a batch is")


def build_line(data: dict, source: PairSource, initial: Initial | None) -> LinePreprocessing:
    """The contract of line images: as stated; colours as `init_from` saw them, else measured."""
    stated, rule = stated_preprocessing(data)
    stated["patch_size"] = data["patch_size"]
    known = initial.preprocessing.to_dict() if initial is not None and initial.preprocessing is not None else {}
    if known.get("mode") == stated.get("mode", "RGB"):
        stated = {key: known[key] for key in ("mean", "std", "range")} | stated
    line = checked("data.preprocessing", LinePreprocessing.from_dict, blank(stated))
    return with_statistics(with_range(line, source.splits["train"], rule), source.splits["train"], stated)


def build_model(
    config: dict, line: LinePreprocessing | None, tokenizers: dict[str, Tokenizer], initial: Initial | None
) -> nn.Module:
    """The network of `model`, or that of a model which writes or reads already, for these tokens, or these pixels."""
    data = config["data"]
    if initial is not None and not initial.writes:
        if line is None:
            raise ConfigError(f"init_from={initial.name} is no model that writes, and a translator can begin with no "
                              "other; take init_from=null")
        initial = networks.reader(config, initial)
    limits = [data[key] for key in ("max_source_len", "max_target_len") if data[key]]
    fits = {"vocab_size": tokenizers["target"].vocab_size, **({"max_len": max(limits)} if limits else {})}
    if line is None:
        fits |= {"source": "text", "source_vocab": tokenizers["source"].vocab_size}
    else:
        sizes = {"image_size": [line.height, line.max_width], "patch_size": list(line.patch_size)}
        fits |= {"source": "image", "in_chans": line.channels, **sizes}
    return networks.text_model(config, fits, EncoderDecoderConfig, initial)


def build_datasets(
    data: dict,
    source: PairSource,
    line: LinePreprocessing | None,
    tokenizers: dict[str, Tokenizer],
    model: EncoderDecoderConfig,
    augment: Augment | None,
) -> dict[str, PairDataset]:
    """The splits that training looks at, with all texts tokenized; too long ones are told now."""
    limits = {
        "max_source_len": data["max_source_len"] or (None if line else model.max_len),
        "max_target_len": data["max_target_len"] or model.max_len,
    }
    strict = data["on_long"] == "error"  # else what is measured is cut, never left out
    made = {
        key: PairDataset(
            split,
            line or tokenizers["source"],
            tokenizers["target"],
            **limits,
            on_long=data["on_long"] if strict or key == "train" else "cut",
            on_bad_sample=data["on_bad_sample"],
            augment=augment if key == "train" else None,
        )
        for key, split in source.splits.items()
        if strict or key in ("train", "val")
    }
    for key, dataset in made.items():
        if dataset.cut:
            log.warning("%d texts of %s are cut, such as %s: %s", len(dataset.cut), key, *dataset.cut[0])
    return made


def build_decode(config: dict, longest: int, line: LinePreprocessing | None) -> Generation:
    """How texts are written, of `longest` tokens at most unless it is said."""
    words = {key: value for key, value in config["task"]["decode"].items() if value is not None}
    if words.get("ctc") and not config["recipe"]["loss"].get("ctc"):
        raise ConfigError(f"task.decode.ctc={words['ctc']} asks what the columns of images spell, but recipe.loss."
                          "ctc=0 does not teach them; set recipe.loss.ctc=0.5 or task.decode.ctc=0")
    if line is None and words.get("views", 1) != 1:
        raise ConfigError(f"task.decode.views={words['views']} is for images of writing, but this data is text; set "
                          "task.decode.views=1")
    return checked("task.decode", Generation, {"max_len": longest, **words}, spread=True)


def build_task(
    config: dict,
    model: nn.Module,
    tokenizer: Tokenizer,
    line: LinePreprocessing | None,
    loss: TextLoss,
    decode: Generation,
    references: Sequence[str],
    steps: int,
) -> Seq2Seq:
    recipe, task = config["recipe"], config["task"]
    rows = 0 if config["strategy"]["name"] == "fsdp" else task["decode_rows"]
    if rows < task["decode_rows"]:
        log.info("strategy=fsdp: no texts are written in validation, as sharded weights meet in whole forwards only")
    return Seq2Seq(
        model,
        tokenizer,
        build_optimization(recipe, model, steps // recipe["accumulate"]),
        ValidationTexts(references, decode, rows, task["examples"]),
        prepare=line.normalize if line else None,
        loss=loss,
        unit="images" if line else "sentences",
        seed=config["seed"],
        config=config,
    )


def warn_of_unlike(tokenizer: Tokenizer, references: Sequence[str]) -> None:
    """Texts that can never be written as they are, such as those with capitals by a tokenizer that knows none."""
    told = [(text, tokenizer.decode(tokenizer.encode(text))) for text, _ in zip(references, range(SHOWN), strict=False)]
    unlike = [(text, spelled) for text, spelled in told if text != spelled]
    if unlike:
        log.warning("%d of the first %d validation texts cannot be written as they are and count as wrong, such as %r, "
                    "whose tokens spell %r", len(unlike), len(told), *unlike[0])


def build_loss(loss: dict, line: LinePreprocessing | None, train: PairDataset) -> TextLoss:
    if loss.get("ctc") and line is None:
        raise ConfigError(f"recipe.loss.ctc={loss['ctc']} is for images, whose columns spell the text from left to "
                          "right; this data is text, so take recipe.loss.ctc=0")
    made = checked("recipe.loss", TextLoss, {**loss, "rows": line.rows if line else 1}, spread=True)
    if made.ctc:
        patches, tokens = train.lengths[train.rows].T
        tight = int((patches // line.rows < tokens - 1).sum())
        if tight:
            log.warning("%d of %d texts have more tokens than their image has columns; recipe.loss.ctc passes them "
                        "over, narrower patches (data.patch_size) would not", tight, len(tokens))
    return made


def train_loader(dataset, recipe: dict, seed: int, workers, rank: int, world: int) -> PairTrainBatches:
    tokens = recipe["batch_tokens"]
    limits = (tokens, None if tokens else recipe["batch_size"])
    return PairTrainBatches(dataset, *limits, seed, rank, world, workers, recipe["accumulate"])


def val_loader(dataset, recipe: dict, workers, rank: int, world: int) -> PairEvalBatches:
    tokens = recipe["batch_tokens"]
    return PairEvalBatches(dataset, tokens, None if tokens else recipe["batch_size"], rank, world, workers)


def text_facts(tokenizers: Mapping[str, Tokenizer], train: PairDataset) -> str:
    """Vocabularies and lengths, for the log."""
    kinds = ", ".join(f"{each.vocab_size:,} {each.kind} tokens ({side})" for side, each in tokenizers.items())
    mean, longest = train.lengths.mean(0), train.lengths.max(0)
    return f"{kinds}, {mean[0]:.1f} to {mean[1]:.1f} tokens in the mean, {longest[0]} to {longest[1]} at most"


def describe(model: nn.Module) -> str:
    config = model.config
    return f"encoder-decoder, {config.dim} wide, {config.depth} + {config.decoder_depth} blocks"
