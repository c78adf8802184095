"""Files made by somebody else: opened only where they are regular files, parsed and unpacked only within limits.

A FIFO or a device never ends, and a few megabytes of gzip or of brackets can fill the memory of any machine.
"""

import gzip
import json
import os
import stat
import zipfile
from os import PathLike
from pathlib import Path
from typing import Any, BinaryIO

MAX_RATIO = 20  # unpacked bytes per packed byte, of anything larger than FREE; gzip's own limit is 1032
FREE = 128 << 20
MAX_TEXT = 32 << 20  # bytes of JSON or YAML
MAX_NODES = 2_000_000  # lists, dicts and values in it
MAX_DEPTH = 100
KINDS = {stat.S_IFIFO: "a FIFO", stat.S_IFSOCK: "a socket", stat.S_IFCHR: "a device", stat.S_IFBLK: "a device",
         stat.S_IFDIR: "a folder"}


class LimitError(ValueError):
    """Content that takes far more memory than the file that holds it; the text says how much, without the file."""


class NotRegular(OSError):
    """A FIFO, a device, a socket or a folder where a file is wanted; `strerror` says which."""


def check_regular(path: str | PathLike[str]) -> os.stat_result:
    """Raises NotRegular where a path is anything but a regular file, before anything waits for it."""
    found = os.stat(path)
    if not stat.S_ISREG(found.st_mode):
        what = KINDS.get(stat.S_IFMT(found.st_mode), "something else")
        raise NotRegular(None, f"it is {what} and not a regular file", str(path))
    return found


def open_regular(path: str | PathLike[str]) -> BinaryIO:
    """`open(path, "rb")` that refuses what is no regular file, and never waits for a writer."""
    check_regular(path)
    return open(path, "rb", opener=lambda name, flags: os.open(name, flags | getattr(os, "O_NONBLOCK", 0)))


def read_bytes(path: str | PathLike[str]) -> bytes:
    with open_regular(path) as file:
        return file.read()


def read_gzip(path: str | PathLike[str]) -> bytes:
    """The content of a gzip file.

    Raises:
        LimitError: it is more than `MAX_RATIO` times the file and more than `FREE`.
        OSError, EOFError, zlib.error: as `gzip.decompress`.
    """
    with open_regular(path) as file:
        limit = allowed(os.fstat(file.fileno()).st_size)
        with gzip.open(file) as stream:
            data = stream.read(limit + 1)
    if len(data) > limit:
        raise LimitError(f"it unpacks to more than {megabytes(limit)}, {MAX_RATIO} times its own size")
    return data


def allowed(packed: int) -> int:
    """How many bytes so many packed ones may become."""
    return max(FREE, MAX_RATIO * packed)


def check_zip(archive: zipfile.ZipFile, packed: int) -> None:
    """Raises LimitError where the members of a zip file of `packed` bytes are declared far larger than it is."""
    unpacked = sum(member.file_size for member in archive.infolist())
    if unpacked > allowed(packed):
        raise LimitError(f"its {len(archive.infolist()):,} members unpack to {megabytes(unpacked)}, more than "
                         f"{MAX_RATIO} times its own size")


def read_text(path: str | PathLike[str], limit: int = MAX_TEXT) -> str:
    """UTF-8 text of at most `limit` bytes."""
    with open_regular(path) as file:
        data = file.read(limit + 1)
    if len(data) > limit:
        raise LimitError(f"it is larger than {megabytes(limit)}")
    return data.decode("utf-8")


def read_json(path: str | PathLike[str]) -> Any:
    """The content of a JSON file; NaN and Infinity, which are not JSON, are refused.

    Raises:
        ValueError: no JSON, or too large or too deep (LimitError); the text does not name the file.
        OSError: it cannot be read.
    """
    return parse_json(read_text(path))


def parse_json(text: str) -> Any:
    if text.count("[") + text.count("{") + text.count(",") > MAX_NODES:
        raise LimitError(f"it has more than {MAX_NODES:,} values")
    try:
        return json.loads(text, parse_constant=_no_number)
    except RecursionError:
        raise LimitError("its brackets are nested too deeply") from None


def _no_number(name: str) -> None:
    raise ValueError(f"{name} is no JSON number; write null")


def read_yaml(path: str | PathLike[str]) -> Any:
    """The content of a YAML file: plain values only.

    Raises:
        ValueError: no YAML, or too large, too deep or grown by aliases (LimitError); the text does not name the file.
        OSError: it cannot be read.
    """
    import yaml

    text = read_text(path, MAX_TEXT // 32)
    try:
        _check_events(yaml.parse(text, Loader=yaml.SafeLoader), yaml)
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ValueError(f"it is no YAML ({' '.join(str(error).split())[:120]})") from None


def _check_events(events: Any, yaml: Any) -> None:
    """Raises LimitError where nesting is deep, or aliases of aliases stand for more values than MAX_NODES."""
    sizes: dict[str, int] = {}  # of what each anchor names, its own aliases written out
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
            raise LimitError(f"its nodes are nested deeper than {MAX_DEPTH}")
        if open_nodes[-1][1] > MAX_NODES:
            raise LimitError(f"its aliases stand for more than {MAX_NODES:,} values")


def is_inside(path: Path, folder: Path) -> bool:
    """Whether a path, its links followed, lies in a folder."""
    return path.resolve().is_relative_to(folder.resolve())


def megabytes(count: int) -> str:
    return f"{count / 2**20:,.0f} MB"
