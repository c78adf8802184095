"""The speed of lower precisions on a processor, and the warnings about slow ones."""

import re

import pytest
import torch
from torch import nn

from vit import low_precision
from vit.inference import autocast
from vit.inference.fast import Mode, candidates
from vit.low_precision import is_slow, relative_speed, slowness
from vit.run.config.composing import ConfigError
from vit.run.parts.devices import choose_precision


class Narrow(nn.Linear):
    """A model of any width for which a precision is chosen."""

    config = None


@pytest.fixture(autouse=True)
def in_a_new_process():
    low_precision.warn_if_slow.cache_clear()
    yield
    low_precision.warn_if_slow.cache_clear()


def with_speed(monkeypatch, speed):
    monkeypatch.setattr(low_precision, "relative_speed", lambda dtype: speed)


def test_the_time_of_a_product_is_measured():
    assert 0.01 < relative_speed(torch.bfloat16, 64, 0.002) < 100
    assert 0.2 < relative_speed(torch.float32, 64, 0.01) < 5


def test_only_lower_precisions_of_processors_are_slow(monkeypatch):
    with_speed(monkeypatch, 0.02)
    assert is_slow("bf16-mixed", "cpu") and is_slow("16-mixed", "cpu")
    assert not is_slow("32-true", "cpu") and not is_slow("bf16-mixed", "cuda")
    assert "a linear layer in precision bf16-mixed takes about 50 times as long" in slowness("bf16-mixed")
    with_speed(monkeypatch, 1.5)
    assert not is_slow("bf16-mixed", "cpu")


@pytest.mark.parametrize("precision", ["bf16-mixed", "16-mixed"])
def test_a_prediction_warns_once_of_a_slow_precision(monkeypatch, caplog, precision):
    with_speed(monkeypatch, 0.02)
    for _ in range(2):
        with autocast(torch.device("cpu"), precision):
            assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == low_precision.DTYPES[precision]
    assert len(caplog.records) == 1
    assert re.search(f"linear layer in precision {precision} takes about 50 times .* 32-true is faster", caplog.text)


def test_there_is_no_warning_of_a_fast_precision(monkeypatch, caplog):
    with_speed(monkeypatch, 1.5)
    for precision in ("bf16-mixed", "32-true"):
        autocast(torch.device("cpu"), precision)
    assert not caplog.records


@pytest.mark.parametrize("precision", ["bf16-mixed", "bf16-residual"])
def test_training_warns_of_a_slow_precision_that_was_stated(monkeypatch, caplog, precision):
    with_speed(monkeypatch, 0.02)
    model = Narrow(2, 2)
    assert choose_precision(precision, "cpu", model) == "bf16-mixed"
    assert re.search("takes about 50 times as long .* 32-true is faster", caplog.text)
    caplog.clear()
    assert choose_precision("32-true", "cpu", model) == "32-true" and not caplog.records
    with pytest.raises(ConfigError, match="no float16 arithmetic"):
        choose_precision("16-mixed", "cpu", model)


@pytest.mark.parametrize(("speed", "measured"), [(0.02, False), (1.5, True)])
def test_the_fast_mode_does_not_measure_a_slow_precision(monkeypatch, speed, measured):
    with_speed(monkeypatch, speed)
    assert (Mode("bf16-mixed") in candidates(nn.Linear(2, 2), torch.device("cpu"))) is measured
    assert Mode("16-mixed") in candidates(nn.Linear(2, 2), torch.device("cuda"))
