"""Randomness from counters: what happens in a step depends on which step it is, not on what ran before."""

import random

import numpy as np
import torch

from vit.counters import splitmix64


def mix(*numbers: int) -> int:
    """A 63-bit hash of integers, the same on every machine; another function than `vit.counters.hashed_int`, which
    would change the dropout of runs that are resumed.
    """
    state = 0
    for number in numbers:
        state = splitmix64(state + number)
    return state >> 1


def seed_step(seed: int, step: int, micro_batch: int = 0, rank: int = 0) -> None:
    """Seeds torch's generators at the top of a training step, so that dropout, drop path and mixup resume exactly.

    `step` counts optimizer steps, `micro_batch` the batches accumulated within one. It goes past `torch.manual_seed`,
    which would record a stack trace for every device that is not in use yet; nothing here waits for a device.
    """
    value = mix(seed, step, micro_batch, rank)
    torch.default_generator.manual_seed(value)
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed(value)


def seed_everything_once(seed: int) -> None:
    """Seeds Python, NumPy and torch before a model is built; the training steps seed themselves."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)
