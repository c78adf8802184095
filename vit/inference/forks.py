"""Predictions in forks of a process that has predicted, such as the workers of a server that loads the model first."""

import os
from functools import cache

import torch


@cache
def allow_forks() -> None:
    """Make forks of this process use one thread of torch from now on.

    A fork does not have the threads that GNU OpenMP has started in this process, and waits for them forever.
    """
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=use_one_thread)


def use_one_thread() -> None:
    """Let torch use one thread."""
    if torch.get_num_threads() > 1:
        torch.set_num_threads(1)
