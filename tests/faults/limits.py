"""A system limit ends a run with one sentence that names it."""

import os
import resource
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from tests.faults.promise import Case, Promise
from tests.faults.tiny_training import OVERRIDES, orphans, remember_process
from tests.forking import forks
from tests.run.conftest import SMALL, write_photos

TIMEOUT = 5


def limited(folder: Path, fault: str, text: str) -> None:
    photos = write_photos(folder / "photos", {"cat": 24, "dog": 24})
    overrides = [*OVERRIDES, *SMALL, "data=folder", f"data.root={photos}", "data.workers=2",
                 f"trainer.timeout={TIMEOUT}"]
    done = forks().run("tests.faults.limits:train", overrides, fault, folder=folder, FAULTS_FOLDER=str(folder))
    assert done.code == 1 and text in done.output, f"exit code {done.code}: {done.output}"
    output, _, noise = done.output.partition("Exception ignored in: <function _MultiProcessingDataLoaderIter.__del__")
    shown = "Traceback" in output and fault not in ("files_of_batch", "files_to_send")  # by a thread of multiprocessing
    assert not shown and done.output.count("error: ") == 1, done.output
    assert not noise or fault == "files", noise  # printed by torch if it cannot create the iterator
    assert not orphans(folder)


def train(overrides: list[str], fault: str) -> int:
    """In a fork: a training run with active workers."""
    from vit.data.images.dataset import ImageDataset
    from vit.run.command import main

    ImageDataset._fits = lambda self, limit: False
    os.register_at_fork(after_in_child=remember_process)
    remember_process()
    globals()[fault]()
    return main(overrides)


def files() -> None:
    used = max(int(name) for name in os.listdir("/proc/self/fd"))
    resource.setrlimit(resource.RLIMIT_NOFILE, (used + 12, used + 12))


def memory() -> None:
    """Limits the memory after training has started, since the imports need address space too."""
    from vit.tasks.classification import Classification

    step = Classification.training_step

    def limited_step(self, *arguments):
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used, used))
        import torch

        torch.empty(2**28)
        return step(self, *arguments)

    Classification.training_step = limited_step


def processes() -> None:
    def refused() -> int:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    os.fork = refused


def in_worker(action, sending: bool = False) -> None:
    """Runs an action in a worker at its second batch, before it is read or, with `sending`, before it is sent."""
    from vit.data.images.dataset import ImageDataset

    parent, load, calls = os.getpid(), ImageDataset.__getitems__, 0

    def patched(self, keys):
        nonlocal calls
        calls += 1
        acts = os.getpid() != parent and calls == 2
        if acts and not sending:
            action()
        batch = load(self, keys)
        if acts and sending:
            action()
        return batch

    ImageDataset.__getitems__ = patched


def frozen_worker() -> None:
    in_worker(lambda: os.kill(os.getpid(), signal.SIGSTOP))


def frozen_before_fetch() -> None:
    """The worker freezes before the training process has fetched the shared memory of its first batch."""
    from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter as Workers

    def frozen() -> None:
        time.sleep(0.5)  # the first batch is in the queue
        os.kill(os.getpid(), signal.SIGSTOP)

    in_worker(frozen)
    get = Workers._try_get_data

    def later(self, *arguments, **options):
        time.sleep(1)
        return get(self, *arguments, **options)

    Workers._try_get_data = later


def killed_worker() -> None:
    in_worker(lambda: os.kill(os.getpid(), signal.SIGKILL))


def bus_error() -> None:
    in_worker(lambda: os.kill(os.getpid(), signal.SIGBUS))


def sleeping_worker() -> None:
    in_worker(lambda: time.sleep(3600))


def shared_memory() -> None:
    """Raises the error of torch in a worker if /dev/shm is full."""
    def full() -> None:
        raise RuntimeError("unable to write to file </torch_123_456_0>: No space left on device (28)")

    in_worker(full)


def unsent_batch() -> None:
    """The system refuses the shared memory of a batch only when the worker sends it."""
    in_worker(lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (64, 64)))


def no_more_files() -> None:
    used = max(int(name) for name in os.listdir("/proc/self/fd"))
    resource.setrlimit(resource.RLIMIT_NOFILE, (used + 1, used + 1))
    with suppress(OSError):
        while True:  # the numbers of files that have been closed
            os.open(os.devnull, os.O_RDONLY)


def files_of_batch() -> None:
    """The worker can open no file when it reads its images, none of which is unreadable."""
    in_worker(no_more_files)


def files_to_send() -> None:
    """The worker can open no shared memory when it sends a batch."""
    in_worker(no_more_files, sending=True)


LIMITS = {
    "files": "too many open files",
    "files_of_batch": "too many open files",
    "files_to_send": "too many open files, the limit is ",
    "memory": "out of memory with recipe.batch_size",
    "processes": "the system starts no more processes or threads",
    "frozen_worker": f"no loading process returned a batch for {TIMEOUT} s",
    "frozen_before_fetch": f"no loading process returned a batch for {TIMEOUT} s",
    "sleeping_worker": f"no loading process returned a batch for {TIMEOUT} s",
    "killed_worker": "a loading process was killed",
    "bus_error": "as the system does when memory or /dev/shm (",
    "unsent_batch": "as the system does when memory or /dev/shm (",
    "shared_memory": "the loading processes need more shared memory",
}


def cases() -> Iterator[Case]:
    for fault, text in LIMITS.items():
        quick = fault in ("frozen_worker", "frozen_before_fetch", "unsent_batch", "files_of_batch", "files_to_send")
        yield Case(fault, lambda folder, f=fault, t=text: limited(folder, f, t), quick)


PROMISE = Promise("a system limit, or a lost worker process, is reported in one sentence", cases)
