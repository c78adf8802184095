"""Folders of classes: how often they are listed, and how classes of the splits are compared."""

import shutil
import zipfile

import pytest
from PIL import Image

from vit.data import DataError, folder
from vit.data.image_sources.folders import _check_classes


def test_an_archive_is_not_listed_once_for_each_class(tmp_path, class_folders, monkeypatch):
    root = class_folders({f"photos/class{i}": 2 for i in range(20)}) / "photos"
    archive = shutil.make_archive(str(tmp_path / "photos"), "zip", root)
    calls, listing = [], zipfile.Path.iterdir
    monkeypatch.setattr(zipfile.Path, "iterdir", lambda self: calls.append(self.at) or listing(self))
    source = folder(archive)
    assert source.num_classes == 20
    assert not any("class" in at for at in calls)


def test_a_table_in_an_archive_is_not_recommended_as_a_path(tmp_path, class_folders):
    root = class_folders({"set/images": 3}) / "set"
    (root / "labels.csv").write_text("image,label\n")
    with pytest.raises(DataError, match=r"if a table labels the images: data=table data.path=.*/set/labels.csv"):
        folder(root)
    archive = shutil.make_archive(str(tmp_path / "photos"), "zip", root)
    with pytest.raises(DataError, match="images: data=table after extracting the archive, with its labels.csv$"):
        folder(archive)


def test_classes_of_train_are_read_once_to_find_unknown_ones(tmp_path):
    class Counted(list):
        times = 0

        def __iter__(self):
            self.times += 1
            return super().__iter__()

    classes = Counted(map(str, range(50)))
    _check_classes(classes, list(classes), tmp_path)
    assert classes.times <= 2


def test_classes_in_the_only_folder_of_the_root_are_named(tmp_path):
    for name in ("cat", "dog"):
        inner = tmp_path / "photos" / name
        inner.mkdir(parents=True)
        for i in range(3):
            Image.new("RGB", (8, 8)).save(inner / f"{i}.png")
    with pytest.raises(DataError, match=rf"at least 2 classes; if the 2 .* set '?data.root={tmp_path / 'photos'}'?$"):
        folder(tmp_path)
