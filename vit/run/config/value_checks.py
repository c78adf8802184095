"""Checks of values: of overrides by their types, of a whole config by `valid_values`, and of values that do not fit
together.
"""

from collections.abc import Sequence
from typing import Any

import yaml
from hydra.core.override_parser.types import Override

from vit.messages import did_you_mean
from vit.run.config.name_hints import nearest
from vit.run.config.overrides import dotted_items, yaml_text
from vit.run.config.valid_values import valid_values
from vit.run.config.value_kinds import Boolean, Choice, Number
from vit.training.monitoring.metric_direction import METRICS, mode_of

TWO_AVERAGES = "recipe.ema and recipe.average_epochs are two ways to average; set one of them to null"
BOOLEAN_OR_AUTO = ("compile",)
HINTS = {"trainer.devices": "; the environment variable CUDA_VISIBLE_DEVICES selects GPUs by their numbers"}


def invalid_value(config: dict) -> str | None:
    """A sentence about the first invalid value; None where all are valid."""
    foreign = foreign_nodes(config)
    for key, value in dotted_items(config):
        valid = valid_values(key)
        if isinstance(valid, Choice) and key.partition(".")[0] in foreign:
            continue
        if valid is not None and not valid.accepts(value):
            hint = nearest_choice(str(value), valid.names) if isinstance(valid, Choice) else HINTS.get(key, "")
            if isinstance(valid, Number | Boolean) and isinstance(value, str) and not isinstance(as_yaml(value), str):
                hint = f"; '{value}' is a string; ${{oc.decode:...}} converts it to a value"
            return f"{key}={yaml_text(value)}: must be {valid}{hint}"
    return None


def nearest_choice(value: str, names: Sequence[str]) -> str:
    """The hint at the nearest of several names, or at those of which the value is the first part: `bf16`, `fp16`."""
    start = value.lower().removeprefix("fp")
    return did_you_mean(name for name in names if name.startswith(f"{start}-")) or nearest(value, list(names))


def foreign_nodes(config: dict) -> list[str]:
    """The nodes that other code checks: a model of timm, which has none of the options with choices, and a strategy
    that `_target_` names, whose `name` is the user's.
    """
    model, strategy = config.get("model"), config.get("strategy")
    return [*(["model"] if isinstance(model, dict) and model.get("library") == "timm" else []),
            *(["strategy"] if isinstance(strategy, dict) and "_target_" in strategy else [])]


def as_yaml(text: str) -> Any:
    """What YAML reads as the text, such as a number that an environment variable holds; the text if it is none."""
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError:
        return text


def wrong_type(override: Override, default: object) -> str | None:
    """A sentence about a value of another type than the default of its key: a scalar in place of a node, or a string in
    place of a number or boolean; None where the types fit.
    """
    value = override.value()
    if isinstance(value, str) and "${" in value:  # an interpolation, which `invalid_value` checks when it is resolved
        return None
    if isinstance(default, dict) and default and value is not None and not isinstance(value, dict):
        inner = f"{override.key_or_group}.{'name' if 'name' in default else next(iter(default))}"
        return f"{override.key_or_group}={value}: it is a node; set one of its keys, such as {inner}"
    expected = None
    if isinstance(default, bool):
        auto = override.key_or_group in BOOLEAN_OR_AUTO
        if not isinstance(value, bool) and not (auto and value == "auto"):
            expected = "true, false or auto" if auto else "true or false"
    elif isinstance(default, int | float) and isinstance(value, str | bool) and value != "auto":
        known = valid_values(override.key_or_group)
        expected = str(known) if isinstance(known, Number) else "a number"
    if not expected:
        return None
    key, example = override.key_or_group, yaml_text(default)
    is_quoted = override.input_line.partition("=")[2][:1] in ("'", '"') and not isinstance(as_yaml(value), str)
    hint = f"; '{value}' is a string, leave out its quotes" if is_quoted else HINTS.get(key, "")
    return f"{key}={yaml_text(value)}: must be {expected}, such as {example}{hint}"


def contradiction(config: dict) -> str | None:
    """A sentence about two values that do not fit together; None where there are none."""
    if config.get("compare"):  # its runs may add the other value; each of their configs is checked
        return None
    callbacks, recipe, strategy, distill = (config.get(node) or {} for node in (
        "callbacks", "recipe", "strategy", "distill"))  # another primary config may lack some
    task, monitor, mode = config["task"].get("name"), callbacks.get("monitor"), callbacks.get("mode")
    if monitor is not None and task in METRICS and monitor != "train/loss":
        metrics = [f"val/{name}" for name in METRICS[task]]
        if monitor not in metrics:
            return f"callbacks.monitor={monitor}: must be one of {', '.join(metrics)}, train/loss for task={task}"
    if not config.get("resume"):  # a run of an earlier version may have recorded these
        if monitor is not None and (problem := wrong_mode(monitor, mode)):
            return f"{problem}; leave callbacks.mode out"
        if recipe.get("ema") is not None and recipe.get("average_epochs") is not None:
            return TWO_AVERAGES
        unknown = [key for key in strategy if key not in ("name", "options")] if "_target_" not in strategy else []
        if unknown:
            return (f"strategy.{unknown[0]}={yaml_text(strategy[unknown[0]])}: the strategy has no such key; write "
                    f"strategy.options.{unknown[0]} for an option of it")
    if (strategy.get("options") or {}).get("static_graph") is True and recipe.get("accumulate") not in (None, 1):
        return (f"strategy.options.static_graph=true with recipe.accumulate={recipe['accumulate']}: DDP cannot record "
                "the graph of a backward pass without averages over the devices; set recipe.accumulate=1, or leave "
                "static_graph out")
    if problem := too_many_repeats(recipe):
        return problem
    teacher, kind = distill.get("teacher"), distill.get("kind", "none")
    if teacher is not None and kind == "none":
        return (f"distill.teacher={teacher} has no effect with distill.kind=none; add distill=soft, hard or token, or "
                "distill.teacher=null")
    if not teacher and kind != "none" and task == "classification":  # others have no teacher
        return f"distill={kind} needs a teacher: distill.teacher=RUN, a saved model, or timm:NAME"
    return None


def wrong_mode(monitor: str, mode: str | None) -> str | None:
    """A sentence about `callbacks.mode` with the other direction than that of the monitored metric."""
    if mode in (None, mode_of(monitor)):
        return None
    better = "lowest" if mode_of(monitor) == "min" else "highest"
    return f"callbacks.mode={mode}: {monitor} is best where it is {better} ({mode_of(monitor)})"


def too_many_repeats(recipe: dict) -> str | None:
    """A sentence about more copies of an image than a batch has images; None where they fit, or the batch is `auto`."""
    repeats, batch_size = recipe.get("repeats", 1), recipe.get("batch_size")
    if isinstance(batch_size, int) and repeats > batch_size:
        return (f"recipe.repeats={repeats} is larger than recipe.batch_size={batch_size}, but all copies of an image "
                f"are in one batch; set recipe.repeats to {batch_size} or less, or choose a larger batch")
    return None
