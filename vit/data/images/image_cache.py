"""Caches of prepared images: in memory, or in files that runs and ranks share.

Images that are not cached are prepared on request, with the same pixels: a full disk, a limit, or a file that is
deleted or damaged while it is used costs time, but changes no result. A file of the disk cache holds consecutive
samples of a split. Its name is a hash of their fingerprints and of everything that determines the pixels, so a replaced
image or another preprocessing leads to another file. The fingerprints are those of
`vit.data.identity.pixel_fingerprint`, which reads two short parts of a JPEG or PNG file, and all bytes of other files
and of arrays. A file is written under another name and renamed when it is complete.
A lock lets one process write it, while other processes write other files; on a file system without locks several may
write the same one, and the last replaces the others. Every image has a checksum, with which a
process compares the pixels that it reads first: a damaged image is prepared on request too.
"""

import hashlib
import logging
import os
import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext, suppress
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock, Timeout

from vit.data.decoding.decode import BadImage
from vit.data.errors import DataError
from vit.data.identity import pixel_fingerprint
from vit.data.images.prepared import Prepared
from vit.data.splits.split import content_of
from vit.data.threads import StageProgress, map_in_threads, reported
from vit.files.atomic import remove_stale_files, write_atomically
from vit.files.locks import has_locks
from vit.files.strict_json import json_text

log = logging.getLogger("vit")

MAGIC = b"VITIMAG2"
SUFFIX = ".images"
ROWS = 256  # fewest samples of a file
FILES = 256  # most files of a split, because all of them are open while it is used
IN_USE = 24 * 3600  # a file is not deleted to make room within so many seconds of its last use
SAMPLED = 8  # images from which the size is estimated
SEEKING = threading.Lock()  # where a file is read at its position, which its readers share


class MemoryCache:
    """Prepared images in the memory of this process, up to `limit` bytes."""

    def __init__(
        self, prepared: Prepared, limit: int, on_bad_sample: str = "error", progress: StageProgress | None = None
    ):
        self.images: list[np.ndarray | None] = []
        size, count = 0, len(prepared)
        announce("memory", prepared, limit)
        images = reported(prepare(prepared, range(count), on_bad_sample), "cache", count, progress)
        for image in images:
            size += 0 if image is None else image.nbytes
            if size > limit:
                warn_about_limit(len(self.images), count, limit)
                break
            self.images.append(image)

    def get(self, i: int) -> np.ndarray | None:
        """(H,W,C) uint8; None if it is not cached."""
        return self.images[i] if i < len(self.images) else None


