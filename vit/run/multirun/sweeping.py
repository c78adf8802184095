"""`-m`: a run per combination of values, or a search by a sweeper, with Hydra's sweepers and launchers."""

import contextlib
import pathlib
import random
from collections.abc import Callable, Collection, Iterator

from hydra.core.override_parser.types import Override
from omegaconf import DictConfig, OmegaConf

from vit.files.credentials import masked
from vit.messages import number_of, override_for_shell
from vit.run.config.composing import (
    MODE,
    ConfigError,
    Prepared,
    compose,
    groups_of,
    prepare_overrides,
    resolve,
)
from vit.run.config.groups import is_group, with_names_of_globs
from vit.run.config.hydra_interface import (
    CONFIG_ERRORS,
    PRIMARY,
    SEARCH_PATH,
    compose_with,
    explained,
    is_hydra_key,
    search_path_of,
)
from vit.run.config.overrides import checked, override_text, parse, sweep
from vit.run.config.paths import check_paths_of_runs
from vit.run.console import print_line
from vit.run.multirun.continued_search import earlier_records, next_number
from vit.run.multirun.run_of_sweep import Sweep, run_one_of_sweep
from vit.run.multirun.searching import GRID, check_direction, direction_overrides
from vit.run.multirun.stopped_trials import repeated_if_stopped
from vit.run.multirun.stopping_together import StopTogether, starts_processes
from vit.run.multirun.sweep_results import gathered

SWEEP_FOLDER, RUN_FOLDERS = "hydra.sweep.dir", "hydra.sweep.subdir"
NUMBERED = "${hydra.job.num}"  # hydra.sweep.subdir of conf/train.yaml
SUFFIX = "_sweep"  # of the folder of a sweep in runs/<name>
MULTIRUN = "multirun.yaml"  # which Hydra writes before the first run
LOCAL = ("basic", "joblib")  # launchers on this machine, whose files the runs read
FAILURES = "; hydra.sweeper.max_failure_rate=1 goes on with the next ones"


def sweep_with(overrides: list[str], with_hydra: Callable[..., None]) -> int:
    """Run Hydra's sweeper and launcher with a process per run; returns the highest of their exit codes.

    The results are collected in the folder of the sweep, `hydra.sweep.dir`, also if it is stopped or a search ends with
    a run that fails.

    Raises:
        ConfigError: an invalid override of any run, before the first one starts.
    """
    overrides = with_names_of_globs(overrides)
    jobs = sweep(overrides)
    configs = [resolve(compose(job)) for job in jobs]  # checks all of them before the first one starts
    check_folders(configs)
    check_optimizers(configs)
    parsed = parse(overrides, multirun=True)
    first = prepare_overrides(parse(jobs[0]))
    hydra = compose_with(first.overrides, first.name).hydra
    settings = directions_of_search(hydra, parsed, configs[0])
    own = stated_folder(hydra)
    if hydra.runtime.choices["hydra/launcher"] in LOCAL:
        check_paths_of_runs(configs, [own] if own else [])
    shared = plan_sweep(hydra, parsed, first, configs[0], len(jobs))
    settings += [override_text(SWEEP_FOLDER, str(shared.folder)), *([] if shared.inside else [f"{RUN_FOLDERS}=."])]

    def run_one(_: DictConfig) -> float:
        return run_one_of_sweep(shared)

    improved = configs[0]["callbacks"]["monitor"] if shared.searching else None
    further = FAILURES if "max_failure_rate" in hydra.sweeper else ""
    earlier = earlier_records(shared.folder, jobs[0]) if shared.begin else []
    stop = shared.together.handled() if shared.together else contextlib.nullcontext()
    order = contextlib.nullcontext() if shared.searching else repeatable_order()
    try:
        with (gathered(shared.folder, improved, further, earlier, swept_keys(hydra, parsed)) as codes, stop, order,
              repeated_if_stopped(hydra.sweeper, shared.folder if shared.begin else None), saved_without_credentials()):
            lines = overrides_of_sweep(first.overrides, parsed, shared.forced)
            with_hydra(run_one, ["--multirun"], [*shared.defaults, *lines, *settings], first.name)
    except SystemExit:  # by a stop signal
        print_line(how_to_continue(shared.folder, shared.inside))
        raise
    return max(codes)


