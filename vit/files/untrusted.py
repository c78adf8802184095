"""Untrusted files: opened only if they are regular files, parsed and decompressed only within limits.

Reading a FIFO or a device may never end, and a few megabytes of gzip or of brackets can exhaust the memory.
"""

import bz2
import copy
import gzip
import hashlib
import io
import json
import math
import os
import stat
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from os import PathLike
from typing import Any, BinaryIO

import numpy as np

from vit.messages import on_one_line

MAX_RATIO = 20  # decompressed bytes per compressed byte, beyond ALWAYS_ALLOWED bytes; gzip can reach 1032
ALWAYS_ALLOWED = 128 << 20  # bytes to which any file may be decompressed
MAX_TEXT = 32 << 20  # bytes of JSON or YAML
MAX_DIRECTORY = 16 << 20  # bytes of a zip file's table of contents
PIECE = 1 << 20  # bytes of a zip member that are read at a time
ZIP_END = 66_000  # bytes at the end of a zip file that contain its end record
MAX_NODES = 2_000_000  # lists, dicts and values in a JSON or YAML file
MAX_DEPTH = 100
NESTED = f"its nodes are nested deeper than {MAX_DEPTH}"
KINDS = {stat.S_IFIFO: "a FIFO", stat.S_IFSOCK: "a socket", stat.S_IFCHR: "a device", stat.S_IFBLK: "a device",
         stat.S_IFDIR: "a folder"}


class LimitError(ValueError):
    """Content that needs far more memory than its file; the message states the amount, without the file name."""


class NotRegularFileError(OSError):
    """A FIFO, a device, a socket or a folder instead of a file; `strerror` names the kind."""

    def __str__(self) -> str:
        """The message of `OSError` without the error number at its beginning, which is not set here."""
        return f"{self.strerror}: {self.filename!r}" if self.filename else str(self.strerror)


def check_regular(path: str | PathLike[str]) -> os.stat_result:
    """The status of a regular file, without blocking.

    Raises:
        NotRegularFileError: the path is a FIFO, a device, a socket or a folder.
        OSError: the path does not exist or is not accessible.
    """
    status = os.stat(path)
    if not stat.S_ISREG(status.st_mode):
        what = KINDS.get(stat.S_IFMT(status.st_mode), "something else")
        raise NotRegularFileError(None, f"it is {what} and not a regular file", str(path))
    return status


def open_regular(path: str | PathLike[str]) -> BinaryIO:
    """`open(path, "rb")` for regular files only; never waits for a writer of a FIFO.

    Raises:
        NotRegularFileError: as `check_regular`.
    """
    check_regular(path)
    return open(path, "rb", opener=lambda name, flags: os.open(name, flags | getattr(os, "O_NONBLOCK", 0)))


def read_bytes(path: str | PathLike[str]) -> bytes:
    """The content of a regular file."""
    with open_regular(path) as file:
        return file.read()


