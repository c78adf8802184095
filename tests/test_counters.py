"""The hash against Python integers, its statistics, and that permutations are permutations."""

import numpy as np
import pytest
import torch

from vit.counters import hash_counters, hash_to_int, permutation, random_bytes, splitmix64, uniform
from vit.generation import sampling

MASK = (1 << 64) - 1


def reference(*counters: int) -> int:
    """splitmix64's finaliser over the counters, in unbounded integers."""
    state = 0
    for counter in counters:
        x = ((state ^ (counter & MASK)) + 0x9E3779B97F4A7C15) & MASK
        x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK
        x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK
        state = x ^ (x >> 31)
    return state


def test_hash_equals_big_integers():
    index = torch.tensor([0, 1, -1, 2**62, 123456789])
    found = hash_counters(7, 2**40, index, 3).tolist()
    assert [f & MASK for f in found] == [reference(7, 2**40, i, 3) for i in index.tolist()]


def test_one_hash_for_numbers_and_tensors():
    for counters in ((0,), (7, 2**40, 3), (-1, 2**70)):
        assert hash_to_int(*counters) == reference(*counters)
    assert hash_counters(7, torch.tensor([3])).item() & MASK == hash_to_int(7, 3)


def test_random_bytes_are_the_highest_of_the_hash():
    counters = np.array([0, 1, 2**40, 2**63 + 5, MASK], np.uint64)
    for state in (0, 7, 2**63 + 1, MASK):
        expected = [reference(counter ^ state) >> 56 for counter in counters.tolist()]
        assert random_bytes(counters, state).tolist() == expected


def test_pinned_values():
    """Outputs of Vigna's splitmix64.c, whose state after n steps is n times its increment; and what sampling draws."""
    increment = 0x9E3779B97F4A7C15
    assert splitmix64(0) == 0xE220A8397B1DCDAF and splitmix64(increment) == 0x6E789E6AA1B965F4
    assert sampling.uniform(0) == 0.8833108082136426 and sampling.uniform(1, 2, 3) == 0.814259011529328


def test_numbers_and_tensors_give_the_same():
    index = torch.arange(10)
    as_tensors = uniform(torch.tensor(5), torch.full((10,), 2), index, torch.tensor(9))
    assert torch.equal(uniform(5, 2, index, 9), as_tensors)
    grid = uniform(5, 2, index[:, None], torch.arange(4))
    assert torch.equal(grid[:, 3], uniform(5, 2, index, 3))


def test_known_values_never_change():
    assert [round(v, 6) for v in uniform(0, 0, torch.arange(3), 0).tolist()] == [
        round((reference(0, 0, i, 0) >> 40) / 2**24, 6) for i in range(3)
    ]


def test_uniform_is_uniform_and_independent():
    u = uniform(1, torch.arange(40)[:, None, None], torch.arange(50)[:, None], torch.arange(20)).double()
    assert u.min() >= 0 and u.max() < 1
    assert abs(u.mean() - 0.5) < 0.005 and abs(u.var() - 1 / 12) < 0.002
    counts = torch.histc(u.flatten(), 64, 0, 1)
    chi2 = float(((counts - 625) ** 2 / 625).sum())
    assert 25 < chi2 < 120  # 63 degrees of freedom
    for axis in range(3):
        a, b = u.narrow(axis, 0, u.shape[axis] - 1).flatten(), u.narrow(axis, 1, u.shape[axis] - 1).flatten()
        assert abs(float(torch.corrcoef(torch.stack([a, b]))[0, 1])) < 0.02


def test_permutation():
    for n in (1, 2, 1000):
        assert sorted(permutation(3, 4, n).tolist()) == list(range(n))
    first, second = permutation(0, 0, 1000), permutation(0, 1, 1000)
    assert (first == second).sum() < 10 and (first == torch.arange(1000)).sum() < 10
    assert abs(np.corrcoef(first, np.arange(1000))[0, 1]) < 0.1


def test_needs_a_tensor():
    with pytest.raises(TypeError, match="at least one tensor"):
        hash_counters(1, 2)
