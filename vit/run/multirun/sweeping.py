"""`-m`: a run per combination of values, then a table of means and deviations over the seeds of each setting."""

import contextlib
import csv
import json
import math
import pathlib
import shlex
import statistics
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field, replace

from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.types import Override
from omegaconf import DictConfig, OmegaConf

from vit.messages import number_of
from vit.run.config.composing import MODE, ConfigError, Prepared, compose, prepare_overrides, resolve
from vit.run.config.groups import with_names_of_globs
from vit.run.config.hydra_interface import CONFIG_ERRORS, PRIMARY, SEARCH_PATH, compose_with, explained
from vit.run.config.overrides import override_text, parse, shown, sweep
from vit.run.multirun.searching import GRID, check_direction, direction_overrides
from vit.run.processes.separate_process import STOPPED, train_in_new_process
from vit.training.monitoring.metric_direction import mode_of

HEADLINES = ("accuracy", "map", "exact_match", "loss")  # the first available one is in the table
SWEEP_FOLDER, RUN_FOLDERS = "hydra.sweep.dir", "hydra.sweep.subdir"
NUMBERED = "${hydra.job.num}"  # hydra.sweep.subdir of conf/train.yaml
FAILURES = "; hydra.sweeper.max_failure_rate=1 goes on with the next ones"
REPEATED = "seed"  # runs that differ only in it are repetitions of one setting


class FailedRun(RuntimeError):
    """A run of a search failed, or has no monitored metric; the sweeper decides whether the search goes on."""


@dataclass(frozen=True)
class SweptRun:
    """One run of a sweep; `settings` are the values of the keys that the sweep varies."""

    folder: str
    settings: dict[str, str]
    exit_code: int
    metrics: dict = field(default_factory=dict)

    @property
    def setting(self) -> dict[str, str]:
        """The settings without the seed."""
        return {key: value for key, value in self.settings.items() if key != REPEATED}


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
    parsed = parse(overrides, multirun=True)
    stated = {override.key_or_group: override.value() for override in parsed}
    prepared = prepare_sweep(jobs, parsed)
    hydra = hydra_of(jobs[0])
    sweeper = hydra.runtime.choices["hydra/sweeper"]
    searching = sweeper != GRID
    directions = direction_overrides(sweeper, stated, configs[0]) if "hydra/sweeper" in stated and searching else []
    if not directions:
        check_direction(hydra.sweeper, configs[0])
    folder, inside = folder_of_sweep(hydra, configs[0])
    if configs[0]["resume"] != "auto":
        check_unused(folder, hydra, 1 if searching else len(jobs))
    settings = [override_text(SWEEP_FOLDER, str(folder)), *([] if inside else [f"{RUN_FOLDERS}=."]), *directions]
    carried = [o.input_line for o in parsed if o.key_or_group in (PRIMARY, SEARCH_PATH)]
    carried += [f"{MODE}=RUN"] if prepared.multirun else []  # otherwise each run would be a sweep again
    total = len(jobs) if len(jobs) > 1 and not searching else None

    def run_one(config: DictConfig) -> float:
        return run_one_of_sweep(folder, inside, carried, total, searching)

    improved = configs[0]["callbacks"]["monitor"] if searching else None
    with gathered(folder, improved, FAILURES if "max_failure_rate" in hydra.sweeper else "") as codes:
        with_hydra(run_one, ["--multirun"], [*prepared.overrides, *settings], prepared.name)
    return max(codes)


@contextlib.contextmanager
def gathered(folder: pathlib.Path, improved: str | None = None, further: str = "") -> Iterator[list[int]]:
    """Context manager: at its end the records of the runs are collected in `sweep.json`, and their table is printed.
    Yields a list that then has their exit codes. A run that fails and ends a search is printed as an error.

    Args:
        improved: the metric that a search improved.
        further: how a search goes on after such a run.
    """
    codes: list[int] = []
    try:
        yield codes
    except FailedRun as error:
        codes += gather(folder, improved)
        print(f"error: {error}, which ended the search{further}", file=sys.stderr)
    except BaseException:  # a stop signal, or a sweeper without any result
        gather(folder, improved)
        raise
    else:
        codes += gather(folder, improved)


