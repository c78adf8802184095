"""Random numbers of a step as a function of its counters."""

import itertools

import pytest
import torch

from vit.counters import mix, seed_everything_once, seed_step


def draw():
    return torch.rand(8)


def test_a_steps_randomness_depends_on_its_counters_alone():
    seed_step(1, 5, 0, 0)
    first = draw()
    seed_step(1, 4, 0, 0)
    draw(), draw()
    seed_step(1, 5, 0, 0)
    assert torch.equal(first, draw())


def test_an_apple_gpu_is_seeded_too(monkeypatch):
    seeds = []
    monkeypatch.setattr("torch.backends.mps.is_available", lambda: True)
    monkeypatch.setattr("torch.mps.manual_seed", seeds.append)
    for step in (5, 4, 5):
        seed_step(1, step)
    assert seeds == [mix(1, step, 0, 0) for step in (5, 4, 5)]


def test_every_counter_changes_the_numbers_and_none_equals_another():
    keys = list(itertools.product(range(6), repeat=4))
    assert len({mix(*key) for key in keys}) == len(keys)
    draws = set()
    for key in itertools.product(range(3), repeat=4):
        seed_step(*key)
        draws.add(tuple(draw().tolist()))
    assert len(draws) == 81


@pytest.mark.parametrize("counters, expected", [
    ((0,), 0xE220A8397B1DCDAF >> 1),  # the first output of Vigna's splitmix64.c with seed 0
    ((0, 0, 0, 0), 1195769770526638388),
    ((1, 5, 0, 0), 413081107440299117),
    ((7, 123456, 3, 2), 8957313181769574785),
    ((-1, 2**70), 3377987053190985883),
])
def test_the_hash_is_pinned(counters, expected):
    """Another value would change the dropout of every run that is resumed."""
    assert mix(*counters) == expected


def test_the_hash_fits_a_generator():
    assert 0 <= mix(-1, 2**70) < 2**63
    bits = torch.tensor([[(mix(7, step) >> k) & 1 for k in range(63)] for step in range(2000)], dtype=torch.float64)
    assert (bits.mean(0) - 0.5).abs().max() < 0.06  # every bit is a fair coin over the steps


def test_dropout_follows_the_step():
    dropout = torch.nn.Dropout(0.5)
    seed_step(0, 3)
    a = dropout(torch.ones(100))
    seed_step(0, 3)
    assert torch.equal(a, dropout(torch.ones(100)))


def test_seed_everything_once():
    seed_everything_once(3)
    a = torch.nn.Linear(3, 3).weight
    seed_everything_once(3)
    assert torch.equal(a, torch.nn.Linear(3, 3).weight)
