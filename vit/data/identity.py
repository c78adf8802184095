"""The identity of a sample across runs: its name, or a fingerprint of its content if it has no name of its own."""

import hashlib
import os
import unicodedata
from collections.abc import Iterable
from functools import partial
from itertools import chain
from pathlib import Path

import numpy as np

from vit.data.system_limits import check_files_left

END = 8192  # bytes that are hashed at the beginning and at the end of long contents
PART = 1 << 20  # bytes of a file that are read at once
JPEG_OR_PNG = (b"\xff\xd8\xff", b"\x89PNG")  # the first bytes of files whose end changes with an edit before it


def fingerprint(content: bytes | np.ndarray | Path | str) -> str:
    """16 hexadecimal digits of an encoded image, a pixel array, a file or a text.

    Of contents above 16 KiB only the length and the first and last 8 KiB are hashed: enough to detect that a file was
    replaced, at the cost of two short reads per file. A file that cannot be read has the fingerprint "".
    """
    if isinstance(content, Path):
        return _of_file(content)
    if isinstance(content, np.ndarray):
        return _digest(*_array_bytes(content))
    if isinstance(content, str):
        return hashlib.blake2b(content.encode("utf-8", "surrogateescape"), digest_size=8).hexdigest()
    return _digest(b"", memoryview(content))


def pixel_fingerprint(content: bytes | np.ndarray | Path) -> str:
    """The fingerprint of an image for caches of its pixels: `fingerprint` for JPEG and PNG files, otherwise a hash of
    all bytes.

    `fingerprint` would miss an edit in the middle of a pixel array, or of a file in another format such as lossless
    WebP, that leaves the length and both ends unchanged. A PNG file ends with a checksum of its pixels. An edit in a
    JPEG file shifts all bytes after it, unless the edited part is encoded in exactly as many bits as before.
    """
    if isinstance(content, Path):
        try:
            with content.open("rb", buffering=0) as file:
                start = file.read(END)
                if not start.startswith(JPEG_OR_PNG):
                    return _of_all(b"", start, iter(partial(file.read, PART), b""))
            return _of_file(content)
        except OSError as error:
            check_files_left(error)
            return ""
    if isinstance(content, np.ndarray):
        return _of_all(*_array_bytes(content), ())
    return fingerprint(content) if content.startswith(JPEG_OR_PNG) else _of_all(b"", content, ())


def hash_positions(keys: Iterable[str], seed: int) -> np.ndarray:
    """(N,) float64 in [0, 1): a hash of each key and the seed.

    Keys are compared in Unicode's NFC form, since file systems differ in how they store accents.
    """
    salt = seed.to_bytes(16, "little", signed=True)
    digests = (hashlib.blake2b(_nfc_bytes(key), digest_size=8, salt=salt).digest() for key in keys)
    return np.frombuffer(b"".join(digests), "<u8") / 2.0**64


def to_nfc(name: str) -> str:
    """The name in Unicode's composed form (NFC), in which "é" is one character."""
    return name if name.isascii() else unicodedata.normalize("NFC", name)


def _nfc_bytes(key: str) -> bytes:
    return to_nfc(key).encode("utf-8", "surrogateescape")


def _array_bytes(array: np.ndarray) -> tuple[bytes, memoryview]:
    """Shape and dtype of an array, and its values, as bytes."""
    return repr((array.shape, array.dtype.str)).encode(), np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


def _of_file(path: Path) -> str:
    """The hash of the size and the first and last `END` bytes of a file; "" if it cannot be read."""
    try:
        with path.open("rb", buffering=0) as file:
            size = os.fstat(file.fileno()).st_size
            if size <= 2 * END:
                return _digest(b"", memoryview(file.read()))
            first = file.read(END)
            file.seek(-END, os.SEEK_END)
            return _hashed(b"", size, first, file.read(END))
    except OSError as error:
        check_files_left(error)
        return ""


def _of_all(prefix: bytes, start: bytes | memoryview, parts: Iterable[bytes]) -> str:
    """The hash of a prefix and all bytes. The word "all" keeps it different from `_hashed`, which hashes the size."""
    digest = hashlib.blake2b(prefix + b"all", digest_size=8)
    for part in chain((start,), parts):
        digest.update(part)
    return digest.hexdigest()


def _digest(prefix: bytes, data: memoryview) -> str:
    if len(data) <= 2 * END:
        return _hashed(prefix, len(data), data)
    return _hashed(prefix, len(data), data[:END], data[-END:])


def _hashed(prefix: bytes, size: int, *parts: bytes | memoryview) -> str:
    digest = hashlib.blake2b(prefix + size.to_bytes(8, "little"), digest_size=8)
    for part in parts:
        digest.update(part)
    return digest.hexdigest()
