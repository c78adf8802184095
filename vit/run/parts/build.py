"""From a plain config to the parts of a run. Each function reads one node of the config and returns one part."""

import importlib
import inspect
import logging
import os
from collections.abc import Callable
from functools import partial
from typing import Any

from hydra.errors import HydraException
from hydra.utils import instantiate
from torch import nn

from vit.data import (
    Augment,
    CorpusSource,
    DataError,
    EvalBatches,
    ImageDataset,
    LinePreprocessing,
    Mixup,
    PairSource,
    PairSplit,
    Preprocessing,
    RandomCrop,
    RandomResizedCrop,
    Source,
    Split,
    TrainBatches,
    estimate,
)
from vit.data.images.bit_depth import FULL, RULES
from vit.data.statistics import resolve_range
from vit.run.config.composing import ConfigError, nearest
from vit.run.parts.auto_values import steps_per_epoch
from vit.run.parts.init_from import Initial
from vit.run.records import DataRecord
from vit.tasks import (
    Batches,
    BinaryCrossEntropy,
    Classification,
    CrossEntropy,
    Distillation,
    MultiLabel,
    MultiLabelLoss,
    Optimization,
)
from vit.training import build_optimizer, build_schedule, scaled_lr

log = logging.getLogger("vit")

DEFAULT_SIZE = 224
Contract = Preprocessing | LinePreprocessing
BALANCES = ["none", "sampler", "loss"]
LOADING = {  # keys of a data node that say how samples are read, not where they come from
    "_target_", "name", "image_size", "patch_size", "preprocessing", "workers", "balance", "on_bad_sample",
    "audit_seconds", "tokenizer", "max_len", "on_empty", "masked", "max_source_len", "max_target_len", "on_long",
}
OPTIONAL = {"split_seed": 0}  # defaults of all data sets, for the functions that take such a key


def build_source(data: dict, record: DataRecord | None = None) -> Source:
    """Instantiate the data set function that `data._target_` names, with the keys of `data` that it takes.

    Args:
        record: of a run that goes on, whose samples stay in their splits.

    Raises:
        ConfigError: there is no such function, or it does not take a key of the config.
        DataError: the data set cannot be read.
    """
    module, _, name = data["_target_"].rpartition(".")
    try:
        takes = inspect.signature(getattr(importlib.import_module(module), name)).parameters
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"data._target_={data['_target_']}: there is no such function ({error})") from None
    for key, value in data.items():
        if key not in takes and key not in LOADING and value != OPTIONAL.get(key, ...):
            raise ConfigError(f"data.{key}: {data['_target_']} takes no {key!r}{nearest(key, list(takes))}")
    node = {"_target_": data["_target_"], **{key: data[key] for key in takes if key in data}}
    source = checked("data", partial(instantiate, _convert_="all"), node)
    return source if record is None else record.apply(source)


def cuts(data: dict) -> bool:
    """Whether of longer texts, where they are measured and answered, the beginning is read: none is left out there."""
    return data["on_long"] != "error"


def build_preprocessing(data: dict, source: Source, initial: Initial | None) -> Preprocessing:
    """The contract: what the config states, else what `init_from` brings, else the default (mean, std and range
    measured).
    """
    stated, rule = stated_preprocessing(data)
    if data["image_size"] is not None:
        stated["size"] = pair(data["image_size"])
    train = source.splits["train"]
    if initial is not None and initial.preprocessing is not None:
        values = adopted(initial.preprocessing, stated)
        return ranged(checked("data.preprocessing", Preprocessing.from_dict, values), train, rule)
    stated.setdefault("size", (initial.image_size if initial is not None else None) or pair(DEFAULT_SIZE))
    channels = 1 if stated.get("mode") == "L" else 3
    blank = {"mean": [0.5] * channels, "std": [0.5] * channels, **stated}
    preprocessing = ranged(checked("data.preprocessing", Preprocessing.from_dict, blank), train, rule)
    if "mean" in stated and "std" in stated:
        return preprocessing
    mean, std = estimate(train, preprocessing)
    return preprocessing.replace(**{"mean": mean, "std": std, **{k: stated[k] for k in ("mean", "std") if k in stated}})


def stated_preprocessing(data: dict) -> tuple[dict, str | None]:
    """What `data.preprocessing` states, and the rule by which the range is measured where it states none.

    The rule is None where the range is `full` or [low, high], as runs record it (older ones had `full`), and empty
    where nothing is stated: the range is that of `init_from`, else `auto`.
    """
    stated = {key: value for key, value in data["preprocessing"].items() if value is not None}
    rule = stated.get("range", "" if "range" in data["preprocessing"] else FULL)
    if rule not in ("", *RULES) or rule == FULL:
        return {**stated, "range": rule}, None
    return {key: value for key, value in stated.items() if key != "range"}, rule


