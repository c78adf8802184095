"""Freed memory is used again by the process, counted by page faults."""

import platform
import resource

import pytest
import torch

from tests.forking import forks
from tests.slow_values import quick_and_slow
from vit.cli import main
from vit.training import keep_freed_memory


def count_faults(how: str) -> None:
    """In a fork: prints the number of page faults while tensors are allocated and freed."""
    if how == "by a call":
        assert keep_freed_memory()
    elif how == "by a command":
        assert main(["models", "vit_tiny"]) == 0
    torch.set_num_threads(1)
    for step in range(20):
        if step == 2:
            before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        pieces = [torch.empty(2**24).fill_(step) for _ in range(3)]  # 64 MB each
        del pieces
    print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)


def faults(folder, how: str) -> int:
    done = forks().run("tests.training.test_memory:count_faults", how, folder=folder)
    assert done.code == 0, done.output
    return int(done.output.split()[-1])


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="configures glibc only, and returns False elsewhere")
@pytest.mark.parametrize("how", quick_and_slow(["by a call", "by a command"], "by a command"))
def test_freed_memory_is_used_again_without_new_pages(tmp_path, how) -> None:
    assert faults(tmp_path, how) * 4 < faults(tmp_path, "not at all")  # the system may reclaim some pages
