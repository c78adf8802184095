"""Damaged checkpoints are noticed: a flipped bit, a cut, a zeroed page, wherever it is."""

import random
from collections.abc import Iterator
from pathlib import Path

import torch

from tests.faults.promise import Case, Promise
from vit.training import verify

SIZE = 30_000  # values in the checkpoint, 120 kB


def damaged(folder: Path, kind: str, seed: int) -> None:
    path = folder / "last.ckpt"
    torch.save({"weight": torch.randn(SIZE, generator=torch.Generator().manual_seed(seed)), "step": 7}, path)
    assert verify(path) is None
    data, rng = bytearray(path.read_bytes()), random.Random(seed)
    place = rng.randrange(len(data))
    if kind == "flip":
        data[place] ^= 1 << rng.randrange(8)
    elif kind == "cut":
        data = data[:place]
    else:
        data[place : place + 4096] = bytes(len(data[place : place + 4096]))
    path.write_bytes(data)
    assert verify(path) is not None, f"{kind} at byte {place} of {len(data)} was not noticed"


def cases() -> Iterator[Case]:
    for kind, count in (("flip", 200), ("cut", 50), ("zero", 50)):
        for seed in range(count):
            yield Case(f"{kind} {seed}", lambda folder, k=kind, s=seed: damaged(folder, k, s), quick=seed < 5)


PROMISE = Promise("flipped, cut and zeroed checkpoints are noticed", cases)
