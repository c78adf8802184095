"""Randomness as a pure function of counters: the same numbers on every device, in every process, after every restart.

A 64-bit hash (splitmix64, Steele et al. 2014) absorbs one counter after the other. int64 arithmetic wraps around on
every device of torch, so no state of a random generator has to be stored. Torch's own generators, which dropout draws
from, are seeded with the number of the step.
"""

import random

import numpy as np
import torch
from torch import Tensor

Counter = int | Tensor

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15
_MIX1 = 0xBF58476D1CE4E5B9
_MIX2 = 0x94D049BB133111EB


def uniform(seed: Counter, epoch: Counter, index: Tensor, *slots: Counter) -> Tensor:
    """Random numbers in [0, 1), float32 on a grid of 2^-24; tensors among the counters broadcast against each other."""
    return to_unit_interval(hash_counters(seed, epoch, index, *slots))


def to_unit_interval(bits: Tensor) -> Tensor:
    """Random bits as numbers in [0, 1)."""
    return ((bits >> 40) & 0xFFFFFF).to(torch.float32) * 2.0**-24


def permutation(seed: int, epoch: int, n: int) -> Tensor:
    """The order of n samples in one epoch: (n,) int64, by a stable sort of hashes."""
    return torch.argsort(hash_counters(seed, epoch, torch.arange(n)), stable=True)


def hash_counters(*counters: Counter, state: Counter = 0) -> Tensor:
    """64 random bits (int64) for each combination of the counters, which broadcast against each other.

    `state` is the hash of preceding counters: `hash_counters(b, state=hash_counters(a))` equals `hash_counters(a, b)`.

    Raises:
        TypeError: no counter is a tensor.
    """
    for counter in counters:
        state = _absorb(state, counter)
    if not isinstance(state, Tensor):
        raise TypeError("hash_counters needs at least one tensor among its counters, got only numbers; use hash_to_int")
    return state


def splitmix64(x: int) -> int:
    """The hash of one 64-bit number: the first output of a SplitMix64 generator seeded with it."""
    x = (x + _GOLDEN) & _MASK
    x = ((x ^ (x >> 30)) * _MIX1) & _MASK
    x = ((x ^ (x >> 27)) * _MIX2) & _MASK
    return x ^ (x >> 31)


def hash_to_int(*counters: int) -> int:
    """64 random bits as an unsigned number: the bits of `hash_counters`, without a tensor."""
    state = 0
    for counter in counters:
        state = _absorb(state, counter)
    return state


def random_bytes(counters: np.ndarray, state: int) -> np.ndarray:
    """uint64 → uint8: the highest 8 bits of `hash_counters(counters, state=state)`, in half its time on a CPU.

    NumPy has unsigned numbers, whose shifts need no masks. The last operation of the hash does not change these bits.
    """
    x = counters ^ np.uint64(state)
    x += np.uint64(_GOLDEN)
    x ^= x >> np.uint64(30)
    x *= np.uint64(_MIX1)
    x ^= x >> np.uint64(27)
    x *= np.uint64(_MIX2)
    return (x >> np.uint64(56)).astype(np.uint8)


def _absorb(state: Counter, counter: Counter) -> Counter:
    """The hash state after one more counter: a tensor if either is one, with the same bits as for numbers."""
    if not isinstance(state, Tensor) and not isinstance(counter, Tensor):
        return splitmix64(state ^ counter)
    state = state if isinstance(state, Tensor) else _signed(state)
    counter = counter.to(torch.int64) if isinstance(counter, Tensor) else _signed(counter)
    x = (state ^ counter).add_(_signed(_GOLDEN))  # as in `splitmix64`, on int64
    x = _shift(x, 30).bitwise_xor_(x).mul_(_signed(_MIX1))
    x = _shift(x, 27).bitwise_xor_(x).mul_(_signed(_MIX2))
    return _shift(x, 31).bitwise_xor_(x)


def _shift(x: Tensor, bits: int) -> Tensor:
    """Logical right shift: torch's shift of int64 keeps the sign, so the copies of the sign bit are masked away."""
    return (x >> bits).bitwise_and_((1 << (64 - bits)) - 1)


def _signed(x: int) -> int:
    """The int64 with the lowest 64 bits of a number."""
    x &= _MASK
    return x - (1 << 64) if x >> 63 else x


def mix(*numbers: int) -> int:
    """A 63-bit hash of integers, equal on all machines.

    `hash_to_int` is not used in its place, because other seeds would change the dropout of resumed runs.
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
    elif torch.backends.mps.is_available():
        torch.mps.manual_seed(value)


def seed_everything_once(seed: int) -> None:
    """Seed Python, NumPy and torch before a model is built; training steps are seeded by `seed_step`."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)
