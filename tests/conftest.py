"""Fixtures of all tests: one thread, no synchronization to the disk, shared composed configs and blank figures."""

import atexit
import gc
import os
import signal
import sys

os.environ.setdefault(
    "OMP_NUM_THREADS", "1"
)  # before torch is imported: bits are compared, and workers share two cores
os.environ.setdefault("HF_HUB_OFFLINE", "1")  # nothing here may need the network
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")  # the same tests on all machines; those marked gpu name a GPU
os.environ.setdefault("TORCH_WARM_POOL", "0")  # with Triton, an import would start processes and threads
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # a shell starts background commands so: `pytest &` in a script
    signal.signal(signal.SIGINT, signal.default_int_handler)  # the processes that tests start inherit it

import pytest

# torch and Matplotlib are imported in the fixtures: the process that starts the workers needs neither


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """Garbage collection does not visit the objects of the modules that the tests import, again and again."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()
        gc.set_threshold(20_000, 10, 10)
        atexit.register(gc.unfreeze)  # after those of pytest: libraries count what is left at the end


@pytest.fixture(scope="session", autouse=True)
def one_thread():
    import torch

    torch.set_num_threads(1)


@pytest.fixture(scope="session", autouse=True)
def no_waiting_for_the_disk():
    """What a test writes need not survive a power failure: `os.fsync` only checks its descriptor."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", os.fstat)
        yield


@pytest.fixture(scope="session", autouse=True)
def composed_configs(tmp_path_factory, worker_id):
    """Each selection of options is composed once by all processes."""
    if "vit.run.config.hydra_interface" not in sys.modules:  # no collected test composes
        return
    from tests.composed_configs import VARIABLE, share_composed_configs

    base = tmp_path_factory.getbasetemp()
    folder = (base if worker_id == "master" else base.parent) / "composed_configs"
    folder.mkdir(exist_ok=True)
    os.environ[VARIABLE] = str(folder)
    share_composed_configs()


@pytest.fixture(scope="module", autouse=True)
def blank_pictures():
    """Figures are blank; `tests/report` and modules whose subject they are define a fixture of this name without it."""
    from tests.blank_pictures import use_blank_pictures

    with pytest.MonkeyPatch.context() as patch:
        use_blank_pictures(patch)
        yield
