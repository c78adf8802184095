"""Several Parquet files of one split: the error names the file that is wrong. Repeated values of untrusted files."""

import numpy as np
import pyarrow
import pytest
from pyarrow import parquet

from vit.data import DataError
from vit.data.formats.parquet import read_parquet


@pytest.mark.parametrize(("labels", "message"), [
    (None, "b.parquet: cannot be read as Parquet"),
    (["1", "2"], r"b.parquet: its columns are label \(string\), but those of a.parquet are label \(int64\)"),
])
def test_the_wrong_one_of_several_files_is_named(tmp_path, labels, message):
    parquet.write_table(pyarrow.table({"label": [0, 1]}), tmp_path / "a.parquet")
    parquet.write_table(pyarrow.table({"label": labels or [0, 1]}), tmp_path / "b.parquet")
    if labels is None:
        (tmp_path / "b.parquet").write_bytes((tmp_path / "b.parquet").read_bytes()[:-30])
    with pytest.raises(DataError, match=message):
        read_parquet([tmp_path / "a.parquet", tmp_path / "b.parquet"])


def test_a_file_too_large_for_the_memory_is_an_error_for_images_and_texts(tmp_path, monkeypatch):
    parquet.write_table(pyarrow.table({"label": [0, 1]}), tmp_path / "a.parquet")
    monkeypatch.setattr("vit.data.formats.parquet.total_memory", lambda: 10)
    with pytest.raises(DataError, match="a.parquet: 1 Parquet file needs .* use fewer samples, or for images class"):
        read_parquet([tmp_path / "a.parquet"])


@pytest.mark.parametrize("nested", ["plain", "struct", "list"])
def test_values_that_are_stored_once_and_repeated_do_not_fill_the_memory(tmp_path, nested):
    rows = 2000
    once = pyarrow.DictionaryArray.from_arrays(np.zeros(rows, np.int32), pyarrow.array([bytes(1 << 20)]))
    column = once
    if nested == "struct":
        column = pyarrow.StructArray.from_arrays([once, pyarrow.array(["a"] * rows)], ["bytes", "path"])
    if nested == "list":
        column = pyarrow.ListArray.from_arrays(np.arange(rows + 1, dtype=np.int32), once)
    parquet.write_table(pyarrow.table({"image": column, "label": [0, 1] * (rows // 2)}), tmp_path / "a.parquet",
                        dictionary_pagesize_limit=1 << 24, store_schema=False)
    before = pyarrow.default_memory_pool().max_memory()
    with pytest.raises(DataError, match="a.parquet: cannot be read as Parquet .its repeated values take more than 640"):
        read_parquet([tmp_path / "a.parquet"])
    assert pyarrow.default_memory_pool().max_memory() < max(before, 300 << 20)


def test_many_rows_of_one_number_do_not_fill_the_memory(tmp_path):
    numbers = pyarrow.chunked_array([pyarrow.array(np.zeros(10**7, np.int8))] * 10).cast(pyarrow.int64())
    parquet.write_table(pyarrow.table({"label": numbers}), tmp_path / "a.parquet")
    with pytest.raises(DataError, match="a.parquet: cannot be read as Parquet .its repeated values take more than 640"):
        read_parquet([tmp_path / "a.parquet"])


def test_images_within_structs_that_are_partly_stored_as_a_dictionary_are_read(tmp_path):
    generator = np.random.default_rng(0)
    rows = [{"bytes": generator.bytes(10_000), "path": f"{i}.jpg"} for i in range(1000)]  # as Hugging Face datasets
    table = pyarrow.table({"image": rows, "label": [0, 1] * 500})
    parquet.write_table(table, tmp_path / "a.parquet")
    chunk = parquet.ParquetFile(tmp_path / "a.parquet").metadata.row_group(0).column(0)
    assert {"PLAIN", "RLE_DICTIONARY"} <= set(chunk.encodings)  # the dictionary is full after 1 MB
    assert chunk.num_values * chunk.total_uncompressed_size > 2e9  # if each value were as large as all together
    columns, _ = read_parquet([tmp_path / "a.parquet"])
    assert columns["image"].to_pylist() == rows


@pytest.mark.parametrize("encoding", ["RLE_DICTIONARY", "DELTA_BYTE_ARRAY"])
def test_repeated_values_within_the_limit_are_read(tmp_path, encoding):
    rows = 5000
    images = [bytes(100_000) + bytes([i % 2]) for i in range(rows)]
    table = pyarrow.table({"image": images, "text": pyarrow.array([None, "a"] * (rows // 2))})
    options = {} if encoding == "RLE_DICTIONARY" else {"use_dictionary": False, "column_encoding": dict.fromkeys(
        table.column_names, encoding)}
    parquet.write_table(table, tmp_path / "a.parquet", **options)
    columns, _ = read_parquet([tmp_path / "a.parquet"])
    assert columns["image"].to_pylist() == images and columns["text"].null_count == rows // 2
