"""Work in threads with results in order."""

import threading
import time

import pytest

from vit.data import threads
from vit.data.threads import AHEAD, PART, map_in_threads


@pytest.fixture(autouse=True)
def cores(monkeypatch):
    monkeypatch.setattr(threads, "available_cores", lambda: 3)


def test_results_are_in_the_order_of_the_items():
    def slow_first(i: int) -> int:
        time.sleep(0.002 * (i < PART))
        return i * i

    assert list(map_in_threads(slow_first, range(100))) == [i * i for i in range(100)]
    assert list(map_in_threads(slow_first, [])) == []


def test_several_threads_work_a_limited_number_of_items_ahead():
    seen, used = [], set()

    def remember(i: int) -> int:
        used.add(threading.get_ident())
        time.sleep(0.001)
        return i

    results = map_in_threads(remember, (seen.append(i) or i for i in range(10_000)))
    assert next(results) == 0 and len(seen) <= 3 * AHEAD * PART
    results.close()
    assert len(used) > 1 and threading.get_ident() not in used
    assert not any(thread.ident in used for thread in threading.enumerate())


def test_an_error_is_raised_in_place_of_the_results_of_its_part():
    def reciprocal(i: int) -> float:
        return 1 / (i - 20)

    results, found = map_in_threads(reciprocal, range(40)), []
    with pytest.raises(ZeroDivisionError):
        found.extend(results)
    assert found == [1 / (i - 20) for i in range(PART * (20 // PART))]
