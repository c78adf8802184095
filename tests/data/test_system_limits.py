"""Limits of the system are not reported as faults of the data."""

import contextlib
import errno
import resource

import pytest

from vit.data import Preprocessing, estimate, folder
from vit.data.decoding.image_header import read_header
from vit.data.quality.audit import audit
from vit.data.quality.near_copies import read_thumbnails
from vit.data.splits.split import content_of, image_fingerprints, read_sample
from vit.data.statistics import find_range
from vit.data.system_limits import exit_code, explain_lost_worker

P8 = Preprocessing(size=8)
READERS = {
    "sample": lambda source, split: read_sample(split, 0),
    "header": lambda source, split: read_header(split.location(0), split.names[0], 10**6),
    "image": lambda source, split: P8.image(split.location(0), split.names[0]),
    "statistics": lambda source, split: estimate(split, P8),
    "range": lambda source, split: find_range(split, P8, "full"),
    "fingerprints": lambda source, split: image_fingerprints(split),
    "identity": lambda source, split: content_of(split, 0),
    "audit": lambda source, split: audit(source, P8),
    "thumbnails": lambda source, split: read_thumbnails(source, P8),
}


@contextlib.contextmanager
def no_more_files():
    """No further file can be opened."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.parametrize("read", READERS.values(), ids=READERS)
def test_an_image_is_not_unreadable_because_no_more_files_can_be_opened(read, class_folders):
    source = folder(class_folders({"train/cat": 2, "train/dog": 2, "val/cat": 2, "val/dog": 2}))
    read(source, source.splits["train"])
    with no_more_files(), pytest.raises(OSError, match="Too many open files") as raised:
        read(source, source.splits["train"])
    assert raised.value.errno == errno.EMFILE


def test_a_lost_worker_without_open_files_is_not_said_to_lack_memory():
    lost = RuntimeError("DataLoader worker (pid(s) 12) exited unexpectedly")
    refused = RuntimeError("unable to open shared memory object </torch_1>: Too many open files (24)")
    assert "too many open files, the limit is" in explain_lost_worker(lost, 5, [None, exit_code(refused)])
    assert "memory or /dev/shm" in explain_lost_worker(lost, 5, [None, exit_code(OSError(errno.EFBIG, "too large"))])
