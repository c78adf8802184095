"""Pickles of PyTorch: what they would call is followed without calling it, and calls that fill the memory are refused.

`torch.load(weights_only=True)` executes no program, but a few hundred bytes of pickle can make it call
`bytearray(10**10)`, double the length of bytes repeatedly, or list the elements of a tensor that is one number expanded
to any shape.
"""

import os
import pickletools
import re
import zipfile
from collections.abc import Iterable
from dataclasses import dataclass
from math import prod
from typing import Any, BinaryIO

from vit.files.untrusted import ZIP_END, LimitError, megabytes, read_member

PLAIN_CODECS = ("latin1", "latin-1", "ascii")  # codecs with which PyTorch saves bytes
MAX_PICKLE = 64 << 20  # bytes of the pickle in a PyTorch file, which holds no tensor data
MAX_STACK = 100_000  # values on a pickle's stack; saved weights have some thousands at a time
OLD_PICKLES = 5  # at the start of a file of PyTorch before 1.6
DENSE, RESULT = object(), object()  # stand for a tensor without repeated elements, and for any other result of a call
TENSOR = ("torch._utils._rebuild_tensor", "torch._utils._rebuild_tensor_v2")
COPY, OF_TYPE = "torch._utils._rebuild_device_tensor_from_cpu_tensor", "torch._tensor._rebuild_from_type_v2"
EMPTY = {"EMPTY_LIST": list, "EMPTY_TUPLE": tuple}
WITHOUT_ARGUMENTS = re.compile(r"torch\..*(Tensor|Storage)")


@dataclass(frozen=True)
class Function:
    """A function or class that a pickle names."""

    name: str

    @classmethod
    def of(cls, argument: str) -> "Function":
        """The function of "module name", which may be a name of Python 2."""
        from torch._utils import IMPORT_MAPPING, NAME_MAPPING

        module, _, name = argument.partition(" ")
        module, name = NAME_MAPPING.get((module, name), (IMPORT_MAPPING.get(module, module), name))
        return cls(f"{module}.{name}")


def check_pickles(archive: zipfile.ZipFile) -> None:
    """Applies `check_pickle` to the pickle in a zip file of PyTorch, whose reader ignores the case of names.

    Raises:
        LimitError: the pickle is too large, the table of contents is not where PyTorch reads it, or as `check_pickle`.
    """
    _check_directory(archive)
    for member in archive.infolist():
        if member.filename.lower().endswith("data.pkl"):
            if member.file_size > MAX_PICKLE:
                raise LimitError(f"{member.filename} takes {megabytes(member.file_size)}")
            check_pickle(read_member(archive, member))


def _check_directory(archive: zipfile.ZipFile) -> None:
    """Raises LimitError unless Python found the table of contents at the position in the end record. They may differ,
    because Python allows bytes before a zip file, and ignores the position of the record of large files.
    """
    size = archive.fp.seek(0, os.SEEK_END)
    start = archive.fp.seek(max(0, size - ZIP_END))
    tail = archive.fp.read()
    end = tail.rfind(b"PK\5\6")
    locator, stated = end - 20, int.from_bytes(tail[end + 16 : end + 20], "little")
    if tail[locator : locator + 4] == b"PK\6\7":
        end64 = locator - 56
        same = int.from_bytes(tail[locator + 8 : locator + 16], "little") == start + end64
        stated = int.from_bytes(tail[end64 + 48 : end64 + 56], "little") if same else -1
    if stated != archive.start_dir:
        raise LimitError("it has a second table of contents")


def check_pickle(data: bytes) -> None:
    """Checks that a pickle does not expand its content in memory.

    Raises:
        LimitError: the pickle calls bytearray, or another function with arguments that no saved weights have.
    """
    if b"bytearray" in data:
        raise LimitError("its pickle calls bytearray, which weights do not need")
    _follow(pickletools.genops(data))


def check_old_pickles(file: BinaryIO) -> None:
    """Applies `check_pickle` to the pickles at the start of a file of PyTorch before 1.6, but for bytearrays.

    Raises:
        LimitError: as `check_pickle`.
        ValueError: a pickle is damaged.
    """
    for _ in range(OLD_PICKLES):
        if not file.read(1):
            return
        file.seek(-1, os.SEEK_CUR)
        _follow(pickletools.genops(file))


