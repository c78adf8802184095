"""Which ranks a watch considers lost, by their heartbeats in a store and a simulated clock."""

import json

import pytest
from torch.distributed import HashStore

from vit.training.fault_tolerance.watchdog import Watch

TIMEOUT = 10.0


class Ranks:
    """Two ranks that beat once a second."""

    def __init__(self):
        self.store, self.now, self.number = HashStore(), 0.0, 0
        self.watch = Watch(self.store, 2, TIMEOUT, clock=lambda: self.now)

    def second(self, *beats: tuple[int, bool] | None) -> list[int]:
        """(steps, waiting) of each rank, None for one without a beat -> the ranks that are lost."""
        self.now, self.number = self.now + 1, self.number + 1
        for rank, beat in enumerate(beats):
            if beat is not None:
                steps, waiting = beat
                self.store.set(str(rank), json.dumps({"number": self.number, "steps": steps, "waiting": waiting,
                                                      "position": f"{rank}.py:1", "host": "here", "pid": rank}))
        return list(self.watch.lost())

    def seconds(self, count: int, *beats: tuple[int, bool] | None) -> list[list[int]]:
        return [self.second(*beats) for _ in range(count)]


@pytest.fixture
def ranks():
    made = Ranks()
    assert not any(made.seconds(3, (1, False), (1, False)))
    return made


def test_progress_is_no_loss(ranks):
    assert not any(ranks.second((steps, False), (steps, True)) for steps in range(2, 40))


def test_a_rank_that_makes_no_progress_is_named_not_the_one_that_waits_for_it(ranks):
    *earlier, last = ranks.seconds(12, (2, True), (2, False))
    assert not any(earlier) and last == [1]


def test_a_rank_that_came_later_to_its_end_is_named_too(ranks):
    """The one that waits has been still for longer."""
    assert not any([ranks.second((2, True), (2, False)), ranks.second((2, True), (3, False))])
    *earlier, last = ranks.seconds(11, (2, True), (3, False))
    assert not any(earlier) and last == [1]


def test_a_long_wait_for_a_rank_at_work_is_no_loss(ranks):
    assert not any(ranks.second((2, True), (steps, False)) for steps in range(2, 60))


def test_a_rank_without_beats_is_frozen(ranks):
    *earlier, last = ranks.seconds(9, (2, True), None)  # its last step was in the first second
    assert not any(earlier) and last == [1]


def test_where_all_wait_the_least_advanced_is_named(ranks):
    *earlier, last = ranks.seconds(12, (3, True), (2, True))
    assert not any(earlier) and last == [1]


def test_a_rank_that_was_never_started_is_named_with_the_reason():
    """`sbatch` without `srun` starts the first rank only."""
    made = Ranks()
    assert not any(made.seconds(10, (1, True), None)) and made.second((1, True), None) == [1]
    assert "it was not started (SLURM starts the ranks by srun" in made.watch.lost()[1]
