"""The plan of a comparison: its runs with their overrides, recorded in `comparison.yaml`, of a new or a stopped one."""

import logging
import pathlib

import yaml

from vit.files.atomic import write_atomically
from vit.files.credentials import HIDDEN, is_masked, masked, masked_keys, masked_override
from vit.messages import number_of, override_for_shell
from vit.run.changes_on_resuming import CONTROL
from vit.run.config.composing import ConfigError, compose, resolve
from vit.run.config.credential_checks import check_credentials
from vit.run.config.hydra_interface import hydra_overrides
from vit.run.config.needed_keys import check_complete
from vit.run.config.overrides import parse
from vit.run.config.paths import check_paths_of_runs
from vit.run.config.targets import TARGET, check_stored
from vit.run.records.folder import COMPARISON, check_contents, new_path
from vit.run.records.members import CROSS_VALIDATION
from vit.run.records.reading import read_stored
from vit.run.resume import to_record

log = logging.getLogger("vit")

METRICS = ("accuracy", "map", "exact_match")  # runs are compared by the first one that all of them have
METRICS_OF_TASKS = {"classification": {"accuracy", "map"}, "text_classification": {"accuracy"},
                    "seq2seq": {"exact_match"}}
NOT_COMPARABLE = f"the runs cannot be compared: none of {', '.join(METRICS)} is a metric of all of them"
PLAN = "comparison.yaml"
RESULTS = {"train": COMPARISON, "compare-finetuning": COMPARISON, "cross-validate": CROSS_VALIDATION}  # the last file


def is_comparison(folder: str | pathlib.Path) -> bool:
    """Whether this is the folder of a comparison, which can be resumed."""
    return (pathlib.Path(folder) / PLAN).exists()


def find_plan(config: dict, overrides: list[str], resumed_by: str = "train") -> tuple[pathlib.Path, dict]:
    """Folder and plan of a comparison: of a stopped one that is resumed, or of a new one.

    Args:
        resumed_by: the command that resumes it.

    Raises:
        ConfigError: fewer than two runs, an invalid override in any of them, tasks that have no metric in common, or a
            folder that is used already.
    """
    settings, recorded = hydra_overrides(overrides), to_record(overrides)
    folder = find_stopped(config, recorded, resumed_by)
    if folder is not None:
        plan = read_plan(folder)
        check_plan(plan, folder, overrides)
        plan["runs"] = {name: with_credentials(each, recorded, folder) for name, each in plan["runs"].items()}
        for override in recorded:
            known = masked_override(override) in masked(plan["overrides"])
            if not known and TARGET not in override:  # a target is stated as trusted
                log.warning("%s has no effect: %s is resumed with the overrides that it was started with", override,
                            folder)
        return folder, plan
    runs = {
        name: [*recorded, *own, "compare=null", f"name={config['name']}/{name}"]
        for name, own in config["compare"].items()
        if own is not None
    }
    if len(runs) < 2:
        raise ConfigError(f"compare has {number_of(len(runs), 'run')}, but needs 2 or more: each a name with a list of "
                          "overrides")
    different = list(runs.values())
    if RESULTS[resumed_by] == CROSS_VALIDATION:  # hundreds of folds, which differ in checked values only
        different = different[:1]
    configs = [resolve(compose([*each, *settings])) for each in different]
    for each in configs:
        check_complete(each)
    tasks = [each["task"]["name"] for each in configs]
    if not set.intersection(*(METRICS_OF_TASKS.get(task, set()) for task in tasks)):
        raise ConfigError(f"{NOT_COMPARABLE} (task={', '.join(dict.fromkeys(tasks))})")
    check_paths_of_runs(configs, [config["run_dir"]] if config["run_dir"] else [])
    folder = new_path(config)
    if (folder / PLAN).exists():
        raise ConfigError(
            f"run_dir={folder} already contains a comparison; {override_for_shell('resume', folder)} resumes it, or "
            "choose another run_dir"
        )
    plan = {"name": config["name"], "overrides": recorded, "runs": runs}
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(folder / PLAN, yaml.safe_dump(masked(plan), sort_keys=False).encode())
    return folder, plan


