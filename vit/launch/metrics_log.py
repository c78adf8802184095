"""`metrics.csv`: one row per epoch, kept across resumed runs."""

import csv
import os
from pathlib import Path
from typing import Any

from pytorch_lightning.loggers.logger import Logger
from pytorch_lightning.utilities import rank_zero_only


class MetricsLog(Logger):
    """A table of all that is logged, a row per (epoch, step), written whole whenever a row is complete.

    Lightning's own CSV logger deletes the file of the run that it resumes.

    Args:
        done: optimizer steps that a resumed run has behind it; later rows of the file belong to steps that run again.
    """

    def __init__(self, path: Path, done: int = 0):
        super().__init__()
        self.path, self.rows = Path(path), []
        if done and self.path.exists():
            with open(self.path, newline="", encoding="utf-8") as file:
                self.rows = [row for row in csv.DictReader(file) if int(row["step"]) <= done]

    @property
    def name(self) -> str:
        return "metrics"

    @property
    def version(self) -> str:
        return ""

    @rank_zero_only
    def log_hyperparams(self, params: Any, *args: Any) -> None:
        """The run's config.yaml has them."""

    @rank_zero_only
    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        epoch = int(metrics["epoch"]) if "epoch" in metrics else None
        values = {name: value for name, value in metrics.items() if name != "epoch"}
        values.pop("train/step_loss", None)  # TensorBoard has it; here a row is an epoch
        if not values or epoch is None:
            return
        if not self.rows or int(self.rows[-1]["epoch"]) != epoch:
            self.rows.append({"epoch": epoch})
        self.rows[-1] |= {"step": step + 1, **values}

    @rank_zero_only
    def save(self) -> None:
        if not self.rows:
            return
        columns = list(dict.fromkeys(["epoch", "step", *(name for row in self.rows for name in row)]))
        part = self.path.with_suffix(".part")
        with open(part, "w", newline="", encoding="utf-8") as file:
            table = csv.DictWriter(file, columns)
            table.writeheader()
            table.writerows(self.rows)
        os.replace(part, self.path)

    @rank_zero_only
    def finalize(self, status: str) -> None:
        self.save()
