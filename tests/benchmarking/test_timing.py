"""Programs timed in turns: the order of the rounds, ratios with their intervals, clocks and memory."""

import subprocess
import sys
import time

import numpy as np
import pytest
import torch
from scipy.stats import bootstrap

from vit.benchmarking import in_turns, paired_ratio
from vit.benchmarking.memory import memory_of
from vit.benchmarking.ratios import quartiles
from vit.benchmarking.timing import CLOCKS, processor_seconds, seconds_of


class Machine:
    """A clock, and programs that advance it by their work times the slowdown of the current round."""

    def __init__(self, slowdowns):
        self.now, self.calls, self.slowdowns = 0.0, [], slowdowns

    def clock(self):
        return self.now

    def program(self, name, work, per_round=2):
        def run():
            self.now += work * self.slowdowns[len(self.calls) // per_round]
            self.calls.append(name)

        return run


def test_programs_run_in_turns():
    machine = Machine([1, 1, 1])
    programs = {name: machine.program(name, 1) for name in "ab"}
    assert in_turns(programs, 3, machine.clock, warmup=0) == {"a": [1] * 3, "b": [1] * 3}
    assert "".join(machine.calls) == "abbaab"


def test_ratios_are_those_of_the_same_round():
    """Other work that slows down whole rounds changes the times by a factor of 50, but no ratio."""
    slowdowns = [1, 50, 3, 20, 1, 7]
    machine = Machine(slowdowns)
    times = in_turns({"vit": machine.program("vit", 2), "peer": machine.program("peer", 3)}, 6, machine.clock, warmup=0)
    np.testing.assert_allclose(times["vit"], np.multiply(slowdowns, 2))
    ratio = paired_ratio(times["vit"], times["peer"])
    assert (ratio.median, ratio.low, ratio.high, ratio.rounds) == (pytest.approx(1.5),) * 3 + (6,)


def test_a_warm_up_is_not_timed():
    machine = Machine([100, 100, 1, 1])
    times = in_turns({name: machine.program(name, 1) for name in "ab"}, 2, machine.clock, warmup=2)
    assert times == {"a": [1, 1], "b": [1, 1]}


def test_an_interrupt_leaves_complete_rounds():
    machine, times = Machine([1] * 9), {}
    second = machine.program("b", 1)

    def interrupted():
        if len(machine.calls) > 4:
            raise KeyboardInterrupt
        second()

    with pytest.raises(KeyboardInterrupt):
        in_turns({"a": machine.program("a", 1), "b": interrupted}, 5, machine.clock, warmup=0, times=times)
    assert times == {"a": [1, 1], "b": [1, 1]} and len(machine.calls) == 5


def test_the_interval_is_that_of_the_bootstrap():
    random = np.random.default_rng(1)
    ours, peer = random.uniform(1, 2, 30), random.uniform(1, 3, 30)
    ratio = paired_ratio(list(ours), list(peer))
    expected = bootstrap((peer / ours,), np.median, n_resamples=5_000, method="percentile", rng=2).confidence_interval
    assert ratio.median == np.median(peer / ours) and ratio.low < ratio.median < ratio.high
    assert abs(ratio.low - expected.low) < 0.06 and abs(ratio.high - expected.high) < 0.06


def test_quartiles_are_those_of_numpy():
    values = [5.0, 1.0, 4.0, 8.0, 2.0]
    assert quartiles(values) == tuple(np.quantile(values, [0.25, 0.5, 0.75])) and quartiles([3.0]) == (3.0, 3.0, 3.0)


@pytest.mark.parametrize(("ours", "peer"), [([], []), ([1.0], [1.0, 2.0])])
def test_times_that_are_not_paired_are_refused(ours, peer):
    with pytest.raises(ValueError, match=f"not {len(ours)} and {len(peer)}"):
        paired_ratio(ours, peer)


def test_no_round_is_refused():
    with pytest.raises(ValueError, match="rounds=0 must be at least 1"):
        in_turns({"a": int}, 0)


def test_the_processor_clock_stops_while_a_program_waits():
    waiting = {name: seconds_of(lambda: time.sleep(0.2), clock) for name, clock in CLOCKS.items()}
    assert waiting["wall"] >= 0.2 > 5 * waiting["processor"]


def test_the_processor_clock_counts_ended_child_processes():
    command = [sys.executable, "-c", "import time; end = time.process_time() + 0.3\nwhile time.process_time() < end: 0"]
    assert seconds_of(lambda: subprocess.run(command, check=True), processor_seconds) >= 0.3


def test_memory_of_a_call():
    held = torch.ones(2**20)
    found = memory_of(lambda: torch.ones(16 * 2**20).sum())  # 64 MiB
    if found is None:
        pytest.skip("this system cannot reset its record of the peak")
    assert 60 * 2**20 < found < 90 * 2**20 and held is not None
