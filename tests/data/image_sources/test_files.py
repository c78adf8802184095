"""The search for image files below a folder."""

import errno
import os
import pickle
import zipfile

import pytest

from vit.data import DataError, Preprocessing, folder, pictures
from vit.data.image_sources import files
from vit.data.image_sources.files import image_files, summary
from vit.data.quality.audit import audit
from vit.inference import named_images


@pytest.fixture
def tree(class_folders):
    """Two classes of two images, with hidden files, a text file, a suffix in capitals, links and loops."""
    root = class_folders({"photos/cat": 2, "photos/dog": 2, "photos/dog/more": 1, "elsewhere/puppies": 2})
    photos = root / "photos"
    (photos / "cat" / "._000.png").write_bytes(b"x")
    (photos / "cat" / "notes.txt").write_text("x")
    (photos / "cat" / "IMG.PNG").symlink_to(photos / "cat" / "000.png")
    (photos / ".cache").mkdir()
    (photos / "dog" / "puppies").symlink_to(root / "elsewhere" / "puppies", target_is_directory=True)
    (photos / "dog" / "again").symlink_to(root / "elsewhere" / "puppies", target_is_directory=True)
    (photos / "dog" / "cats").symlink_to("../cat", target_is_directory=True)
    (photos / "dog" / "up").symlink_to("..", target_is_directory=True)
    (photos / "dog" / "top").symlink_to(root, target_is_directory=True)
    (root / "elsewhere" / "puppies" / "round").symlink_to(photos / "dog", target_is_directory=True)
    (photos / "dog" / "itself").symlink_to("itself")
    (photos / "elk").symlink_to(root / "unmounted" / "elk")
    os.mkfifo(photos / "dog" / "pipe.jpg")
    return photos


FOUND = [
    "cat/000.png", "cat/001.png", "cat/IMG.PNG", "dog/000.png", "dog/001.png", "dog/again/000.png", "dog/again/001.png",
    "dog/more/000.png",
]


def test_every_file_is_found_once(tree):
    files = image_files(tree)
    assert sorted(files.images) == FOUND
    assert dict(files.left_out) == {
        ".cache": "hidden",
        "cat/._000.png": "hidden",
        "cat/notes.txt": "not an image (.txt)",
        "dog/cats": "a link to a folder that has already been read",
        "dog/puppies": "a link to a folder that has already been read",
        "dog/again/round": "a link to a folder that has already been read",
        "dog/up": "a link to a folder that has already been read",
        "dog/top": "a link to a folder that contains it",
        "dog/itself": "a link to a file or folder that does not exist",
        "elk": "a link to a file or folder that does not exist",
        "dog/pipe.jpg": "not a regular file",
    }
    assert summary(files.left_out).startswith("4 a link to a folder that has already been read, 2 hidden, 2 a link ")


def test_training_predict_and_pictures_find_the_same_files(tree):
    source, unlabelled, left_out = folder(tree), pictures(tree), []
    predicted = [os.path.relpath(path, tree) for _, path in named_images(tree, left_out)]
    assert sorted(predicted) == FOUND
    for found in (source, unlabelled):
        assert sorted(name for split in found.splits.values() for name in split.names) == FOUND
        assert sorted(found.left_out) == sorted((os.path.relpath(name, tree), reason) for name, reason in left_out)


def test_a_folder_that_cannot_be_read_is_an_error_where_its_images_are_needed(class_folders, monkeypatch):
    root = class_folders({"train/cat": 2, "train/dog": 2, "other": 1})
    denied, scandir = "other", os.scandir

    def denying(path):
        if os.path.basename(path) == denied:  # permissions do not stop the superuser
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)
        return scandir(path)

    monkeypatch.setattr("vit.data.image_sources.files.os.scandir", denying)
    assert folder(root).left_out == [("other", "outside the split folders")]
    denied = "dog"
    for read in (lambda: folder(root), lambda: list(named_images(root))):
        with pytest.raises(DataError, match=r"train/dog: the folder cannot be read \(Permission denied\); change its"):
            read()


