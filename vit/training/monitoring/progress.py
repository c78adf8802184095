"""The progress bar of a run, and the filter of messages and warnings of Lightning."""

import logging
import time
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

import pytorch_lightning as pl
from pytorch_lightning.callbacks import ProgressBar as LightningProgressBar
from rich.console import Console, RenderableType
from rich.progress import BarColumn, Progress, TextColumn
from rich.text import Text

from vit.training.checkpointing.resume_position import batches_done, batches_per_epoch, validates_start
from vit.training.monitoring.throughput import rows_in, unit

log = logging.getLogger(__name__)


def quiet_lightning() -> None:
    """Silence the messages and warnings of Lightning that do not apply to these runs; errors remain."""
    for name in ("pytorch_lightning", "lightning_fabric", "lightning", "lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.ERROR)
    for message in (
        r".*does not have many workers.*",
        r".*smaller than the logging interval.*",
        r".*Checkpoint directory.*",
        r".*checkpoint that ended before the epoch ended.*",
        r".*LeafSpec.*",
        r".*is not attached to the.*loop.*",
        r".*callbacks used to create the checkpoint.*",
        r".*module\(s\) in eval mode.*",
        r".*compute`` method of metric MeanMetric was called before.*",  # a resumed epoch continues with the saved sum
        r".*find_unused_parameters.*",
        r".*GPU available but not used.*",
        r".*recommended to use .*sync_dist=True.*",
        r".*have overridden `.*` in `LightningModule`.*",  # in the task, where it belongs
        r"Detected call of `lr_scheduler\.step.*",  # float16 skips steps that overflow
    ):
        warnings.filterwarnings("ignore", message=message)


def epoch_loss(module: pl.LightningModule) -> float | None:
    """The mean loss of the epoch over all processes, of modules that compute it as a metric `train_loss`."""
    mean = getattr(module, "train_loss", None)
    return float(mean.compute()) if mean is not None and hasattr(mean, "compute") else None


class TwoLineProgress(Progress):
    """The bar of a task, and below it its metrics, for which many terminals are too narrow in one line."""

    def get_renderables(self) -> Iterator[RenderableType]:
        yield self.make_tasks_table(self.tasks)
        for task in self.tasks:
            yield Text(task.fields["numbers"])


class ProgressBar(LightningProgressBar):
    """One bar for the whole run with rate, loss, validation metrics and remaining time, and a line per finished epoch.

    Without a terminal only these lines are printed. Lightning's `RichProgressBar` is not used: its bars and their
    remaining time cover one epoch or validation, not the run; it reads the metrics after every batch, which makes the
    host wait for the device, where this bar reads the loss at most every `interval` seconds; and it prints no lines of
    epochs into log files.
    """

    def __init__(self, interval: float = 0.5, console: Console | None = None):
        super().__init__()
        self.interval = interval
        self.console = console or Console()
        self.enabled = True
        self.progress: Progress | None = None
        self._done_at_start = self._rows = 0
        self._loss, self._last_loss = float("nan"), None
        self._started = self._drawn = 0.0
        self._rate = 0.0

    def enable(self) -> None:
        self.enabled = True

    def disable(self) -> None:
        self.enabled = False

    @property
    def live(self) -> bool:
        return self.enabled and self.console.is_interactive  # a terminal, and none with TERM=dumb

    def on_sanity_check_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if self.enabled and trainer.is_global_zero and validates_start(trainer):
            self._print_line([f"epoch 0/{last_epoch(trainer)}", "before training", *self._numbers(trainer)])

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._done_at_start = batches_done(trainer)
        self._started = self._drawn = time.perf_counter()
        self._rows = 0
        if self.live and trainer.is_global_zero:
            self.progress = TwoLineProgress(
                TextColumn("{task.description}"),
                BarColumn(bar_width=None),
                TextColumn("{task.percentage:>3.0f}%"),
                TextColumn("{task.fields[speed]}"),
                console=self.console,
                auto_refresh=False,
                transient=True,
                expand=True,
            )
            done = self._done_at_start
            self.progress.add_task("starting", total=run_length(trainer), completed=done, speed="", numbers="")
            self.progress.start()

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        self._rows += rows_in(batch) * trainer.world_size
        self._last_loss = outputs["loss"] if isinstance(outputs, Mapping) else outputs
        if time.perf_counter() - self._drawn >= self.interval and self.enabled and trainer.is_global_zero:
            self._measure()
            self._draw(trainer)

    def on_validation_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if self._rows:
            self._measure()

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._drawn, self._rows = time.perf_counter(), 0  # validation is part of the remaining time, not of the rate

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        mean = epoch_loss(pl_module)  # in all processes, which communicate
        if not self.enabled or not trainer.is_global_zero:
            return
        if self._rows:
            self._measure()
        numbers = self._numbers(trainer, self._loss if mean is None else mean)
        self._print_line([self._epoch(trainer), *self._rates(trainer), *numbers, self._left(trainer)])
        self._draw(trainer)

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._close()

    def on_exception(self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException) -> None:
        self._close()

    def print(self, *args: Any, **kwargs: Any) -> None:
        self.console.print(*args)

    def _print_line(self, parts: list[str]) -> None:
        log.debug("  ".join(parts))  # for a log file
        width = self.console.width if self.console.is_terminal else None
        self.console.print(lines_of(parts, width), highlight=False, soft_wrap=True)  # above the bar, if there is one

    def _close(self) -> None:
        if self.progress is not None:
            self.progress.stop()
            self.progress = None

    def _measure(self) -> None:
        if self._last_loss is not None:
            self._loss = float(self._last_loss.detach())
        now = time.perf_counter()  # after waiting for the device
        rate = self._rows / (now - self._drawn)
        self._rate = 0.7 * self._rate + 0.3 * rate if self._rate else rate
        self._drawn, self._rows = now, 0

    def _draw(self, trainer: pl.Trainer) -> None:
        if self.progress is not None:
            self.progress.update(
                self.progress.task_ids[0],
                completed=batches_done(trainer),
                description=self._epoch(trainer),
                speed="  ".join([*self._rates(trainer), self._left(trainer)]),
                numbers="  ".join(self._numbers(trainer)),
            )
            self.progress.refresh()

    def _epoch(self, trainer: pl.Trainer) -> str:
        return f"epoch {trainer.current_epoch + 1}/{last_epoch(trainer)}"

    def _rates(self, trainer: pl.Trainer) -> list[str]:
        return [f"{self._rate:,.0f} {unit(trainer.lightning_module)}/s"] if self._rate else []

    def _left(self, trainer: pl.Trainer) -> str:
        return f"{clock(self.seconds_left(trainer))} left"

    def _numbers(self, trainer: pl.Trainer, loss: float | None = None) -> list[str]:
        """The loss, of the last step by default, and the validation metrics."""
        loss = self._loss if loss is None else loss
        metrics = {name: float(value) for name, value in trainer.callback_metrics.items() if name.startswith("val/")}
        metrics = {"loss": loss} | metrics if loss == loss else metrics
        return [f"{name} {value:.4f}" for name, value in metrics.items()]

    def seconds_left(self, trainer: pl.Trainer) -> float:
        """Estimated seconds until the end of the run, at most those that `max_time` leaves."""
        done = batches_done(trainer)
        per_batch = (time.perf_counter() - self._started) / max(1, done - self._done_at_start)
        left = per_batch * max(0, run_length(trainer) - done)
        limits = [
            callback.time_remaining() for callback in trainer.callbacks if isinstance(callback, pl.callbacks.Timer)
        ]
        return min([left, *(max(0.0, limit) for limit in limits if limit is not None)])


def lines_of(parts: list[str], width: int | None) -> str:
    """The parts of a line, which is broken between parts where a terminal would break it within a word.

    Args:
        width: characters of the terminal; None for a file, whose lines have any length.
    """
    lines = [parts[0]]
    for part in parts[1:]:
        longer = f"{lines[-1]}  {part}"
        if width is None or len(longer) <= width:
            lines[-1] = longer
        else:
            lines.append(f"  {part}")
    return "\n".join(lines)


def last_epoch(trainer: pl.Trainer) -> int | str:
    return trainer.max_epochs if trainer.max_epochs and trainer.max_epochs > 0 else "?"


def run_length(trainer: pl.Trainer) -> int:
    """Number of training batches of the whole run, limited by epochs or by optimizer steps."""
    per_epoch = batches_per_epoch(trainer, len(trainer.train_dataloader))
    by_epochs = per_epoch * trainer.max_epochs if trainer.max_epochs and trainer.max_epochs > 0 else None
    by_steps = trainer.max_steps * trainer.accumulate_grad_batches if trainer.max_steps > 0 else None
    return min([limit for limit in (by_epochs, by_steps) if limit is not None], default=batches_done(trainer))


def clock(seconds: float) -> str:
    """0:05 or 1:02:03."""
    minutes, seconds = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{seconds:02d}" if minutes >= 60 else f"{minutes}:{seconds:02d}"
