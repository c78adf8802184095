"""The threads of a run on a CPU, and the warning about other processes on its cores."""

import logging

import pytest

from vit.run.parts import devices
from vit.run.parts.devices import SMALL_STEP, Devices, suited_threads


@pytest.mark.parametrize(("threads", "busy", "world", "expected"), [
    (8, [3, 3, 2, 4, 3], 1, "use 2 of 8 cores, and training with 8 threads waits for them: OMP_NUM_THREADS=6"),
    (8, [9] * 5, 1, "use 8 of 8 cores, and training with 8 threads waits for them: OMP_NUM_THREADS=1"),
    (4, [4] * 5, 1, None),  # four cores are free
    (8, [5, 5, 0, 5, 5], 1, None),  # only at moments
    (1, [9] * 5, 1, None),
    (8, [9] * 5, 2, None),  # the other rank is one of them
])
def test_processes_on_the_cores_of_a_run_are_named(monkeypatch, caplog, threads, busy, world, expected):
    counts = iter(busy)
    monkeypatch.setattr(devices, "busy_cores", lambda: next(counts))
    monkeypatch.setattr(devices.os, "cpu_count", lambda: 8)
    monkeypatch.setattr(devices.torch, "get_num_threads", lambda: threads)
    with caplog.at_level(logging.WARNING, "vit"), suited_threads(SMALL_STEP, Devices("cpu", world, 1)):
        pass
    found = [record.getMessage() for record in caplog.records]
    assert (len(found) == 1 and expected in found[0]) if expected else found == []
