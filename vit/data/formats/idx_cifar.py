"""Binary formats of classic data sets: IDX (MNIST) and the pickles of CIFAR, which are read without running their code.
"""

import math
import pickle
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from vit.data.errors import DataError
from vit.data.splits.split import Split, array_split
from vit.files.untrusted import LimitError, open_decompressed, open_regular, read_bytes, read_text
from vit.messages import number_of, on_one_line


def read_idx(path: Path) -> np.ndarray:
    """An IDX file of unsigned bytes, gzipped or not → array of its shape.

    Raises:
        DataError: the file cannot be read, or is not IDX or incomplete.
    """
    try:
        with open_decompressed(path) as file:
            data = file.read()
    except (OSError, EOFError, zlib.error, LimitError) as error:
        raise DataError(f"{path}: cannot be read ({error}); download the file again") from error
    if len(data) < 4 or data[:3] != b"\0\0\x08":
        raise DataError(
            f"{path}: is not an IDX file of bytes (starts with {data[:4].hex() or 'nothing'}, expected 000008..)"
        )
    start = 4 + 4 * data[3]
    if not data[3] or len(data) < start:
        raise DataError(f"{path}: its header of {data[3]} dimensions is incomplete; download the file again")
    shape = struct.unpack(f">{data[3]}I", data[4:start])
    expected = math.prod(shape)
    if len(data) - start != expected:
        raise DataError(
            f"{path}: has {len(data) - start} bytes, but its header {shape} needs {expected}; download the file again"
        )
    return np.frombuffer(data, np.uint8, offset=start).reshape(shape).copy()


BINARY = {"cifar-10-batches-py": "cifar-10-batches-bin", "cifar-100-python": "cifar-100-binary"}


def cifar_batches(name: str, root: Path, folder: str, classes: list[str] | None) -> tuple[list[str], dict[str, Split]]:
    """Class names and splits of torchvision's layout of CIFAR-10 (`cifar-10-batches-py`) or CIFAR-100
    (`cifar-100-python`), or of the binary version (`cifar-10-batches-bin`, `cifar-100-binary`).

    Raises:
        DataError: a file is damaged.
        FileNotFoundError: a file is missing.
    """
    directory = root / folder if (root / folder).is_dir() else root
    fine = classes is None
    files = {
        "train": ["train"] if fine else [f"data_batch_{i}" for i in range(1, 6)],
        "test": ["test" if fine else "test_batch"],
    }
    missing = [f for part in files.values() for f in part if not (directory / f).is_file()]
    binary = root / BINARY[folder] if (root / BINARY[folder]).is_dir() else root
    if missing and all((binary / f"{f}.bin").is_file() for part in files.values() for f in part):
        classes = classes or read_text(binary / "fine_label_names.txt").split()
        parts = {key: [_records(binary / f"{f}.bin", 1 + fine, len(classes)) for f in part]
                 for key, part in files.items()}
        return classes, {key: array_split(*map(np.concatenate, zip(*part, strict=True)), f"{name} {key}")
                         for key, part in parts.items()}
    if missing:
        raise FileNotFoundError(
            f"{name}: there is neither {missing[0]} nor train.parquet in {directory}; "
            "set data.root to their folder, or data.download=true"
        )
    if fine:
        known = _load(directory / "meta", {b"fine_label_names": list})[b"fine_label_names"]
        classes = [name.decode("utf-8", "replace") if isinstance(name, bytes) else str(name) for name in known]
    splits = {}
    for key, names in files.items():
        key_of_labels = b"fine_labels" if fine else b"labels"
        parts = [_load_batch(directory / n, key_of_labels, len(classes)) for n in names]
        pixels = np.concatenate([p[b"data"] for p in parts]).reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
        labels = np.concatenate([p[key_of_labels] for p in parts])
        splits[key] = array_split(np.ascontiguousarray(pixels), labels, f"{name} {key}")
    return classes, splits


def _records(path: Path, labels: int, classes: int) -> tuple[np.ndarray, np.ndarray]:
    """Images (N,32,32,3) and the last label of each, (N,), of records of `labels` bytes and the pixels."""
    data = np.frombuffer(read_bytes(path), np.uint8)
    if not len(data) or len(data) % (labels + 3072):
        raise DataError(f"{path}: has {len(data)} bytes, which is no multiple of {labels + 3072}; download the file "
                        "again")
    records = data.reshape(-1, labels + 3072)
    numbers = records[:, labels - 1].astype(np.int64)
    if numbers.max() >= classes:
        raise DataError(f"{path}: has the label {numbers.max()}, expected 0 to {classes - 1}; download the file again")
    return np.ascontiguousarray(records[:, labels:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)), numbers


class _DataOnly(pickle.Unpickler):
    """Unpickles dicts, lists, numbers, bytes and NumPy arrays; any other function is an error, not called."""

    def find_class(self, module: str, name: str) -> object:
        if (module, name) in (("numpy.core.multiarray", "_reconstruct"), ("numpy._core.multiarray", "_reconstruct")):
            return np._core.multiarray._reconstruct
        if module == "numpy" and name in ("ndarray", "dtype"):
            return getattr(np, name)
        if (module, name) == ("_codecs", "encode"):
            return _encode
        raise DataError(f"refused: the pickle calls {module}.{name}, which data does not need")


def _encode(text: str, encoding: str) -> bytes:
    return text.encode("latin1" if encoding == "latin1" else "ascii")


def _load_batch(path: Path, labels: bytes, classes: int) -> dict[bytes, Any]:
    """A batch of images (N,3072) uint8 with N labels below `classes`."""
    batch = _load(path, {b"data": np.ndarray, labels: list | np.ndarray})
    data, numbers = batch[b"data"], batch[labels]
    if data.dtype != np.uint8 or data.shape != (len(numbers), 3072):
        raise DataError(f"{path}: holds {data.dtype} of shape {data.shape} with {number_of(len(numbers), 'label')}, "
                        f"expected uint8 of ({len(numbers)}, 3072); download the file again")
    if not all(isinstance(number, int | np.integer) and 0 <= number < classes for number in numbers):
        raise DataError(f"{path}: has labels that are not integers in 0..{classes - 1}; download the file again")
    return batch


def _load(path: Path, requested: dict[bytes, Any]) -> dict[bytes, Any]:
    try:
        with open_regular(path) as file:
            found = _DataOnly(file, encoding="bytes").load()
    except Exception as error:  # damaged pickles raise many types
        raise DataError(f"{path}: is not an intact CIFAR batch ({on_one_line(error, 200)}); download the "
                        "file again") from error
    for key, kind in requested.items():
        if not isinstance(found, dict) or not isinstance(found.get(key), kind):
            raise DataError(f"{path}: has no list {key.decode()}; download the file again")
    return found
