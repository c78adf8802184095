"""The `recipe` node of the config: automatic values, loss, optimizer and schedule, and progressive training.

Batch size, epochs and decay of the weight average that are `auto` follow from the number of samples. The rules, for N
training samples:

- `batch_size`: the largest power of two up to N/16, so that an epoch has at least 16 steps, within 8 to 64.
- `epochs`: 30. Where these are fewer than 300 optimizer steps, more epochs, up to 100; where they are more than 20,000
  steps, fewer, down to 5.
- `ema`: the decay of an average with a time constant of a twentieth of all steps, within 10 to 5,000 steps.
- `drop_last`: the incomplete last batch of an epoch is dropped if it is less than 5 % of the data. Otherwise all
  batches become a little smaller, and each sample is used once per epoch.
"""

import dataclasses
import logging
import math
from functools import partial

import numpy as np
import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from vit.data import LinePreprocessing, PairDataset, Source
from vit.data.text.token_ids import Tokens
from vit.messages import agree, number_of
from vit.models import VisionTransformerConfig
from vit.models.checks import fixed_size_reason
from vit.models.config import ModelConfig
from vit.nn import PatchDropout
from vit.run.config.composing import ConfigError
from vit.run.config.overrides import checked
from vit.tasks import BinaryCrossEntropy, CrossEntropy, MultiLabelLoss, Optimization, TextLoss
from vit.training import Progressive, build_optimizer, build_schedule, build_stages, noam_peak, scaled_lr

log = logging.getLogger("vit")

AUTO = "auto"
BATCH_SIZES, STEPS_PER_EPOCH = (8, 64), 16
EPOCHS = 30
MIN_STEPS, MAX_EPOCHS = 300, 100
MAX_STEPS, MIN_EPOCHS = 20_000, 5
EMA_FRACTION, EMA_STEPS = 0.05, (10, 5_000)  # time constant of the average: fraction of all steps, limits in steps
DROPPED = 0.05  # fraction of the data
LOSSES = {"cross_entropy": CrossEntropy, "bce": BinaryCrossEntropy}
PROGRESSIVE = "recipe.progressive"
SCHEDULES = ("image_size", "patch_drop")  # keys of the node that are null, or the first and the last value


def fit_recipe(config: dict, samples: int, world: int, unit: str = "images") -> None:
    """Replaces each `auto` of the recipe by a number, in place, and logs them.

    In place, so that later error messages of the run name the batch size in use.
    """
    recipe = config["recipe"]
    filled = [key for key in ("batch_size", "epochs", "ema") if recipe.get(key) == AUTO]
    if recipe["batch_size"] == AUTO:
        recipe["batch_size"] = batch_size(samples, world * recipe["accumulate"])
    if recipe.get("drop_last", True) == AUTO:
        recipe["drop_last"] = samples % recipe["batch_size"] < DROPPED * samples
    if recipe["epochs"] == AUTO:
        recipe["epochs"] = epochs(steps_per_epoch(recipe, samples))
    steps = recipe["epochs"] * steps_per_epoch(recipe, samples)
    if recipe["ema"] == AUTO:
        recipe["ema"] = ema_decay(steps)
    if filled:
        values = ", ".join(f"{key} {recipe[key]}" for key in filled)
        log.info("recipe for %s: %s; %s in all", number_of(samples, f"training {unit.removesuffix('s')}"), values,
                 number_of(steps, "step"))
    if steps:
        log_unused(config, samples, unit)


def log_unused(config: dict, samples: int, unit: str) -> None:
    """Logs how many samples an epoch leaves out. Balanced sampling draws some of the others repeatedly instead."""
    recipe = config["recipe"]
    batch_size, repeats = recipe["batch_size"], recipe.get("repeats", 1)
    used = samples // batch_size * batch_size if recipe.get("drop_last", True) else samples
    if unused := samples - math.ceil(used / repeats):
        reason = ("an incomplete last batch; recipe.drop_last=false uses them" if repeats == 1 else
                  f"recipe.repeats={repeats} shows each of the others {repeats} times")
        log.info("each epoch leaves %s%d of %s out, different ones each time (%s)",
                 "at least " if config["data"].get("balance") == "sampler" else "", unused,
                 number_of(samples, f"training {unit.removesuffix('s')}"), reason)


def warn_about_equal_copies(recipe: dict) -> None:
    """Warn if nothing makes the copies of an image differ that `recipe.repeats` draws."""
    repeats = recipe.get("repeats", 1)
    steps = any(step is not None for step in (recipe["augment"] or {}).values())
    if repeats > 1 and not (recipe["crop"] or steps or recipe["mixup"]):
        log.warning("recipe.repeats=%d: the %d copies of an image in a batch are equal, because recipe.crop, "
                    "recipe.augment and recipe.mixup are all null; choose an augmentation, or set recipe.repeats=1",
                    repeats, repeats)


