"""One run of a sweep, in its own process."""

import math
import shlex
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from hydra.conf import JobConf
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser

from vit.exchange.private_paths import PATH_KEYS
from vit.files.credentials import masked
from vit.run.config.composing import compose, paths_of_origin, prepare_overrides, resolve
from vit.run.config.overrides import key_of, override_text, parse, path_override
from vit.run.console import print_line
from vit.run.multirun.continued_search import run_with
from vit.run.multirun.searching import check_direction
from vit.run.multirun.stopping_together import StopTogether
from vit.run.multirun.sweep_results import FailedRun, write_record
from vit.run.processes.separate_process import STOPPED, train_in_new_process

POLL = 0.5  # seconds


@dataclass(frozen=True)
class Sweep:
    """What the runs of a sweep share.

    Args:
        folder: the folder of the sweep.
        inside: whether the run folders are within it.
        carried: overrides of Hydra's own settings, which are passed on to every run.
        total: number of runs, if it is known.
        searching: whether a sweeper searches by the metric.
        together: the stop of all runs, if the launcher starts several at the same time.
        begin: number of the first new folder of a search that continues an earlier one; 0 for other sweeps.
        defaults: overrides beside those of the command that its first run needs, such as `model=pretrained` for
            `init_from`; Hydra passes them to all runs.
        forced: keys whose overrides Hydra was given with `++`, which the run itself does not need.
    """

    folder: Path
    inside: bool
    carried: list[str]
    total: int | None
    searching: bool = False
    together: StopTogether | None = None
    begin: int = 0
    defaults: Sequence[str] = ()
    forced: Collection[str] = ()

    def name_of(self, job: JobConf, subdir: str) -> str:
        """The name of the run folder, within that of the sweep."""
        if self.begin:
            return str(job.num + self.begin)
        return str(job.num) if subdir == "." else subdir


def run_one_of_sweep(sweep: Sweep) -> float:
    """One run of a sweep, in its own process; returns the monitored metric of its best epoch, for the sweeper.

    Raises:
        SystemExit: the run was stopped by a signal, with its exit code.
        FailedRun: the run failed in a search. Otherwise its metric is NaN, and the sweep goes on.
    """
    from vit.run.records.folder import METRICS
    from vit.run.records.reading import read_metrics

    hydra = HydraConfig.get()
    origin, here = Path(hydra.runtime.cwd), Path.cwd()  # they differ with hydra.job.chdir
    overrides, number = own_overrides([*hydra.overrides.task, *sweep.carried], sweep), int(hydra.job.num)
    print_line(f"\n[{number + 1}{f'/{sweep.total}' if sweep.total else ''}] {shlex.join(masked(overrides))}")
    if here != origin:
        overrides += paths_of_origin(compose(overrides), str(origin))
    config = resolve(compose(overrides))
    check_direction(hydra.sweeper, config)
    if here != origin:
        sweep, config["runs"] = replace(sweep, folder=origin / sweep.folder), str(origin / config["runs"])
    path = folder_of_command(config)
    if path is None:
        path = folder_of_run(sweep, sweep.name_of(hydra.job, str(hydra.sweep.subdir)), config, overrides)
    code = train_unless_finished(path, overrides, config, sweep.together, number)
    if code in STOPPED:
        raise SystemExit(code)
    has_metrics = code == 0 and (path.expanduser() / METRICS).is_file()  # a comparison has them in its runs
    metrics = read_metrics(path) if has_metrics else {}
    recorded = path if here == origin else here / path.expanduser()
    write_record(sweep.folder, number, {"folder": str(recorded), "overrides": masked(overrides),
                                        "exit_code": code, "metrics": metrics})
    monitor = config["callbacks"]["monitor"]
    if sweep.searching and monitor not in metrics:
        raise FailedRun(f"run {number + 1} " + (f"failed with exit code {code}" if code else f"has no {monitor}"))
    return metrics.get(monitor, math.nan)