def ranged(preprocessing: Contract, train: Split | PairSplit, rule: str | None) -> Contract:
    """The contract with the range measured by the rule of `stated_preprocessing`."""
    if rule is None or (not rule and preprocessing.range != FULL):
        return preprocessing
    preprocessing, text = resolve_range(train, preprocessing, rule or "auto")
    if text:
        log.info("pixels: %s", text)
    return preprocessing


def adopted(source: Preprocessing, stated: dict) -> dict:
    """The source's values under the stated ones; mean and std of colours mean nothing to grey pixels, nor the other
    way.
    """
    values = source.to_dict()
    if stated.get("mode", source.mode) != source.mode:
        channels = 1 if stated["mode"] == "L" else 3
        values |= {key: [sum(values[key]) / len(values[key])] * channels for key in ("mean", "std")}
    return {**values, **stated}


def checked(key: str, build: Callable, values: dict, spread: bool = False) -> Any:
    """`build(values)`, where what it refuses is a word that cannot be, and `key` says which."""
    try:
        return build(**values) if spread else build(values)
    except (TypeError, ValueError, HydraException) as error:
        cause = error.__cause__ or error
        if isinstance(cause, DataError | OSError | MemoryError):  # `instantiate` wraps what its function raises
            raise cause from None
        raise ConfigError(f"{key}: {' '.join(str(cause).split())}") from None


def build_loss(loss: dict, source: Source, balance: str) -> nn.Module:
    """Soft-label cross entropy, or binary cross entropy over classes (Wightman et al. 2021)."""
    if balance not in BALANCES:
        raise ConfigError(f"data.balance={balance}: must be one of {', '.join(BALANCES)}{nearest(balance, BALANCES)}")
    weights = source.class_weights() if balance == "loss" else None
    if source.multi_label:
        return MultiLabelLoss(loss["label_smoothing"], weights)
    losses = {"cross_entropy": CrossEntropy, "bce": BinaryCrossEntropy}
    if loss["name"] not in losses:
        raise ConfigError(
            f"recipe.loss.name={loss['name']}: must be cross_entropy or bce{nearest(loss['name'], list(losses))}"
        )
    return losses[loss["name"]](loss["label_smoothing"], weights)


def build_task(
    config: dict,
    model: nn.Module,
    source: Source,
    preprocessing: Preprocessing,
    distillation: Distillation | None = None,
) -> Classification:
    recipe, seed = config["recipe"], config["seed"]
    mixup = (
        checked("recipe.mixup", partial(Mixup, source.num_classes), recipe["mixup"], True) if recipe["mixup"] else None
    )
    return (MultiLabel if source.multi_label else Classification)(
        model,
        preprocessing,
        source.num_classes,
        build_loss(recipe["loss"], source, config["data"]["balance"]),
        build_optimizing(recipe, model, steps_per_epoch(recipe, len(source.splits["train"]))),
        augment=build_augment(recipe["augment"], seed),
        mixup=mixup,
        seed=seed,
        config=config,
        distillation=distillation,
    )


def build_optimizing(recipe: dict, model: nn.Module, steps: int) -> Optimization:
    """Optimizer and schedule, both tried once now; `steps` are those of an epoch."""
    lr = recipe["optimizer"]["lr"]
    if recipe["optimizer"]["lr_base_batch"]:
        lr = scaled_lr(lr, recipe["batch_size"], recipe["optimizer"]["lr_base_batch"])
    options = {key: value for key, value in recipe["optimizer"].items() if key not in ("lr", "lr_base_batch")}
    optimizing = partial(build_optimizer, lr=lr, **options)
    total = max(1, recipe["epochs"] * steps)
    scheduling = partial(_schedule, planned=total, **recipe["schedule"])
    tried = checked("recipe.optimizer", optimizing, model)
    checked("recipe.schedule", partial(scheduling, tried), total)
    return Optimization(optimizing, scheduling, recipe["clip"])


def build_augment(steps: dict | None, seed: int) -> Augment | None:
    """The batch augmentations in the order in which the recipe names them; a step that is null is left out."""
    made = []
    for key, step in (steps or {}).items():
        if step is not None:
            made.append(checked(f"recipe.augment.{key}", instantiate, {k: v for k, v in step.items() if v is not None}))
    return Augment(made, seed) if made else None