def check_unused(folder: pathlib.Path, hydra: DictConfig, runs: int) -> None:
    """Raises ConfigError if the folder of a sweep has runs of an earlier one, whose results it would replace."""
    if unresolved(hydra.sweep)["subdir"] != NUMBERED:
        return  # runs of other names may be added to it
    from vit.run.records.folder import RunFolder

    paths = (folder / str(number) for number in range(runs))
    found = next((path for path in paths if RunFolder(path, main=False).used), None)
    if found is not None:
        raise ConfigError(f"{shown(SWEEP_FOLDER, folder)}: {found} is of an earlier sweep; choose another folder, or "
                          "add resume=auto to continue a sweep that was stopped, with the same overrides")


def unresolved(node: DictConfig) -> dict:
    """A node with its interpolations as text."""
    return OmegaConf.to_container(node, resolve=False)


def hydra_of(job: list[str]) -> DictConfig:
    """Hydra's own node of the config of one run; interpolations refer to the whole config."""
    prepared = prepare_overrides(parse(job))
    return compose_with(prepared.overrides, prepared.name).hydra


def folder_of_sweep(hydra: DictConfig, config: dict) -> tuple[pathlib.Path, bool]:
    """`hydra.sweep.dir` with its interpolations resolved once, for all runs, and whether the runs are inside: they are
    if the command or a config sets it or `hydra.sweep.subdir`. Otherwise `runs/<name>/<time>_sweep`.

    Raises:
        ConfigError: an interpolation cannot be resolved.
    """
    from vit.run.records.folder import new_path

    try:
        own = hydra.sweep.dir
    except CONFIG_ERRORS as error:
        raise ConfigError(f"{SWEEP_FOLDER}: {explained(error)}") from None
    numbered = unresolved(hydra.sweep)["subdir"] == NUMBERED
    folder = pathlib.Path(own) if own else new_path({**config, "run_dir": None}, suffix="_sweep")
    return folder, bool(own) or not numbered


def prepare_sweep(jobs: list[list[str]], parsed: list[Override]) -> Prepared:
    """The overrides of the sweep for Hydra, with `++` for options of a model as in a single run."""
    prepared = prepare_overrides(parse(jobs[0]))
    first = parse(prepared.overrides)
    added = {override.key_or_group for override in first if override.input_line.startswith("++")}
    keys = {override.key_or_group for override in parsed}
    swept = (f"++{o.input_line.lstrip('+')}" if o.key_or_group in added else o.input_line
             for o in parsed if o.key_or_group != PRIMARY)
    return replace(prepared, overrides=[*(o.input_line for o in first if o.key_or_group not in keys), *swept])


def run_one_of_sweep(
    folder: pathlib.Path, inside: bool, carried: list[str], total: int | None, searching: bool = False
) -> float:
    """One run of a sweep, in its own process; returns the monitored metric of its best epoch, for the sweeper.

    Args:
        inside: whether the run folder is within that of the sweep.
        carried: overrides of Hydra's own settings that every run needs.
        total: number of runs of the sweep, if it is known.
        searching: whether a sweeper searches by the metric.

    Raises:
        SystemExit: the run was stopped by a signal, with its exit code.
        FailedRun: the run failed in a search. Otherwise its metric is NaN, and the sweep goes on.
    """
    from vit.files.strict_json import json_text
    from vit.run.records.folder import METRICS, new_path, read_metrics

    hydra = HydraConfig.get()
    origin, here = pathlib.Path(hydra.runtime.cwd), pathlib.Path.cwd()  # they differ with hydra.job.chdir
    overrides, number = [*hydra.overrides.task, *carried], int(hydra.job.num)
    name = str(number) if hydra.sweep.subdir == "." else str(hydra.sweep.subdir)
    print(f"\n[{number + 1}{f'/{total}' if total else ''}] {shlex.join(overrides)}", flush=True)
    config = resolve(compose(overrides))
    check_direction(hydra.sweeper, config)
    resumed = config["resume"] == "auto"
    named = config["run_dir"] or (None if resumed else config["resume"])
    if here != origin:
        folder, config["runs"] = origin / folder, str(origin / config["runs"])
    path = pathlib.Path(named or (folder / name if inside else unfinished(config, overrides) or new_path(config)))
    if resumed and is_finished(path, overrides):
        print(f"{path} is finished", flush=True)
        code = 0
    else:
        code = train_in_new_process(overrides if named else [*overrides, override_text("run_dir", str(path))])
    if code in STOPPED:
        raise SystemExit(code)
    has_metrics = code == 0 and (path.expanduser() / METRICS).is_file()  # a comparison has them in its runs
    metrics = read_metrics(path) if has_metrics else {}
    recorded = path if here == origin else here / path.expanduser()
    record = {"folder": str(recorded), "overrides": overrides, "exit_code": code, "metrics": metrics}
    (folder / f"job_{number}.json").write_text(json_text(record), encoding="utf-8")
    monitor = config["callbacks"]["monitor"]
    if searching and monitor not in metrics:
        raise FailedRun(f"run {number + 1} " + (f"failed with exit code {code}" if code else f"has no {monitor}"))
    return metrics.get(monitor, math.nan)


