"""`metrics.csv`: one row per epoch, continued by resumed runs."""

import csv
import io
from itertools import chain
from pathlib import Path

import pytorch_lightning as pl
from pytorch_lightning.callbacks import Checkpoint

from vit.files.atomic import write_atomically
from vit.training.checkpointing.resume_position import validates_start

STEP = ("train/step_loss", "train/step_grad_norm")  # metrics of one step, for the loggers only


class MetricsTable(Checkpoint):
    """A table of all logged metrics, a row per epoch. The whole file is written before the checkpoint of an epoch, so
    the rows up to a checkpoint are complete, however a run ends.

    It is a `Checkpoint` callback because Lightning calls these after the task has logged everything. Lightning's own
    CSV logger would delete the file of a resumed run. The metrics of a validation before the first step are in the row
    of epoch 0.

    Args:
        done: optimizer steps before the checkpoint of a resumed run; later rows of the file are computed again.
    """

    def __init__(self, path: Path, done: int = 0):
        self.path, self.done = Path(path), done
        self.replace_rows([])

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """A checkpoint contains the rows up to it. Checkpoints of older versions do not, so the file is read."""
        if not self.rows and self.done and self.path.exists():
            with open(self.path, newline="", encoding="utf-8") as file:
                rows = [row for row in csv.DictReader(file) if int(row["step"]) <= self.done]
            self.replace_rows(counted_from_one(rows))

    def state_dict(self) -> dict[str, list]:
        return {"rows": self.rows}

    def load_state_dict(self, state: dict[str, list]) -> None:
        self.replace_rows(counted_from_one(list(state["rows"])))

    def replace_rows(self, rows: list[dict]) -> None:
        self.rows, self.columns, self.formatted, self.text = rows, [], 0, io.StringIO(newline="")

    def on_sanity_check_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if validates_start(trainer):
            self.add_row(trainer, 0)

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.add_row(trainer, trainer.current_epoch + 1)

    def add_row(self, trainer: pl.Trainer, epoch: int) -> None:
        """Runs in every process, because reading the metrics reduces them over all processes; the first one writes."""
        of_epoch = {name: value for name, value in trainer.callback_metrics.items() if name not in STEP}
        values = {name: float(value) for name, value in of_epoch.items()}
        self.rows.append({"epoch": epoch, "step": trainer.global_step, **values})
        if trainer.is_global_zero:
            self.write()

    def write(self) -> None:
        """Only rows since the last call are formatted, unless there are new columns: thousands of epochs would take a
        time that grows with their square.
        """
        new = self.rows[self.formatted :]
        columns = list(dict.fromkeys(chain(self.columns, *new)))
        table = csv.DictWriter(self.text, columns)
        if columns != self.columns:
            self.columns, new = columns, self.rows
            self.text.seek(0)
            self.text.truncate()
            table.writeheader()
        table.writerows(new)
        self.formatted = len(self.rows)
        write_atomically(self.path, self.text.getvalue().encode())


def counted_from_one(rows: list[dict]) -> list[dict]:
    """Rows of an older run, whose epochs were counted from 0; epoch 0 at step 0 is before training."""
    if not rows or int(rows[0]["epoch"]) != 0 or int(rows[0]["step"]) == 0:
        return rows
    return [{**row, "epoch": int(row["epoch"]) + 1} for row in rows]
