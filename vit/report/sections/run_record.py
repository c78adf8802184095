"""What a run folder records about its training, read and checked before a report is computed."""

import csv
from collections.abc import Mapping
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

from vit.exchange.run_records import read_object
from vit.files.atomic import check_result
from vit.messages import first_line
from vit.report.logged_values import Curve, read_curves


@dataclass(frozen=True)
class RunRecord:
    """`metrics` are empty before the run has finished, `curves` if it has logged nothing."""

    path: Path
    metrics: Mapping[str, Any]
    curves: Mapping[str, Curve]
    environment: Mapping[str, Any]

    @property
    def log(self) -> Path:
        return self.path / "metrics.csv"


def read_run(path: str | PathLike[str]) -> RunRecord:
    """The record of a run, which may come from a third party.

    Raises:
        ValueError: one of its files is damaged; the message names it.
    """
    path = Path(path)
    metrics, environment = (read_object(path / name) for name in ("metrics.json", "environment.json"))
    log = path / "metrics.csv"
    fix = "restore it, or remove it for a report without learning curves"
    try:
        curves = read_curves(log) if log.exists() else {}
    except (OSError, ValueError, KeyError, csv.Error) as error:
        raise ValueError(f"{log} is damaged ({first_line(error, 120)}); {fix}") from error
    check_result(log, fix=fix)
    return RunRecord(path, metrics, curves, environment)