def plan_sweep(hydra: DictConfig, parsed: list[Override], first: Prepared, config: dict, jobs: int) -> Sweep:
    """What the runs share. A new sweep beside an earlier one prints how that one would be continued.

    Args:
        parsed: overrides of the command.
        first, config: overrides and config of the first run.
        jobs: number of combinations of values.

    Raises:
        ConfigError: the folder of the sweep has runs of an earlier one.
    """
    searching, resuming = hydra.runtime.choices["hydra/sweeper"] != GRID, config["resume"] == "auto"
    folder, inside = folder_of_sweep(hydra, config)
    if not resuming:
        check_unused(folder, hydra, 1 if searching else jobs)
    if not inside and not searching and (earlier := earlier_sweep(folder)):
        print_line(remark_on_earlier(earlier, resuming))
    carried = [o.input_line for o in parsed if o.key_or_group in (PRIMARY, SEARCH_PATH)]
    carried += [f"{MODE}=RUN"] if first.multirun else []  # otherwise each run would be a sweep again
    continued = searching and inside and resuming and is_numbered(hydra)
    return Sweep(
        folder,
        inside,
        carried,
        total=jobs if jobs > 1 and not searching else None,
        searching=searching,
        together=StopTogether(folder.absolute()) if starts_processes(hydra.launcher) else None,
        begin=next_number(folder) if continued else 0,
        defaults=defaults_of_first(first.overrides, parsed),
        forced=keys_of_swept_groups(parsed, first.name),
    )


@contextlib.contextmanager
def repeatable_order() -> Iterator[None]:
    """Context manager: Hydra's `shuffle(...)` has the same order in each command, so that one with `resume=auto` gives
    each run the number, and thereby the folder, of the command that was stopped.
    """
    state = random.getstate()
    random.seed(0)
    try:
        yield
    finally:
        random.setstate(state)


def swept_keys(hydra: DictConfig, parsed: list[Override]) -> set[str]:
    """The keys of which the command, or the sweeper of a config in its `params`, states several values."""
    overrides = list(parsed)
    for key, value in (hydra.sweeper.get("params") or {}).items():
        with contextlib.suppress(ConfigError):  # a plugin may have another syntax
            overrides += parse([f"{key}={value}"], multirun=True)
    return {override.key_or_group for override in overrides if override.is_sweep_override()}


def earlier_sweep(folder: pathlib.Path) -> pathlib.Path | None:
    """The newest sweep with runs beside a new one in `runs/<name>`; None without one."""
    others = (path for path in folder.parent.glob(f"*{SUFFIX}") if path.name != folder.name)
    with_runs = (path for path in others if {file.name for file in path.iterdir()} - {MULTIRUN})
    return max(with_runs, default=None)


def remark_on_earlier(earlier: pathlib.Path, resuming: bool) -> str:
    """The line of a sweep that does not continue the earlier one, with the command that would."""
    runs = "finished runs" if resuming else "runs"
    return (f"{earlier} is an earlier sweep, whose {runs} this one does not reuse; with {SWEEP_FOLDER}=DIR from the "
            "start, the same command with resume=auto continues a sweep")


@contextlib.contextmanager
def saved_without_credentials() -> Iterator[None]:
    """Context manager: OmegaConf, with which Hydra writes `multirun.yaml` of a sweep, saves `***` for credentials."""
    save = OmegaConf.save

    def save_masked(config: object, f: object, resolve: bool = False) -> None:
        plain = OmegaConf.to_container(config, resolve=resolve) if OmegaConf.is_config(config) else config
        hidden = masked(plain)
        if hidden == plain:
            save(config, f, resolve)
            return
        if "hydra" in hidden:
            hidden["hydra"]["job"]["override_dirname"] = ",".join(hidden["hydra"]["overrides"]["task"])
        save(OmegaConf.create(hidden), f)

    OmegaConf.save = staticmethod(save_masked)
    try:
        yield
    finally:
        OmegaConf.save = staticmethod(save)


def how_to_continue(folder: pathlib.Path, inside: bool) -> str:
    """What the user of a stopped sweep can do, beside resuming the run that was stopped alone."""
    if inside:
        return f"Continue the sweep: the same command with {override_for_shell(SWEEP_FOLDER, folder)} resume=auto"
    return (f"Continue the sweep: the same command with resume=auto; finished runs are trained again, unless "
            f"{SWEEP_FOLDER}=DIR names a folder from the start")


def directions_of_search(hydra: DictConfig, parsed: list[Override], config: dict) -> list[str]:
    """The override of the direction of a sweeper that the command selects; that of one in a config is only checked.

    Raises:
        ConfigError: the search would make the monitored metric worse.
    """
    stated = {override.key_or_group: override.value() for override in parsed}
    sweeper = hydra.runtime.choices["hydra/sweeper"]
    directions = direction_overrides(sweeper, stated, config) if "hydra/sweeper" in stated else []
    if not directions:
        check_direction(hydra.sweeper, config)
    return directions