def file_sha256(path: str | PathLike[str]) -> str:
    """The SHA-256 of a regular file, in hexadecimal digits."""
    with open_regular(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextmanager
def open_decompressed(path: str | PathLike[str]) -> Iterator[BinaryIO]:
    """A file opened for reading, decompressed on the fly if its name ends with .gz.

    Raises:
        LimitError: while reading, if the content exceeds `unpacked_limit`.
        OSError, EOFError, zlib.error: as `gzip.open`.
    """
    with open_regular(path) as file:
        if str(path).lower().endswith(".gz"):
            limit = unpacked_limit(os.fstat(file.fileno()).st_size)
            with gzip.open(file) as stream:
                yield io.BufferedReader(_Limited(stream, limit))
        else:
            yield file


class _Limited(io.RawIOBase):
    """A stream that raises LimitError after `limit` bytes."""

    def __init__(self, stream: BinaryIO, limit: int):
        self.stream, self.limit, self.left = stream, limit, limit

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        count = self.stream.readinto(buffer)
        self.left -= count
        if self.left < 0:
            raise LimitError(f"it decompresses to more than {megabytes(self.limit)}, {MAX_RATIO} times its own size")
        return count


def unpacked_limit(packed: int) -> int:
    """The most bytes to which a file of `packed` bytes may decompress."""
    return max(ALWAYS_ALLOWED, MAX_RATIO * packed)


@contextmanager
def open_zip(path: str | PathLike[str]) -> Iterator[zipfile.ZipFile]:
    """A zip file whose declared decompressed size is within `unpacked_limit`.

    Raises:
        LimitError: the declared size is larger, or the table of contents is.
        OSError, zipfile.BadZipFile: as `zipfile.ZipFile`.
    """
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        if (directory := _directory_size(file, size)) > MAX_DIRECTORY:
            raise LimitError(f"its table of contents takes {megabytes(directory)}")
        with zipfile.ZipFile(file) as archive:
            _check_zip(archive, size)
            yield archive


def _directory_size(file: BinaryIO, size: int) -> int:
    """Bytes of a zip file's table of contents according to its end record; 0 if there is no such record."""
    file.seek(max(0, size - ZIP_END))
    tail = file.read(ZIP_END)
    end, end64 = tail.rfind(b"PK\5\6"), tail.rfind(b"PK\6\6")
    sizes = [int.from_bytes(tail[at : at + count], "little")
             for start, at, count in ((end, end + 12, 4), (end64, end64 + 40, 8)) if start >= 0]
    return max((each for each in sizes if each != 0xFFFFFFFF), default=0)


def _check_zip(archive: zipfile.ZipFile, packed: int) -> None:
    unpacked = sum(member.file_size for member in archive.infolist())
    if unpacked > unpacked_limit(packed):
        raise LimitError(f"its {len(archive.infolist()):,} members decompress to {megabytes(unpacked)}, more than "
                         f"{MAX_RATIO} times its own size")


def read_member(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> bytes:
    """The content of a member of a zip file, decompressed to its declared size and not further, as `ZipFile.read` does
    before it compares the sizes.

    Raises:
        OSError, zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError: as `ZipFile.read`.
    """
    return b"".join(_pieces(archive, member))


def damaged_member(archive: zipfile.ZipFile) -> str | None:
    """The name of the first member with another size or checksum than declared, as `ZipFile.testzip` returns it; None
    if all are intact.
    """
    for member in archive.infolist():
        try:
            for _ in _pieces(archive, member):
                pass
        except zipfile.BadZipFile:
            return member.filename
    return None


def _pieces(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> Iterator[bytes]:
    """The content in pieces; of LZMA, of which `zipfile` limits only the compressed bytes, in small ones."""
    with _open_member(archive, member) as stream:
        while piece := stream.read1(PIECE >> 8 if member.compress_type == zipfile.ZIP_LZMA else PIECE):
            yield piece


def _open_member(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> BinaryIO:
    """A member opened for reading. One of bzip2 is decompressed here: 4 kB, which `zipfile` decompresses at a time, may
    become many GB.
    """
    if member.compress_type != zipfile.ZIP_BZIP2:
        return archive.open(member)
    packed = copy.copy(member)
    packed.compress_type, packed.file_size = zipfile.ZIP_STORED, member.compress_size
    del packed.CRC  # that of the decompressed content
    with archive.open(packed) as stream:
        data = bz2.BZ2Decompressor().decompress(stream.read(), member.file_size + 1)
    if len(data) != member.file_size or zlib.crc32(data) != member.CRC:
        raise zipfile.BadZipFile(f"Bad CRC-32 for file {member.filename!r}")
    return io.BytesIO(data)


def read_arrays(path: str | PathLike[str]) -> dict[str, np.ndarray]:
    """The arrays of an .npz file by name, without unpickling and without allocating more than a member's size.

    Raises:
        ValueError, and the errors of zipfile, zlib and NumPy: the file is damaged; the message does not name it.
    """
    with open_zip(path) as archive:
        return {each.filename.removesuffix(".npy"): _read_array(archive, each) for each in archive.infolist()}


def _read_array(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> np.ndarray:
    with _open_member(archive, member) as stream:
        version = np.lib.format.read_magic(stream)
        read = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}[version]
        shape, _, kind = read(stream)
        if not kind.hasobject and math.prod(shape) * kind.itemsize != member.file_size - stream.tell():
            raise ValueError(f"{member.filename} has {member.file_size:,} bytes, which does not fit its shape {shape}")
    with _open_member(archive, member) as stream:
        return np.lib.format.read_array(stream, allow_pickle=False)


def read_text(path: str | PathLike[str], limit: int = MAX_TEXT) -> str:
    """UTF-8 text of at most `limit` bytes.

    Raises:
        LimitError: the file is larger.
        OSError, UnicodeDecodeError: the file is not readable as UTF-8.
    """
    with open_regular(path) as file:
        data = file.read(limit + 1)
    if len(data) > limit:
        raise LimitError(f"it is larger than {megabytes(limit)}")
    return data.decode("utf-8")


def read_json(path: str | PathLike[str]) -> Any:
    """The content of a JSON file; NaN and Infinity, which are not JSON, are refused.

    Raises:
        ValueError: not JSON, or too large or too deeply nested (LimitError); the message does not name the file.
        OSError: the file cannot be read.
    """
    return parse_json(read_text(path))


def parse_json(text: str, constants: Callable[[str], Any] | None = None) -> Any:
    """The content of a JSON text; NaN and Infinity are refused, or converted by `constants` from their names.

    Raises:
        ValueError: not JSON, or too many values or too deeply nested (LimitError).
    """
    if text.count("[") + text.count("{") + text.count(",") > MAX_NODES:
        raise LimitError(f"it has more than {MAX_NODES:,} values")
    try:
        return json.loads(text, parse_constant=constants or _refuse_constant)
    except RecursionError:
        raise LimitError("its brackets are nested too deeply") from None


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not a JSON number; write null")


def unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """`object_pairs_hook` of `json.loads` that refuses a repeated key, of which Python would keep the last value.

    Raises:
        ValueError: a key has two values.
    """
    found = dict(pairs)
    if len(found) < len(pairs):
        for key, value in pairs:
            if value != found[key]:
                raise ValueError(f"the key {key!r} has two values, {str(value)[:40]!r} and {str(found[key])[:40]!r}; "
                                 "remove one of them")
    return found


def read_yaml(path: str | PathLike[str]) -> Any:
    """The content of a YAML file: plain values only.

    Raises:
        ValueError: not YAML, or too large, too deeply nested or expanded by aliases (LimitError); the message does not
            name the file.
        OSError: the file cannot be read.
    """
    import yaml

    text = read_text(path, MAX_TEXT // 32)
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # in C, ten times as fast, where PyYAML is built with it
    try:
        _check_yaml_events(yaml.parse(text, Loader=loader), yaml)
        return loader(text).get_single_data()
    except yaml.YAMLError as error:
        if "maximum nesting depth" in str(error):  # libyaml, whose own limit may be reached before the first event
            raise LimitError(NESTED) from None
        raise ValueError(f"it is not YAML ({on_one_line(error, 120)})") from None


def _check_yaml_events(events: Any, yaml: Any) -> None:
    """Raises LimitError for deep nesting, or aliases of aliases that expand to more than MAX_NODES values."""
    sizes: dict[str, int] = {}  # nodes below each anchor, with its aliases expanded
    open_nodes: list[list] = [[None, 0]]
    for event in events:
        if isinstance(event, yaml.CollectionStartEvent):
            open_nodes.append([event.anchor, 1])
        elif isinstance(event, yaml.CollectionEndEvent | yaml.ScalarEvent | yaml.AliasEvent):
            if isinstance(event, yaml.CollectionEndEvent):
                anchor, size = open_nodes.pop()
            elif isinstance(event, yaml.AliasEvent):
                anchor, size = None, sizes.get(event.anchor, 1)
            else:
                anchor, size = event.anchor, 1
            if anchor:
                sizes[anchor] = size
            open_nodes[-1][1] += size
        if len(open_nodes) > MAX_DEPTH:
            raise LimitError(NESTED)
        if open_nodes[-1][1] > MAX_NODES:
            raise LimitError(f"its aliases expand to more than {MAX_NODES:,} values")


def megabytes(count: int) -> str:
    """A number of bytes as text in MB."""
    return f"{count / 2**20:,.0f} MB"
