"""Every way of fine-tuning a model on one data set: each a run of its own, then one table and one picture."""

from collections.abc import Sequence

from vit.run.compare import compare
from vit.run.config.composing import ConfigError, compose, nearest, options, plain
from vit.run.result import Run

WAYS = ("full", "llrd", "gradual", "attention_only", "lora", "head")  # from those that move most
NAME = "compare_finetuning"


def compare_finetuning(overrides: list[str], ways: Sequence[str] = WAYS) -> Run:
    """Fine-tune `init_from` with each of these strategies and the same overrides; `resume=` resumes it.

    Raises:
        ConfigError: an invalid override, before the first run starts; failed runs, at the end.
        Interrupted: Ctrl-C or SIGTERM; the run under way has saved what was done.
    """
    for way in ways:
        if way not in options("finetune"):
            raise ConfigError(f"--methods {way}: no such finetune{nearest(way, options('finetune'))}")
    overrides = [*usual(overrides), *overrides]
    config = plain(compose(overrides))
    if not config["init_from"] and config["resume"] in (None, "auto"):
        raise ConfigError("compare-finetuning starts from pretrained weights: add init_from=MODEL (a run, a saved "
                          "model, a file of weights or timm:NAME)")
    if any(override.startswith("finetune=") for override in overrides):
        raise ConfigError("finetune= names one way; choose among those compared with --methods full,head,lora")
    return compare({**config, "compare": {way: [f"finetune={way}"] for way in ways}}, overrides)


def usual(overrides: list[str]) -> list[str]:
    """Default overrides: a folder name, and recipe=finetune unless the overrides or the data set name a recipe."""
    if any(override.startswith("resume=") and override != "resume=auto" for override in overrides):
        return []
    named = {override.partition("=")[0] for override in overrides}
    added = [] if "name" in named else [f"name={NAME}"]
    if named & {"recipe", "experiment"}:
        return added
    from_nothing = plain(compose(["recipe=scratch"]))["recipe"]
    return [*added, "recipe=finetune"] if plain(compose(without_recipe(overrides)))["recipe"] == from_nothing else added


def without_recipe(overrides: list[str]) -> list[str]:
    """The overrides without values of the recipe: what remains of it comes from the data set."""
    return [override for override in overrides if not override.lstrip("+~").startswith("recipe.")]