def check_optimizers(configs: list[dict]) -> None:
    """Raises ConfigError if the runs have different optimizers and one of them does not exist."""
    names = {each["recipe"]["optimizer"].get("name") for each in configs}
    if len(names) == 1:  # each run reports it before it reads the data
        return
    from vit.training.optimization.optim import check_name  # loads torch

    for name in sorted(filter(None, names)):
        checked("recipe.optimizer", check_name, name)


def check_folders(configs: list[dict]) -> None:
    """Raises ConfigError if several runs would share a folder."""
    named = [config["run_dir"] for config in configs if config["run_dir"]]
    shared = next((path for path in named if named.count(path) > 1), None)
    if shared is not None:
        raise ConfigError(f"run_dir={shared}: {named.count(shared)} of the {number_of(len(configs), 'run')} of -m "
                          f"would share this folder; give {override_for_shell('runs', shared)} instead, below which "
                          "each run has its own folder")


def defaults_of_first(prepared: list[str], parsed: list[Override]) -> list[str]:
    """The overrides that the first run has beside those of the command, such as `model=pretrained` for `init_from`.

    Args:
        prepared: those of the first run, as `prepare_overrides` returns them.
        parsed: those of the command.
    """
    keys = {override.key_or_group for override in parsed}
    return [override.input_line for override in parse(prepared) if override.key_or_group not in keys]


def keys_of_swept_groups(parsed: list[Override], name: str) -> set[str]:
    """The keys with one value that only options of the swept groups have, such as `data.root` of `data=folder,mnist`.

    Hydra composes the config also without the swept overrides, and would not find these keys.

    Args:
        parsed: overrides of the command.
        name: name of the primary config.
    """
    search = search_path_of(parsed)
    groups = [override for override in parsed if is_group(override.key_or_group, search)]
    fixed = [override.input_line for override in groups if not override.is_sweep_override()]
    if len(fixed) == len(groups):
        return set()
    known = groups_of([*search, *fixed], name).keys
    return {override.key_or_group for override in parsed if override not in groups
            and not (override.is_sweep_override() or is_hydra_key(override.key_or_group))} - known.keys()


def overrides_of_sweep(prepared: list[str], parsed: list[Override], forced: Collection[str] = ()) -> list[str]:
    """The overrides of the command for Hydra, with `++` for options of a model as in a single run.

    Args:
        prepared, parsed: as for `defaults_of_first`.
        forced: further keys with `++`.
    """
    added = {*forced, *(override.key_or_group for override in parse(prepared) if override.input_line[:2] == "++")}
    return [f"++{o.input_line.lstrip('+')}" if o.key_or_group in added else o.input_line
            for o in parsed if o.key_or_group != PRIMARY]


def folder_of_sweep(hydra: DictConfig, config: dict) -> tuple[pathlib.Path, bool]:
    """`hydra.sweep.dir` with its interpolations resolved once, for all runs, and whether the runs are inside: they are
    if the command or a config sets it or `hydra.sweep.subdir`. Otherwise `runs/<name>/<time>_sweep`.

    Raises:
        ConfigError: an interpolation cannot be resolved.
    """
    from vit.run.records.folder import new_path

    own = stated_folder(hydra)
    return own or new_path({**config, "run_dir": None}, suffix=SUFFIX), own is not None or not is_numbered(hydra)


def stated_folder(hydra: DictConfig) -> pathlib.Path | None:
    """`hydra.sweep.dir`; None if it is not set.

    Raises:
        ConfigError: an interpolation cannot be resolved.
    """
    try:
        own = hydra.sweep.dir
    except CONFIG_ERRORS as error:
        raise ConfigError(f"{SWEEP_FOLDER}: {explained(error)}") from None
    return pathlib.Path(own).expanduser() if own else None


def check_unused(folder: pathlib.Path, hydra: DictConfig, runs: int) -> None:
    """Raises ConfigError if the folder of a sweep has runs of an earlier one, whose results it would replace."""
    if not is_numbered(hydra):
        return  # runs of other names may be added to it
    from vit.run.records.folder import RunFolder

    paths = (folder / str(number) for number in range(runs))
    found = next((path for path in paths if RunFolder(path, main=False).used), None)
    if found is not None:
        raise ConfigError(f"{override_for_shell(SWEEP_FOLDER, folder)}: {found} is of an earlier sweep; choose another "
                          "folder, or add resume=auto to continue a sweep that was stopped, with the same overrides")


def is_numbered(hydra: DictConfig) -> bool:
    """Whether `hydra.sweep.subdir` is that of conf/train.yaml, the number of the run."""
    return OmegaConf.to_container(hydra.sweep, resolve=False)["subdir"] == NUMBERED
