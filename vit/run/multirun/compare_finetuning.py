"""`vit compare-finetuning`: a run for each `finetune` option on one data set, then a table and a figure."""

from collections.abc import Sequence

from vit.messages import check_several
from vit.run.config.composing import ConfigError, compose, resolve
from vit.run.config.groups import options
from vit.run.config.name_hints import nearest
from vit.run.config.overrides import key_of
from vit.run.multirun.compare import compare
from vit.run.result import Run

METHODS = ("full", "llrd", "gradual", "attention_only", "lora", "head")  # in the order of the number of trained weights
NAME = "compare_finetuning"


def compare_finetuning(overrides: list[str], methods: Sequence[str] = METHODS) -> Run:
    """Fine-tune `init_from` with each of these strategies and the same overrides; `resume=` resumes it.

    Raises:
        ConfigError: an invalid override, before the first run starts; failed runs, at the end.
        Interrupted: Ctrl-C or SIGTERM; the current run has saved its state.
    """
    check_several("methods", methods)
    for method in methods:
        if method not in options("finetune"):
            raise ConfigError(f"--methods {method}: no such finetune{nearest(method, options('finetune'))}")
    overrides = [*default_overrides(overrides), *overrides]
    config = resolve(compose(overrides))
    if not config["init_from"] and config["resume"] in (None, "auto"):
        raise ConfigError("compare-finetuning starts from pretrained weights: add init_from=MODEL (a run, a saved "
                          "model, a file of weights or timm:NAME)")
    if any(override.startswith("finetune=") for override in overrides):
        raise ConfigError("finetune= selects one option; --methods full,head,lora selects those that are compared")
    return compare({**config, "compare": {method: [f"finetune={method}"] for method in methods}}, overrides)


def default_overrides(overrides: list[str]) -> list[str]:
    """`name=compare_finetuning`, unless the overrides name the runs or resume a comparison."""
    named = {key_of(override) for override in overrides}
    resumes = any(override.startswith("resume=") and override != "resume=auto" for override in overrides)
    return [] if resumes or "name" in named else [f"name={NAME}"]
