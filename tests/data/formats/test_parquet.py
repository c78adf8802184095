"""Several Parquet files of one split: the error names the file that is wrong."""

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
