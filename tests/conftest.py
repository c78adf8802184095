import gc
import os

os.environ.setdefault(
    "OMP_NUM_THREADS", "1"
)  # before torch is imported: bits are compared, and workers share two cores
os.environ.setdefault("HF_HUB_OFFLINE", "1")  # nothing here may need the network

import pytest
import torch

from tests.blank_pictures import use_blank_pictures

torch.set_num_threads(1)


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """Garbage collection does not visit the objects of the modules that the tests import, again and again."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_unconfigure():
    """Libraries that count what is left at the end of Python find nothing."""
    gc.unfreeze()


@pytest.fixture(scope="module", autouse=True)
def blank_pictures():
    """Figures are blank; `tests/report` and modules whose subject they are define a fixture of this name without it."""
    with pytest.MonkeyPatch.context() as patch:
        use_blank_pictures(patch)
        yield
