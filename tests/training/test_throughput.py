"""Rates and times of training by a clock that the test sets, and the peak memory over several sessions."""

import multiprocessing
from types import SimpleNamespace

import pytest
import torch

from vit.training import ThroughputMeter
from vit.training.checkpointing.resume_position import batches_per_epoch
from vit.training.monitoring import memory, progress, throughput
from vit.training.monitoring.memory import PeakMemory
from vit.training.monitoring.progress import run_length
from vit.training.monitoring.throughput import BatchEnd, process_age

TRAINER = SimpleNamespace(world_size=3)
BATCH = {"image": torch.zeros(4, 1)}


@pytest.fixture
def meter(monkeypatch):
    """A meter, and `at(seconds, hook, ...)`, which calls a hook at this time and returns what has been logged."""
    now = [0.0]
    monkeypatch.setattr(throughput.time, "perf_counter", lambda: now[0])
    found, logged = ThroughputMeter(), {}
    module = SimpleNamespace(unit="lines", log_dict=logged.update)

    def at(seconds, hook, *arguments, callback=found):
        now[0] = seconds
        getattr(callback, hook)(TRAINER, module, *arguments)
        return logged

    return found, at


def test_rates_leave_out_the_first_batch_and_validation(meter):
    found, at = meter
    assert found.rows_per_second == found.data_wait == found.elapsed == 0.0
    at(10, "on_train_start")
    at(11, "on_train_epoch_start")
    assert at(12, "on_train_epoch_end") == {}
    for begun, ended in ((20, 30), (31, 34)):
        at(begun, "on_train_batch_start", BATCH, 0)
        at(ended, "on_train_batch_end", None, BATCH, 0)
    assert (found.rows, found.seconds, found.waited) == (4 * 3, 4, 1)
    at(100, "on_validation_end")
    at(103, "on_train_batch_start", BATCH, 1)
    at(104, "on_train_batch_end", None, BATCH, 1)
    assert at(110, "on_train_epoch_end") == {"train/lines_per_second": 24 / 8, "train/data_wait": 4 / 8}
    at(200, "on_train_epoch_start")
    at(201, "on_train_batch_start", BATCH, 0)
    at(202, "on_train_batch_end", None, BATCH, 0)
    assert (found.rows, found.seconds, found.waited, found.elapsed) == (36, 10, 5, 192)


def test_the_time_of_other_callbacks_is_no_wait_for_data(meter):
    found, at = meter
    last = BatchEnd(found)
    at(0, "on_train_start")
    for begun, ended, requested in ((1, 2, 7), (8, 10, 16), (19, 20, 25)):
        at(begun, "on_train_batch_start", BATCH, 0)
        at(ended, "on_train_batch_end", None, BATCH, 0)
        at(requested, "on_train_batch_end", None, BATCH, 0, callback=last)  # such as after saving a checkpoint
    assert (found.seconds, found.waited) == (20 - 2, (8 - 7) + (19 - 16))
    at(100, "on_validation_end")
    at(103, "on_train_batch_start", BATCH, 0)
    at(104, "on_train_batch_end", None, BATCH, 0)
    assert (found.seconds, found.waited) == (18 + 4, 4 + 3)


def test_a_resumed_run_continues_the_counts(meter):
    found, at = meter
    found.load_state_dict({"rows": 10, "seconds": 4.0, "waited": 1.0, "elapsed": 50.0})
    at(7, "on_train_start")
    at(9, "on_train_batch_start", BATCH, 0)
    at(10, "on_train_batch_end", None, BATCH, 0)
    assert found.state_dict() == {"rows": 10, "seconds": 4.0, "waited": 1.0, "elapsed": 53.0}
    assert (found.rows_per_second, found.data_wait) == (2.5, 0.25)


@pytest.mark.parametrize(("limit", "batches"), [(3, 3), (20, 10), (0.5, 5), (0.35, 3), (1.0, 10)])
def test_an_epoch_has_a_number_or_a_fraction_of_the_batches(limit, batches):
    assert batches_per_epoch(SimpleNamespace(limit_train_batches=limit), 10) == batches


def test_the_age_of_a_process_is_in_seconds():
    with multiprocessing.get_context("fork").Pool(1) as pool:
        age = pool.apply(process_age)
    assert age is None or 0 <= age < 30  # the child has just been started, this process earlier
    assert age is None or process_age() > age


@pytest.mark.parametrize(("epochs", "steps", "batches"), [
    (3, -1, 30), (-1, 7, 14), (3, 7, 14), (1, 7, 10), (-1, -1, 5)])
def test_a_run_ends_by_epochs_or_by_steps(monkeypatch, epochs, steps, batches):
    monkeypatch.setattr(progress, "batches_per_epoch", lambda trainer, count: count)
    monkeypatch.setattr(progress, "batches_done", lambda trainer: 5)
    trainer = SimpleNamespace(max_epochs=epochs, max_steps=steps, accumulate_grad_batches=2, train_dataloader=range(10))
    assert run_length(trainer) == batches


def test_the_peak_memory_is_that_of_all_sessions(monkeypatch):
    found = PeakMemory()
    assert found.state_dict() == {"bytes": 0}
    for peak, expected in ((5, 5), (9, 9), (7, 9)):
        monkeypatch.setattr(memory, "peak_memory", lambda peak=peak: peak)
        found.on_train_epoch_end(None, None)
        assert found.state_dict() == {"bytes": expected}
    resumed = PeakMemory()
    resumed.load_state_dict({"bytes": 8})
    resumed.on_train_epoch_end(None, None)
    assert resumed.bytes == 8
