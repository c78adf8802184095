"""Tables of a folder, and the options that have no effect on a folder or on one table."""

import re

import pytest

from vit.data.formats.split_tables import tables_of_folder

UNSTATED = {"train": None, "val": None, "test": None}


def test_tables_of_a_folder_are_the_splits_and_a_column_of_splits_has_no_effect(tmp_path, caplog):
    for name in ("train.csv", "test.csv", "extra.csv"):
        (tmp_path / name).touch()
    found = tables_of_folder(tmp_path, (".csv",), UNSTATED | {"val": "extra.csv"}, None)
    assert list(found.items()) == [(key, tmp_path / f"{name}.csv")
                                   for key, name in (("train", "train"), ("val", "extra"), ("test", "test"))]
    assert not caplog.text
    assert set(tables_of_folder(tmp_path, (".csv",), UNSTATED, "part")) == {"train", "test"}
    assert (f"data.split=part has no effect, because {tmp_path} is a folder, whose tables are the splits"
            in caplog.text)


def test_names_of_tables_have_no_effect_on_one_table(tmp_path, caplog):
    path = tmp_path / "all.csv"
    path.touch()
    assert tables_of_folder(path, (".csv",), UNSTATED, "part") is None and not caplog.text
    assert tables_of_folder(path, (".csv",), UNSTATED | {"val": "a.csv", "test": "b.csv"}, None) is None
    assert (f"data.val=a.csv, data.test=b.csv have no effect, because {path} is one table, not a folder of tables"
            in caplog.text)


def test_a_missing_path_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=re.escape(f"data.path: the table {tmp_path / 'none.csv'} does not")):
        tables_of_folder(tmp_path / "none.csv", (".csv",), UNSTATED, None)
