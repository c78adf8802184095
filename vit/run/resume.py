"""Whether overrides start a new run or resume one, and from which checkpoint."""

import os
import pathlib
from collections.abc import Collection
from dataclasses import dataclass, replace

from torch import nn

from vit.files.checkpoints import verify, without_weights
from vit.files.credentials import restored
from vit.messages import number_of, override_for_shell
from vit.run.changes_on_resuming import (
    CONTROL,
    adjusted,
    change_loggers,
    changed_files,
    from_to,
    is_of_loggers,
    keeps_splits,
    of_same_run,
    removed_keys,
)
from vit.run.config.composing import data_of_primary
from vit.run.config.credential_checks import check_credentials
from vit.run.config.hydra_interface import PRIMARY, hydra_overrides, is_hydra_key
from vit.run.config.needed_keys import check_complete
from vit.run.config.overrides import REMOVED_KEYS, ConfigError, key_of, override_text, parse
from vit.run.config.without_effect import without_effect
from vit.run.processes.launcher import RUN_DIR, first_node
from vit.run.records.folder import RunFolder, new_path
from vit.run.records.reading import read_config, unfinished
from vit.training import newest_valid
from vit.weights.training_checkpoint import clean_name


@dataclass(frozen=True)
class Plan:
    """A new or resumed run: its config, the checkpoint to resume from (None for a new run) and its folder.

    Args:
        remarks: lines for the log.
        keeps_splits: whether the recorded splits apply.
        warnings: about values of the command that have no effect; empty in the ranks of a run, which do not repeat
            them.
    """

    config: dict
    checkpoint: pathlib.Path | None
    path: pathlib.Path
    remarks: tuple[str, ...] = ()
    keeps_splits: bool = False
    warnings: tuple[str, ...] = ()


def read_overrides(config: dict, overrides: list[str]) -> Plan:
    """The run that the overrides describe, new or resumed.

    Args:
        config: composed from the overrides.

    Raises:
        ConfigError: the run cannot be resumed, or not with these overrides.
    """
    plan = find_run(config, overrides)
    if not overrides or RUN_DIR in os.environ:
        return plan
    own = {key: config[key] for key in CONTROL if key in config}
    warnings = without_effect({**plan.config, **own}, overrides)
    if plan.config["resumed"]:
        warnings = (*warnings, *changed_files(plan.config, config, with_recorded(overrides)))
    return replace(plan, warnings=warnings)


def find_run(config: dict, overrides: list[str]) -> Plan:
    """`read_overrides` without its warnings."""
    config = {**config, "resumed": False}
    given = to_record(overrides)
    config["overrides"] = recorded(overrides)
    nodes = config["trainer"].get("num_nodes", 1)  # checked below
    main = is_main_process() and (nodes == 1 or first_node(nodes))
    if not config["resume"]:
        check_complete(config)
        return Plan(config, None, pathlib.Path(os.environ.get(RUN_DIR) or new_path(config, main)))
    path = find_resumable(config, given)
    if path is None:
        check_complete(config)
        return Plan(config, None, new_path(config, main), (nothing_to_resume(config),))
    folder = path if path.is_dir() else path.parent.parent
    stored, changes = read_config(folder, overrides), {}
    if any(each.startswith("strategy=") for each in overrides):  # the two groups that a resumed run may replace
        changes = {"strategy": (stored["strategy"]["name"], config["strategy"]["name"])}
        stored["strategy"] = config["strategy"]
    changes |= change_loggers(stored, overrides, config)
    others = [each for each in overrides if not each.startswith("strategy=") and not is_of_loggers(each)]
    checkpoint, skipped = find_checkpoint(path)
    stored, more = adjusted(stored, others, config["allow_change"], config, saved=checkpoint is not None)
    changes |= more
    stored = restored(stored, config)
    check_credentials(stored, folder)
    check_time(RunFolder(folder, main=False), stored, changes)
    point = f"from {checkpoint.name}" if checkpoint else "from the start: it has saved nothing yet"
    changed = (f"changed on resuming: {from_to(key, *values)}" for key, values in changes.items()
               if from_to(key, values[0], values[0]) != from_to(key, *values))
    remarks = (*skipped, f"resuming {folder} {point}", *removed_keys(stored), *changed)
    stored |= {"resumed": True, "allow_change": config["allow_change"]}  # of this command
    return Plan(stored, checkpoint, folder, remarks, keeps_splits(changes))


def check_time(folder: RunFolder, stored: dict, changes: Collection[str]) -> None:
    """Checks that a run that `trainer.max_time` ended gets more time.

    Raises:
        ConfigError: it does not, and would end at once.
    """
    if folder.out_of_time and "trainer.max_time" not in changes:
        raise ConfigError(f"resume={folder.path}: trainer.max_time={stored['trainer']['max_time']} ended that run; add "
                          "trainer.max_time=null, or a longer time, which counts from the start of the run")


def recorded(overrides: list[str]) -> list[str]:
    """The overrides that a run of this command records: `to_record`, after the data of a primary config of the user."""
    own = data_of_primary(overrides) if any(each.startswith(PRIMARY) for each in overrides) else []
    return [*own, *to_record(overrides)]