def build_batches(config: dict, source: Source, preprocessing: Preprocessing) -> Batches:
    """The training and validation loaders; `recipe.batch_size` counts all devices and accumulated micro-batches."""
    data, recipe = config["data"], config["recipe"]
    check_splits(source, recipe)
    if data["on_bad_sample"] not in ("error", "skip"):
        raise ConfigError(f"data.on_bad_sample={data['on_bad_sample']}: must be error or skip")
    if data["workers"] != "auto" and not (isinstance(data["workers"], int) and data["workers"] >= 0):
        raise ConfigError(f"data.workers={data['workers']}: must be auto or a number of processes, 0 or more")
    sizing = build_sizing(recipe["crop"], config["seed"])
    train = ImageDataset(source.splits["train"], preprocessing, sizing, on_bad_sample=data["on_bad_sample"])
    val = ImageDataset(source.splits["val"], preprocessing, on_bad_sample=data["on_bad_sample"])
    return Batches(
        partial(train_loader, train, recipe, config["seed"], data["workers"], data["balance"]),
        partial(val_loader, val, micro_batch(recipe), data["workers"]),
    )


def build_sizing(crop: dict | None, seed: int) -> RandomResizedCrop | RandomCrop | None:
    """The random crop of training: boxes of random size where `scale` is given, else the largest box at a random place.
    """
    if not crop:
        return None
    if crop["scale"] is None:
        return RandomCrop(seed)
    return RandomResizedCrop(tuple(crop["scale"]), tuple(crop["ratio"]), seed)


def check_validation(source: Source | PairSource | CorpusSource, unit: str) -> None:
    """No samples to choose the best epoch by are an error now, not in the first epoch.

    Raises:
        DataError: with the numbers and the fix.
    """
    train, val = (len(source.splits.get(key, ())) for key in ("train", "val"))
    if val == 0:
        raise DataError(
            f"{source.name}: 0 of its {train} {unit} are for validation, so the best epoch cannot be chosen; "
            f"raise the second of data.fractions, or add {unit} for val"
        )


def check_splits(source: Source, recipe: dict, unit: str = "images") -> None:
    """Too few samples to train or to choose the best epoch by, as `check_validation`.

    Raises:
        DataError, ConfigError: with the numbers and the fix.
    """
    check_validation(source, unit)
    check_batch(recipe, len(source.splits["train"]), unit)


def check_batch(recipe: dict, train: int, unit: str) -> None:
    """A batch that all `train` samples do not fill is an error now."""
    if train < recipe["batch_size"]:
        parts = recipe["accumulate"]
        raise ConfigError(
            f"recipe.batch_size={recipe['batch_size']} is larger than the training set of {train} {unit}; "
            f"take recipe.batch_size={max(1, train // 2 // parts) * parts}"
        )


def check_devices(config: dict, devices: int) -> None:
    """A global batch that the devices cannot share is an error now, not in the first step."""
    for key in ("epochs", "batch_size", "accumulate"):
        if config["recipe"][key] < 1:
            raise ConfigError(f"recipe.{key}={config['recipe'][key]}: must be 1 or more")
    batch_size, accumulate = config["recipe"]["batch_size"], config["recipe"]["accumulate"]
    if batch_size % accumulate:
        near = max(1, batch_size // accumulate) * accumulate
        raise ConfigError(
            f"recipe.batch_size={batch_size} is not divisible by recipe.accumulate={accumulate}; nearest: {near}"
        )
    micro = batch_size // accumulate
    if micro % devices:
        near = max(1, micro // devices) * devices * accumulate
        raise ConfigError(
            f"recipe.batch_size={config['recipe']['batch_size']} cannot be shared by {devices} devices; "
            f"nearest: {near} (it is the global batch)"
        )


def pair(size) -> tuple[int, int]:
    """`32` or `[32, 48]` -> (rows, columns)."""
    return (size, size) if isinstance(size, int) else tuple(size)


def micro_batch(recipe: dict) -> int:
    """Samples that all devices together have in memory at a time."""
    return recipe["batch_size"] // recipe["accumulate"]


def train_loader(dataset, recipe, seed, workers, balance, rank, world):
    drop_last = recipe.get("drop_last", True)
    return TrainBatches(
        dataset, recipe["batch_size"], seed, rank, world, workers, balance, recipe["accumulate"], drop_last
    )


def val_loader(dataset, batch_size, workers, rank, world):
    return EvalBatches(dataset, max(batch_size, world) // world * world, rank, world, workers)


def _schedule(optimizer, total_steps, planned, name, warmup, final, cooldown):
    """A warm-up of so many steps is a part of the `planned` ones; `debug` takes that part of its few."""
    part = warmup if warmup < 1 else int(warmup) / planned
    return build_schedule(optimizer, name, total_steps, round(part * total_steps), final, cooldown)


def located(data: dict) -> dict:
    """The data set's place written in full, so that resuming and evaluating find it from any directory."""
    return {
        **data,
        **{key: os.path.abspath(os.path.expanduser(data[key])) for key in ("root", "path") if data.get(key)},
    }
