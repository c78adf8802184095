"""Fixtures of the tests of training."""

import os

import pytest
import torch


@pytest.fixture
def own_processes():
    """Undoes what a distributed strategy leaves in this process: its group and its environment variables."""
    before = dict(os.environ)
    yield
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
    os.environ.clear()
    os.environ.update(before)