class DiskCache:
    """Prepared images in files below `folder`; all caches in this folder together have at most `limit` bytes.

    Raises:
        BadImage: an image cannot be read, with `on_bad_sample="error"`.
        DataError: the folder cannot be created or written, and images are missing.
    """

    def __init__(
        self, prepared: Prepared, folder: Path, limit: int, on_bad_sample: str = "error",
        progress: StageProgress | None = None,
    ):
        self.folder, self.limit = folder, limit
        self.rows = max(ROWS, -(-len(prepared) // FILES))
        self.paths = [folder / name for name in file_names(prepared, self.rows)]
        self._files: dict[int, StoredImages | None] = {}
        self._fill(prepared, on_bad_sample, progress)

    def get(self, i: int) -> np.ndarray | None:
        """(H,W,C) uint8; None if it is not cached."""
        number, row = divmod(i, self.rows)
        if number not in self._files:
            self._files[number] = StoredImages.open(self.paths[number])
        file = self._files[number]
        return None if file is None else file.image(row)

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_files": {}}  # another process opens the files itself

    def _fill(self, prepared: Prepared, on_bad_sample: str, progress: StageProgress | None) -> None:
        """Writes the missing files: first those that no process is writing, then those that others left unfinished."""
        count = len(prepared)
        rows_of = [range(first, min(first + self.rows, count)) for first in range(0, count, self.rows)]
        missing = [number for number, path in enumerate(self.paths) if not is_usable(path)]
        if not missing:
            log.info("cache: all %d images are in %s", count, self.folder)
            return
        open_folder(self.folder)
        remove_stale_files(self.folder)
        bytes_each = announce(str(self.folder), prepared, self.limit)
        for wait in (False, True):
            for number in list(missing):
                rows, path = rows_of[number], self.paths[number]
                done = count - sum(len(rows_of[each]) for each in missing)
                try:
                    with lock(path.with_suffix(".lock"), wait):
                        if not is_usable(path):
                            if not self._make_room(bytes_each * len(rows)):
                                warn_about_limit(number * self.rows, count, self.limit)
                                return
                            images = reported(prepare(prepared, rows, on_bad_sample), "cache", count, progress, done)
                            write_atomically(path, lambda file, images=images: store(file, images))
                    missing.remove(number)
                except Timeout:
                    continue
                except OSError as error:  # such as a full disk
                    log.warning("cache: %s; the images that are not cached are decoded in every epoch", error)
                    return

    def _make_room(self, size: float) -> bool:
        """Whether `size` more bytes fit; deletes files that no run has opened for a day, the oldest first."""
        stored = []
        for path in self.folder.glob(f"*{SUFFIX}"):
            try:
                stored.append((path.stat().st_mtime, path.stat().st_size, path))
            except FileNotFoundError:  # deleted by another process
                continue
        total = size + sum(each for _, each, _ in stored)
        for used, each, path in sorted(stored):
            if total <= self.limit or time.time() - used < IN_USE:
                break
            if path not in self.paths:
                path.unlink(missing_ok=True)
                path.with_suffix(".lock").unlink(missing_ok=True)
                total -= each
        return total <= self.limit


class StoredImages:
    """The images in a file of a disk cache, which stays open, so that they remain readable if it is deleted.

    The file is not mapped into memory: reading a map of a file that was cut short, or whose disk fails, ends the
    process with SIGBUS.

    Raises:
        OSError, ValueError: the file does not exist or is not complete.
    """

    def __init__(self, path: Path):
        self.path = path
        self._descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_BINARY", 0) | getattr(os, "O_NONBLOCK", 0))
        weakref.finalize(self, os.close, self._descriptor)
        end = os.fstat(self._descriptor).st_size - 16
        count, magic = self._read(end, 16).view(np.int64)
        start = end - 40 * int(count)
        if magic.tobytes() != MAGIC or count < 0 or start < 0:
            raise ValueError("the end is missing")
        # offset, height, width, channels, checksum
        self.index = self._read(start, end - start).view(np.int64).reshape(count, 5)
        if self.index[:, 1:4].prod(1).sum() != start:
            raise ValueError("the index is damaged")
        self._intact = np.zeros(count, bool)
        self._damaged = False

    @classmethod
    def open(cls, path: Path) -> "StoredImages | None":
        """The images in a file; None if it does not exist or is not complete."""
        try:
            return cls(path)
        except (OSError, ValueError):
            return None

    def image(self, row: int) -> np.ndarray | None:
        """(H,W,C), or None for an image that could not be read or is damaged."""
        offset, *shape, stored = self.index[row].tolist()
        if not shape[0]:
            return None
        try:
            pixels = self._read(offset, shape[0] * shape[1] * shape[2])
        except (OSError, ValueError):
            self._report_damage()
            return None
        if not self._intact[row]:
            if checksum(pixels) != stored:
                self._report_damage()
                return None
            self._intact[row] = True
        return pixels.reshape(shape)

    def _read(self, offset: int, size: int) -> np.ndarray:
        """`size` bytes as uint8.

        Raises:
            OSError, ValueError: they are not in the file, or cannot be read.
        """
        data, done = np.empty(size, np.uint8), 0
        while done < size:
            count = read_at(self._descriptor, offset + done, data[done:])
            if not count:
                raise ValueError(f"the file ends after {done} of {size} bytes")
            done += count
        return data

    def _report_damage(self) -> None:
        """Remove the file, so that the next run stores its images again."""
        if self._damaged:
            return
        self._damaged = True
        with suppress(OSError):  # a file of another user
            self.path.unlink(missing_ok=True)
        log.warning("cache: %s is damaged; its damaged images are decoded in every epoch, and the next run stores them "
                    "again", self.path)


def read_at(descriptor: int, offset: int, data: np.ndarray) -> int:
    """Reads into uint8 (N,) from an offset of an open file; returns the number of bytes, 0 at the end of the file."""
    if hasattr(os, "preadv"):
        return os.preadv(descriptor, [data], offset)
    with SEEKING:  # Windows
        os.lseek(descriptor, offset, os.SEEK_SET)
        found = os.read(descriptor, len(data))
    data[: len(found)] = np.frombuffer(found, np.uint8)
    return len(found)


def open_folder(folder: Path) -> None:
    """Creates the folder of a cache; raises DataError if it cannot be written."""
    reason = "permission denied"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if os.access(folder, os.W_OK):
            return
    except OSError as error:
        reason = error.strerror or str(error)
    raise DataError(f"data.cache_dir: {folder} cannot be written ({reason}); choose another folder, or set "
                    "data.cache=memory")


def lock(path: Path, wait: bool) -> AbstractContextManager:
    """Context manager: the lock of a file of a cache, if the file system has locks.

    Raises:
        Timeout: another process holds it, without `wait`.
    """
    return FileLock(path, timeout=-1 if wait else 0) if has_locks(path) else nullcontext()


def store(file: Any, images: Iterator[np.ndarray | None]) -> None:
    """Writes the pixels of all images, then their index."""
    index, offset = [], 0
    for image in images:
        if image is None:
            index.append((offset, 0, 0, 0, 0))
            continue
        index.append((offset, *image.shape, checksum(np.ascontiguousarray(image).reshape(-1))))
        file.write(image.tobytes())
        offset += image.nbytes
    file.write(np.array(index, np.int64).tobytes() + np.int64(len(index)).tobytes() + MAGIC)


def is_usable(path: Path) -> bool:
    """Whether a complete file exists. It is marked as used now; an incomplete file is deleted."""
    usable = StoredImages.open(path) is not None
    with suppress(OSError):  # a file of another user, or one that another process has just deleted
        os.utime(path) if usable else path.unlink(missing_ok=True)
    return usable


def checksum(pixels: np.ndarray) -> int:
    """uint8 (N,) -> the sum of its 64-bit words, modulo 2^64, and of the bytes after them

    It changes with any word. It takes a sixth of the time of a CRC-32, which would be noticed in the first epoch.
    """
    whole = len(pixels) // 8 * 8
    return int(pixels[:whole].view(np.int64).sum()) ^ int.from_bytes(pixels[whole:].tobytes(), "little")


def file_names(prepared: Prepared, rows: int) -> list[str]:
    """The names of files of `rows` samples each: hashes of the samples and of what determines their pixels."""
    identity = json_text(prepared.identity()).encode()
    count, names = len(prepared), []
    contents = map_in_threads(lambda i: content_of(prepared.split, i, pixel_fingerprint), range(count))
    for first, end in pairwise([*range(0, count, rows), count]):
        digest = hashlib.blake2b(MAGIC + identity, digest_size=16)  # an earlier version would delete another format
        for content in islice(contents, end - first):
            digest.update(content.encode() + b"\n")
        names.append(digest.hexdigest() + SUFFIX)
    return names


def prepare(prepared: Prepared, rows: range, on_bad_sample: str) -> Iterator[np.ndarray | None]:
    """The images of `rows` in order, None for unreadable ones.

    Raises:
        BadImage: an image cannot be read, with `on_bad_sample="error"`.
    """

    def load(i: int) -> np.ndarray | None:
        try:
            return prepared(i)
        except BadImage:
            if on_bad_sample == "error":
                raise
            return None

    yield from map_in_threads(load, rows)


def announce(location: str, prepared: Prepared, limit: int) -> float:
    """Logs the size of the cache, estimated from a few images → bytes per image."""
    sampled = np.unique(np.linspace(0, len(prepared) - 1, min(SAMPLED, len(prepared))).astype(int))
    sizes = [image.nbytes for i in sampled for image in prepare(prepared, range(i, i + 1), "skip") if image is not None]
    each = sum(sizes) / max(1, len(sizes))
    log.info("cache: %d images of about %.0f kB, %.2f of at most %.2f GB, in %s", len(prepared), each / 1e3,
             each * len(prepared) / 1e9, limit / 1e9, location)
    return each


def warn_about_limit(cached: int, count: int, limit: int) -> None:
    log.warning("cache: the limit of %.2f GB is reached after %d of %d images; the others are decoded in every epoch; "
                "raise data.cache_limit to cache them", limit / 1e9, cached, count)


def default_folder() -> Path:
    """$VIT_CACHE/images if it is set, otherwise vit/images in the user's cache folder, $XDG_CACHE_HOME or ~/.cache."""
    if os.environ.get("VIT_CACHE"):
        return Path(os.environ["VIT_CACHE"]).expanduser() / "images"
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "vit" / "images"
