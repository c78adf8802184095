"""`-m`: one run per combination of values, then a table of means and deviations over the runs of equal settings."""

import csv
import json
import math
import pathlib
import shlex
import statistics
from dataclasses import asdict, dataclass, field

from vit.launch.apart import STOPPED, train_apart
from vit.launch.composing import ConfigError, compose, plain
from vit.launch.overrides import parse, shown, word

HEADLINES = ("accuracy", "map", "exact_match", "loss")  # the first that there is stands in the table
REPEATED = "seed"  # runs that differ in nothing else are repetitions of one setting


@dataclass(frozen=True)
class SweptRun:
    """One run of a sweep; `settings` are the values of the keys that the sweep varies."""

    folder: str
    settings: dict[str, str]
    exit_code: int
    metrics: dict = field(default_factory=dict)

    @property
    def setting(self) -> dict[str, str]:
        """Its settings but for the seed."""
        return {key: value for key, value in self.settings.items() if key != REPEATED}


def run_each(jobs: list[list[str]]) -> int:
    """One run after the other, each a process of its own; the worst of their exit codes."""
    from vit.launch.folder import new_path

    configs = [plain(compose(words)) for words in jobs]  # a wrong override in any of them is an error before the first
    check_folders(configs)
    varied, done, worst = settings_of(jobs), [], 0
    folder = new_path({**configs[0], "run_dir": None}, suffix="_sweep")
    for number, (words, config, settings) in enumerate(zip(jobs, configs, varied, strict=True), 1):
        print(f"\n[{number}/{len(jobs)}] {shlex.join(words)}", flush=True)
        named = config["run_dir"] or config["resume"]
        path = pathlib.Path(named or new_path(config))
        code = train_apart(words if named else [*words, word("run_dir", str(path))])
        if code in STOPPED:
            return code
        worst = max(worst, code)
        done.append(SweptRun(str(path), settings, code, read_metrics(path) if code == 0 else {}))
    conclude(done, folder)
    return worst


def check_folders(configs: list[dict]) -> None:
    """Raises ConfigError where several runs would share a folder."""
    named = [config["run_dir"] for config in configs if config["run_dir"]]
    shared = next((path for path in named if named.count(path) > 1), None)
    if shared is not None:
        raise ConfigError(f"run_dir={shared}: {named.count(shared)} of the {len(configs)} runs of -m would share this "
                          f"folder; give {shown('runs', shared)} instead, below which each run has its own folder")


def settings_of(jobs: list[list[str]]) -> list[dict[str, str]]:
    """For each job the values of the keys whose values differ between jobs."""
    values = [{override.key_or_group: override.input_line.partition("=")[2] for override in parse(words)}
              for words in jobs]
    keys = [key for key in values[0] if len({each.get(key) for each in values}) > 1]
    return [{key: each[key] for key in keys if key in each} for each in values]


def read_metrics(path: pathlib.Path) -> dict:
    """The final numbers of a run; none where it left none, as a comparison does."""
    file = path.expanduser() / "metrics.json"
    return json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}


def conclude(runs: list[SweptRun], folder: pathlib.Path) -> None:
    """Write `sweep.json` and `sweep.csv` and show the table."""
    from vit.files.strict_json import json_text

    rows = summary(runs)
    folder.mkdir(parents=True, exist_ok=True)
    content = {"runs": [asdict(run) for run in runs], "settings": rows}
    (folder / "sweep.json").write_text(json_text(content) + "\n", encoding="utf-8")
    with open(folder / "sweep.csv", "w", newline="", encoding="utf-8") as file:
        lines = [{"run": run.folder, **run.settings, "exit_code": run.exit_code, **run.metrics} for run in runs]
        table = csv.DictWriter(file, list(dict.fromkeys(key for line in lines for key in line)))
        table.writeheader()
        table.writerows(lines)
    show(rows, folder)


def summary(runs: list[SweptRun]) -> list[dict]:
    """Per setting: its runs, how many failed, and of each measured number the mean and the sample deviation."""
    groups: dict[tuple, list[SweptRun]] = {}
    for run in runs:
        groups.setdefault(tuple(run.setting.items()), []).append(run)
    rows = []
    for setting, group in groups.items():
        finished = [run.metrics for run in group if run.metrics]
        names = [name for name in (finished[0] if finished else {}) if measured(name, finished)]
        values = {name: [each[name] for each in finished] for name in names}
        rows.append({
            "setting": dict(setting), "runs": len(group), "failed": sum(run.exit_code != 0 for run in group),
            "mean": {name: statistics.fmean(numbers) for name, numbers in values.items()},
            "deviation": {name: statistics.stdev(v) if len(v) > 1 else None for name, v in values.items()},
        })
    return rows


def measured(name: str, finished: list[dict]) -> bool:
    numbers = [each.get(name) for each in finished]
    return name.startswith(("test/", "val/")) and all(
        isinstance(number, int | float) and math.isfinite(number) for number in numbers
    )


def show(rows: list[dict], folder: pathlib.Path) -> None:
    """A line per setting: mean ± deviation of the number that the runs are judged by."""
    from rich.box import SIMPLE_HEAD
    from rich.markup import escape
    from rich.table import Table

    from vit.launch.console import console

    known = [name for row in rows for name in row["mean"]]
    wanted = (f"{split}/{name}" for name in HEADLINES for split in ("test", "val"))
    name = next((each for each in wanted if each in known), "")
    table = Table(box=SIMPLE_HEAD, title="Sweep", title_justify="left", title_style="bold")
    table.add_column("setting", overflow="fold")
    for heading in ("runs", name.replace("/", " ") or "result"):
        table.add_column(heading, justify="right")
    for row in rows:
        setting = ", ".join(f"{key}={value}" for key, value in row["setting"].items()) or "all"
        failed = f" ({row['failed']} failed)" if row["failed"] else ""
        table.add_row(escape(setting), f"{row['runs']}{failed}", spread(row, name))
    console.print(table)
    console.print(f"  {folder / 'sweep.json'}, sweep.csv", markup=False, highlight=False, soft_wrap=True)


def spread(row: dict, name: str) -> str:
    """`93.25 ± 1.10 %`, rates in per cent"""
    if name not in row["mean"]:
        return "none"
    mean, deviation = row["mean"][name], row["deviation"][name]
    scale, unit = (1, "") if name.endswith("/loss") else (100, " %")
    digits = 4 if scale == 1 else 2
    around = "" if deviation is None else f" ± {deviation * scale:.{digits}f}"
    return f"{mean * scale:.{digits}f}{around}{unit}"
