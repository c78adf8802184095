"""Seeds from counters: the random numbers of a step depend on its number, not on what ran before."""

import random

import numpy as np
import torch

from vit.counters import splitmix64


def mix(*numbers: int) -> int:
    """A 63-bit hash of integers, equal on all machines.

    It differs from `vit.counters.hash_to_int`, which would change the dropout of resumed runs.
    """
    state = 0
    for number in numbers:
        state = splitmix64(state + number)
    return state >> 1


def seed_step(seed: int, step: int, micro_batch: int = 0, rank: int = 0) -> None:
    """Seed torch's generators at the start of a training step, so that dropout, drop path and mixup resume exactly.

    It does not call `torch.manual_seed`, which records a stack trace for every device that is not initialized yet.
    Nothing waits for a device.

    Args:
        step: number of the optimizer step.
        micro_batch: number of the accumulated batch within the step.
    """
    value = mix(seed, step, micro_batch, rank)
    torch.default_generator.manual_seed(value)
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed(value)


def seed_everything_once(seed: int) -> None:
    """Seed Python, NumPy and torch before a model is built; training steps are seeded by `seed_step`."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)
