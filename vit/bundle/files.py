"""Files of weights: safetensors, PyTorch and NumPy, also sharded ones, are read, and nothing but tensors is loaded;
safetensors are written.
"""

import argparse
import mmap
import pickle
import re
import stat
import tarfile
from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from vit.files.pickles import check_old_pickles, check_pickles
from vit.files.untrusted import (
    LimitError,
    megabytes,
    open_regular,
    open_zip,
    parse_json,
    read_arrays,
    read_text,
    unpacked_limit,
)
from vit.messages import first_line

ACCEPTED = ".safetensors, .pt, .pth, .bin or .ckpt of PyTorch, .npz of Google's ViTs"
INDEX = ".index.json"
SEQUENCES = (list, tuple, set)
CONTAINERS = (*SEQUENCES, dict, Mapping)  # the abstract class last: its instance check takes ten times as long
MAX_HEADER = 16 << 20  # bytes of a safetensors file's header; a thousand tensors take a tenth of a megabyte
LFS, HTML = b"version https://git-lfs", (b"<!doc", b"<html")
DTYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16,
          "I64": torch.int64, "I32": torch.int32, "I16": torch.int16, "I8": torch.int8, "U8": torch.uint8,
          "U16": torch.uint16, "U32": torch.uint32, "U64": torch.uint64, "BOOL": torch.bool, "C64": torch.complex64,
          "F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2}
GLOBAL = re.compile(r"GLOBAL ([\w.]+)|(?:Unsupported|find) (?:class|global) ([\w.]+)")


class SourceError(ValueError):
    """A source of weights that cannot be loaded; the text is one sentence with what was found and what is accepted.

    Attributes:
        reason: the sentence without the source.
        source: path or name of the source; None if the reason names it.
    """

    def __init__(self, reason: str, source: str | PathLike[str] | None = None) -> None:
        self.reason, self.source = reason, None if source is None else str(source)
        super().__init__(reason if source is None else f"{source}: {reason}")


class Mapped(dict[str, Any]):
    """The content of a PyTorch file with memory-mapped tensors, which become invalid when the file is overwritten."""


def read_file(path: Path, mapped: bool = True) -> Any:
    """The content of a file: tensors by name, or the object that PyTorch saved. The format is detected from the
    first bytes, not from the suffix.

    Args:
        mapped: return `Mapped` if the format allows it, so that only the tensors that are used are read, and not the
            state of an optimizer.

    Raises:
        SourceError: the file is damaged, is not of weights, or is a pickle with more than tensors.
    """
    try:
        with open_regular(path) as stream:
            start = stream.read(64)
    except OSError as error:
        raise SourceError(f"the file cannot be read: {error.strerror}", path) from None
    if path.name.endswith(INDEX):
        return read_shards(path)
    if not start:
        raise SourceError(f"the file is empty; accepted: {ACCEPTED}", path)
    if start.startswith(LFS):
        raise SourceError("the file is a Git LFS pointer and not the weights; fetch them with git lfs pull", path)
    if start.lstrip().lower().startswith(HTML):
        raise SourceError("the file is a web page and not weights; download the file itself", path)
    if start[8:9] == b"{" and not start.startswith(b"PK"):
        return read_safetensors(path)
    if path.suffix.lower() in (".onnx", ".pt2"):
        raise SourceError(f"a program of {'ONNX' if path.suffix.lower() == '.onnx' else 'torch.export'} has no layers "
                          "that can be loaded; it runs without vit (see the guide on export), and vit commands read "
                          "the model that it was converted from", path)
    if start.startswith(b"PK"):
        return read_zip(path, mapped)
    if start[:1] == b"\x80":
        check_old_pickle(path)
        return read_torch(path, mapped=False)  # the format of PyTorch before 1.6
    raise SourceError(f"the file is of no known format (it begins with {start[:8]!r}); accepted: {ACCEPTED}", path)


