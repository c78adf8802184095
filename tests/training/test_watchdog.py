"""Which ranks a watch considers lost, by their heartbeats in a store and a simulated clock."""

import json
import time

import pytest
from torch.distributed import HashStore

from vit.training.fault_tolerance.watchdog import GRACE, NOTICE, FirstRank, Heartbeat, Watch, connect

TIMEOUT = 10.0


class Ranks:
    """Two ranks that beat once a second."""

    def __init__(self, timeout: float = TIMEOUT):
        self.store, self.now, self.number, self.notices = HashStore(), 0.0, 0, []
        self.watch = Watch(self.store, 2, timeout, clock=lambda: self.now, notify=self.notices.append)

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
    text = made.watch.lost()[1]
    assert "it ended with an error of its own, it was not started (SLURM starts the ranks by srun" in text


def test_a_rank_that_ended_with_an_error_is_named_with_it(ranks):
    ranks.store.set("1", json.dumps({"number": 9, "steps": 1, "waiting": False, "position": "", "host": "here",
                                     "pid": 7, "done": True, "failure": "the folder /bad does not exist"}))
    *earlier, last = [ranks.second((1, True), None) for _ in range(int(GRACE) + 1)]  # torchrun ends the others first
    assert not any(earlier) and last == [1]
    assert ranks.watch.lost() == {1: "rank 1 (here, process 7) failed: the folder /bad does not exist"}


def test_the_wait_for_ranks_that_have_not_joined_is_shown_more_and_more_rarely():
    made = Ranks(timeout=1000)
    made.seconds(int(8 * NOTICE), (1, True), None)
    assert made.notices == [f"waiting for rank 1 of 2, {at:.0f} s so far; trainer.timeout=1000 ends the wait"
                            for at in (NOTICE + 1, 2 * NOTICE + 1, 4 * NOTICE + 1)]


def test_the_wait_for_the_first_rank_is_shown_and_ends(monkeypatch, capsys):
    monkeypatch.setenv("MASTER_ADDR", "node0")
    monkeypatch.setenv("MASTER_PORT", "29500")
    now = 0.0
    first = FirstRank(100.0, clock=lambda: now)
    assert not first.missing(waiting=False)
    now = 200.0  # spent on reading data
    assert not first.missing(waiting=True) and not capsys.readouterr().err
    now = 261.0
    assert not first.missing(waiting=True)
    assert "waiting for rank 0 at node0:29500 (MASTER_ADDR, MASTER_PORT), 61 s so far" in capsys.readouterr().err
    now = 301.0
    assert "rank 0 has not joined within 101 s (trainer.timeout=100)" in first.missing(waiting=True)


@pytest.mark.parametrize(("elsewhere", "failure"), [(False, "no such folder"), (True, "")])
def test_the_last_heartbeat_has_the_error_unless_another_rank_caused_it(elsewhere, failure):
    store = HashStore()
    heartbeat = Heartbeat(lambda: store, 0, 1, TIMEOUT, caused_elsewhere=lambda error: elsewhere)
    with pytest.raises(ValueError, match="no such folder"), heartbeat:
        raise ValueError("no such folder")
    beat = json.loads(connect(store).get("0"))
    assert beat["done"] and beat["failure"] == failure


def test_the_thread_ends_with_its_context_also_where_the_store_is_slow(monkeypatch):
    """A thread that is in a store while Python ends aborts the process."""
    class SlowStore:
        def set(self, key, value):
            time.sleep(0.2)

    monkeypatch.setattr("vit.training.fault_tolerance.watchdog.INTERVAL", 0.01)  # which limited the wait
    monkeypatch.setattr("vit.training.fault_tolerance.watchdog.connect", lambda store: store)
    with Heartbeat(SlowStore, 0, 1, TIMEOUT, launched=True) as heartbeat:
        time.sleep(0.1)
    assert not heartbeat.is_alive()
