"""Binary formats of the classic sets: IDX (MNIST) and CIFAR's pickles, read without running anything in them."""

import gzip
import pickle
import struct
from pathlib import Path

import numpy as np

from vit.data.source import DataError, Split, array_split


def read_idx(path: Path) -> np.ndarray:
    """An IDX file of unsigned bytes, gzipped or not → array of its shape."""
    try:
        data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (OSError, EOFError) as error:
        raise DataError(f"{path}: cannot be unpacked ({error}); fetch the file again") from error
    if len(data) < 4 or data[:3] != b"\0\0\x08":
        raise DataError(
            f"{path}: is no IDX file of bytes (starts with {data[:4].hex() or 'nothing'}, expected 000008..)"
        )
    start = 4 + 4 * data[3]
    shape = struct.unpack(f">{data[3]}I", data[4:start])
    expected = int(np.prod(shape))
    if len(data) - start != expected:
        raise DataError(
            f"{path}: holds {len(data) - start} bytes, its header {shape} needs {expected}; fetch the file again"
        )
    return np.frombuffer(data, np.uint8, offset=start).reshape(shape).copy()


def cifar_batches(name: str, root: Path, folder: str, classes: list[str] | None) -> tuple[list[str], dict[str, Split]]:
    """torchvision's layout of CIFAR-10 (`cifar-10-batches-py`) or CIFAR-100 (`cifar-100-python`)."""
    place = root / folder if (root / folder).is_dir() else root
    fine = classes is None
    files = {
        "train": ["train"] if fine else [f"data_batch_{i}" for i in range(1, 6)],
        "test": ["test" if fine else "test_batch"],
    }
    missing = [f for part in files.values() for f in part if not (place / f).is_file()]
    if missing:
        raise FileNotFoundError(
            f"{name}: no {missing[0]} and no train.parquet under {place}; "
            "set data.root to their folder or data.download=true"
        )
    if fine:
        classes = [c.decode() for c in _load(place / "meta")[b"fine_label_names"]]
    splits = {}
    for key, names in files.items():
        parts = [_load(place / n) for n in names]
        pixels = np.concatenate([p[b"data"] for p in parts]).reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
        labels = np.concatenate([p[b"fine_labels" if fine else b"labels"] for p in parts])
        splits[key] = array_split(np.ascontiguousarray(pixels), labels, f"{name} {key}")
    return classes, splits


class _DataOnly(pickle.Unpickler):
    """Pickles of dicts, lists, numbers, bytes and numpy arrays; anything that would call something else is refused."""

    def find_class(self, module: str, name: str) -> object:
        if (module, name) in (("numpy.core.multiarray", "_reconstruct"), ("numpy._core.multiarray", "_reconstruct")):
            return np._core.multiarray._reconstruct
        if module == "numpy" and name in ("ndarray", "dtype"):
            return getattr(np, name)
        if (module, name) == ("_codecs", "encode"):
            return _encode
        raise DataError(f"refused: the file wants to call {module}.{name}, which is no data")


def _encode(text: str, encoding: str) -> bytes:
    return text.encode("latin1" if encoding == "latin1" else "ascii")


def _load(path: Path) -> dict[bytes, object]:
    try:
        with path.open("rb") as file:
            return _DataOnly(file, encoding="bytes").load()
    except (pickle.UnpicklingError, EOFError, DataError, ValueError, TypeError, AttributeError) as error:
        raise DataError(f"{path}: is no intact batch of CIFAR ({error}); fetch the file again") from error
