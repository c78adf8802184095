"""Parquet tables, with the class names that Hugging Face datasets stores in them or that a classes.json states."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from vit.data.errors import DataError
from vit.files.machine import total_memory
from vit.files.untrusted import check_regular, megabytes, read_json, unpacked_limit
from vit.messages import agree, number_of, on_one_line

MAX_REPETITION = 5  # bytes in memory per byte of `unpacked_limit`: a column may store a repeated value once
WIDTHS = {"BOOLEAN": 1, "INT32": 4, "FLOAT": 4, "INT64": 8, "DOUBLE": 8, "INT96": 12, "BYTE_ARRAY": 8}  # or offsets
ROWS, PREFIXED_ROWS = 4096, 64  # decoded at a time for a check; of values that are stored without common prefixes


def read_parquet(paths: list[Path]) -> tuple[dict[str, Any], dict[str, list[str]]]:
    """Arrow columns by name, and class names by column, if the files or a classes.json beside them contain such names.

    Raises:
        DataError: a file cannot be read, or the files state different class names for a column.
    """
    import pyarrow

    packed, size = np.sum([_sizes(path) for path in paths], axis=0).tolist()
    if size > unpacked_limit(packed):
        raise DataError(f"{paths[0]}: cannot be read as Parquet ({megabytes(packed)} would decompress to "
                        f"{megabytes(size)})")
    memory = total_memory()
    if size > memory // 2:
        raise DataError(
            f"{paths[0]}: {number_of(len(paths), 'Parquet file')} {agree(len(paths), 'needs', 'need')} "
            f"{size / 1e9:.1f} GB of memory, over half of the {memory / 1e9:.1f} GB of this machine; use fewer "
            "samples, or for images class folders and data=folder"
        )
    for path in paths:
        _check_repetition(path, MAX_REPETITION * unpacked_limit(packed))
    tables = [_read_table(path) for path in paths]
    for path, part in zip(paths, tables, strict=True):
        if not part.schema.equals(tables[0].schema):
            raise DataError(f"{path}: its columns are {_columns(part)}, but those of {paths[0].name} are "
                            f"{_columns(tables[0])}; save all files with the same columns")
    joined = pyarrow.concat_tables(tables)
    names = {}
    for path, part in zip(paths, tables, strict=True):
        for column, stored in _stored_classes(path, part.schema.metadata).items():
            if names.setdefault(column, stored) != stored:
                raise DataError(f"{path}: the class names of its column {column!r} are {stored[:5]}, but those of "
                                f"{paths[0].name} are {names[column][:5]}; save all files with the same class names")
    default = classes_beside(paths[0].parent)
    names |= {column: default for column in joined.column_names if default and column not in names}
    return {name: joined.column(name) for name in joined.column_names}, names


def _sizes(path: Path) -> tuple[int, int]:
    """The size of a file, and the size to which it decompresses, in bytes."""
    import pyarrow.parquet as parquet

    with _read_errors_as_data_errors(path):
        packed, metadata = check_regular(path).st_size, parquet.ParquetFile(path).metadata
        return packed, sum(metadata.row_group(i).total_byte_size for i in range(metadata.num_row_groups))


def _check_repetition(path: Path, limit: int) -> None:
    """Checks that a table takes at most `limit` bytes in memory. A repeated value of a column is stored once, so that a
    few kB may be a table of many GB. Texts and bytes are counted with each batch as a dictionary and indices.

    Raises:
        DataError: it takes more.
    """
    import pyarrow
    import pyarrow.parquet as parquet

    with _read_errors_as_data_errors(path):
        metadata = parquet.ParquetFile(path).metadata
        parts = [metadata.row_group(i) for i in range(metadata.num_row_groups)]
        chunks = [part.column(i) for part in parts for i in range(metadata.num_columns)]
        lengths = [metadata.schema.column(i).length for i in range(metadata.num_columns)] * len(parts)
        size = sum(chunk.num_values * WIDTHS.get(chunk.physical_type, length)
                   for chunk, length in zip(chunks, lengths, strict=True))
        texts = [chunk for chunk in chunks if chunk.physical_type == "BYTE_ARRAY"]
        largest = sum(chunk.num_values * chunk.total_uncompressed_size for chunk in texts)
        if size <= limit < size + largest:
            names = list(dict.fromkeys(chunk.path_in_schema for chunk in texts))
            prefixed = any("DELTA_BYTE_ARRAY" in chunk.encodings for chunk in texts)
            rows = PREFIXED_ROWS if prefixed else ROWS
            try:
                size += _decoded_size(parquet.ParquetFile(path, read_dictionary=names), names, rows, limit - size)
            except pyarrow.ArrowNotImplementedError:  # within structs, of values that are partly stored as a dictionary
                rows = max(1, min(rows, limit // max(chunk.total_uncompressed_size for chunk in texts)))
                size += _decoded_size(parquet.ParquetFile(path), names, rows, limit - size)
    if size > limit:
        raise DataError(f"{path}: cannot be read as Parquet (its repeated values take more than {megabytes(limit)} in "
                        "memory)")


def _decoded_size(file: Any, names: list[str], rows: int, limit: int) -> int:
    """Bytes of columns in memory, or those of the first rows that take more than `limit`; `rows` are read at a time."""
    size = 0
    for batch in file.iter_batches(rows, columns=names):
        size += sum(map(_array_size, batch.columns))
        if size > limit:
            break
    return size


def _array_size(array: Any) -> int:
    """Bytes of the values of an Arrow array after its dictionaries are decoded."""
    import pyarrow
    import pyarrow.compute as compute

    kind = array.type
    if pyarrow.types.is_dictionary(kind):
        return compute.sum(compute.binary_length(array.dictionary).take(array.indices)).as_py() or 0
    if pyarrow.types.is_struct(kind):
        return sum(map(_array_size, array.flatten()))
    if pyarrow.types.is_map(kind):
        return _array_size(array.keys) + _array_size(array.items)
    if pyarrow.types.is_list(kind) or pyarrow.types.is_large_list(kind) or pyarrow.types.is_fixed_size_list(kind):
        return _array_size(array.flatten())
    return array.nbytes


def _read_table(path: Path) -> Any:
    import pyarrow.parquet as parquet

    with _read_errors_as_data_errors(path):
        table = parquet.read_table(path, page_checksum_verification=True)
        table.validate(full=True)  # offsets and UTF-8, which could make a later read fail or crash
        return table


@contextmanager
def _read_errors_as_data_errors(path: Path) -> Iterator[None]:
    """Context manager: raises a DataError that names the file in place of an error of reading it."""
    import pyarrow

    try:
        yield
    except (pyarrow.ArrowException, OSError, UnicodeError) as error:
        raise DataError(f"{path}: cannot be read as Parquet ({on_one_line(error)})") from error


def _columns(table: Any) -> str:
    return ", ".join(f"{field.name} ({field.type})" for field in table.schema)


def _stored_classes(path: Path, metadata: dict[bytes, bytes] | None) -> dict[str, list[str]]:
    """Class names by column, from the metadata that Hugging Face datasets stores in the schema."""
    if not metadata or b"huggingface" not in metadata:
        return {}
    try:
        features = json.loads(metadata[b"huggingface"]).get("info", {}).get("features", {})
        inner = {column: f.get("feature", f) for column, f in features.items() if isinstance(f, dict)}  # items of lists
        return {
            column: [str(name) for name in f["names"]]
            for column, f in inner.items()
            if isinstance(f, dict) and f.get("_type") == "ClassLabel" and "names" in f
        }
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise DataError(f"{path}: its metadata of Hugging Face datasets cannot be read ({error}); save the file "
                        "again, without this metadata if the class names do not matter") from None


def classes_beside(directory: Path) -> list[str] | None:
    """The class names in a folder's classes.json; None without one.

    Raises:
        DataError: the file is damaged.
    """
    path = directory / "classes.json"
    if not path.is_file():
        return None
    try:
        names = read_json(path)
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: cannot be read as JSON ({error})") from None
    if not isinstance(names, list) or not all(isinstance(n, str) for n in names):
        raise DataError(f'{path}: must be a list of class names, like ["cat", "dog"]')
    return names
