"""A program that calls `vit.train`, such as a notebook, has the same process state after a run as before it."""

import logging
import os
import random
import signal
import warnings

import numpy as np
import torch

import vit
from vit.run.process_state import LOGGERS


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