def with_credentials(recorded: list[str], overrides: list[str], folder: pathlib.Path) -> list[str]:
    """The recorded overrides of a run, in which those with masked credentials are those of this command.

    Raises:
        ConfigError: this command does not give them.
    """
    given = {each.key_or_group: each.input_line for each in parse(overrides)}
    found = []
    for each in parse(recorded):
        line = each.input_line
        if masked_keys(each.value()) or is_masked(each.value()):
            check_credentials({} if each.key_or_group in given else {each.key_or_group: HIDDEN}, folder)
            line = given[each.key_or_group]
        found.append(line)
    return found


def find_stopped(config: dict, overrides: list[str], resumed_by: str = "train") -> pathlib.Path | None:
    """The comparison that `resume` names; for `auto` that in `run_dir`, or the newest unfinished one.

    Args:
        resumed_by: the command that resumes it; a cross-validation is finished later than the comparison of its runs.

    Raises:
        ConfigError: the named folder has no comparison.
    """
    if config["resume"] is None:
        return None
    if config["resume"] != "auto":
        folder = pathlib.Path(config["resume"])
        if not (folder / PLAN).exists():
            raise ConfigError(f"resume={folder}: no {PLAN} there, so no comparison to resume")
        return folder
    if config["run_dir"]:
        folder = pathlib.Path(config["run_dir"])
        return folder if (folder / PLAN).exists() else None
    plans = sorted((pathlib.Path(config["runs"]) / config["name"]).glob(f"*/{PLAN}"), reverse=True)
    unfinished = (plan.parent for plan in plans if not (plan.parent / RESULTS[resumed_by]).exists())
    of_folds = RESULTS[resumed_by] == CROSS_VALIDATION
    return next((folder for folder in unfinished if is_plan_of(folder, overrides, of_folds)), None)


def is_plan_of(folder: pathlib.Path, overrides: list[str], of_folds: bool) -> bool:
    """Whether a comparison was started with these overrides; a plan that cannot be read is logged, and is not.

    Args:
        of_folds: it must also be one of the folds of a cross-validation.
    """
    try:
        plan = read_plan(folder)
    except ConfigError as error:
        log.warning("resume=auto skips %s: %s", folder, error)
        return False
    folds = all(any(each.startswith("data.fold=") for each in run) for run in plan["runs"].values())
    return masked(plan["overrides"]) == masked(overrides) and (folds or not of_folds)


def read_plan(folder: pathlib.Path) -> dict:
    """The stored plan of a comparison.

    Raises:
        ConfigError: it cannot be read, or is not a plan.
    """
    plan = read_stored(folder / PLAN)
    runs = plan.get("runs")
    lists = [plan.get("overrides"), *(runs.values() if isinstance(runs, dict) else [None])]
    if not all(isinstance(each, list) and all(isinstance(item, str) for item in each) for each in lists):
        raise ConfigError(f"{folder / PLAN} is not the plan of a comparison: its overrides and runs must be lists of "
                          "overrides")
    return plan


def check_plan(plan: dict, folder: pathlib.Path, overrides: list[str]) -> None:
    """Checks a stored plan, which may come from a third party: its runs are within its folder, and their targets are
    those that `check_stored` allows.

    Raises:
        ConfigError: names the run and the override.
    """
    check_contents(folder)
    for name, stored in plan["runs"].items():
        if not isinstance(name, str) or pathlib.PurePath(name).name != name or name == "..":
            raise ConfigError(f"{folder / PLAN}: the run {name!r} would be outside {folder}; its name must be the name "
                              "of a folder")
        refused = [override.input_line for override in parse(stored) if override.key_or_group in CONTROL]
        for override in [*refused, *hydra_overrides(stored)]:
            raise ConfigError(f"{folder / PLAN}: the run {name} may not set {override}")
        check_stored(resolve(compose([*stored, *hydra_overrides(overrides)], strict=False)), folder / PLAN, overrides)