def unfinished(config: dict, overrides: list[str]) -> pathlib.Path | None:
    """The run that `resume=auto` continues, which is in no folder of a sweep; None without one."""
    if config["resume"] != "auto":
        return None
    from vit.run import resume  # loads torch

    return resume.find_resumable({**config, "overrides": resume.recorded(overrides)}, resume.to_record(overrides))


def is_finished(path: pathlib.Path, overrides: list[str]) -> bool:
    """Whether this is the folder of a finished run with these overrides."""
    from vit.run.records.folder import RunFolder

    if not RunFolder(path, main=False).finished:
        return False
    from vit.run import resume  # loads torch
    from vit.run.records.reading import read_config

    return read_config(path, overrides)["overrides"] == resume.recorded(overrides)


def gather(folder: pathlib.Path, improved: str | None = None) -> list[int]:
    """Collect the records of the runs in `sweep.json`, print their table, and return their exit codes. Without a record
    nothing is written.

    Args:
        improved: the metric that a search improved.
    """
    files = sorted(folder.glob("job_*.json"), key=lambda file: int(file.stem.removeprefix("job_")))
    if not files:
        return []
    records = [json.loads(file.read_text(encoding="utf-8")) for file in files]
    varied = settings_of([record["overrides"] for record in records])
    conclude([run for record, settings in zip(records, varied, strict=True) for run in swept_runs(record, settings)],
             folder, improved)
    for file in files:
        file.unlink()
    return [record["exit_code"] for record in records]


def swept_runs(record: dict, settings: dict[str, str]) -> list[SweptRun]:
    """The run of a record; of a comparison all of its runs, whose names are the setting `compare`."""
    from vit.run.records.folder import COMPARISON, read_metrics

    folder = pathlib.Path(record["folder"])
    if record["exit_code"] == 0 and (folder / COMPARISON).is_file():
        names = json.loads((folder / COMPARISON).read_text(encoding="utf-8"))["runs"]
        return [SweptRun(str(folder / name), settings | {"compare": name}, 0, read_metrics(folder / name))
                for name in names]
    return [SweptRun(record["folder"], settings, record["exit_code"], record["metrics"])]


def check_folders(configs: list[dict]) -> None:
    """Raises ConfigError if several runs would share a folder."""
    named = [config["run_dir"] for config in configs if config["run_dir"]]
    shared = next((path for path in named if named.count(path) > 1), None)
    if shared is not None:
        raise ConfigError(f"run_dir={shared}: {named.count(shared)} of the {number_of(len(configs), 'run')} of -m "
                          f"would share this folder; give {shown('runs', shared)} instead, below which each run has "
                          "its own folder")


def settings_of(jobs: list[list[str]]) -> list[dict[str, str]]:
    """For each job the values of the keys whose values differ between jobs."""
    values = [{override.key_or_group: override.input_line.partition("=")[2] for override in parse(overrides)}
              for overrides in jobs]
    keys = [key for key in values[0] if len({each.get(key) for each in values}) > 1]
    return [{key: each[key] for key in keys if key in each} for each in values]


