"""All processes of a run have the same samples, also where each machine reads its own copy of the data, and divide
them into the same batches.
"""

import hashlib
import logging
from collections.abc import Mapping, Sequence

import torch
from pytorch_lightning import Callback, LightningModule, Trainer

from vit.data import DataError
from vit.run.config.overrides import ConfigError, dotted_items

SPLITS = ("train", "val", "test")
SEED = "seed"
NUMBERS = ("recipe.batch_size", "recipe.batch_tokens", "recipe.epochs")  # which determine the number of steps
log = logging.getLogger("vit")


class SameSamples(Callback):
    """Compares names and labels of the samples between the processes before the first step.

    A process divides its own list of samples, so with other files some samples would be trained twice and others never.

    Args:
        splits: split -> (name, class or target) of each sample.
        config: the config of this process, whose seed, batch size and epochs are compared too.
    """

    def __init__(self, splits: Mapping[str, Sequence[tuple[str, str]]], config: dict):
        self.values = [digest(splits), *counts(splits)]
        values = dict(dotted_items(config))
        self.numbers = [found if isinstance(found := values.get(key), int) else 0 for key in (SEED, *NUMBERS)]

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Compare the samples.

        Raises:
            DataError: a process has other samples than the first one; in all processes.
            ConfigError: a process would take other steps than the first one, which would wait for it; in all processes.
        """
        if stage != "fit" or trainer.world_size == 1:
            return
        own = torch.tensor(self.values + self.numbers, device=trainer.strategy.root_device)
        gathered = [torch.empty_like(own) for _ in range(trainer.world_size)]
        torch.distributed.all_gather(gathered, own)
        first, *others = (values.tolist() for values in gathered)
        count = len(self.values)
        for rank, other in enumerate(others, 1):
            if other[:count] != first[:count]:
                raise DataError(f"rank {rank} has other samples than rank 0, {described(other[:count])} instead of "
                                f"{described(first[:count])}: copy the data to its machine again")
            check_numbers(rank, other[count:], first[count:])


def check_numbers(rank: int, other: Sequence[int], first: Sequence[int]) -> None:
    """Compares the seed and the numbers of `NUMBERS` of a process with those of the first one. Another seed is a
    warning: the process then divides another order of the samples.

    Raises:
        ConfigError: it would take other steps.
    """
    for key, found, expected in zip((SEED, *NUMBERS), other, first, strict=True):
        if found == expected:
            continue
        differs = f"rank {rank} has {key}={found}, rank 0 {key}={expected}"
        if key != SEED:
            raise ConfigError(f"{differs}; all processes of a run need the same command")
        log.warning(f"{differs}: the ranks order the samples differently, so that an epoch has some of them twice and "
                    "others not at all; with strategy=single each process is a run of its own")


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
