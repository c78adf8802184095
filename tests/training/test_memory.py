import platform
import subprocess
import sys

import pytest

PROGRAM = """
import resource, torch
from vit.training import keep_freed_memory
if {keep}:
    assert keep_freed_memory()
torch.set_num_threads(1)
for step in range(20):
    if step == 2:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    pieces = [torch.empty(2**24).fill_(step) for _ in range(3)]  # 64 MB each
    del pieces
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(keep: bool) -> int:
    """How often the system had to hand out a page while tensors came and went."""
    done = subprocess.run([sys.executable, "-c", PROGRAM.format(keep=keep)], capture_output=True, text=True, check=True)
    return int(done.stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="tunes glibc alone, and says so elsewhere")
def test_freed_memory_is_used_again_without_asking_the_system() -> None:
    assert faults(keep=True) * 10 < faults(keep=False)
