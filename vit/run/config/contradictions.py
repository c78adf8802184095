"""Two values of a config that do not fit together."""

from vit.run.config.overrides import yaml_text
from vit.training.monitoring.metric_direction import METRICS, mode_of


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
        if monitor is not None and mode not in (None, mode_of(monitor)):
            better = "lowest" if mode_of(monitor) == "min" else "highest"
            return (f"callbacks.mode={mode}: {monitor} is best where it is {better} ({mode_of(monitor)}); leave "
                    "callbacks.mode out")
        if recipe.get("ema") is not None and recipe.get("average_epochs") is not None:
            return "recipe.ema and recipe.average_epochs are two ways to average; set one of them to null"
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


def too_many_repeats(recipe: dict) -> str | None:
    """A sentence about more copies of an image than a batch has images; None where they fit, or the batch is `auto`."""
    repeats, batch_size = recipe.get("repeats", 1), recipe.get("batch_size")
    if isinstance(batch_size, int) and repeats > batch_size:
        return (f"recipe.repeats={repeats} is larger than recipe.batch_size={batch_size}, but all copies of an image "
                f"are in one batch; set recipe.repeats to {batch_size} or less, or choose a larger batch")
    return None
