"""MATLAB files of version 5 to 7, which are read by SciPy."""

import io
import struct
import zlib
from pathlib import Path
from typing import Any

from vit.data.errors import DataError
from vit.data.formats.zip_archives import Archive, read_entry
from vit.files.untrusted import LimitError
from vit.messages import on_one_line

COMPRESSED, MAX_ELEMENT = 15, 2**25  # the type of compressed elements, and bytes of one
HDF5 = b"MATLAB 7.3"  # begins the header of files that need another library


def read_matlab(file: Path | Archive, names: tuple[str, ...], limit: int = MAX_ELEMENT) -> dict[str, Any]:
    """The variables of these names, without dimensions of size 1; structs are structured arrays.

    Args:
        limit: bytes of a compressed variable at most.

    Raises:
        DataError: the file cannot be read, has version 7.3, or lacks a variable.
    """
    from scipy.io import loadmat

    try:
        content = read_entry(file)
    except OSError as error:
        raise DataError(f"{file}: cannot be read ({error}); unpack it again") from error
    if content.startswith(HDF5):
        raise DataError(f"{file}: is a MATLAB file of version 7.3 (HDF5), which is not read; save it in MATLAB with "
                        "save(FILE, '-v7')")
    try:
        _check_compressed(content, limit)
        found = loadmat(io.BytesIO(content), squeeze_me=True, variable_names=names)
    except Exception as error:  # many types, of scipy's reader
        raise DataError(f"{file}: cannot be read ({on_one_line(error)}); unpack it again") from error
    if (missing := next((name for name in names if name not in found), None)) is not None:
        raise DataError(f"{file}: has no variable {missing}; unpack it again")
    return {name: found[name] for name in names}


def _check_compressed(content: bytes, limit: int) -> None:
    """Raises LimitError if a compressed element has more than `limit` bytes."""
    start = 128  # behind the header
    while start + 8 <= len(content):
        kind, size = struct.unpack_from("<II", content, start)
        if kind == COMPRESSED:
            zipped = zlib.decompressobj()
            zipped.decompress(content[start + 8 : start + 8 + size], limit)
            if not zipped.eof:
                raise LimitError(f"it decompresses to more than {limit} bytes, or is truncated")
        start += 8 + size
