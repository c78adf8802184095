"""The order of samples: batches as a function of (seed, epoch, batch), for any number of ranks and workers.

They need no DistributedSampler. All classes are plain iterables for Lightning, a script or a notebook. Their iterators
are generators: `iter()` alone, which Lightning calls early and repeatedly, has no effect before the first batch is
requested.
"""

import itertools
from abc import ABC, abstractmethod
from collections.abc import Iterator

import numpy as np
import torch

from vit.counters import permutation
from vit.data.batching.balancing import REPEAT, balance_classes
from vit.data.batching.loading import BatchLoader, Samples
from vit.data.errors import DataError
from vit.data.images.dataset import Batch
from vit.messages import check_choice, number_of


class EndlessEpochs(BatchLoader, ABC):
    """Endless epochs, one per pass, whose keys are a function of (seed, epoch).

    Set `epoch` and `start` (finished batches of that epoch) before the first batch to continue there; each later pass
    is the next epoch. The samples of an optimizer step are the same for every `world` and `accumulate`: a step is
    divided into `accumulate` consecutive micro-batches (gradient accumulation), and each of those among the ranks.

    Raises:
        ValueError: `accumulate` is below 1.
    """

    def __init__(self, dataset: Samples, seed: int, rank: int, world: int, workers: int | str, accumulate: int = 1):
        super().__init__(dataset, rank, world, workers)
        if accumulate < 1:
            raise ValueError(f"accumulate={accumulate} must be 1 or more")
        self.seed, self.accumulate, self.start, self.epoch = seed, accumulate, 0, 0

    @abstractmethod
    def __len__(self) -> int:
        """Micro-batches of a whole epoch, even if the next pass starts in the middle of one, as Lightning expects."""

    @abstractmethod
    def keys(self, epoch: int) -> list[np.ndarray]:
        """This rank's (B,2) keys of every micro-batch of an epoch."""

    @property
    def epoch(self) -> int:
        """The epoch of the current pass, or of the next one if none has begun."""
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
        """Empty, since the position follows from the finished steps; its presence signals to Lightning that resuming is
        exact.
        """
        return {}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Nothing to load; see state_dict."""


class TrainBatches(EndlessEpochs):
    """Endless epochs of shuffled batches; with `drop_last` the incomplete last step is left out.

    `batch_size` counts the samples of an optimizer step over all ranks and micro-batches. Each batch contains it as
    `samples`, the divisor of the loss. Skipped samples are part of this number and add no loss, because the number that
    other ranks skip is unknown.

    Without `drop_last` every sample is used. If the samples do not divide evenly, an epoch has one more step; the sizes
    of its steps differ by at most one sample, and so do the parts of a step. An empty part is one row without a loss.

    `balance`: "sampler" draws every class equally often; "loss" leaves it to the task, with Source.class_weights().

    `repeats`: repeated augmentation (arXiv 1901.09335, 1902.05509). An epoch has as many samples, those of 1/`repeats`
    of the data set, each `repeats` times with different augmentation in the same step, as with timm's
    `RepeatAugSampler`: if a step is not divisible by `repeats`, one sample has the rest of its copies in the next step.
    The copies of a sample are far from each other within their step, so that mixup combines different samples and that
    ranks share the copies.

    Raises:
        ValueError: `balance` is unknown, or `repeats` is below 1 or larger than `batch_size`.
        DataError: `batch_size` is larger than the data set or not divisible among the ranks and micro-batches.
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
        repeats: int = 1,
    ):
        super().__init__(dataset, seed, rank, world, workers, accumulate)
        check_choice("balance", balance, ("none", "sampler", "loss"))
        _check_batch_size(batch_size, world, accumulate)
        if not 1 <= repeats <= batch_size:
            raise ValueError(f"repeats={repeats} must be in 1..{batch_size}, the batch_size, because all copies of a "
                             "sample are in one batch")
        if len(dataset) < batch_size:
            raise DataError(
                f"batch_size={batch_size} is larger than the training set of "
                f"{number_of(len(dataset), dataset.unit.removesuffix('s'))}; set "
                f"batch_size={max(1, len(dataset) // 2 // world // accumulate) * world * accumulate}"
            )
        self.batch_size, self.balanced, self.drop_last = batch_size, balance == "sampler", drop_last
        self.repeats = repeats

    def __len__(self) -> int:
        return self.steps * self.accumulate

    @property
    def steps(self) -> int:
        """Optimizer steps of an epoch."""
        n = len(self.dataset)
        return n // self.batch_size if self.drop_last else -(-n // self.batch_size)

    def ends(self) -> list[int]:
        """Cumulative number of samples after each step of an epoch, from 0."""
        total = self.steps * self.batch_size if self.drop_last else len(self.dataset)
        return [total * step // self.steps for step in range(self.steps + 1)]

    def parts(self) -> list[tuple[int, int]]:
        """[start, end) of this rank's samples of an epoch in every micro-batch; empty where a step has too few."""
        parts = self.accumulate * self.world
        return [(a + (b - a) * part // parts, a + (b - a) * (part + 1) // parts)
                for a, b in itertools.pairwise(self.ends()) for part in range(self.rank, parts, self.world)]

    def keys(self, epoch: int) -> list[np.ndarray]:
        """This rank's (B,2) keys of every micro-batch of an epoch; for an empty one the first key of the epoch."""
        order = self.order(epoch)
        return [order[a:b] if a < b else order[:1] for a, b in self.parts()]

    def batches_of(self, epoch: int, start: int) -> Iterator[Batch]:
        sizes, parts = np.diff(self.ends()).repeat(self.accumulate), self.parts()
        for b, batch in enumerate(super().batches_of(epoch, start), start):
            empty = {"filler": True} if parts[b][0] == parts[b][1] else {}
            yield batch | {"samples": torch.tensor(int(sizes[b]))} | empty

    def order(self, epoch: int) -> np.ndarray:
        """(N,2) of (counter, index): all samples once in random order, or every class equally often if balanced; with
        `repeats` the first of them so often.
        """
        n = len(self.dataset)
        draws = -(-n // self.repeats)
        if self.balanced:
            balanced = balance_classes(self.dataset.labels.numpy(), self.seed, epoch, draws)
            keys = balanced[permutation(self.seed, epoch, draws).numpy()]
        else:
            keys = np.stack([np.full(n, epoch), permutation(self.seed, epoch, n).numpy()], axis=1)[:draws]
        return keys if self.repeats == 1 else self._repeated(keys, epoch)

    def _repeated(self, keys: np.ndarray, epoch: int) -> np.ndarray:
        """(draws,2) of (counter, index) → (N,2), each key `repeats` times with different counters; in each step first
        all first copies, then all second ones.
        """
        row = np.arange(len(self.dataset))
        drawn, copy = row // self.repeats, row % self.repeats
        earlier = (keys[drawn, 0] - epoch) // REPEAT  # how often the sample was drawn before, which balancing counts
        repeated = np.stack([epoch + REPEAT * (earlier * self.repeats + copy), keys[drawn, 1]], axis=1)
        step = np.searchsorted(self.ends(), row, side="right")
        return repeated[np.lexsort((copy, step))]


class EvalBatches(BatchLoader):
    """Every sample once, in order; all ranks get the same number of batches of the same size.

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
            batch.pop("filler", None)  # a blank row, whose weight is 0
            yield batch | {"weight": weight}

    def _keys(self, b: int) -> np.ndarray:
        """This rank's keys of batch b; 1 in place of the epoch marks padding (the last sample again)."""
        first, last = b * self.batch_size, len(self.dataset) - 1
        share = -(-min(self.batch_size, last + 1 - first) // self.world)
        rows = np.arange(share, dtype=np.int64) + first + self.rank * share
        return np.stack([rows > last, np.minimum(rows, last)], axis=1).astype(np.int64)


def _check_batch_size(batch_size: int, world: int, accumulate: int = 1) -> None:
    parts = world * accumulate
    if batch_size < 1 or batch_size % parts:
        valid = max(1, batch_size // parts) * parts
        among = number_of(world, "device") + (f" with {accumulate} micro-batches each" if accumulate > 1 else "")
        raise DataError(
            f"batch_size {batch_size} is not divisible by {among}; nearest valid: {valid}, {valid + parts}"
        )
