"""Loading batches of a data set, in this process or in worker processes."""

import contextlib
import multiprocessing
import multiprocessing.connection
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing.queues import Queue
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader
from torch.utils.data._utils.signal_handling import _remove_worker_pids

from vit.data.decoding.decode import BadImage
from vit.data.errors import DataError
from vit.data.images.dataset import Batch
from vit.data.system_limits import SystemLimitError, exit_code, explain_limit, explain_lost_worker, is_lost_connection
from vit.files.machine import STOP_SIGNALS, available_cores, stop_signals_blocked, unblock_stop_signals
from vit.messages import number_of, one_line
from vit.packed_images import PackedImages


@dataclass(eq=False)
class _Plan:
    """DataLoader's batch sampler: the keys of the next pass, set before each pass."""

    keys: list[np.ndarray] = field(default_factory=list)

    def __iter__(self) -> Iterator[np.ndarray]:
        return iter(self.keys)

    def __len__(self) -> int:
        return len(self.keys)


class Samples(Protocol):
    """A data set whose rows are requested by keys (B,2) of (epoch, index)."""

    unit: str  # plural name of the samples in messages
    on_bad_sample: str
    cached: bool  # whether all samples are in memory, which makes workers unnecessary

    def __len__(self) -> int: ...

    def __getitems__(self, keys: np.ndarray) -> Batch: ...

    def filler(self) -> Batch:
        """One row without a loss, with 1 as its epoch; requested only if samples can be unreadable."""


class BatchLoader:
    """Base class of all batches: loads batches by the keys of this rank, in this process or in workers.

    Raises:
        DataError: the data set is empty.
        ValueError: `rank` or `workers` is invalid.
    """

    timeout = 0.0  # seconds that a worker may take for a batch; 0 for no limit
    pin_memory: bool | None = None  # of the batches, for copies to a GPU that do not wait; None: if there is a GPU

    def __init__(self, dataset: Samples, rank: int = 0, world: int = 1, workers: int | str = "auto"):
        if len(dataset) == 0:
            raise DataError(f"the split has 0 {dataset.unit}; add {dataset.unit} or choose another split")
        if not 0 <= rank < world:
            raise ValueError(f"rank {rank} must be 0..{world - 1} for world {world}")
        self.dataset, self.rank, self.world = dataset, rank, world
        self.workers = _workers(workers, dataset, world)
        self.bad: dict[str, str] = {}  # name → reason of every sample skipped so far
        self._plan, self._loader = _Plan(), None

    def _fetch(self, keys: list[np.ndarray]) -> Iterator[Batch]:
        """The batches of these keys, in order, loaded in this process or in the workers."""
        if self.workers == 0:
            pin = self._pins
            for batch in map(self.dataset.__getitems__, keys):
                yield self._checked(_pinned(batch) if pin else batch)
            return
        self._plan.keys = keys
        try:
            with stop_signals_blocked():  # in new workers until they ignore them
                batches = iter(self._workers_loader())
            with BatchTimeout(batches, self.timeout) as in_time:
                for batch in in_time:
                    yield self._checked(batch)
        except Exception as error:
            codes = self._exit_codes(wait=1 if is_lost_connection(error) else 0)
            self.close(by_force=True)  # the garbage collector would wait for hung workers
            if not explain_limit(error) and (reason := explain_lost_worker(error, self.timeout, codes)):
                raise SystemLimitError(reason) from error
            raise

    @property
    def _pins(self) -> bool:
        """Whether batches are pinned, which needs a CUDA context."""
        return torch.cuda.is_available() if self.pin_memory is None else self.pin_memory

    def close(self, by_force: bool = False) -> None:
        """Ends the worker processes, frozen ones only with `by_force`; the next pass starts new ones."""
        iterator = getattr(self._loader, "_iterator", None)
        if iterator is not None:
            if by_force:
                kill_workers(iterator)
            iterator._shutdown_workers()  # torch has no public name for it
            kill_workers(iterator)
        self._loader = None

    def _exit_codes(self, wait: float) -> list[int | None]:
        """The exit codes of the workers; None for those that run. Waits up to `wait` s until one has ended."""
        workers = getattr(getattr(self._loader, "_iterator", None), "_workers", ())
        with contextlib.suppress(RuntimeError):  # of torch's handler of SIGCHLD
            ended = multiprocessing.connection.wait([worker.sentinel for worker in workers], wait)
            for worker in workers:
                if worker.sentinel in ended:  # its exit code follows
                    worker.join(wait)
        return [worker.exitcode for worker in workers]

    def _workers_loader(self) -> DataLoader:
        """The DataLoader of the workers, which is made once and follows `self._plan`."""
        if self._loader is None:
            self._loader = DataLoader(
                self.dataset,
                batch_sampler=self._plan,
                num_workers=self.workers,
                persistent_workers=True,
                collate_fn=_identity,
                timeout=self.timeout,
                worker_init_fn=_prepare_worker,
                pin_memory=self._pins,
                multiprocessing_context=_start_method(),
                generator=torch.Generator(),  # without it, DataLoader would advance the global random state
            )
        return self._loader

    def _checked(self, batch: Batch) -> Batch:
        """The batch; its unreadable samples are recorded in `self.bad`, or the first of them raises an error."""
        bad = batch.pop("bad", ())
        if bad and self.dataset.on_bad_sample == "error":
            raise BadImage(*bad[0])
        self.bad.update(bad)
        if bad and len(self.bad) >= len(self.dataset):
            raise BadImage(bad[0][0], f"{bad[0][1]}; all "
                                      f"{number_of(len(self.bad), self.dataset.unit.removesuffix('s'))} are unreadable")
        if len(batch["index"]) == 0:  # every rank must take part in a step, even without samples
            return self.dataset.filler() | {"filler": True}
        return batch

    def names(self, index: Sequence[int]) -> list[str]:
        """The names of samples, such as file paths."""
        return [str(self.dataset.split.names[int(i)]) for i in index]