def read_safetensors(path: Path) -> dict[str, Tensor]:
    """The tensors of a safetensors file, copied to memory: a mapped tensor would break if the file were overwritten.

    Raises:
        SourceError: the file is damaged, or a tensor is of a type for quantised weights.
    """
    try:
        with open_regular(path) as stream:
            size = int.from_bytes(stream.read(8), "little")
            if size > MAX_HEADER:
                raise LimitError(f"its header claims {megabytes(size)}")
            header = parse_json(stream.read(size).decode("utf-8"))
            with safe_open(path, framework="pt") as file:  # checks the header, sizes and offsets
                names = list(file.keys())
            unknown = next((name for name in names if header[name]["dtype"] not in DTYPES), None)
            if unknown is None:
                return {name: read_tensor(stream, 8 + size, **header[name]) for name in names}
    except Exception as error:  # damage causes errors of many types
        raise damage_error(path, error) from None
    raise SourceError(f"{unknown} is of the type {header[unknown]['dtype']}, as quantised weights are; use the weights "
                      "in float32, float16 or bfloat16", path)


def read_tensor(stream: BinaryIO, start: int, dtype: str, shape: list[int], data_offsets: list[int]) -> Tensor:
    """One tensor of a safetensors file whose data begins at `start`.

    Raises:
        ValueError: the file ends before it.
    """
    tensor = torch.empty(shape, dtype=DTYPES[dtype], device="cpu")
    stream.seek(start + data_offsets[0])
    if tensor.numel() and stream.readinto(tensor.flatten().view(torch.uint8).numpy()) != tensor.nbytes:
        raise ValueError("the file ends before its last tensor")
    return tensor


def read_zip(path: Path, mapped: bool) -> Any:
    """The content of a zip file of PyTorch or NumPy, distinguished by its members.

    Raises:
        SourceError: the file is damaged, a TorchScript program, or has no weights.
    """
    try:
        with open_zip(path) as archive:
            members = [name.rpartition("/")[2] for name in archive.namelist()]
            check_pickles(archive)
    except Exception as error:
        raise damage_error(path, error) from None
    if members and all(name.endswith(".npy") for name in members):
        return read_npz(path)
    if "constants.pkl" in members:
        raise SourceError("the file is a TorchScript program, as OpenAI's CLIP files are, and programs are not run; "
                          f"save its weights: torch.save(torch.jit.load({path.name!r}).state_dict(), 'new.pt')", path)
    if "data.pkl" not in members:
        raise SourceError(f"the file is a zip file without weights in it; accepted: {ACCEPTED}", path)
    return read_torch(path, mapped)


def read_torch(path: Path, mapped: bool) -> Any:
    """Tensors and plain values; the only other class is argparse's Namespace, which many training scripts save.

    Raises:
        SourceError: the file is damaged, or holds other classes.
    """
    try:
        with torch.serialization.safe_globals([argparse.Namespace]):
            content = torch.load(path, map_location="cpu", weights_only=True, mmap=mapped)
        check_size(content, path.stat().st_size)
    except pickle.UnpicklingError as error:
        raise SourceError(refusal(str(error)), path) from None
    except Exception as error:
        raise damage_error(path, error) from None
    return Mapped(content) if mapped and isinstance(content, Mapping) else content


def check_old_pickle(path: Path) -> None:
    """The checks of pickles for a file whose pickles and tensor data are not separate; data does not contain these
    names by chance.

    Raises:
        SourceError: the file would call them.
    """
    try:
        with open_regular(path) as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as data:
            if data.find(b"bytearray") >= 0 or data.find(b"_codecs") >= 0:
                raise LimitError("it would call bytearray or a codec, which no file of weights needs")
            if tarfile.is_tarfile(path):  # PyTorch would read the pickles in it
                raise LimitError("it is a tar file as well")
            check_old_pickles(stream)
    except (OSError, ValueError) as error:
        raise damage_error(path, error) from None


def check_size(content: Any, size: int) -> None:
    """Checks that the tensors do not need far more memory than the file of `size` bytes.

    A single stored number can be expanded to any shape, and one tensor can have any number of names.

    Raises:
        LimitError: they do.
    """
    pending, seen, total = [content], set(), 0
    while pending:
        value = pending.pop()
        if isinstance(value, Tensor):
            total += value.numel() * value.element_size()
        elif isinstance(value, CONTAINERS) and id(value) not in seen:
            seen.add(id(value))
            pending.extend(value if isinstance(value, SEQUENCES) else value.values())
    if total > unpacked_limit(size):
        raise LimitError(f"its tensors need {megabytes(total)}, but the file has {megabytes(size)}")


