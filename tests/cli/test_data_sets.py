"""Whether a model was trained on the data set of a command, by the location that its bundle records."""

import pytest

from vit.cli.data.data_sets import is_recorded_location


@pytest.mark.parametrize(("data", "recorded", "same"), [
    ({"name": "folder", "root": "/data/photos"}, ["data=folder", "data.root=/data/photos"], True),
    ({"name": "folder", "root": "/data/photos/"}, ["data=folder", "data.root='/data/photos'"], True),
    ({"name": "folder", "root": "/data/photos"}, ["data=folder", "data.root=/data/photos2"], False),
    ({"name": "folder", "root": "photos"}, ["data=folder", "data.root=/data/photos"], False),
    ({"name": "folder", "root": "photos"}, ["data=folder", "data.root={here}/photos"], True),
    ({"name": "table", "path": "/d/t.csv", "root": None}, ["data=table", "data.path=/d/t.csv"], True),
    ({"name": "table", "path": "/d/t.csv", "root": "/d"}, ["data=table", "data.path=/d/t.csv"], True),
    ({"name": "table", "path": "/d/t.csv", "root": None}, ["data=table", "data.path=/d/t.csv.zip"], False),
    ({"name": "table", "path": "/d/t.csv"}, ["data=folder", "data.root=/d/t.csv"], False),
    ({"name": "hub", "repo": "a/b"}, ["data=hub", "data.repo=a/b"], True),
    ({"name": "hub", "repo": "a/b"}, ["data=hub", "data.repo=a/c"], False),
    ({"name": "digits"}, [], True),
])
def test_a_recorded_location_is_the_same_path(tmp_path, monkeypatch, data, recorded, same):
    monkeypatch.chdir(tmp_path)
    assert is_recorded_location(data, {"data": [each.format(here=tmp_path) for each in recorded]}) == same