def own_overrides(overrides: list[str], sweep: Sweep) -> list[str]:
    """The overrides of a run as it has them alone: without `++`, with literal paths, and without the defaults of the
    first run that do not apply to it, such as `model=pretrained` where `init_from` is null.
    """
    overrides = [each.removeprefix("++") if key_of(each) in sweep.forced else each for each in overrides]
    overrides = [with_literal_path(each) for each in overrides]
    if not sweep.defaults:
        return overrides
    own = prepare_overrides(parse([each for each in overrides if each not in sweep.defaults])).overrides
    return [each for each in overrides if each not in sweep.defaults or each in own]


def with_literal_path(override: str) -> str:
    """An override of a sweeper, which escapes colons, spaces and backslashes; they are characters of a path."""
    key, _, value = override.partition("=")
    if key.lstrip("+") not in PATH_KEYS or "\\" not in value or value.startswith(("'", '"')):
        return override
    return path_override(key, OverridesParser.create().parse_override(override).value())


def wait_until_unused(path: Path, together: StopTogether | None = None) -> None:
    """Wait until no other process trains in the folder of a run, such as a run that is saving its state because its
    sweep was killed. That run has the same overrides, so this sweep then continues it or uses its result.

    Raises:
        SystemExit: this sweep is being stopped.
    """
    from vit.run.records.folder import RunFolder

    folder = RunFolder(path, main=False)
    if folder.in_use:
        print_line(f"{path} is in use: another process trains this run; waiting until it has ended")
    while folder.in_use:
        if together is not None and (signum := together.requested()):
            raise SystemExit(128 + signum)
        time.sleep(POLL)


def folder_of_run(sweep: Sweep, name: str, config: dict, overrides: list[str]) -> Path:
    """The folder of a run for which the command names none: if the sweep is continued, the folder of an earlier run
    with these overrides; otherwise a new folder.
    """
    from vit.run.records.folder import new_path

    if sweep.begin and (found := run_with(sweep.folder, overrides)):
        return found
    if sweep.inside:
        return sweep.folder / name
    return unfinished(config, overrides) or new_path(config)


def train_unless_finished(
    path: Path, overrides: list[str], config: dict, together: StopTogether | None, number: int
) -> int:
    """The exit code of the run in this folder; 0 at once if `resume=auto` finds it finished.

    Raises:
        SystemExit: as `wait_until_unused`.
    """
    if config["resume"] == "auto":
        wait_until_unused(path, together)
        if is_finished(path, overrides):
            print_line(f"{path} is finished")
            return 0
    if folder_of_command(config) is None:
        overrides = [*overrides, override_text("run_dir", str(path))]
    return train_beside_others(overrides, together, number) if together else train_in_new_process(overrides)


def train_beside_others(overrides: list[str], together: StopTogether, number: int) -> int:
    """The exit code of a run beside others; if it was stopped, all of them have saved their state."""
    with together.one_run(number):
        code = train_in_new_process(overrides, together.requested)
    if code in STOPPED:
        together.request(STOPPED[code])
        together.wait()
    return code


def folder_of_command(config: dict) -> Path | None:
    """The folder of the run or checkpoint that `resume` names, else `run_dir`; None where the sweep chooses it."""
    resumed = Path(config["resume"]) if config["resume"] and config["resume"] != "auto" else None
    if resumed is not None:
        return resumed.parent.parent if resumed.is_file() else resumed
    return Path(config["run_dir"]) if config["run_dir"] else None


def unfinished(config: dict, overrides: list[str]) -> Path | None:
    """The run that `resume=auto` continues, which is in no folder of a sweep; None without one."""
    if config["resume"] != "auto":
        return None
    from vit.run import resume  # loads torch

    return resume.find_resumable({**config, "overrides": resume.recorded(overrides)}, resume.to_record(overrides))


def is_finished(path: Path, overrides: list[str]) -> bool:
    """Whether this is the folder of a finished run with these overrides."""
    from vit.run.records.folder import RunFolder

    if not RunFolder(path, main=False).finished:
        return False
    from vit.run import resume  # loads torch
    from vit.run.changes_on_resuming import of_same_run
    from vit.run.records.reading import read_config

    return of_same_run(read_config(path, overrides)["overrides"], resume.recorded(overrides))