def batch_size(samples: int, multiple: int) -> int:
    """The global batch size by the rule above, as a multiple of `multiple`, which is devices x micro-batches."""
    target = min(max(samples // STEPS_PER_EPOCH, BATCH_SIZES[0]), BATCH_SIZES[1])
    size = min(2 ** int(math.log2(target)), max(samples, 1))
    return max(min(round(size / multiple), samples // multiple), 1) * multiple


def steps_per_epoch(recipe: dict, samples: int) -> int:
    """Optimizer steps per epoch."""
    return samples // recipe["batch_size"] if recipe.get("drop_last", True) else -(-samples // recipe["batch_size"])


def epochs(steps: int) -> int:
    """The number of epochs for this number of steps per epoch, by the rule above."""
    steps = max(steps, 1)
    if EPOCHS * steps < MIN_STEPS:
        return min(math.ceil(MIN_STEPS / steps), MAX_EPOCHS)
    return max(min(EPOCHS, MAX_STEPS // steps), MIN_EPOCHS)


def ema_decay(steps: int) -> float:
    """The decay of the weight average for this number of steps in all, by the rule above."""
    return round(1 - 1 / min(max(EMA_FRACTION * steps, EMA_STEPS[0]), EMA_STEPS[1]), 6)


def build_loss(loss: dict, source: Source, balance: str) -> nn.Module:
    """Soft-label cross entropy, or binary cross entropy over the classes (Wightman et al. 2021, arXiv 2110.00476)."""
    weights = source.class_weights() if balance == "loss" else None
    if source.multi_label:
        return MultiLabelLoss(loss["label_smoothing"], weights)
    options = {"target_threshold": loss.get("target_threshold")} if loss["name"] == "bce" else {}
    return LOSSES[loss["name"]](loss["label_smoothing"], weights, **options)


def build_text_loss(loss: dict, preprocessing: LinePreprocessing | None, train: PairDataset) -> TextLoss:
    """Cross entropy per token, for images of text also a CTC loss of weight `recipe.loss.ctc`.

    Args:
        preprocessing: preprocessing of images of text; None for texts.

    Raises:
        ConfigError: a CTC loss on texts, or a value out of range.
    """
    if loss.get("ctc") and preprocessing is None:
        raise ConfigError(f"recipe.loss.ctc={loss['ctc']} is for images of text, but this data is text; set "
                          "recipe.loss.ctc=0")
    rows = preprocessing.rows if preprocessing else 1
    made = checked("recipe.loss", TextLoss, {**loss, "rows": rows}, unpack=True)
    if made.ctc:
        columns = train.lengths[train.rows, 0] // rows
        tokens = train.lengths[train.rows, 1] - 1 + equal_neighbours(train.targets)[train.rows]  # without eos
        longer = int((columns < tokens).sum())
        if longer:
            log.warning("%d of %s %s more tokens than their image has columns of patches, where equal neighbours need "
                        "a column between them; the CTC loss ignores them, and narrower patches (data.patch_size) "
                        "avoid that", longer, number_of(len(tokens), "text"), agree(longer, "has", "have"))
    return made


def equal_neighbours(tokens: Tokens) -> np.ndarray:
    """(N,) the number of tokens of each row that equal the one before them, between which CTC needs a blank."""
    equal = np.concatenate([[0, 0], np.cumsum(tokens.ids[1:] == tokens.ids[:-1])])  # up to each id
    return equal[tokens.offsets[1:]] - equal[tokens.offsets[:-1] + 1]


def build_optimization(recipe: dict, model: nn.Module, steps: int) -> Optimization:
    """Optimizer, schedule and clipping. Both are built once here, so that errors are reported before the training.

    Args:
        steps: optimizer steps per epoch.

    Raises:
        ConfigError: names `recipe.optimizer` or `recipe.schedule`.
    """
    total = max(1, recipe["epochs"] * steps)
    lr = learning_rate(recipe, model, total)
    optimizer, built = checked_optimizer(recipe["optimizer"], lr, model)
    schedule = partial(_schedule, planned=total, **recipe["schedule"])
    checked("recipe.schedule", partial(schedule, built), total)
    return Optimization(optimizer, schedule, recipe["clip"])


def checked_optimizer(node: dict, lr: float, model: nn.Module) -> tuple[partial[Optimizer], Optimizer]:
    """The function that builds the optimizer of `recipe.optimizer` for a model, and that of this model.

    Raises:
        ConfigError: names `recipe.optimizer`, or an option of it.
    """
    values = {key: value for key, value in node.items() if key not in ("lr", "lr_base_batch")}
    build = partial(build_optimizer, lr=lr, **values)
    names = [f"options.{name}" for name in values.get("options") or ()]
    return build, checked("recipe.optimizer", build, model, names=names)


def check_optimizer(node: dict) -> None:
    """Checks the name and the options of `recipe.optimizer` on a model of one block, before the data is read.

    Raises:
        ConfigError: as `checked_optimizer`.
    """
    block = nn.ParameterDict({"weight": torch.zeros(1, 1)})  # a layer would draw random numbers of the run
    checked_optimizer(node, 1e-3, nn.ModuleDict({"blocks": nn.ModuleList([block])}))


def learning_rate(recipe: dict, model: nn.Module, total_steps: int) -> float:
    """The highest learning rate: `recipe.optimizer.lr`, or with the noam schedule that of its formula.

    Raises:
        ConfigError: there is no rate, or noam lacks a warm-up or the width of the model.
    """
    check_rate(recipe)
    check_width(recipe, getattr(model, "config", None))
    lr, base, schedule = recipe["optimizer"]["lr"], recipe["optimizer"]["lr_base_batch"], recipe["schedule"]
    if schedule["name"] != "noam":
        return scaled_lr(lr, recipe["batch_size"], base) if base else lr
    dim, steps = model.config.dim, warmup_steps(schedule["warmup"], total_steps, total_steps)
    peak = checked("recipe.schedule.warmup", partial(noam_peak, dim), steps)
    unused = "" if lr is None else f"; recipe.optimizer.lr={lr} is not used"
    log.info("learning rate of noam: %d^-0.5 * min(step^-0.5, step * warmup^-1.5), at most %.6f%s", dim, peak, unused)
    return peak


def check_rate(recipe: dict) -> None:
    """Raises ConfigError if a schedule lacks the learning rate that it needs."""
    name = recipe["schedule"]["name"]
    if name != "noam" and recipe["optimizer"]["lr"] is None:
        raise ConfigError(f"recipe.optimizer.lr is null, but recipe.schedule.name={name} needs a rate; only noam "
                          "computes its own")


def check_width(recipe: dict, config: ModelConfig | None) -> None:
    """Raises ConfigError if noam lacks the width of the model of this config."""
    if recipe["schedule"]["name"] == "noam" and getattr(config, "dim", None) is None:
        raise ConfigError("recipe.schedule.name=noam computes the learning rate from the width of the model, which "
                          "models of timm do not name; use inverse_sqrt with recipe.optimizer.lr")


def warmup_steps(warmup: float, total_steps: int, planned: int) -> int:
    """The warm-up, a fraction or a number of steps; the latter is scaled from the `planned` steps to `total_steps`."""
    return round((warmup if warmup < 1 else int(warmup) / planned) * total_steps)


def _schedule(
    optimizer: Optimizer, total_steps: int, planned: int, name: str, warmup: float, final: float, cooldown: float
) -> LRScheduler:
    """The schedule of `total_steps`. A warm-up in steps is scaled from the `planned` steps, as `debug` runs fewer."""
    steps = warmup_steps(warmup, total_steps, planned)
    return build_schedule(optimizer, name, total_steps, steps, final, cooldown)


def is_progressive(recipe: dict) -> bool:
    """Whether the recipe has a schedule; those of earlier versions lack the node."""
    return any((recipe.get("progressive") or {}).get(key) is not None for key in SCHEDULES)


def build_progressive(recipe: dict, model: nn.Module) -> Progressive:
    """The schedule of the recipe. The model then accepts its image sizes and drops patches at its rates.

    Raises:
        ConfigError: as `check_progressive`.
    """
    made = check_progressive(recipe, model.config)
    if made.image_sizes:
        model.add_image_sizes(made.image_sizes)
    if made.patch_drops:
        model.encoder.patch_dropout = PatchDropout(made.patch_drops[0], model.config.prefix)
    sizes = ", ".join(f"{height}x{width}" for height, width in made.image_sizes)
    drops = ", ".join(f"{rate:.3g}" for rate in made.patch_drops)
    parts = ([f"images of {sizes} pixels"] if sizes else []) + ([f"patch_drop {drops}"] if drops else [])
    log.info("progressive training: %d stages, %s; the last from %.0f %% of the steps on", len(made.stages),
             "; ".join(parts), 100 * made.until)
    return made


def check_progressive(recipe: dict, config: ModelConfig) -> Progressive:
    """The schedule of the recipe for the model of this config.

    Raises:
        ConfigError: a value is out of range, or the model cannot be trained in this way.
    """
    node = recipe["progressive"]
    if not isinstance(config, VisionTransformerConfig):
        keys = " and ".join(f"{PROGRESSIVE}.{key}" for key in SCHEDULES)
        raise ConfigError(f"{keys} are for the Vision Transformers of this project, not for {config.kind} models;"
                          " set both to null")
    build = partial(build_stages, node["stages"], full_size=config.image_size, patch_size=config.patch_size)
    stages = checked(PROGRESSIVE, build, {key: node[key] for key in SCHEDULES}, unpack=True)
    made = Progressive(stages, node["until"])
    if made.image_sizes and (reason := fixed_size_reason(config.to_dict())):
        raise ConfigError(f"{PROGRESSIVE}.image_size: {reason}, so that this model has one image_size")
    if made.patch_drops:
        if config.patch_dropout:
            raise ConfigError(f"{PROGRESSIVE}.patch_drop and model.patch_dropout={config.patch_dropout} both drop "
                              "patches; set one of them to null")
        replaced = partial(dataclasses.replace, config, patch_dropout=max(made.patch_drops))
        checked(f"{PROGRESSIVE}.patch_drop", replaced, {}, unpack=True)
    return made
