"""Whether overrides start a new run or resume one, and from which checkpoint."""

import os
import pathlib
from collections.abc import Collection
from dataclasses import dataclass

import torch
from hydra.core.override_parser.types import Override
from torch import nn

from vit.files.checkpoints import verify
from vit.run.config.composing import ConfigError, hydras, is_hydras
from vit.run.config.overrides import override_text, parse, shown
from vit.run.folder import RunFolder, new_path, read_config, unfinished
from vit.run.parts.data_source import LOADING
from vit.run.processes.ranks import RUN_DIR
from vit.training import newest_valid
from vit.weights.trained import clean_name

CONTROL = ("resume", "run_dir", "runs", "allow_change")  # keys of one command, never recorded
FREE = (  # what a resumed run may change: how long, where and how it is watched, not which numbers it draws
    "recipe.epochs", "trainer", "strategy", "logger", "callbacks", "compile", "name", "task.examples",
    "task.examples_every", "data.root", "data.path", "data.download", "data.workers", "data.audit_seconds",
    "data.on_bad_sample",
)
BOUND = ("callbacks.monitor", "callbacks.mode")  # but for these: which epoch is best


@dataclass(frozen=True)
class Plan:
    """What the overrides ask for: the config, the checkpoint to resume from (None for a new run) and the run folder;
    remarks for the log; whether the recorded splits hold.
    """

    config: dict
    checkpoint: pathlib.Path | None
    path: pathlib.Path
    remarks: tuple[str, ...] = ()
    keeps_splits: bool = False


def read_overrides(config: dict, overrides: list[str]) -> Plan:
    """The run that the overrides ask for, new or resumed. `config` is composed from them."""
    config = {**config, "resumed": False}
    config["words"] = to_record(overrides)
    if not config["resume"]:
        return Plan(config, None, pathlib.Path(os.environ.get(RUN_DIR) or new_path(config, is_main_process())))
    path = find_resumable(config)
    if path is None:
        remark = "resume=auto: nothing to go on with, this is a new run"
        return Plan(config, None, new_path(config, is_main_process()), (remark,))
    folder = path if path.is_dir() else path.parent.parent
    stored, changes = read_config(folder, overrides), {}
    if any(each.startswith("strategy=") for each in overrides):  # the one group that a resumed run may replace
        changes = {"strategy": (stored["strategy"]["name"], config["strategy"]["name"])}
        stored["strategy"] = config["strategy"]
    others = [each for each in overrides if not each.startswith("strategy=")]
    stored, more = adjusted(stored, others, config["allow_change"])
    changes |= more
    checkpoint, skipped = find_checkpoint(path)
    point = f"from {checkpoint.name}" if checkpoint else "from the start: it has saved nothing yet"
    said = (f"changed on resuming: {key} from {old} to {new}" for key, (old, new) in changes.items() if old != new)
    remarks = (*skipped, f"going on with {folder} {point}", *said)
    return Plan({**stored, "resumed": True}, checkpoint, folder, remarks, keeps_splits(changes))


def to_record(overrides: list[str]) -> list[str]:
    """The overrides without those that hold for one command only."""
    keys = [override.split("=")[0].lstrip("+~") for override in overrides]
    return [each for each, key in zip(overrides, keys, strict=True) if key not in CONTROL and not is_hydras(key)]


def with_recorded(overrides: list[str]) -> list[str]:
    """The overrides after those of the run that `resume` names, so that the keys of its groups are known."""
    given = {override.key_or_group: override.value() for override in parse(overrides)}
    path = pathlib.Path(str(given.get("resume") or "auto")).expanduser()
    folder = path.parent.parent if path.is_file() else path
    if not (folder / "config.yaml").is_file():
        return overrides
    recorded = read_config(folder, overrides).get("words") or []
    for override in hydras(recorded):  # a folder of groups that a stranger chose
        raise ConfigError(f"{folder / 'config.yaml'} may not set {override}; add it to the command if you trust it")
    return [*(each for each in recorded if not is_replaced(each.lstrip("+").partition("=")[0], given)), *overrides]


def is_replaced(key: str, given: Collection[str]) -> bool:
    """Whether the command gives this key, or the group it belongs to, anew."""
    return key in given or key.partition(".")[0] in given


def overrides_of_ranks(plan: Plan, overrides: list[str]) -> list[str]:
    """The overrides for the ranks of a run: `resume=auto` is decided once, before they start."""
    others = [w for w in overrides if w.partition("=")[0].lstrip("+~") != "resume"]
    return [*others, override_text("resume", str(plan.checkpoint or plan.path))] if plan.config["resumed"] else others


def find_resumable(config: dict) -> pathlib.Path | None:
    """`resume=auto`: `run_dir` where it holds a run, else the newest unfinished run with the same overrides."""
    if config["resume"] != "auto":
        path = pathlib.Path(config["resume"]).expanduser()
        if not path.exists():
            raise ConfigError(f"resume={path}: no such run folder or checkpoint")
        return path
    if config["run_dir"]:
        path = pathlib.Path(config["run_dir"]).expanduser()
        return path if RunFolder(path, main=False).used else None
    return unfinished(config)