def refusal(text: str) -> str:
    """Why a pickle is not loaded: it names something other than tensors, or is not from PyTorch.

    Args:
        text: message of the unpickler's error.
    """
    match = GLOBAL.search(text)
    if "Unsupported operand" in text or "Unsupported protocol" in text:
        return ("the file is a Python pickle that PyTorch did not write, which could be any program; only files of "
                f"tensors are read: {ACCEPTED}")
    if match is None:
        return f"the file is cut off, damaged or not a file of PyTorch ({first_line(text)}); accepted: {ACCEPTED}"
    return (f"the file holds more than tensors: reading it would call {match[1] or match[2]}, which could be any "
            "program. Refused; only tensors, numbers and strings are loaded. If you trust it, save only its state "
            "dict, or as .safetensors")


def read_npz(path: Path) -> dict[str, Tensor]:
    """The arrays of an .npz file as tensors.

    Raises:
        SourceError: the file is damaged, or holds Python objects, texts or other types that torch lacks.
    """
    try:
        arrays = read_arrays(path)
    except Exception as error:
        if "allow_pickle" in str(error):
            raise SourceError("the file holds pickled Python objects, which could be any program; only arrays of "
                              "numbers are read", path) from None
        raise damage_error(path, error) from None
    state = {}
    for name, array in arrays.items():
        try:
            state[name] = from_numpy(array)
        except (TypeError, ValueError):
            raise SourceError(f"{name} is of the type {array.dtype}, which is none of torch's types of numbers; leave "
                              "it out, or save it as float32", path) from None
    return state


def from_numpy(array: np.ndarray) -> Tensor:
    """An array as a tensor; JAX saves bfloat16 as untyped pairs of bytes."""
    if array.dtype.kind == "V" and array.dtype.itemsize == 2:
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(np.asarray(array, order="C"))  # ascontiguousarray would add a dimension to a scalar


def read_shards(path: Path) -> dict[str, Tensor]:
    """The tensors of a sharded checkpoint.

    Args:
        path: path of the index, whose `weight_map` has the file of each tensor.

    Raises:
        SourceError: the index is invalid, a shard is missing, or lacks a tensor that the index states for it.
    """
    shards = read_json(path).get("weight_map")
    if not isinstance(shards, dict) or not all(isinstance(name, str) for name in shards.values()):
        raise SourceError("the file is not an index of weights: it has no weight_map of file names", path)
    state: dict[str, Tensor] = {}
    for name in dict.fromkeys(shards.values()):
        shard = path.parent / name
        if Path(name).name != name or name.endswith(INDEX) or not shard.is_file():
            raise SourceError(f"the index names the shard {name!r}, which is not beside it; copy all shards into one "
                              "folder", path)
        content = read_file(shard, mapped=False)
        if not isinstance(content, Mapping):
            raise SourceError("the file holds no tensors by name", shard)
        state |= {key: value for key, value in content.items() if shards.get(key, name) == name}
    if missing := [name for name in shards if name not in state]:
        raise SourceError(f"the index names {missing[0]}, which is not in {shards[missing[0]]}", path)
    return state


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file.

    Raises:
        SourceError: it cannot be read, or is not an object.
    """
    try:
        values = parse_json(read_text(path))
    except (OSError, ValueError) as error:
        raise SourceError(f"the file cannot be read as JSON: {first_line(error)}", path) from None
    if not isinstance(values, dict):
        raise SourceError(f"the file holds no JSON object, but {type(values).__name__}", path)
    return values


def damage_error(path: Path, error: Exception) -> SourceError:
    """The error of a file that cannot be read, by the exception that reading it raised."""
    if isinstance(error, LimitError):
        return SourceError(f"the file is cut off or damaged, or made to fill the memory: {error}; get it again from a "
                           "source you trust", path)
    return SourceError(f"the file is cut off or damaged ({first_line(error)}); copy or download it again", path)


def save_tensors(state: Mapping[str, Tensor], path: Path, metadata: dict[str, str] | None = None) -> None:
    """Save tensors as a safetensors file with the permissions of other new files. The library itself lets only the
    owner read it.

    Raises:
        OSError, SafetensorError: the file cannot be written.
    """
    path.touch()
    mode = stat.S_IMODE(path.stat().st_mode)
    save_file(dict(state), path, metadata)
    path.chmod(mode)


def independent_tensors(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Contiguous CPU tensors that do not share memory, as safetensors requires."""
    seen, independent = set(), {}
    for name, tensor in state.items():
        tensor = tensor.detach().cpu().contiguous()
        storage = tensor.untyped_storage().data_ptr()
        independent[name] = tensor.clone() if storage in seen else tensor
        seen.add(storage)
    return independent