def to_record(overrides: list[str]) -> list[str]:
    """The overrides without those that apply to one command only."""
    return [each for each in overrides if (key := key_of(each)) not in CONTROL and not is_hydra_key(key)]


def with_recorded(overrides: list[str]) -> list[str]:
    """The recorded overrides of the run that `resume` names, followed by these, so that keys of its groups are valid.

    Raises:
        ConfigError: the recorded overrides change settings of Hydra.
    """
    replaced = {override.key_or_group: override.value() for override in parse(overrides)}
    path = pathlib.Path(str(replaced.get("resume") or "auto")).expanduser()
    folder = path.parent.parent if path.is_file() else path
    if not (folder / "config.yaml").is_file():
        return overrides
    recorded = read_config(folder, overrides).get("overrides") or []
    for override in hydra_overrides(recorded):  # such as a third-party folder of groups
        raise ConfigError(f"{folder / 'config.yaml'} may not set {override}; add it to the command if you trust it")
    valid = (each for each in recorded if key_of(each) not in REMOVED_KEYS)
    return [*(each for each in valid if not is_replaced(key_of(each), replaced)), *overrides]


def is_replaced(key: str, replaced: Collection[str]) -> bool:
    """Whether the command sets this key, or the group it belongs to."""
    return key in replaced or key.partition(".")[0] in replaced


def overrides_of_ranks(plan: Plan, overrides: list[str]) -> list[str]:
    """The overrides for the ranks of a run: `resume=auto` is decided once, before they start."""
    others = [each for each in overrides if key_of(each) != "resume"]
    return [*others, override_text("resume", str(plan.checkpoint or plan.path))] if plan.config["resumed"] else others


def find_resumable(config: dict, given: list[str] | None = None) -> pathlib.Path | None:
    """The run folder or checkpoint to resume. `resume=auto` selects `run_dir`, if it is set and contains a run;
    otherwise the newest unfinished run with the same overrides, except those of loggers; None if there is no such run.

    Args:
        given: the overrides of the command, as runs recorded them before they recorded the data of a primary config.

    Raises:
        ConfigError: there is no such folder or checkpoint.
    """
    if config["resume"] != "auto":
        path = pathlib.Path(config["resume"]).expanduser()
        if not path.exists():
            raise ConfigError(f"resume={path}: no such run folder or checkpoint")
        return path
    if config["run_dir"]:
        path = pathlib.Path(config["run_dir"]).expanduser()
        return path if RunFolder(path, main=False).used else None
    own = [each for each in (config["overrides"], given) if each is not None]
    return next((path for path, stored in unfinished(config) if any(of_same_run(stored, each) for each in own)), None)


def nothing_to_resume(config: dict) -> str:
    """What `resume=auto` logs before a new run, with the newest unfinished run that has other overrides."""
    remark = "resume=auto: no run to resume, this is a new one"
    other = None if config["run_dir"] else next(unfinished(config), None)
    if other is None:
        return remark
    path, stored = other
    return f"{remark}; {path} is unfinished, but has other overrides ({' '.join(stored) or 'none'}): resume={path}"


def find_checkpoint(path: pathlib.Path) -> tuple[pathlib.Path | None, list[str]]:
    """A checkpoint file itself, or the newest valid one of a run folder (None before the first one is saved), and a
    line about each damaged one.

    Raises:
        ConfigError: all checkpoints are damaged.
    """
    if path.is_file():
        reason = verify(path)
        if reason:
            raise ConfigError(f"resume={path}: cannot be used: {reason}")
        return path, []
    checkpoint, skipped = newest_valid(path / "checkpoints")
    if checkpoint is None and skipped:
        raise ConfigError(
            f"resume={path}: none of its checkpoints is valid ({skipped[0].removeprefix('skipped ')}); start a new run "
            "without resume, in another run_dir"
        )
    return checkpoint, skipped


def check_fits(checkpoint: pathlib.Path, model: nn.Module, epochs: int) -> None:
    """Checks that the checkpoint has the same network, and that epochs remain, before weights are loaded.

    Raises:
        ConfigError: names the first tensor that differs, or the epochs.
    """
    content = without_weights(checkpoint)
    done = content["loops"]["fit_loop"]["epoch_progress"]["current"]["processed"]
    if done > epochs:
        raise ConfigError(
            f"recipe.epochs={epochs}, but {checkpoint} has completed {number_of(done, 'epoch')}; "
            f"use recipe.epochs={done} to finish now"
        )
    prefix = "model."
    saved = {
        clean_name(k).removeprefix(prefix): tuple(v.shape)
        for k, v in content["state_dict"].items()
        if k.startswith(prefix)
    }
    expected = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    for name in sorted(saved.keys() | expected.keys()):
        if saved.get(name) != expected.get(name):
            one, other = (shapes.get(name, "missing") for shapes in (saved, expected))
            raise ConfigError(f"resume={checkpoint}: {name} is {one} in the checkpoint and {other} in the model; "
                              f"{override_for_shell('init_from', checkpoint)} loads the tensors that fit")


def is_main_process() -> bool:
    """Whether this is the first process of the run, by the variables of torchrun, SLURM or Lightning's launcher."""
    return int(os.environ.get("RANK", os.environ.get("SLURM_PROCID", os.environ.get("LOCAL_RANK", 0)))) == 0
