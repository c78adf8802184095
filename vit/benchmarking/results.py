"""What a benchmark measures, and its JSON."""

import dataclasses
import math
import statistics
from dataclasses import dataclass, field
from typing import Any

from vit.benchmarking.ratios import Ratio, paired_ratio, quartiles
from vit.benchmarking.timing import CLOCKS, Clock, Times
from vit.messages import ArgumentError, check_choice

OURS = "vit"
FORMAT = 1  # version of the JSON
CONVENTION = ("share of the matrix rate = model FLOPs per second / operations per second of a square matrix product in "
              "the same precision; model FLOPs are 2 x multiply-adds of the forward pass for inference and 6 x for a "
              "training step, without recomputation, with all tokens in the last block")
Fact = float | int | str | None


# name -> mode of torch.compile
MODES = {"eager": None, "compiled": "default", "reduce-overhead": "reduce-overhead", "max-autotune": "max-autotune"}


@dataclass(frozen=True)
class Settings:
    """What is measured, and how.

    Args:
        against: names of peers.
        precisions: names of Lightning.
        modes: names of modes, keys of `MODES`.
        clock: "wall", or "processor" for the time of all threads on a processor.

    Raises:
        ValueError: an unknown clock or mode, a number below 1, or the processor clock, which measures no
            GPU, for a GPU.
    """

    against: tuple[str, ...] = ()
    precisions: tuple[str, ...] = ("32-true", "bf16-mixed")
    modes: tuple[str, ...] = ("eager",)
    batches: tuple[int, ...] = (16,)
    rounds: int = 11
    clock: str = "wall"
    device: str = "cpu"

    def __post_init__(self) -> None:
        check_choice("clock", self.clock, CLOCKS)
        if unknown := set(self.modes) - MODES.keys():
            raise ArgumentError(f"mode {', '.join(sorted(unknown))} is not one of {', '.join(MODES)}")
        if self.clock == "processor" and not self.device.startswith("cpu"):
            raise ValueError(f"the processor clock does not measure the time of {self.device}; use the wall clock")
        if min(self.rounds, *self.batches) < 1:
            raise ArgumentError(f"rounds={self.rounds} and batch sizes {self.batches} must be at least 1")

    @property
    def read_clock(self) -> Clock:
        return CLOCKS[self.clock]


@dataclass
class Case:
    """Programs that do the same work, one of them this project's, and the times of their complete rounds.

    Args:
        setting: what identifies the case, such as the precision and the batch size.
        amount: images or tokens (`unit`) of one time.
        flops: model FLOPs of one time.
        matrix_rate: operations per second of a matrix product in the precision of the case.
        facts: program -> further measurements, such as its number of parameters.
        missing: peer -> the reason why it is not measured.
    """

    benchmark: str
    setting: dict[str, Fact]
    unit: str
    amount: int
    flops: float | None = None
    matrix_rate: float | None = None
    times: Times = field(default_factory=dict)
    facts: dict[str, dict[str, Fact]] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)

    @property
    def key(self) -> str:
        """Identifies the case: equal cases of different reports have the same key."""
        return f"{self.benchmark}: " + ", ".join(f"{name} {value}" for name, value in self.setting.items())

    def per_second(self, name: str) -> float:
        """Images or tokens per second of a program: the median over the rounds."""
        return self.amount / statistics.median(self.times[name])

    def share(self, name: str) -> float | None:
        """Share of the machine's matrix rate."""
        if self.flops is None or self.matrix_rate is None:
            return None
        return self.flops / statistics.median(self.times[name]) / self.matrix_rate

    def floor(self) -> float | None:
        """The lower bound of one time in seconds, at the machine's matrix rate."""
        return None if self.flops is None or self.matrix_rate is None else self.flops / self.matrix_rate

    def ratio(self, name: str) -> Ratio | None:
        """How many times as fast this project is; None for itself."""
        return None if name == OURS else paired_ratio(self.times[OURS], self.times[name])

    def to_dict(self) -> dict[str, Any]:
        """JSON-able values, with the seconds of all rounds."""
        programs = {}
        for name, seconds in self.times.items():
            ratio = self.ratio(name)
            programs[name] = {
                f"{self.unit}_per_second": self.per_second(name),
                "share_of_matrix_rate": self.share(name),
                "seconds_quartiles": quartiles(seconds),
                "ratio": None if ratio is None else dataclasses.asdict(ratio),
                "seconds": seconds,
                **self.facts.get(name, {}),
            }
        floor = {"model_flops": self.flops, "matrix_rate": self.matrix_rate, "floor_seconds": self.floor()}
        return {"benchmark": self.benchmark, "setting": self.setting, "key": self.key, "unit": self.unit,
                "amount": self.amount, **floor, "programs": programs, "missing": self.missing}


def measured(cases: list[Case]) -> list[Case]:
    """The cases with at least one complete round."""
    return [case for case in cases if case.times]


def ratios(cases: list[Case]) -> dict[str, float]:
    """`CASE against PEER` -> the median ratio: what a baseline compares."""
    ratios = {}
    for case in measured(cases):
        for name in case.times:
            if (ratio := case.ratio(name)) is not None and math.isfinite(ratio.median):
                ratios[f"{case.key} against {name}"] = ratio.median
    return ratios


def to_json(cases: list[Case], settings: Settings, machine: dict[str, Any], complete: bool = True) -> dict[str, Any]:
    """The report of a benchmark as JSON-able values; also the format of a baseline.

    Args:
        complete: False after an interrupt.
    """
    return {
        "format": FORMAT,
        "complete": complete,
        "clock": settings.clock,
        "convention": CONVENTION,
        "machine": machine,
        "cases": [case.to_dict() for case in measured(cases)],
        "ratios": ratios(cases),
    }
