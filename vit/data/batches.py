"""Which samples come when: batches as a function of (seed, epoch, batch), for any number of ranks and workers.

Both iterables are plain: Lightning, a script or a notebook loops over them. They are generators inside, so nothing is
decided before the first batch is asked for: `iter()` alone (which Lightning calls early, and more than once) changes
nothing.
"""

import itertools
import os
import signal
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import numpy as np
import torch
from torch.utils.data import DataLoader
from torch.utils.data._utils.signal_handling import _remove_worker_pids

from vit.counters import permutation
from vit.data.images.dataset import Batch
from vit.data.images.decode import BadImage
from vit.data.source import DataError
from vit.data.system_limits import LimitError, explain_limit, explain_lost_worker

SIGNALS = [getattr(signal, name) for name in ("SIGINT", "SIGUSR1", "SIGHUP") if hasattr(signal, name)]
REPEAT = 1 << 32  # a sample drawn again within one epoch gets the counter epoch + REPEAT * times: another augmentation


class _Plan:
    """The keys of the coming pass; DataLoader's batch sampler, filled anew before each pass."""

    def __init__(self) -> None:
        self.keys: list[np.ndarray] = []

    def __iter__(self) -> Iterator[np.ndarray]:
        return iter(self.keys)

    def __len__(self) -> int:
        return len(self.keys)


class Samples(Protocol):
    """What batches are made from: rows that are asked for by keys (B,2) of (epoch, index)."""

    unit: str  # what a sample is called in messages
    on_bad_sample: str
    cached: bool  # whether all lies in memory, so that worker processes have nothing to do

    def __len__(self) -> int: ...

    def __getitems__(self, keys: np.ndarray) -> Batch: ...

    def filler(self) -> Batch:
        """One row that no loss counts, with 1 as its epoch; asked for only where samples can be unreadable."""


class Fetching:
    """What all batches share: this rank's keys → batches, here or in workers, and the bad samples."""

    timeout = 0.0  # seconds that a worker may take for a batch; 0 for no limit

    def __init__(self, dataset: Samples, rank: int = 0, world: int = 1, workers: int | str = "auto"):
        if len(dataset) == 0:
            raise DataError(f"the split has 0 {dataset.unit}; add {dataset.unit} or choose another split")
        if not 0 <= rank < world:
            raise ValueError(f"rank {rank} must be 0..{world - 1} for world {world}")
        self.dataset, self.rank, self.world = dataset, rank, world
        self.workers = _workers(workers, dataset, world)
        self.bad: dict[str, str] = {}  # name → reason of every image that was skipped so far
        self._plan, self._loader = _Plan(), None

    def _fetch(self, keys: list[np.ndarray]) -> Iterator[Batch]:
        if self.workers == 0:
            pin = torch.cuda.is_available()
            for batch in map(self.dataset.__getitems__, keys):
                yield self._checked({k: v.pin_memory() if pin and k != "bad" else v for k, v in batch.items()})
            return
        self._plan.keys = keys
        try:
            for batch in self._workers_loader():
                yield self._checked(batch)
        except Exception as error:
            self.close(by_force=True)  # at once: left to the garbage collector, workers are waited for in vain
            if not explain_limit(error) and (reason := explain_lost_worker(error, self.timeout)):
                raise LimitError(reason) from error
            raise

    def close(self, by_force: bool = False) -> None:
        """Ends the worker processes, which a frozen one obeys only by force; the next pass starts new ones."""
        iterator = getattr(self._loader, "_iterator", None)
        if iterator is not None:
            if by_force:
                kill_workers(iterator)
            iterator._shutdown_workers()  # torch has no public name for it
            kill_workers(iterator)
        self._loader = None

    def _workers_loader(self) -> DataLoader:
        if self._loader is None:
            self._loader = DataLoader(
                self.dataset,
                batch_sampler=self._plan,
                num_workers=self.workers,
                persistent_workers=True,
                collate_fn=_as_it_is,
                timeout=self.timeout,
                worker_init_fn=_leave_stopping_to_the_trainer,
                pin_memory=torch.cuda.is_available(),
                generator=torch.Generator(),  # its own, so that loading never moves the global random state
            )
        return self._loader

    def _checked(self, batch: Batch) -> Batch:
        bad = batch.pop("bad", ())
        if bad and self.dataset.on_bad_sample == "error":
            raise BadImage(*bad[0])
        self.bad.update(bad)
        if bad and len(self.bad) >= len(self.dataset):
            raise BadImage(bad[0][0], f"{bad[0][1]}; with it all {len(self.bad)} {self.dataset.unit} are unreadable")
        if len(batch["index"]) == 0:  # every process must take part in a step, also one that has nothing to learn
            return self.dataset.filler() | {"filler": True}
        return batch

    def names(self, index: Sequence[int]) -> list[str]:
        """The samples' names, such as the paths of files."""
        return [str(self.dataset.split.names[int(i)]) for i in index]