def test_a_link_to_itself_with_the_name_of_an_image_is_an_unreadable_image(class_folders):
    root = class_folders({"cat": 1, "dog": 1})
    (root / "cat" / "itself.png").symlink_to("itself.png")
    (root / "itself").symlink_to("itself")
    assert image_files(root).images == ["cat/000.png", "cat/itself.png", "dog/000.png"]
    assert folder(root).classes == ["cat", "dog"]


def test_a_link_to_a_class_of_the_same_split_is_not_a_class(class_folders):
    root = class_folders({"cat": 4, "dog": 4})
    (root / "kitten").symlink_to("cat", target_is_directory=True)
    source = folder(root)
    assert source.classes == ["cat", "dog"] and source.left_out == [
        ("kitten", "a link to a folder that has already been read")]


def test_splits_may_be_links_to_a_sibling_folder(class_folders):
    root = class_folders({"all/cat": 4, "all/dog": 4, "train/x": 0})
    (root / "train" / "x").rmdir()
    for name in ("cat", "dog"):
        (root / "train" / name).symlink_to(root / "all" / name, target_is_directory=True)
    source = folder(root, fractions=(0.5, 0.5, 0))
    assert source.classes == ["cat", "dog"] and sum(map(len, source.splits.values())) == 8
    assert source.left_out == []


def test_files_come_before_subfolders(class_folders):
    root = class_folders({"b": 1, "a/z": 1, "a": 1})
    assert image_files(root).images == ["a/000.png", "a/z/000.png", "b/000.png"]


def test_folders_are_sorted_rather_than_all_their_images(class_folders, monkeypatch):
    """Splitting and sorting the names of 1.3 million images took a third of the time of the search."""
    root = class_folders({"b": 5, "a/z": 5, "a": 5, "a b": 5, "a-": 5})
    calls, order, seen = [], files._folder_order, []
    monkeypatch.setattr(files, "_folder_order", lambda name: calls.append(name) or order(name))
    found = image_files(root, progress=lambda *each: seen.append(each))
    assert found.images == sorted(found.images, key=order) and len(found.images) == 25
    assert sorted(calls) == sorted(found.folders)
    assert seen[0] == ("folders", 1, None) and {each[::2] for each in seen} == {("folders", None)}
    assert folder(root, progress=lambda *each: seen.append(each)).classes[0] == "a" and len(seen) > 1


def zipped(root, path, extra=()):
    with zipfile.ZipFile(path, "w") as archive:
        for file in sorted(root.rglob("*")):
            archive.write(file, file.relative_to(root.parent))
        for name in extra:
            archive.writestr(name, "x")
    return path


@pytest.mark.parametrize("tree", [{"p/cat": 6, "p/dog": 5, "p/dog/more": 1},
                                  {"p/train/cat": 4, "p/train/dog": 3, "p/val/dog": 2}])
def test_an_archive_equals_its_folder(class_folders, tree):
    root = class_folders(tree)
    path = zipped(root / "p", root / "photos.zip", ["p/notes.txt", "__MACOSX/p/x.png"])
    (root / "p" / "notes.txt").write_text("x")
    plain, source = folder(root / "p"), folder(path)
    assert source.classes == plain.classes and source.split_lists() == plain.split_lists()
    assert source.left_out == plain.left_out
    for key, split in source.splits.items():
        split = pickle.loads(pickle.dumps(split))
        assert [split.read(i) for i in range(len(split))] == [plain.splits[key].read(i) for i in range(len(split))]
    assert sum(map(len, pictures(path).splits.values())) == sum(map(len, pictures(root / "p").splits.values()))


def test_damaged_archives_are_named(class_folders):
    root = class_folders({"p/cat": 4, "p/dog": 4})
    path = zipped(root / "p", root / "photos.zip", ["p/../../evil.png", "/p/evil.png"])
    assert not any("evil" in name for split in folder(path).splits.values() for name in split.names)
    data = bytearray(path.read_bytes())
    data[80:200] = bytes(120)
    path.write_bytes(data)
    report = audit(folder(path), Preprocessing(size=8), seconds=None)
    assert report.unreadable and "the archive member is damaged" in report.unreadable[0].reason
    path.write_bytes(b"PK no archive")
    with pytest.raises(DataError, match="photos.zip: cannot be read as a zip archive"):
        folder(path)