class BatchTimeout:
    """Iterates over a DataLoader's batches, and kills its workers when a batch takes longer than `seconds`.

    DataLoader's timeout ends the wait for a message. The shared memory that a message names is then requested from the
    worker without a limit, and a worker that is frozen never answers.

    Args:
        batches: iterator of a DataLoader with worker processes.
        seconds: longest wait for a batch; 0 for no limit.

    Raises:
        TimeoutError: the limit was exceeded.
    """

    def __init__(self, batches: Any, seconds: float):
        self._exceeded = False
        self._batches, self._seconds = batches, seconds
        self._since: float | None = None  # start of the current wait
        self._over = threading.Event()

    def __enter__(self) -> "BatchTimeout":
        if self._seconds:
            threading.Thread(target=self._watch, name="loading timeout", daemon=True).start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()

    def __iter__(self) -> Iterator[Batch]:
        while True:
            self._since = time.monotonic()
            try:
                batch = next(self._batches)
            except StopIteration:
                return
            except Exception as error:
                if self._exceeded:
                    raise TimeoutError(f"DataLoader timed out after {self._seconds:g} s") from error
                raise
            finally:
                self._since = None
            yield batch

    def _watch(self) -> None:
        while not self._over.wait(min(1.0, self._seconds / 4)):
            since = self._since
            if since is not None and time.monotonic() - since > self._seconds:
                self._exceeded = True
                kill_workers(self._batches)
                return


def _pinned(batch: Batch) -> Batch:
    return {key: value.pin_memory() if isinstance(value, Tensor | PackedImages) else value
            for key, value in batch.items()}


def kill_workers(iterator: Any) -> None:
    """Kills the remaining workers of a DataLoader, after unregistering them so that torch does not report a failure."""
    if iterator._worker_pids_set:
        _remove_worker_pids(id(iterator))
        iterator._worker_pids_set = False
    for worker in iterator._workers:
        if worker.is_alive():
            worker.kill()


def _workers(workers: int | str, dataset: Samples, world: int) -> int:
    """The number of worker processes; `auto` is 0 for cached data, otherwise up to 16, with one core left for training.
    """
    if workers == "auto":
        if dataset.cached:
            return 0
        cores = available_cores()
        local = int(os.environ.get("LOCAL_WORLD_SIZE", world))
        return min(16, max(1, cores // local - 1))
    if not isinstance(workers, int) or isinstance(workers, bool) or workers < 0:
        raise ValueError(f"workers={workers!r} must be auto or a number of processes of at least 0")
    return workers


def _start_method() -> str | None:
    """`fork` on Linux unless the program has chosen another way: workers start at once, share the memory of the data
    set, and read sources that cannot be pickled. Python 3.14 would start them from a server process and copy the data.
    """
    default = "forkserver" if sys.version_info >= (3, 14) else "fork"
    chosen = multiprocessing.get_start_method(allow_none=True)  # the default once something else has used it
    return "fork" if sys.platform == "linux" and chosen in (None, default) else None


def _prepare_worker(worker: int) -> None:
    _ignore_stop_signals()
    Queue._on_queue_feeder_error = staticmethod(_end_with_unsent_batch)  # of this process


def _end_with_unsent_batch(error: Exception, batch: Any) -> None:
    """Ends a worker that cannot send a batch, as without shared memory for it: Python would drop the batch, and the
    training process wait for it. The exit code is that of `exit_code`.
    """
    with contextlib.suppress(OSError):  # of a full disk
        print(f"a loading process cannot send a batch ({one_line(error)})", file=sys.stderr, flush=True)
    os._exit(exit_code(error))


def _ignore_stop_signals() -> None:
    """Ignores the stop signals that a process group receives, since the trainer still needs the workers for its step.

    Only the first SIGTERM is ignored: with the second, DataLoader ends its workers.
    """
    for signum in STOP_SIGNALS:
        signal.signal(signum, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda signum, frame: signal.signal(signum, signal.SIG_DFL))
    unblock_stop_signals()


def _identity(batch: Batch) -> Batch:
    return batch
