"""The global state of a process that a run changes, restored for the program that called it, such as a notebook."""

import contextlib
import logging
import random
import warnings
from collections.abc import Iterator

import numpy as np
import torch

from vit.torch_defaults import torch_defaults

LOGGERS = ("vit", "pytorch_lightning", "lightning_fabric", "lightning", "lightning.pytorch", "lightning.fabric")


@contextlib.contextmanager
def restored_process_state() -> Iterator[None]:
    """Context manager: restores the random states of Python, NumPy and torch at its end, and the filters of warnings
    and the loggers of `vit` and Lightning. In between torch has its own defaults, see `torch_defaults`.

    Otherwise a search that draws a value before each run would draw the same value after all runs with the same seed.
    """
    python, numbers, cuda = random.getstate(), np.random.get_state(), torch.cuda.is_initialized()
    devices = torch.cuda.get_rng_state_all() if cuda else []
    loggers = {each: (each.level, each.propagate, list(each.handlers)) for each in map(logging.getLogger, LOGGERS)}
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings(), torch_defaults():
        try:
            yield
        finally:
            random.setstate(python)
            np.random.set_state(numbers)
            if cuda:
                torch.cuda.set_rng_state_all(devices)
            for each, (level, each.propagate, handlers) in loggers.items():
                each.setLevel(level)
                each.handlers[:] = handlers
