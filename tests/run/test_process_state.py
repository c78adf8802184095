"""A program that calls `vit.train`, such as a notebook, has the same process state after a run as before it."""

import contextlib
import logging
import os
import random
import signal
import warnings

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import vit
from vit.run.process_state import LOGGERS
from vit.torch_defaults import torch_defaults


@contextlib.contextmanager
def default(dtype):
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)


def state():
    return {
        "python": random.getstate(), "numpy": np.random.get_state()[1].tolist(),
        "torch": torch.get_rng_state().tolist(),
        "deterministic": torch.are_deterministic_algorithms_enabled(), "threads": torch.get_num_threads(),
        "precision": torch.get_float32_matmul_precision(), "benchmark": torch.backends.cudnn.benchmark,
        "filters": list(warnings.filters),
        "signals": [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)],
        "loggers": [(each.level, each.propagate, list(each.handlers)) for each in map(logging.getLogger, LOGGERS)],
        "workspace": os.environ.get("CUBLAS_WORKSPACE_CONFIG"), "folder": os.getcwd(),
    }


def test_a_run_leaves_the_state_of_the_process_as_it_was(tmp_path, monkeypatch):
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    options = ["data=digits", "debug=true", "report=false", "seed=3", "trainer.accelerator=cpu"]
    vit.train([*options, f"run_dir={tmp_path / 'imports'}"])
    random.seed(1)
    before = state()
    vit.train([*options, "trainer.deterministic=true", f"run_dir={tmp_path / 'run'}"])
    after = state()
    assert [key for key in before if before[key] != after[key]] == []


@pytest.mark.parametrize("context", [lambda: default(torch.float64), lambda: torch.device("meta"), torch.inference_mode,
                                     lambda: torch.autocast("cpu", torch.bfloat16)],
                         ids=["float64", "device", "inference mode", "autocast"])
def test_torch_defaults_in_a_context_are_those_of_torch_and_restored(context):
    torch.manual_seed(0)
    layer, x = torch.nn.Linear(3, 2), torch.ones(4, 3)

    def step():
        layer.zero_grad()
        torch.nn.functional.mse_loss(layer(x), torch.ones(4, 2)).backward()
        return layer.weight.grad.clone(), torch.empty(1)

    def lower():
        with torch.autocast("cpu", torch.bfloat16):
            return layer(x)

    expected, created = step()
    with context():
        before = torch.get_default_dtype(), torch.get_default_device(), torch.is_autocast_enabled("cpu")
        with torch_defaults():
            found, other = step()
            former = lower()
            with torch.no_grad():
                layer.weight.add_(1.0)
            assert not torch.equal(lower(), former)  # the first cast of the weight is not cached any more
        assert before == (torch.get_default_dtype(), torch.get_default_device(), torch.is_autocast_enabled("cpu"))
    assert torch.equal(found, expected)
    assert (other.dtype, other.device) == (created.dtype, created.device) and not other.is_inference()


def test_a_run_does_not_depend_on_the_defaults_of_the_calling_program(tmp_path):
    options = ["data=digits", "debug=true", "report=false", "seed=3", "trainer.accelerator=cpu"]
    expected = vit.train([*options, f"run_dir={tmp_path / 'plain'}"])
    with default(torch.float64), torch.device("meta"), torch.inference_mode(), torch.autocast("cpu", torch.bfloat16):
        found = vit.train([*options, f"run_dir={tmp_path / 'other'}"])
    assert found.metrics["val/accuracy"] == expected.metrics["val/accuracy"]
    weights, others = (load_file(run.path / "model" / "model.safetensors") for run in (expected, found))
    assert weights.keys() == others.keys() and all(torch.equal(weights[name], others[name]) for name in weights)
