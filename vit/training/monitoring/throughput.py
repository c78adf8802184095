"""Throughput of a run: rows per second, and the share of time that the training waits for data."""

import os
import time
from collections.abc import Mapping
from typing import Any

import pytorch_lightning as pl
from pytorch_lightning.callbacks import Checkpoint


def rows_in(batch: Any) -> int:
    """Rows of the first tensor of a batch."""
    first = next(iter(batch.values())) if isinstance(batch, Mapping) else batch[0]
    return len(first)


def unit(module: pl.LightningModule) -> str:
    """What a row of a batch is, for display: images, sentences, ..."""
    return getattr(module, "unit", "images")


class ThroughputMeter(pl.Callback):
    """Rows (images, sentences) per second over all processes, and the fraction of time spent waiting for data.

    Only training batches count, without the first one of a session, which includes start-up and compilation. On a GPU
    the host runs ahead of the device, so the time of a single batch is wrong, but the rate over an epoch is right. The
    counts and `elapsed`, the time including validation, continue in a resumed run; `first_step` is of this session.

    The callbacks after this one, such as the average of the weights, also take time before the next batch is requested.
    With `BatchEnd` as the last callback that time is not part of the wait for data.
    """

    def __init__(self) -> None:
        self.rows = self.batches = 0
        self.seconds = self.waited = 0.0
        self._started: float | None = None
        self._earlier = 0.0
        self._mark: float | None = None  # when the last batch ended
        self._begun = self.requested = 0.0  # when this batch began, and not before when it was requested
        self.first_step: float | None = None  # seconds from the start of the process to the end of the first batch

    @property
    def rows_per_second(self) -> float:
        return self.rows / self.seconds if self.seconds else 0.0

    @property
    def data_wait(self) -> float:
        return self.waited / self.seconds if self.seconds else 0.0

    @property
    def elapsed(self) -> float:
        """Seconds of training so far, earlier sessions included."""
        return self._earlier + (0.0 if self._started is None else time.perf_counter() - self._started)

    def state_dict(self) -> dict[str, Any]:
        counts = {"rows": self.rows, "seconds": self.seconds, "waited": self.waited}
        return {**counts, "elapsed": self.elapsed}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.rows, self.seconds, self.waited = state["rows"], state["seconds"], state["waited"]
        self._earlier = state["elapsed"]

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._started = time.perf_counter()

    def on_train_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if self.batches:
            self._mark = time.perf_counter()

    def on_train_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        self._begun = time.perf_counter()

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        now = time.perf_counter()
        if self._mark is not None:
            self.rows += rows_in(batch) * trainer.world_size
            self.seconds += now - self._mark
            self.waited += self._begun - max(self._mark, self.requested)
        if not self.batches:
            self.first_step = process_age()
        self.batches += 1
        self._mark = now

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if self._mark is not None:
            self._mark = time.perf_counter()

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if self.seconds:
            rate = {f"train/{unit(pl_module)}_per_second": self.rows_per_second}
            pl_module.log_dict({**rate, "train/data_wait": self.data_wait})


class BatchEnd(Checkpoint):
    """Notes in a meter when all callbacks have finished with a batch and the next one is requested.

    It is a `Checkpoint` callback because Lightning calls these after all others.
    """

    def __init__(self, meter: ThroughputMeter) -> None:
        self.meter = meter

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        self.meter.requested = time.perf_counter()


def process_age() -> float | None:
    """Seconds since this process was started; None if the system does not report it (Linux does)."""
    try:
        with open("/proc/self/stat", encoding="utf-8", errors="replace") as file:
            ticks = int(file.read().rpartition(")")[2].split()[19])  # proc(5): starttime, since the machine was booted
        return time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    except (AttributeError, OSError, ValueError):
        return None
