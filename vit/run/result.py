"""The result of a training run."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Run:
    """A finished run: its folder and its final metrics, rates in [0,1]. `vit.load(run.path)` returns the model."""

    path: Path
    metrics: dict
