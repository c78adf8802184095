"""Damaged and replaced checkpoints are detected: a flipped bit, a truncation, a zeroed page, another file."""

import random
from collections.abc import Iterator
from pathlib import Path

import torch

from tests.faults.promise import Case, Promise
from vit.files.checkpoints import verify
from vit.training import AtomicCheckpointIO, newest_valid

SIZE = 30_000  # values in the checkpoint, 120 kB


def damaged(folder: Path, kind: str, seed: int) -> None:
    path = folder / "last.ckpt"
    torch.save({"weight": torch.randn(SIZE, generator=torch.Generator().manual_seed(seed)), "step": 7}, path)
    assert verify(path) is None
    data, rng = bytearray(path.read_bytes()), random.Random(seed)
    position = rng.randrange(len(data))
    if kind == "flip":
        data[position] ^= 1 << rng.randrange(8)
    elif kind == "cut":
        data = data[:position]
    else:
        data[position : position + 4096] = bytes(len(data[position : position + 4096]))
    path.write_bytes(data)
    assert verify(path) is not None, f"{kind} at byte {position} of {len(data)} was not detected"


def replaced(folder: Path, what: str) -> None:
    """A complete file with other content: older, of another run, or saved again."""
    for run in ("run", "other"):
        for step in (1, 2, 3):
            checkpoint = {"weight": torch.full((SIZE,), float(step)), "run": run, "global_step": step}
            AtomicCheckpointIO().save_checkpoint({**checkpoint, "is_best": step == 1}, folder / run / "last.ckpt")
    run, last = folder / "run", folder / "run" / "last.ckpt"
    sources = {"older": run / "previous.ckpt", "best": run / "best.ckpt", "other run": folder / "other" / "last.ckpt"}
    if what == "saved again":
        torch.save(torch.load(last, weights_only=True), folder / "again.ckpt")
        sources[what] = folder / "again.ckpt"
    content = sources[what].read_bytes()
    last.unlink()
    last.write_bytes(content)
    assert verify(last) is not None, f"{what} was not detected"
    assert newest_valid(run)[0] == run / "previous.ckpt"


def cases() -> Iterator[Case]:
    for what in ("older", "best", "other run", "saved again"):
        yield Case(f"replaced by {what}", lambda folder, w=what: replaced(folder, w), quick=True)
    for kind, count in (("flip", 200), ("cut", 50), ("zero", 50)):
        for seed in range(count):
            yield Case(f"{kind} {seed}", lambda folder, k=kind, s=seed: damaged(folder, k, s), quick=seed < 5)


PROMISE = Promise("flipped, truncated, zeroed and replaced checkpoints are detected", cases)
