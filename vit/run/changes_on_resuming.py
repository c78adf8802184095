"""Which keys of its config a resumed run may change, and the stored config with these changes."""

import os
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from hydra.core.override_parser.types import Override

from vit.exchange.private_paths import PATH_KEYS
from vit.files.credentials import is_masked, masked, masked_override
from vit.messages import override_for_shell
from vit.run.config.composing import keys_of_own_files
from vit.run.config.hydra_interface import is_hydra_key
from vit.run.config.overrides import REMOVED_KEYS, ConfigError, dotted_items, key_of, parse, yaml_text
from vit.run.config.targets import TARGET
from vit.run.parts.data_source import LOADING

CONTROL = ("resume", "run_dir", "runs", "allow_change")  # keys of one command, never recorded
FREE = (  # keys that a resumed run may change, because they do not affect what the steps before them computed
    "recipe.epochs", "trainer", "strategy", "logger", "callbacks", "compile", "compile_mode", "name", "task.examples",
    "task.examples_every", "data.root", "data.path", "data.download", "data.workers", "data.audit_seconds",
    "data.on_bad_sample", "data.decoder", "data.cache_dir", "data.cache_limit", "calibrate", "report",
)
MONITOR = "callbacks.monitor"
BOUND = (MONITOR, "callbacks.mode")  # except these, which determine the best epoch
TRAINING_DATA = ("balance", "cache", "cache_side", "min_patches")  # keys of data that do not affect validation


def adjusted(
    config: dict, overrides: list[str], allowed: Collection[str] = (), composed: Mapping[str, Any] | None = None,
    saved: bool = True,
) -> tuple[dict, dict[str, tuple]]:
    """A stored config with the overrides of this command applied, and key -> (old, new) of each change.

    Args:
        composed: the config of this command, in which interpolations are resolved, and names and paths are strings.
        saved: whether the run has a checkpoint. Without one it begins again, so that values may change.

    Raises:
        ConfigError: an override changes a group, or changes the results, and `allowed` does not contain its key.
    """
    changes, recorded = {}, last_of_each_key(config["overrides"])
    composed_values = dict(dotted_items(composed or {}))
    for key, override in last_of_each_key(overrides).items():
        if key in CONTROL or is_hydra_key(key):
            continue
        stored = {"": config, **dict(dotted_items(config))}
        parent, _, leaf = key.rpartition(".")
        value = composed_values.get(key, override.value())
        known = key in stored or is_free(key) and isinstance(stored.get(parent), dict)  # it may be newer than the run
        # a group, a node, or a key of a node that the run has dropped, such as recipe.mixup with data.pack
        if not known or isinstance(stored.get(key, value), dict):
            check_recorded(override, config["overrides"])
            continue
        node, old = stored[parent], stored.get(key)
        if is_masked(old):  # this command gives the credential again
            node[leaf] = value
            continue
        settled = not is_free(key) or key == "compile" and value == "auto"  # auto has been decided
        if old == value or is_same_path(key, old, value) or settled and repeats(override, recorded):
            continue
        check_can_change(override, allowed, saved)
        changes[key] = old, value
        node[leaf] = value
        if not is_free(key):
            others = [each for each in config["overrides"] if each.partition("=")[0] != key]
            config["overrides"] = [*others, override.input_line]
    if saved:
        check_allowed(changes, allowed)
    return config, changes


def change_loggers(config: dict, overrides: list[str], composed: Mapping[str, Any]) -> dict[str, tuple]:
    """Replaces, adds, removes and changes loggers of a stored config as the overrides of this command do; key -> (old,
    new) of each change.

    Args:
        composed: the config of this command.
    """
    stored, before = config["logger"], names_of_loggers(config)
    keys = [override.key_or_group for override in parse(list(filter(is_of_loggers, overrides)))]
    config["logger"] = {} if "logger" in keys else {**stored}
    for name, new in composed["logger"].items():
        whole, old = "logger" in keys or f"logger.{name}" in keys, stored.get(name)
        options = {key.split(".")[2] for key in keys if key.startswith(f"logger.{name}.")}
        if not whole and not options:
            continue
        if isinstance(new, dict) and isinstance(old, dict) and new.get(TARGET, old.get(TARGET)) == old.get(TARGET):
            # the same logger: it continues its run in the tracker, and keeps options that earlier commands changed
            new = {**old, **(new if whole else {option: new[option] for option in options})}
        config["logger"][name] = new
    olds, news = (dict(dotted_items({"logger": loggers})) for loggers in (stored, config["logger"]))
    changes = {key: (olds.get(key), news.get(key)) for key in keys
               if key.count(".") > 1 and isinstance(stored.get(key.split(".")[1]), dict)}
    after = names_of_loggers(config)
    return {**({} if after == before else {"logger": (before, after)}), **changes}


def changed_files(stored: dict, composed: dict, overrides: list[str]) -> Iterator[str]:
    """A sentence for each value of a file of the user that was changed since the run began, which has no effect on it.

    Args:
        stored: the config of the resumed run, whose values it keeps.
        composed: the config of this command.
        overrides: those of the run and of this command.
    """
    values, now = dict(dotted_items(stored)), dict(dotted_items(composed))
    given = {override.key_or_group for override in parse(overrides)}
    for key, file in ({} if stored.get("debug") else keys_of_own_files(overrides)).items():
        old, new = values.get(key), now.get(key)
        if key in given or key in PATH_KEYS or old == new or new == "auto" or not is_plain(old, new):
            continue
        fix = f"add {override_for_shell(key, new)} to the command" if is_free(key) else "start a new run for it"
        yield f"{file}: {key}={yaml_text(new)} has no effect on this resumed run, which keeps {yaml_text(old)}; {fix}"


