"""Loss, optimizer and schedule, from the `recipe` node of the config."""

import logging
from functools import partial

from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from vit.data import LinePreprocessing, PairDataset, Source
from vit.run.config.checked import checked
from vit.run.config.composing import ConfigError
from vit.run.config.valid_values import nearest
from vit.tasks import BinaryCrossEntropy, CrossEntropy, MultiLabelLoss, Optimization, TextLoss
from vit.training import build_optimizer, build_schedule, noam_peak, scaled_lr

log = logging.getLogger("vit")

LOSSES = {"cross_entropy": CrossEntropy, "bce": BinaryCrossEntropy}


def build_loss(loss: dict, source: Source, balance: str) -> nn.Module:
    """Soft-label cross entropy, or binary cross entropy over the classes (Wightman et al. 2021, arXiv 2110.00476).

    Raises:
        ConfigError: an unknown `recipe.loss.name`.
    """
    weights = source.class_weights() if balance == "loss" else None
    if source.multi_label:
        return MultiLabelLoss(loss["label_smoothing"], weights)
    if loss["name"] not in LOSSES:
        raise ConfigError(
            f"recipe.loss.name={loss['name']}: must be {' or '.join(LOSSES)}{nearest(loss['name'], list(LOSSES))}"
        )
    return LOSSES[loss["name"]](loss["label_smoothing"], weights)


def build_text_loss(loss: dict, preprocessing: LinePreprocessing | None, train: PairDataset) -> TextLoss:
    """Cross entropy per token, for images of text also a CTC loss of weight `recipe.loss.ctc`.

    Args:
        preprocessing: of images of text; None for texts.

    Raises:
        ConfigError: a CTC loss on texts, or a value out of range.
    """
    if loss.get("ctc") and preprocessing is None:
        raise ConfigError(f"recipe.loss.ctc={loss['ctc']} is for images of text, but this data is text; set "
                          "recipe.loss.ctc=0")
    rows = preprocessing.rows if preprocessing else 1
    made = checked("recipe.loss", TextLoss, {**loss, "rows": rows}, unpack=True)
    if made.ctc:
        patches, tokens = train.lengths[train.rows].T
        longer = int((patches // rows < tokens - 1).sum())
        if longer:
            log.warning("%d of %d texts have more tokens than their image has columns of patches; the CTC loss ignores "
                        "them, and narrower patches (data.patch_size) avoid that", longer, len(tokens))
    return made


def build_optimization(recipe: dict, model: nn.Module, steps: int) -> Optimization:
    """Optimizer, schedule and clipping. Both are built once here, so that errors are reported before the training.

    Args:
        steps: optimizer steps per epoch.

    Raises:
        ConfigError: names `recipe.optimizer` or `recipe.schedule`.
    """
    total = max(1, recipe["epochs"] * steps)
    lr = learning_rate(recipe, model, total)
    options = {key: value for key, value in recipe["optimizer"].items() if key not in ("lr", "lr_base_batch")}
    optimizer = partial(build_optimizer, lr=lr, **options)
    schedule = partial(_schedule, planned=total, **recipe["schedule"])
    checked("recipe.schedule", partial(schedule, checked("recipe.optimizer", optimizer, model)), total)
    return Optimization(optimizer, schedule, recipe["clip"])


def learning_rate(recipe: dict, model: nn.Module, total_steps: int) -> float:
    """The highest learning rate: `recipe.optimizer.lr`, or with the noam schedule that of its formula.

    Raises:
        ConfigError: there is no rate, or noam lacks a warm-up or the width of the model.
    """
    lr, base, schedule = recipe["optimizer"]["lr"], recipe["optimizer"]["lr_base_batch"], recipe["schedule"]
    if schedule["name"] != "noam":
        if lr is None:
            raise ConfigError(f"recipe.optimizer.lr is null, but recipe.schedule.name={schedule['name']} needs a rate; "
                              "only noam computes its own")
        return scaled_lr(lr, recipe["batch_size"], base) if base else lr
    if (dim := getattr(getattr(model, "config", None), "dim", None)) is None:
        raise ConfigError("recipe.schedule.name=noam computes the learning rate from the width of the model, which "
                          "models of timm do not name; use inverse_sqrt with recipe.optimizer.lr")
    steps = warmup_steps(schedule["warmup"], total_steps, total_steps)
    peak = checked("recipe.schedule.warmup", partial(noam_peak, dim), steps)
    unused = "" if lr is None else f"; recipe.optimizer.lr={lr} is not used"
    log.info("learning rate of noam: %d^-0.5 * min(step^-0.5, step * warmup^-1.5), at most %.6f%s", dim, peak, unused)
    return peak


def warmup_steps(warmup: float, total_steps: int, planned: int) -> int:
    """The warm-up, a fraction or a number of steps; the latter is scaled from the `planned` steps to `total_steps`."""
    return round((warmup if warmup < 1 else int(warmup) / planned) * total_steps)


def _schedule(
    optimizer: Optimizer, total_steps: int, planned: int, name: str, warmup: float, final: float, cooldown: float
) -> LRScheduler:
    """The schedule of `total_steps`. A warm-up in steps is scaled from the `planned` steps, as `debug` runs fewer."""
    steps = warmup_steps(warmup, total_steps, planned)
    return build_schedule(optimizer, name, total_steps, steps, final, cooldown)
