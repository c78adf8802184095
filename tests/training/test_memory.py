import platform
import resource

import pytest
import torch

from tests.forking import forks
from vit.training import keep_freed_memory


def count_faults(keep: bool) -> None:
    """In a fork: prints how often the system had to hand out a page while tensors came and went."""
    assert not keep or keep_freed_memory()
    torch.set_num_threads(1)
    for step in range(20):
        if step == 2:
            before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        pieces = [torch.empty(2**24).fill_(step) for _ in range(3)]  # 64 MB each
        del pieces
    print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)


def faults(folder, keep: bool) -> int:
    done = forks().run("tests.training.test_memory:count_faults", keep, folder=folder)
    assert done.code == 0, done.output
    return int(done.output)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="tunes glibc alone, and says so elsewhere")
def test_freed_memory_is_used_again_without_asking_the_system(tmp_path) -> None:
    assert faults(tmp_path, keep=True) * 10 < faults(tmp_path, keep=False)
