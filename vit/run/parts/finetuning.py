"""Fine-tuning: freezes the weights that the `finetune` node of a config does not train."""

import logging
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from functools import partial

from torch import nn

from vit.run.config.composing import ConfigError, chosen_option, stated
from vit.run.config.overrides import checked, key_of
from vit.training import Finetune
from vit.weights import KeyReport
from vit.weights.loading import is_head
from vit.weights.training_checkpoint import is_added

log = logging.getLogger("vit")


def read_finetune(config: dict) -> Finetune:
    """The `finetune` node.

    Raises:
        ConfigError: an unknown key or an invalid value.
    """
    return checked("finetune", Finetune, config["finetune"], unpack=True)


def start_finetuning(
    config: dict, model: nn.Module, loaded: KeyReport | None, fit_head: Callable[[], object | None]
) -> dict:
    """Freeze weights of a model after its pretrained weights were loaded. Returns the `finetune` node that the run
    records; it also names the parameters that are trained because `init_from` does not have them.

    Args:
        loaded: the report on the weights of `init_from`; None in a resumed run and without `init_from`.
        fit_head: initializes a new head; returns None if that is not possible.

    Raises:
        ConfigError: options that contradict each other, the model or the epochs; random weights that would be frozen.
    """
    finetune = read_finetune(config)
    check_frozen(finetune, config["init_from"])
    if finetune.batch_norm == "frozen" and not config["init_from"]:
        raise ConfigError("finetune.batch_norm=frozen uses the running statistics of pretrained weights, and without "
                          "init_from there are none: add init_from=MODEL, or use finetune.batch_norm=auto")
    if finetune.unfreeze_epochs and config["strategy"]["name"] == "fsdp":
        raise ConfigError(
            f"{what_freezes(finetune)[0]} unfreezes blocks during training, which strategy=fsdp does not support; use "
            "strategy=ddp, or finetune.unfreeze_epochs=0"
        )
    if finetune.freezes and loaded is not None:
        finetune = replace(finetune, always_trainable=(*finetune.always_trainable, *without_source(model, loaded)))
    if loaded is not None:
        new = any(is_head(name, model) for name in without_source(model, loaded))
        if finetune.head_norm == "batch":  # always a new head with random weights
            if not new:
                log.warning("finetune.head_norm=batch trains a new head; that of init_from=%s is not used, although it "
                            "has the same classes", config["init_from"])
        elif new and finetune.head_init != "random" and fit_head() is None and finetune.head_init == "fit":
            raise ConfigError("finetune.head_init=fit is for image classifiers with a single linear head and one label "
                              "per image; use auto")
        elif not new and "head_init" in stated(config["overrides"], "finetune") and finetune.head_init != "auto":
            log.warning("finetune.head_init=%s has no effect: it is for a new head, but all weights of the head are "
                        "loaded from init_from=%s", finetune.head_init, config["init_from"])
    if finetune.batch_norm == "auto":  # never in a resumed run, whose config has the resolved value
        finetune = replace(finetune, batch_norm="train" if loaded is None else "frozen")
    if config["init_from"]:
        begins = checked("finetune", partial(finetune.start, model), config["recipe"]["epochs"])
        log.info("finetune: %s", describe(finetune.name, model, begins))
    return asdict(finetune) | {"always_trainable": list(finetune.always_trainable)}


def check_frozen(finetune: Finetune, init_from: str | None) -> None:
    """Raises ConfigError if random weights would be frozen."""
    if finetune.freezes and not init_from:
        cause, fix = what_freezes(finetune)
        raise ConfigError(
            f"{cause} freezes weights, and without init_from they are random: add init_from=MODEL (a run, a saved "
            f"model, a file of weights or timm:NAME), or {fix}"
        )


def what_freezes(finetune: Finetune) -> tuple[str, str]:
    """The option that freezes weights and how to change it, for messages: `finetune=head`, or the key that does so with
    finetune=full, which itself freezes none.
    """
    if finetune.name != "full":
        return f"finetune={finetune.name}", "use finetune=full"
    key = next(key for key in ("unfreeze_epochs", "depth", "trainable")
               if getattr(finetune, key) not in (None, 0, "all"))
    return f"finetune.{key}={getattr(finetune, key)}", f"leave finetune.{key} out"


def log_recipe(config: dict, overrides: list[str]) -> None:
    """Log which recipe an image classifier with `init_from` has, where the overrides name neither a recipe nor an
    experiment.

    Args:
        overrides: all of the command, also those of Hydra's search path, which a run does not record.
    """
    named = {key_of(override).partition("@")[0] for override in overrides}
    if config["task"]["name"] != "classification" or named & {"recipe", "experiment", "compare"}:
        return
    if chosen_option(overrides, "recipe") == "finetune":
        log.info("recipe: finetune, the default with init_from (small steps, light augmentation); recipe=scratch "
                 "trains as from random weights")
    else:
        log.info("recipe: the default of data=%s is for training from scratch; for fine-tuning from init_from add "
                 "recipe=finetune (smaller steps, lighter augmentation)", config["data"]["name"])


def without_source(model: nn.Module, loaded: KeyReport) -> list[str]:
    """Parameters that are random because the source has no weights for them: they are never frozen."""
    found = {row.name for row in loaded.rows if row.shape is not None and row.status != "new"}
    return [name for name, _ in model.named_parameters() if name not in found]


def describe(name: str, model: nn.Module, begins: Mapping[str, int]) -> str:
    """`lora, 12,874 of 459,370 parameters train (2.80%)`"""
    numbers = {each: parameter.numel() for each, parameter in model.named_parameters()}
    total, last = whole_size(model), max(begins.values())
    first, final = (sum(numbers[each] for each, epoch in begins.items() if epoch <= end) for end in (0, last))
    if last:
        return f"{name}, {first:,} of {total:,} parameters train from the start, {final:,} from epoch {last + 1} on"
    return f"{name}, {first:,} of {total:,} parameters train ({first / total:.2%})"


def whole_size(model: nn.Module) -> int:
    """Number of parameters of the saved model, without those of LoRA."""
    return sum(parameter.numel() for name, parameter in model.named_parameters() if not is_added(name))