def _follow(operations: Iterable[tuple[pickletools.OpcodeInfo, Any, int | None]]) -> None:
    """Checks every call. The values on the pickle's stack are followed: texts, whole numbers, lists, tuples and
    functions as such, results of calls as DENSE or RESULT, and all others as None.
    """
    stack, marks, memo = [], [], {}
    for operation, argument, _ in operations:
        name, before = operation.name, operation.stack_before
        if len(stack) > MAX_STACK:
            raise LimitError("its pickle is nested too deeply")
        if name == "MARK":
            marks.append(len(stack))
        elif "PUT" in name:
            memo[argument] = stack[-1] if stack else None
        elif "GET" in name:
            stack.append(memo.get(argument))
        elif name == "GLOBAL":
            stack.append(Function.of(argument))
        elif not before:
            value = argument if isinstance(argument, str | int) else EMPTY[name]() if name in EMPTY else None
            stack += [value] * len(operation.stack_after)
        else:
            sliced = pickletools.stackslice in before  # all values since the last mark
            end = marks.pop() if sliced and marks else len(stack)
            start = max(0, end - len(before) + 2 * sliced)
            popped = stack[start:]
            del stack[start:]
            if name in ("REDUCE", "NEWOBJ"):
                value = _result(popped[0] if popped else None, popped[-1] if popped else None)
            else:
                value = tuple(popped) if name.startswith("TUPLE") else RESULT if name == "BINPERSID" else None
                value = popped[0] if name in ("BUILD", "APPEND", "APPENDS") and popped else value
                if name.startswith("APPEND") and isinstance(value, list):
                    value.extend(popped[1:])
            stack += [value] * len(operation.stack_after)


def _result(function: Any, arguments: Any) -> object:
    """What a call returns, DENSE or RESULT.

    Raises:
        LimitError: it may need far more memory than the file.
    """
    if not isinstance(function, Function):  # which PyTorch does not call
        return RESULT
    name = function.name
    if not isinstance(arguments, tuple):
        raise LimitError(f"its pickle calls {name} with arguments in another form than weights have")
    if name == OF_TYPE:  # calls its first argument with its third
        return _result(arguments[0], arguments[2]) if len(arguments) > 2 else RESULT
    if name in TENSOR:
        return DENSE if _is_dense(arguments) else RESULT
    if name == "_codecs.encode":
        codec = arguments[1] if len(arguments) == 2 else None
        if not isinstance(codec, str) or codec.lower() not in PLAIN_CODECS:
            raise LimitError(f"its pickle encodes text by {codec or 'an unknown codec'}, which weights do not need")
    elif name in CONTAINERS and not all(map(CONTAINERS[name], arguments)):
        raise LimitError(f"its pickle lists the elements of a tensor by {name}, which weights do not need")
    elif arguments and WITHOUT_ARGUMENTS.fullmatch(name):
        raise LimitError(f"its pickle calls {name} with arguments, which weights do not need")
    elif name == COPY and arguments[:1] != (DENSE,):
        raise LimitError("its pickle copies a tensor with repeated elements, which weights do not need")
    return RESULT


def _is_dense(arguments: tuple[Any, ...]) -> bool:
    """Whether a tensor (storage, offset, size, stride, ...) has no more elements than its part of the storage."""
    size, stride = (arguments[2:4] if len(arguments) > 3 else (None, None))
    if not isinstance(size, tuple) or not isinstance(stride, tuple) or len(size) != len(stride):
        return False
    if not all(isinstance(each, int) and each >= 0 for each in (*size, *stride)):
        return False
    return prod(size) <= 1 + sum((count - 1) * step for count, step in zip(size, stride, strict=True))


def _is_no_tensor(value: Any) -> bool:
    return value is not DENSE and value is not RESULT


def _is_dict_or_pairs(value: Any) -> bool:
    """Whether a value is a dict, or a list of pairs, as Python 2 saves an OrderedDict."""
    return value is None or (isinstance(value, list) and all(isinstance(each, list | tuple) for each in value))


# classes that list the elements of an argument -> whether one has no more elements than the pickle
CONTAINERS = {"builtins.set": _is_no_tensor, "collections.Counter": _is_no_tensor, "torch.Size": _is_no_tensor,
              "collections.OrderedDict": _is_dict_or_pairs}
