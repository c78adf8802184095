"""Every way of fine-tuning a model on one data set: each a run of its own, then one table and one picture."""

from collections.abc import Sequence

from vit.run.compare import compare
from vit.run.config.composing import ConfigError, compose, nearest, options, plain
from vit.run.result import Run

WAYS = ("full", "llrd", "gradual", "attention_only", "lora", "head")  # from those that move most
NAME = "compare_finetuning"


def compare_finetuning(words: list[str], ways: Sequence[str] = WAYS) -> Run:
    """Fine-tune `init_from` in all these ways with words that they share; `resume=` goes on with what was stopped.

    Raises:
        ConfigError: a word that cannot be, before the first run starts; runs that failed, at the end.
        Interrupted: Ctrl-C or SIGTERM; the run under way has saved what was done.
    """
    for way in ways:
        if way not in options("finetune"):
            raise ConfigError(f"--ways {way}: no such finetune{nearest(way, options('finetune'))}")
    words = [*usual(words), *words]
    config = plain(compose(words))
    if not config["init_from"] and config["resume"] in (None, "auto"):
        raise ConfigError("compare-finetuning starts from somebody's weights: add init_from=MODEL (a run, a saved "
                          "model, a file of weights or timm:NAME)")
    if any(word.startswith("finetune=") for word in words):
        raise ConfigError("finetune= names one way; choose among those compared with --ways full,head,lora")
    return compare({**config, "compare": {way: [f"finetune={way}"] for way in ways}}, words)


def usual(words: list[str]) -> list[str]:
    """A name for the folder, and the recipe of fine-tuning unless the words or the data set bring their own."""
    if any(word.startswith("resume=") and word != "resume=auto" for word in words):
        return []
    named = {word.partition("=")[0] for word in words}
    added = [] if "name" in named else [f"name={NAME}"]
    if named & {"recipe", "experiment"}:
        return added
    from_nothing = plain(compose(["recipe=scratch"]))["recipe"]
    return [*added, "recipe=finetune"] if plain(compose(without_recipe(words)))["recipe"] == from_nothing else added


def without_recipe(words: list[str]) -> list[str]:
    """The words less the values of the recipe, so that what is left of it is the data set's."""
    return [word for word in words if not word.lstrip("+~").startswith("recipe.")]
