"""From the `finetune` node of a config to a model of which the right part trains."""

import logging
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from functools import partial

from torch import nn

from vit.run.config.checked import checked
from vit.run.config.composing import ConfigError
from vit.training import Finetune
from vit.weights import KeyReport
from vit.weights.loading import is_head
from vit.weights.trained import is_added

log = logging.getLogger("vit")

TASKS = ("classification", "text_classification", "seq2seq")


def read_finetune(config: dict) -> Finetune:
    """What the config says; everything trains in runs made before there was a choice."""
    return checked("finetune", Finetune, config.get("finetune") or {}, spread=True)


def check_task(config: dict) -> None:
    """Raises ConfigError for finetune= in pre-training, which trains every weight and would ignore it."""
    finetune, task = read_finetune(config), config["task"]["name"]
    if finetune.freezes and task not in TASKS:
        raise ConfigError(f"finetune={finetune.name} is for task {', '.join(TASKS)}; {task} trains all of a model")


def start_finetuning(
    config: dict, model: nn.Module, taken: KeyReport | None, fit_head: Callable[[], object] | None = None
) -> dict:
    """Freeze what shall rest of a model that has its weights; the config with the names that train in any case.

    Args:
        taken: what came from `init_from`; None in a resumed run, whose config tells, and where nothing did.
        fit_head: gives a new head its first weights, where there is a way; None where it could not.

    Raises:
        ConfigError: options that contradict each other, the model or the epochs; random weights that would be frozen.
    """
    finetune = read_finetune(config)
    if finetune.freezes and not config["init_from"]:
        raise ConfigError(
            f"finetune={finetune.name} lets weights rest, and without init_from they are random: add init_from=MODEL "
            "(a run, a saved model, a file of weights or timm:NAME), or take finetune=full"
        )
    if finetune.over and config["strategy"]["name"] == "fsdp":
        raise ConfigError(
            f"finetune={finetune.name} begins to train blocks on the way, which shards cannot; take strategy=ddp, "
            "or finetune.over=0"
        )
    if finetune.freezes and taken is not None:
        finetune = replace(finetune, always=(*finetune.always, *without_source(model, taken)))
    if taken is not None and fit_head is not None and finetune.head_init != "random":
        new = any(is_head(name, model) for name in without_source(model, taken))
        if new and fit_head() is None and finetune.head_init == "fit":
            raise ConfigError("finetune.head_init=fit is for one linear head and one class per image; take auto")
    if finetune.batch_norm == "auto":  # a resumed run has recorded which
        finetune = replace(finetune, batch_norm="train" if taken is None else "frozen")
    begins = checked("finetune", partial(finetune.start, model), config["recipe"]["epochs"])
    if finetune.freezes or config["init_from"]:
        log.info("finetune: %s", describe(finetune.name, model, begins))
    return {**config, "finetune": asdict(finetune) | {"always": list(finetune.always)}}


def without_source(model: nn.Module, taken: KeyReport) -> list[str]:
    """Parameters that are random because the source has nothing for them: resting, they would stay so."""
    came = {row.name for row in taken.rows if row.shape is not None and row.status != "new"}
    return [name for name, _ in model.named_parameters() if name not in came]


def describe(name: str, model: nn.Module, begins: Mapping[str, int]) -> str:
    """`lora, 12,874 of 459,370 parameters train (2.8 %)`"""
    numbers = {each: parameter.numel() for each, parameter in model.named_parameters()}
    total, last = whole_size(model), max(begins.values())
    first, ever = (sum(numbers[each] for each, epoch in begins.items() if epoch <= end) for end in (0, last))
    if last:
        return f"{name}, {first:,} of {total:,} parameters train from the start, {ever:,} from epoch {last + 1} on"
    return f"{name}, {first:,} of {total:,} parameters train ({first / total:.2%})"


def whole_size(model: nn.Module) -> int:
    """Parameters of the model as it is saved, without what is learnt beside them."""
    return sum(parameter.numel() for name, parameter in model.named_parameters() if not is_added(name))
