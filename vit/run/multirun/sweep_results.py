"""The results of a sweep: `sweep.json`, `sweep.csv` and a table of mean and deviation over the seeds."""

import contextlib
import csv
import io
import json
import math
import pathlib
import statistics
import sys
from collections.abc import Container, Iterator, Sequence
from dataclasses import asdict, dataclass, field

from vit.files.atomic import remove_stale_files, write_atomically
from vit.run.config.overrides import parse
from vit.training.monitoring.metric_direction import mode_of

HEADLINES = ("accuracy", "map", "exact_match", "loss")  # the first available one is in the table
RECORD = ".sweep_run_{}.json"  # a file per run, until the sweep ends
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


@contextlib.contextmanager
def gathered(
    folder: pathlib.Path, improved: str | None = None, further: str = "", earlier: Sequence[dict] = (),
    swept: Container[str] = (),
) -> Iterator[list[int]]:
    """Context manager: at its end the records of the runs are collected in `sweep.json`, and their table is printed.
    Yields a list that then has their exit codes. A run that fails and ends a search is printed as an error, with exit
    code 1 if the run itself has none.

    Args:
        improved: the metric that a search improved.
        further: how a search goes on after such a run.
        earlier: records of runs in this folder that a search continues.
        swept: the keys that the sweep varies.
    """
    remove_records(folder)
    codes: list[int] = []
    failure = None
    try:
        yield codes
    except FailedRun as error:
        failure = error
    finally:  # also after a stop signal, and for a sweeper without any result
        codes += gather(folder, improved, earlier, swept)
    if failure is not None:
        print(f"error: {failure}, which ended the search{further}", file=sys.stderr)
        codes += [] if any(codes) else [1]


def write_record(folder: pathlib.Path, number: int, record: dict) -> None:
    """Write what `gather` reads of one run: its `folder`, `overrides`, `exit_code` and `metrics`."""
    from vit.files.strict_json import json_text

    write_atomically(folder / RECORD.format(number), json_text(record).encode())


def remove_records(folder: pathlib.Path) -> None:
    """Remove the records of the runs, also those of a sweep in the same folder that was killed."""
    remove_stale_files(folder)
    for file in records_in(folder):
        file.unlink()


def records_in(folder: pathlib.Path) -> list[pathlib.Path]:
    """The records of the runs, in the order of their numbers."""
    return sorted(folder.glob(RECORD.format("*")), key=lambda file: int(file.stem.rpartition("_")[2]))


def gather(folder: pathlib.Path, improved: str | None = None, earlier: Sequence[dict] = (),
           swept: Container[str] = ()) -> list[int]:
    """Collect the records of the runs in `sweep.json`, print their table, and return their exit codes. Without a record
    nothing is written.

    Args:
        improved: the metric that a search improved.
        earlier: records of runs in this folder that a search continues.
        swept: the keys that the sweep varies.
    """
    records = [json.loads(file.read_text(encoding="utf-8")) for file in records_in(folder)]
    if not records:
        return []
    again = {record["folder"] for record in records}
    shown = [*(record for record in earlier if record["folder"] not in again), *records]
    varied = settings_of([record["overrides"] for record in shown], swept)
    write_results([run for record, settings in zip(shown, varied, strict=True) for run in swept_runs(record, settings)],
             folder, improved)
    remove_records(folder)
    return [record["exit_code"] for record in records]


def swept_runs(record: dict, settings: dict[str, str]) -> list[SweptRun]:
    """The run of a record; of a comparison all of its runs, whose names are the setting `compare`."""
    from vit.run.records.folder import COMPARISON
    from vit.run.records.reading import read_metrics

    folder = pathlib.Path(record["folder"])
    if record["exit_code"] == 0 and (folder / COMPARISON).is_file():
        names = json.loads((folder / COMPARISON).read_text(encoding="utf-8"))["runs"]
        return [SweptRun(str(folder / name), settings | {"compare": name}, 0, read_metrics(folder / name))
                for name in names]
    return [SweptRun(record["folder"], settings, record["exit_code"], record["metrics"])]


def settings_of(jobs: list[list[str]], swept: Container[str] = ()) -> list[dict[str, str]]:
    """For each job the values of the swept keys, and of those whose values differ between jobs."""
    values = [{override.key_or_group: override.input_line.partition("=")[2] for override in parse(overrides)}
              for overrides in jobs]
    keys = [key for key in values[0] if key in swept or len({each.get(key) for each in values}) > 1]
    return [{key: each[key] for key in keys if key in each} for each in values]


def write_results(runs: list[SweptRun], folder: pathlib.Path, improved: str | None = None) -> None:
    """Write `sweep.json` and `sweep.csv` and print the table; that of a search has the best setting first."""
    from vit.files.strict_json import json_text

    rows = summary(runs) if improved is None else best_first(summary(runs), improved)
    folder.mkdir(parents=True, exist_ok=True)
    content = {"runs": [asdict(run) for run in runs], "settings": rows}
    lines = [{"run": run.folder, **run.settings, "exit_code": run.exit_code, **run.metrics} for run in runs]
    write_atomically(folder / "sweep.json", f"{json_text(content)}\n".encode())
    write_atomically(folder / "sweep.csv", table_text(lines).encode())
    print_results(rows, folder, improved)


def table_text(rows: Sequence[dict]) -> str:
    """Rows as CSV, with the columns of all of them."""
    text = io.StringIO(newline="")
    table = csv.DictWriter(text, list(dict.fromkeys(key for row in rows for key in row)))
    table.writeheader()
    table.writerows(rows)
    return text.getvalue()


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


def print_results(rows: list[dict], folder: pathlib.Path, improved: str | None = None) -> None:
    """Print a row per setting: mean ± deviation of the first metric of `HEADLINES` that the runs have. For a search it
    is the metric that the search improved, because a test metric by which settings were chosen would be optimistic.
    """
    from rich.box import SIMPLE_HEAD
    from rich.markup import escape
    from rich.table import Table

    from vit.run.console import console, print_line

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
    print_line(f"  {folder / 'sweep.json'}, sweep.csv")


def mean_and_deviation(row: dict, name: str) -> str:
    """`93.25 ± 1.10 %`; rates are in percent, losses and perplexity are not."""
    if name not in row["mean"]:
        return "none"
    mean, deviation = row["mean"][name], row["deviation"][name]
    scale, unit = (1, "") if name.endswith(("/loss", "/perplexity")) else (100, " %")
    digits = 4 if scale == 1 else 2
    plus_minus = "" if deviation is None else f" ± {deviation * scale:.{digits}f}"
    return f"{mean * scale:.{digits}f}{plus_minus}{unit}"