def find_checkpoint(path: pathlib.Path) -> tuple[pathlib.Path | None, list[str]]:
    """A checkpoint file itself, or the newest whole one of a run folder (None where a run has not saved one yet), and
    a line for every damaged one."""
    if path.is_file():
        reason = verify(path)
        if reason:
            raise ConfigError(f"resume={path}: cannot be used: {reason}")
        return path, []
    checkpoint, skipped = newest_valid(path / "checkpoints")
    if checkpoint is None and skipped:
        raise ConfigError(
            f"resume={path}: none of its checkpoints is whole; start anew without resume, in another run_dir"
        )
    return checkpoint, skipped


def check_fits(checkpoint: pathlib.Path | None, model: nn.Module, epochs: int) -> None:
    """Resuming needs the very same network, and epochs that remain; checked before any weight is read.

    Raises:
        ConfigError: names the first tensor that differs, or the epochs.
    """
    if checkpoint is None:
        return
    content = without_weights(checkpoint)
    done = content["loops"]["fit_loop"]["epoch_progress"]["current"]["processed"]
    if done > epochs:
        raise ConfigError(
            f"recipe.epochs={epochs}, but {checkpoint} has {done} epochs behind it; "
            f"take recipe.epochs={done} to end now"
        )
    prefix = "model."
    saved = {
        clean_name(k).removeprefix(prefix): tuple(v.shape)
        for k, v in content["state_dict"].items()
        if k.startswith(prefix)
    }
    wanted = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    for name in sorted(saved.keys() | wanted.keys()):
        if saved.get(name) != wanted.get(name):
            raise ConfigError(
                f"resume={checkpoint}: {name} is {saved.get(name, 'not there')} in the checkpoint and "
                f"{wanted.get(name, 'not there')} in the model; {shown('init_from', checkpoint)} takes over what fits"
            )


def steps_done(checkpoint: pathlib.Path | None) -> int | None:
    """Optimizer steps behind a checkpoint; None where there is no checkpoint."""
    return without_weights(checkpoint)["global_step"] if checkpoint else None


def without_weights(checkpoint: pathlib.Path) -> dict:
    """What a checkpoint of ours says, its tensors only by their shapes."""
    return torch.load(checkpoint, map_location="meta", mmap=True, weights_only=True)


def adjusted(config: dict, overrides: list[str], allowed: Collection[str] = ()) -> tuple[dict, dict[str, tuple]]:
    """A stored config with the overrides of this command on top, and key -> (old, new) of each change; groups stay.

    Raises:
        ConfigError: an override would change which samples are drawn or how they are computed with, and `allowed` does
            not name its key.
    """
    changes, refused, recorded = {}, [], last_of_each_key(config["words"])
    for key, override in last_of_each_key(overrides).items():
        *nodes, leaf = key.split(".")
        if key in CONTROL or is_hydras(key):
            continue
        node = config
        for name in nodes:
            node = node.get(name, {})
        if leaf not in node or isinstance(node[leaf], dict):
            if override.input_line not in config["words"]:
                raise ConfigError(
                    f"{override.input_line} cannot change in a resumed run; start a new one with init_from="
                )
            continue
        if node[leaf] == override.value() or not is_free(key) and repeats(override, recorded):
            continue
        if nodes[:1] == ["finetune"]:
            raise ConfigError(
                f"{override.input_line}: what trains cannot change in a resumed run; start a new one, init_from="
            )
        changes[key] = node[leaf], override.value()
        node[leaf] = override.value()
        if not is_free(key):
            refused += [key] * (key not in allowed)
            config["words"] = [w for w in config["words"] if w.partition("=")[0] != key] + [override.input_line]
    if refused:
        listed = ", ".join(f"{key} from {changes[key][0]} to {changes[key][1]}" for key in refused)
        raise ConfigError("the resumed run would no longer be the one that was stopped: this command changes "
                          f"{listed}; leave that out, or add allow_change={','.join(refused)}")
    return config, changes


def last_of_each_key(overrides: list[str]) -> dict[str, Override]:
    """Key -> the override that counts where several are given."""
    return {override.key_or_group: override for override in parse(overrides)}


def repeats(override: Override, recorded: dict[str, Override]) -> bool:
    """Whether the run was started with this override, whose value (such as `auto`) its config has resolved."""
    key = override.key_or_group
    return key in recorded and recorded[key].value() == override.value()


def is_free(key: str) -> bool:
    """Whether a key may have another value in a resumed run without `allow_change`."""
    return key not in BOUND and any(key == free or key.startswith(f"{free}.") for free in FREE)


def keeps_splits(changes: Collection[str]) -> bool:
    """Whether the recorded splits stay: no change of a key by which the data set is made."""
    made = [key for key in changes if key.startswith("data.") and key.split(".")[1] not in LOADING and not is_free(key)]
    return not made


def is_main_process() -> bool:
    """Whether this is the first process of the run, as torchrun, SLURM or Lightning's launcher number them."""
    return int(os.environ.get("RANK", os.environ.get("SLURM_PROCID", os.environ.get("LOCAL_RANK", 0)))) == 0