def is_plain(old: object, new: object) -> bool:
    """Whether both values are numbers, or both strings or booleans: a run stores the resolved value of others."""
    return all(isinstance(each, int | float) for each in (old, new)) or (isinstance(old, str) and isinstance(new, str))


def is_of_loggers(override: str) -> bool:
    """Whether an override is of the group `logger`, or of a key of its node."""
    return key_of(override).partition(".")[0] == "logger"


def of_same_run(overrides: list[str], others: list[str]) -> bool:
    """Whether two lists of recorded overrides are equal but for credentials, and for loggers, which a resumed run may
    change.
    """
    one, other = ([each for each in listed if not is_of_loggers(each)] for listed in (overrides, others))
    return masked(one) == masked(other)


def names_of_loggers(config: Mapping[str, Any]) -> str:
    """The names of the loggers of a config, for a message: `tensorboard, wandb`, or `none`."""
    return ", ".join(name for name, node in config["logger"].items() if node is not None) or "none"


def check_recorded(override: Override, recorded: Collection[str]) -> None:
    """Checks that an override of a group or node is among those of the run, which cannot change it.

    Raises:
        ConfigError: it is not.
    """
    text = masked_override(override.input_line)
    if text not in masked(list(recorded)):
        raise ConfigError(f"{text} cannot change in a resumed run; start a new one with init_from=")


def check_can_change(override: Override, allowed: Collection[str], saved: bool) -> None:
    """Checks that the changed key has an effect on a resumed run.

    Raises:
        ConfigError: it is settled by the checkpoint.
    """
    key, text = override.key_or_group, override.input_line
    if saved and key.startswith("finetune."):
        raise ConfigError(f"{text}: a resumed run cannot change which weights are trained; start a new one with "
                          "init_from=")
    if saved and key.startswith("recipe.optimizer."):
        raise ConfigError(f"{text}: a resumed run has the optimizer of its checkpoint, whose rates and options cannot "
                          "change; leave it out, or start a new run with init_from=")
    if key == "init_from" and key not in allowed:
        raise ConfigError(f"{text} has no effect on a resumed run, which continues from its own weights; leave it out, "
                          "or leave resume out for a new run")


def check_allowed(changes: Mapping[str, tuple], allowed: Collection[str]) -> None:
    """Checks that the changes do not affect the results, or are allowed.

    Raises:
        ConfigError: names the changes that do.
    """
    refused = [key for key in changes if not is_free(key) and key not in allowed]
    if refused:
        listed = ", ".join(from_to(key, *changes[key]) for key in refused)
        raise ConfigError(f"this command changes {listed}, and with it the results of the resumed run; leave that out, "
                          f"or add allow_change={','.join(refused)}")


def removed_keys(config: dict) -> tuple[str, ...]:
    """A line for the log about the keys of a stored config that nothing reads any more; none without such keys."""
    values = dict(dotted_items(config))
    found = "; ".join(f"{key}={yaml_text(values[key])} ({why})" for key, why in REMOVED_KEYS.items() if key in values)
    return (f"the run has keys of an earlier version without effect in this one: {found}",) if found else ()


def from_to(key: str, old: object, new: object) -> str:
    """A change for a message, without credentials: `recipe.mixup from null to 0.2`."""
    before, after = (masked({key: value})[key] for value in (old, new))
    return f"{key} from {yaml_text(before)} to {yaml_text(after)}"


def last_of_each_key(overrides: list[str]) -> dict[str, Override]:
    """Key -> the last override of it, which is the effective one."""
    return {override.key_or_group: override for override in parse(overrides)}


def repeats(override: Override, recorded: dict[str, Override]) -> bool:
    """Whether the run was started with this override; its config has the resolved value (of `auto`, for instance)."""
    key = override.key_or_group
    return key in recorded and recorded[key].value() == override.value()


def is_same_path(key: str, stored: object, value: object) -> bool:
    """Whether the value is the stored absolute path, seen from the current folder."""
    both = key in PATH_KEYS and isinstance(stored, str) and isinstance(value, str)
    return both and os.path.abspath(os.path.expanduser(value)) == stored


def is_free(key: str) -> bool:
    """Whether a resumed run may change this key without `allow_change`."""
    return key not in BOUND and any(key == free or key.startswith(f"{free}.") for free in FREE)


def scoring_values(config: dict) -> dict[str, Any]:
    """The keys that determine the values of the monitored metric for a given model, and their values: the metric itself
    and what a run cannot change without `allow_change` in `task` and in the samples of `data`.
    """
    keys = {key: value for key, value in dotted_items(config) if not isinstance(value, dict)}
    return {key: value for key, value in keys.items() if key == MONITOR or not is_free(key) and (
        key.startswith("task.") or key.startswith("data.") and key.split(".")[1] not in TRAINING_DATA)}


def keeps_splits(changes: Collection[str]) -> bool:
    """Whether the recorded splits apply: no changed key affects which samples the data set has."""
    keys = [key for key in changes if key.startswith("data.") and not is_free(key)]
    return all(key.split(".")[1] in LOADING for key in keys)
