"""`vit runs`: all runs below a folder with their data, model, numbers, time and state."""

import fnmatch
import math
import os
import re
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from vit.files.atomic import CHANGED, is_changed_result
from vit.files.untrusted import read_json
from vit.messages import did_you_mean, first_line, nearest_names
from vit.report.logged_values import read_curves
from vit.run.config.overrides import ConfigError
from vit.run.records.folder import CONFIG, METRICS, RunFolder
from vit.run.records.reading import read_stored
from vit.training.monitoring.metric_direction import MODES, mode_of

LOG, CURVES = "log.txt", "metrics.csv"
FAILED = " DEBUG failed"  # how a run logs the error that ended it
TAIL = 200  # lines at the end of a log among which that error is searched
FILTER = re.compile(r"(\w+)\s*(<=|>=|!=|=|<|>)\s*(.*)")


@dataclass(frozen=True)
class ListedRun:
    """A run in the list of `vit runs`.

    Args:
        metric: the one that selects the best epoch, without its split.
        val, test: its values in the best epoch; None where they are not known yet.
        seconds: duration of the training; of an unfinished run, the time since its start.
        remark: why the run failed, or what is damaged.
        curve: the metric on the validation split, per epoch.
    """

    path: str
    state: str
    name: str = ""
    data: str = ""
    model: str = ""
    metric: str = ""
    val: float | None = None
    test: float | None = None
    epochs: int | None = None
    planned_epochs: int | None = None
    parameters: int | None = None
    seconds: float | None = None
    started: str = ""
    seed: int | None = None
    remark: str = ""
    curve: tuple[float, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Plain values for CSV and JSON, without the curve."""
        return {key: value for key, value in asdict(self).items() if key != "curve"}


COLUMNS = [field for field in ListedRun.__dataclass_fields__ if field != "curve"]
NUMBERS = ("val", "test", "epochs", "planned_epochs", "parameters", "seconds", "seed")  # of the columns


def list_runs(folder: str | Path) -> list[ListedRun]:
    """All runs below a folder, newest first; damaged ones are listed with the reason.

    Raises:
        FileNotFoundError: there is no such folder.
    """
    folder = Path(folder).expanduser()
    if folder.is_file():
        raise FileNotFoundError(f"{folder} is a file; pass the folder that holds the runs")
    if not folder.is_dir():
        raise FileNotFoundError(f"{folder}: there is no such folder; pass the folder that holds the runs")
    return sorted(map(_listed, _run_folders(folder)), key=lambda run: run.started, reverse=True)


def select(runs: Sequence[ListedRun], filters: Sequence[str] = (), sort: str | None = None) -> list[ListedRun]:
    """The runs that pass all filters, in the order of a column.

    Args:
        filters: `KEY=PATTERN` and `KEY!=PATTERN` with * and ?, or `KEY>NUMBER`, `<`, `>=` and `<=`.
        sort: a column; a leading - sorts from the highest. Runs without a value, or with NaN, come last.

    Raises:
        ConfigError: an unknown column, a value that is not a number, or a number for a column of texts.
    """
    for text in filters:
        key, sign, value = _parse_filter(text)
        runs = [run for run in runs if _passes(run, key, sign, value)]
    if sort is not None:
        key = _column(sort.lstrip("-"), f"--sort {sort}: ")
        known, unknown = [run for run in runs if _has(run, key)], [run for run in runs if not _has(run, key)]
        runs = [*sorted(known, key=lambda run: getattr(run, key), reverse=sort.startswith("-")), *unknown]
    return list(runs)


def _has(run: ListedRun, key: str) -> bool:
    """Whether a run has a value in a column; NaN, such as the loss of a run that diverged, has no place in an order."""
    value = getattr(run, key)
    return value not in (None, "") and value == value  # false for NaN


def _column(name: str, option: str) -> str:
    if name not in COLUMNS:
        raise ConfigError(f"{option}{name} is not a column of the runs: {', '.join(COLUMNS)}"
                          f"{did_you_mean(nearest_names(name, COLUMNS))}")
    return name


def _parse_filter(text: str) -> tuple[str, str, str]:
    match = FILTER.fullmatch(text.strip())
    if match is None:
        raise ConfigError(f"--filter {text}: expected KEY=PATTERN or KEY>NUMBER, such as state=failed or test>0.9")
    key, sign, value = match.groups()
    if sign not in ("=", "!="):
        try:
            valid = not math.isnan(float(value))
        except ValueError:
            valid = False
        if not valid:
            raise ConfigError(f"--filter {text}: {value!r} is not a number")
        if _column(key, f"--filter {text}: ") not in NUMBERS:
            raise ConfigError(f"--filter {text}: {key} is a text; use {key}=PATTERN, such as {key}={value}*")
    return _column(key, f"--filter {text}: "), sign, value


def _passes(run: ListedRun, key: str, sign: str, value: str) -> bool:
    cell = getattr(run, key)
    if sign in ("=", "!="):
        return fnmatch.fnmatchcase("" if cell is None else str(cell), value) == (sign == "=")
    if not isinstance(cell, int | float):
        return False
    number = float(value)
    return {"<": cell < number, ">": cell > number, "<=": cell <= number, ">=": cell >= number}[sign]


def _run_folders(folder: Path) -> Iterator[Path]:
    """The folders of runs; what is below a run is not searched."""
    for parent, folders, files in os.walk(folder):
        begun = "checkpoints" in folders
        if CONFIG in files and (begun or METRICS in files) or begun and LOG in files:
            folders.clear()
            yield Path(parent)
        folders.sort()


def _listed(path: Path) -> ListedRun:
    tail = _log_tail(path)
    try:
        config = read_stored(path / CONFIG)
        metrics = read_json(path / METRICS) if (path / METRICS).exists() else {}
        if not isinstance(metrics, dict):
            raise ValueError(f"{METRICS} has no metrics, but {type(metrics).__name__}")
        curves = read_curves(path / CURVES) if (path / CURVES).exists() else {}
        described = _described(path, config, metrics, curves, tail)
        for name in (METRICS, CURVES) if metrics else ():
            if is_changed_result(path / name):
                raise ValueError(f"{name}: {CHANGED}")
        return described
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        started = _started(path)
        if (path / CONFIG).exists():
            return ListedRun(str(path), "damaged", started=started, remark=first_line(error, 120))
        state, remark = _unfinished_state(path, tail)
        return ListedRun(str(path), state, started=started, remark=remark)


def _described(path: Path, config: dict, metrics: dict, curves: dict, tail: list[str]) -> ListedRun:
    monitor = str((config.get("callbacks") or {}).get("monitor") or "val/loss")
    metric = monitor.rpartition("/")[2]
    curve = curves.get(monitor)
    val = _number(metrics, monitor)
    if val is None and curve is not None and metric in MODES:
        val = float(curve.y[curve.best(mode_of(monitor) == "max")])
    state, remark = ("finished", "") if metrics else _unfinished_state(path, tail)
    started = _started(path)
    seconds = _number(metrics, "seconds")
    if seconds is None:
        seconds = round(_end(path, state) - datetime.fromisoformat(started).timestamp(), 1)
    return ListedRun(
        str(path), state, str(config.get("name", "")), _data_name(config.get("data") or {}),
        str(config.get("model_name") or metrics.get("model", "")), metric, val, _number(metrics, f"test/{metric}"),
        round(float(curve.x[-1])) if curve is not None and "epochs" not in metrics else _number(metrics, "epochs"),
        _number(config.get("recipe") or {}, "epochs"), _number(metrics, "parameters"), seconds, started,
        _number(config, "seed"), remark, () if curve is None else tuple(map(float, curve.y)),
    )


def _number(values: dict, key: str) -> int | float | None:
    """The value of a key, None where it is null or missing.

    Raises:
        ValueError: it is not a number.
    """
    value = values.get(key)
    if value is not None and (isinstance(value, bool) or not isinstance(value, int | float)):
        raise ValueError(f"{key} is {value!r}, not a number")
    return value


def _data_name(data: dict) -> str:
    """The name of the data set, the last part of its path and its fold, such as `folder:photos 1/5`."""
    location = os.path.basename(str(data.get("root") or data.get("path") or data.get("repo") or "").rstrip("/"))
    name = str(data.get("name", ""))
    name += f":{location}" if location not in ("", name) else ""
    return name + (f" {data['fold']}" if data.get("fold") else "")


def _unfinished_state(path: Path, tail: list[str]) -> tuple[str, str]:
    """`running` while a process holds the lock, `failed` if the log ends with an error, else `stopped`."""
    if RunFolder(path, main=False).in_use:
        return "running", ""
    marks = [i for i, line in enumerate(tail) if FAILED in line or " INFO run folder: " in line]
    if marks and FAILED in tail[marks[-1]]:
        return "failed", next((line.strip()[:120] for line in reversed(tail) if line.strip()), "")
    return "stopped", ""


def _log_tail(path: Path) -> list[str]:
    try:
        with open(path / LOG, encoding="utf-8", errors="replace") as file:
            return list(deque(file, TAIL))
    except OSError:
        return []


def _started(path: Path) -> str:
    """Date and time of the first line of the log; without a log, of the folder."""
    try:
        with open(path / LOG, encoding="utf-8", errors="replace") as file:
            return datetime.fromisoformat(file.readline()[:19]).isoformat(sep=" ")
    except (OSError, ValueError):
        return _modified(path)


def _modified(path: Path) -> str:
    return datetime.fromtimestamp(path.stat().st_mtime).isoformat(sep=" ", timespec="seconds")


def _end(path: Path, state: str) -> float:
    log = path / LOG
    return time.time() if state == "running" or not log.exists() else log.stat().st_mtime
