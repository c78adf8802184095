"""All processes of a run have the same samples, also where each machine reads its own copy of the data, divide them
into the same batches and take the same steps.
"""

import hashlib
import logging
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from pytorch_lightning import Callback, LightningModule, Trainer

from vit.data import DataError
from vit.run.config.overrides import ConfigError, dotted_items, yaml_text

SPLITS = ("train", "val", "test")
SEED = "seed"
KEYS = ("data.balance", "precision", "debug", "trainer.max_time", "callbacks.monitor", "callbacks.patience",
        "callbacks.every_steps")  # beside `recipe`: they determine the steps, or where the processes communicate
log = logging.getLogger("vit")


class SameSamples(Callback):
    """Compares names and labels of the samples, and the values that determine the steps, between the processes before
    the first step.

    A process divides its own list of samples, so with other files some samples would be trained twice and others never.

    Args:
        splits: split -> (name, class or target) of each sample.
        config: the config of this process.
    """

    def __init__(self, splits: Mapping[str, Sequence[tuple[str, str]]], config: dict):
        self.samples = [digest(splits), *counts(splits)]
        self.values = step_values(config)

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Compare the samples and values.

        Raises:
            DataError: a process has other samples than the first one; in all processes.
            ConfigError: a process would take other steps than the first one, so that one would wait for the other or
                their weights would differ; in all processes.
        """
        if stage != "fit" or trainer.world_size == 1:
            return
        gathered = [None] * trainer.world_size
        torch.distributed.all_gather_object(gathered, (self.samples, self.values))
        (first, values), *others = gathered
        for rank, (samples, found) in enumerate(others, 1):
            if samples != first:
                raise DataError(f"rank {rank} has other samples than rank 0, {described(samples)} instead of "
                                f"{described(first)}: copy the data to its machine again")
            check_values(rank, found, values)


def step_values(config: dict) -> dict[str, Any]:
    """Key -> value of seed, recipe and `KEYS`; without the augmentation, which may have paths of a machine."""
    return {key: value for key, value in dotted_items(config) if not isinstance(value, dict)
            and (key in (SEED, *KEYS) or key.startswith("recipe.") and not key.startswith("recipe.augment."))}


def check_values(rank: int, found: Mapping[str, Any], first: Mapping[str, Any]) -> None:
    """Compares the values of a process with those of the first one. Another seed is a warning: the process then divides
    another order of the samples.

    Raises:
        ConfigError: another value differs.
    """
    for key in dict.fromkeys((*first, *found)):
        value, expected = found.get(key), first.get(key)
        if value == expected:
            continue
        differs = f"rank {rank} has {key}={yaml_text(value)}, rank 0 {key}={yaml_text(expected)}"
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