def conclude(runs: list[SweptRun], folder: pathlib.Path, improved: str | None = None) -> None:
    """Write `sweep.json` and `sweep.csv` and print the table; that of a search has the best setting first."""
    from vit.files.strict_json import json_text

    rows = summary(runs) if improved is None else best_first(summary(runs), improved)
    folder.mkdir(parents=True, exist_ok=True)
    content = {"runs": [asdict(run) for run in runs], "settings": rows}
    (folder / "sweep.json").write_text(json_text(content) + "\n", encoding="utf-8")
    with open(folder / "sweep.csv", "w", newline="", encoding="utf-8") as file:
        lines = [{"run": run.folder, **run.settings, "exit_code": run.exit_code, **run.metrics} for run in runs]
        table = csv.DictWriter(file, list(dict.fromkeys(key for line in lines for key in line)))
        table.writeheader()
        table.writerows(lines)
    show(rows, folder, improved)


def best_first(rows: list[dict], metric: str) -> list[dict]:
    """The rows in the order of a metric; those without it last."""
    sign = -1 if mode_of(metric) == "max" else 1
    return sorted(rows, key=lambda row: sign * row["mean"].get(metric, sign * math.inf))


def summary(runs: list[SweptRun]) -> list[dict]:
    """For each setting: the number of runs and of failed ones, and the mean and sample deviation of each metric."""
    groups: dict[tuple, list[SweptRun]] = {}
    for run in runs:
        groups.setdefault(tuple(run.setting.items()), []).append(run)
    rows = []
    for setting, group in groups.items():
        finished = [run.metrics for run in group if run.metrics]
        names = [name for name in (finished[0] if finished else {}) if is_metric(name, finished)]
        values = {name: [each[name] for each in finished] for name in names}
        rows.append({
            "setting": dict(setting), "runs": len(group), "failed": sum(run.exit_code != 0 for run in group),
            "mean": {name: statistics.fmean(numbers) for name, numbers in values.items()},
            "deviation": {name: statistics.stdev(v) if len(v) > 1 else None for name, v in values.items()},
        })
    return rows


def is_metric(name: str, finished: list[dict]) -> bool:
    """Whether this is a metric of val or test that is a finite number in all finished runs."""
    numbers = [each.get(name) for each in finished]
    return name.startswith(("test/", "val/")) and all(
        isinstance(number, int | float) and math.isfinite(number) for number in numbers
    )


def show(rows: list[dict], folder: pathlib.Path, improved: str | None = None) -> None:
    """Print a row per setting: mean ± deviation of the first of `HEADLINES`, or of the metric that a search
    improved, because the test metric of a setting that was chosen by it would be optimistic.
    """
    from rich.box import SIMPLE_HEAD
    from rich.markup import escape
    from rich.table import Table

    from vit.run.console import console

    known = [name for row in rows for name in row["mean"]]
    preferred = (f"{split}/{name}" for name in HEADLINES for split in ("test", "val"))
    name = improved if improved in known else next((each for each in preferred if each in known), "")
    table = Table(box=SIMPLE_HEAD, title="Sweep", title_justify="left", title_style="bold")
    table.add_column("setting", overflow="fold")
    for heading in ("runs", name.replace("/", " ") or "result"):
        table.add_column(heading, justify="right")
    for row in rows:
        setting = ", ".join(f"{key}={value}" for key, value in row["setting"].items()) or "all"
        failed = f" ({row['failed']} failed)" if row["failed"] else ""
        table.add_row(escape(setting), f"{row['runs']}{failed}", mean_and_deviation(row, name))
    console.print(table)
    console.print(f"  {folder / 'sweep.json'}, sweep.csv", markup=False, highlight=False, soft_wrap=True)


def mean_and_deviation(row: dict, name: str) -> str:
    """`93.25 ± 1.10 %`; rates are in percent, losses are not."""
    if name not in row["mean"]:
        return "none"
    mean, deviation = row["mean"][name], row["deviation"][name]
    scale, unit = (1, "") if name.endswith("/loss") else (100, " %")
    digits = 4 if scale == 1 else 2
    plus_minus = "" if deviation is None else f" ± {deviation * scale:.{digits}f}"
    return f"{mean * scale:.{digits}f}{plus_minus}{unit}"
