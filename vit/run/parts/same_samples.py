"""All processes of a run have the same samples, also where each machine reads its own copy of the data."""

import hashlib
from collections.abc import Mapping, Sequence

import torch
from pytorch_lightning import Callback, LightningModule, Trainer

from vit.data import DataError

SPLITS = ("train", "val", "test")


class SameSamples(Callback):
    """Compares names and labels of the samples between the processes before the first step.

    A process divides its own list of samples, so with other files some samples would be trained twice and others never.

    Args:
        splits: split -> (name, class or target) of each sample.
    """

    def __init__(self, splits: Mapping[str, Sequence[tuple[str, str]]]):
        self.values = [digest(splits), *counts(splits)]

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Compare the samples.

        Raises:
            DataError: a process has other samples than the first one; in all processes.
        """
        if stage != "fit" or trainer.world_size == 1:
            return
        own = torch.tensor(self.values, device=trainer.strategy.root_device)
        gathered = [torch.empty_like(own) for _ in range(trainer.world_size)]
        torch.distributed.all_gather(gathered, own)
        first, *others = (values.tolist() for values in gathered)
        for rank, other in enumerate(others, 1):
            if other != first:
                raise DataError(f"rank {rank} has other samples than rank 0, {described(other)} instead of "
                                f"{described(first)}: copy the data to its machine again")


def digest(splits: Mapping[str, Sequence[tuple[str, str]]]) -> int:
    """A number below 2^63 that depends on each name and label, and on their order."""
    found = hashlib.sha256()
    for split in sorted(splits):
        found.update(f"{split}\0".encode())
        for row in splits[split]:
            found.update("\0".join((*row, "")).encode("utf-8", "surrogatepass"))
    return int.from_bytes(found.digest()[:8], "big") >> 1


def counts(splits: Mapping[str, Sequence]) -> list[int]:
    """The number of samples of each split, 0 without it."""
    return [len(splits.get(split, ())) for split in SPLITS]


def described(values: Sequence[int]) -> str:
    """`195 train / 26 val / 19 test`."""
    return " / ".join(f"{count:,} {split}" for count, split in zip(values[1:], SPLITS, strict=True) if count)