class Epochs(Fetching, ABC):
    """Endless epochs, one per pass, whose keys are a function of (seed, epoch).

    Set `epoch` and `start` (batches of that epoch already done) before the first batch to go on there; afterwards each
    pass is the next epoch. The samples of an optimizer step are the same for every `world` and `accumulate`: the step
    is divided into `accumulate` micro-batches, which come one after the other, and each of those among the ranks.
    """

    def __init__(self, dataset: Samples, seed: int, rank: int, world: int, workers: int | str, accumulate: int = 1):
        super().__init__(dataset, rank, world, workers)
        if accumulate < 1:
            raise ValueError(f"accumulate={accumulate} must be 1 or more")
        self.seed, self.accumulate, self.start, self.epoch = seed, accumulate, 0, 0

    @abstractmethod
    def __len__(self) -> int:
        """Micro-batches of a whole epoch, also when the next pass starts in its middle (as Lightning counts)."""

    @abstractmethod
    def keys(self, epoch: int) -> list[np.ndarray]:
        """This rank's (B,2) keys of every micro-batch of an epoch."""

    @property
    def epoch(self) -> int:
        """The epoch of the running pass, or of the next one when none has begun."""
        return self._epoch

    @epoch.setter
    def epoch(self, value: int) -> None:
        self._epoch, self._begun = value, False

    def __iter__(self) -> Iterator[Batch]:
        self._epoch += int(self._begun) + self.start // len(self)
        start, self.start, self._begun = self.start % len(self), 0, True
        yield from self.batches_of(self._epoch, start)

    def batches_of(self, epoch: int, start: int) -> Iterator[Batch]:
        """The micro-batches of one epoch from number `start` on."""
        yield from self._fetch(self.keys(epoch)[start:])

    def state_dict(self) -> dict[str, int]:
        """Empty, as the position follows from the steps done; being there tells Lightning that resuming is exact."""
        return {}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Nothing to load; see state_dict."""


class TrainBatches(Epochs):
    """Endless epochs of shuffled batches; with `drop_last` the incomplete last step is left out.

    `batch_size` counts the samples of an optimizer step: those of all ranks and of its `accumulate` micro-batches. It
    is in each batch as `samples`, by which losses are divided. A sample that is skipped counts there without a loss,
    because how many are skipped elsewhere is unknown.

    Without `drop_last` an epoch has one step more where it does not divide evenly, all of them are a little smaller and
    within one sample of each other, and no sample is left out. The parts of a step are within one sample of each other
    too; an empty part is one row that no loss counts.

    `balance`: "sampler" shows every class equally often; "loss" is the task's to do, with Source.class_weights().
    """

    def __init__(
        self,
        dataset: Samples,
        batch_size: int,
        seed: int = 0,
        rank: int = 0,
        world: int = 1,
        workers: int | str = "auto",
        balance: str = "none",
        accumulate: int = 1,
        drop_last: bool = True,
    ):
        super().__init__(dataset, seed, rank, world, workers, accumulate)
        if balance not in ("none", "sampler", "loss"):
            raise ValueError(f"balance={balance!r} is not one of none, sampler, loss")
        _check_batch_size(batch_size, world, accumulate)
        if len(dataset) < batch_size:
            raise DataError(
                f"batch_size={batch_size} is larger than the training set of {len(dataset)} {dataset.unit}; take "
                f"batch_size={max(1, len(dataset) // 2 // world // accumulate) * world * accumulate}"
            )
        self.batch_size, self.balanced, self.drop_last = batch_size, balance == "sampler", drop_last

    def __len__(self) -> int:
        return self.steps * self.accumulate

    @property
    def steps(self) -> int:
        """Optimizer steps of an epoch."""
        n = len(self.dataset)
        return n // self.batch_size if self.drop_last else -(-n // self.batch_size)

    def ends(self) -> list[int]:
        """How many samples of an epoch have come after each of its steps, from 0."""
        total = self.steps * self.batch_size if self.drop_last else len(self.dataset)
        return [total * step // self.steps for step in range(self.steps + 1)]

    def parts(self) -> list[tuple[int, int]]:
        """[start, end) of this rank's samples of an epoch in every micro-batch; empty where a step has too few."""
        parts = self.accumulate * self.world
        return [(a + (b - a) * part // parts, a + (b - a) * (part + 1) // parts)
                for a, b in itertools.pairwise(self.ends()) for part in range(self.rank, parts, self.world)]

    def keys(self, epoch: int) -> list[np.ndarray]:
        """This rank's (B,2) keys of every micro-batch of an epoch; the first key of all for an empty one."""
        order = self.order(epoch)
        return [order[a:b] if a < b else order[:1] for a, b in self.parts()]

    def batches_of(self, epoch: int, start: int) -> Iterator[Batch]:
        sizes, parts = np.diff(self.ends()).repeat(self.accumulate), self.parts()
        for b, batch in enumerate(super().batches_of(epoch, start), start):
            empty = {"filler": True} if parts[b][0] == parts[b][1] else {}
            yield batch | {"samples": torch.tensor(int(sizes[b]))} | empty

    def order(self, epoch: int) -> np.ndarray:
        """(N,2) of (counter, index): all samples once in random order, or classes in equal numbers when balanced."""
        n = len(self.dataset)
        shuffled = permutation(self.seed, epoch, n).numpy()
        if not self.balanced:
            return np.stack([np.full(n, epoch), shuffled], axis=1)
        return _balanced(self.dataset.labels.numpy(), self.seed, epoch)[shuffled]


class EvalBatches(Fetching):
    """Every sample once, in order; all ranks get equally many batches of equal size.

    `weight` (B,) is 1, or 0 for the few repeated samples (fewer than `world`) that make the last batch divisible.
    """

    def __init__(
        self, dataset: Samples, batch_size: int, rank: int = 0, world: int = 1, workers: int | str = "auto"
    ):
        super().__init__(dataset, rank, world, workers)
        _check_batch_size(batch_size, world)
        self.batch_size = batch_size

    def __len__(self) -> int:
        return -(-len(self.dataset) // self.batch_size)

    def __iter__(self) -> Iterator[Batch]:
        for batch in self._fetch([self._keys(b) for b in range(len(self))]):
            weight = (batch.pop("epoch") == 0).float()
            batch.pop("filler", None)  # its weight is 0
            yield batch | {"weight": weight}

    def _keys(self, b: int) -> np.ndarray:
        """This rank's keys of batch b; 1 in place of the epoch marks padding (the last sample again)."""
        first, last = b * self.batch_size, len(self.dataset) - 1
        share = -(-min(self.batch_size, last + 1 - first) // self.world)
        rows = np.arange(share, dtype=np.int64) + first + self.rank * share
        return np.stack([rows > last, np.minimum(rows, last)], axis=1).astype(np.int64)


def _balanced(labels: np.ndarray, seed: int, epoch: int) -> np.ndarray:
    """(N,2) of (counter, index): every class equally often; within a class each image once before any comes again.

    Of several labels per image, (N,classes): every label equally often, and those without any like one more label.
    """
    groups = _groups(labels)
    quotas = np.full(len(groups), len(labels) // len(groups))
    lucky = permutation(seed, epoch, len(groups)).numpy()[: len(labels) - quotas.sum()]
    quotas[lucky] += 1
    keys = []
    for (c, members), quota in zip(groups, quotas, strict=True):
        for again in range(-(-quota // len(members))):
            counter = epoch + REPEAT * again
            chosen = members[permutation(seed + int(c), counter, len(members)).numpy()[: quota - again * len(members)]]
            keys.append(np.stack([np.full(len(chosen), counter), chosen], axis=1))
    found = np.concatenate(keys)
    return found if labels.ndim == 1 else _told_apart(found, epoch)


def _groups(labels: np.ndarray) -> list[tuple[int, np.ndarray]]:
    """(class, its images) of every class that is there; of several labels per image -1 for the images without any."""
    if labels.ndim == 1:
        return [(int(c), np.flatnonzero(labels == c)) for c in np.unique(labels)]
    groups = [(c, np.flatnonzero(column)) for c, column in enumerate(labels.T)]
    return [group for group in [*groups, (-1, np.flatnonzero(~labels.any(axis=1)))] if len(group[1])]


def _told_apart(keys: np.ndarray, epoch: int) -> np.ndarray:
    """The same keys with counters by how often an image came before: it may be drawn for each of its labels."""
    order = np.argsort(keys[:, 1], kind="stable")
    index = keys[order, 1]
    first = np.searchsorted(index, index)  # place of the image's first draw
    keys[order, 0] = epoch + REPEAT * (np.arange(len(keys)) - first)
    return keys


def _check_batch_size(batch_size: int, world: int, accumulate: int = 1) -> None:
    parts = world * accumulate
    if batch_size < 1 or batch_size % parts:
        valid = max(1, batch_size // parts) * parts
        among = f"{world} devices" + (f" with {accumulate} micro-batches each" if accumulate > 1 else "")
        raise DataError(
            f"batch_size {batch_size} is not divisible by {among}; nearest valid: {valid}, {valid + parts}"
        )


def kill_workers(iterator: Any) -> None:
    """Kills what is alive of a DataLoader's workers, after torch was asked not to take their end for a failure."""
    if iterator._worker_pids_set:
        _remove_worker_pids(id(iterator))
        iterator._worker_pids_set = False
    for worker in iterator._workers:
        if worker.is_alive():
            worker.kill()


def _workers(workers: int | str, dataset: Samples, world: int) -> int:
    if workers == "auto":
        if dataset.cached:
            return 0
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        local = int(os.environ.get("LOCAL_WORLD_SIZE", world))
        return min(16, max(1, cores // local - 1))
    if not isinstance(workers, int) or isinstance(workers, bool) or workers < 0:
        raise ValueError(f"workers={workers!r} must be auto or a number of processes, 0 or more")
    return workers


def _leave_stopping_to_the_trainer(worker: int) -> None:
    """Stop signals to a whole process group reach workers too, but the step under way still needs them.

    So they ignore them; but a second SIGTERM, which is how DataLoader ends its workers, ends them.
    """
    for signum in SIGNALS:
        signal.signal(signum, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda signum, frame: signal.signal(signum, signal.SIG_DFL))


def _as_it_is(batch: Batch) -> Batch:
    return batch
