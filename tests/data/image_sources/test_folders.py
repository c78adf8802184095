"""Folders of classes: how often they are listed, and how classes of the splits are compared."""

import json
import shutil
import zipfile

import pytest
from PIL import Image

from vit.data import DataError, folder, table
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


@pytest.mark.parametrize(("tree", "message"), [
    ({"images/cat": 2, "images/dog": 2, "meta": 0}, r"has images in a single folder, images, .*/images'?$"),
    ({"train/train/cat": 2, "train/train/dog": 2, "test/test/cat": 2}, r"train: the 2 folders with images \(cat, dog\) "
     r"are in its folder train/train; move them to train, likewise in other splits$"),
    ({"seg_train/seg_train/cat": 2, "seg_train/seg_train/dog": 2, "seg_test/seg_test/cat": 2},
     r"look like splits; the 2 folders .* move them to seg_train, and rename seg_train to train"),
])
def test_classes_further_down_are_named(class_folders, tree, message):
    with pytest.raises(DataError, match=message):
        folder(class_folders(tree))


@pytest.mark.parametrize("flat", ["", "train/", "pets/"])
def test_classes_in_the_names_of_the_images_are_named(tmp_path, class_folders, flat):
    root = class_folders({"images": 6, "test": 2} if flat == "train/" else {"images": 6})
    (root / flat).mkdir(exist_ok=True)
    for i, file in enumerate(sorted((root / "images").iterdir())):
        file.rename(root / flat / f"{('great cat', 'dog')[i % 2]}.{i}.png")
    (root / "images").rmdir()
    with pytest.raises(DataError, match=r"names of the images state their classes \(dog, great cat\), move"):
        folder(root)


def test_numbered_images_state_no_classes(class_folders):
    with pytest.raises(DataError, match="one folder of images per class$"):
        folder(class_folders({".": 4}))


def test_the_most_likely_table_is_recommended(class_folders):
    root = class_folders({"images": 3})
    for name in ("sample_submission.csv", "test.csv", "notes.csv"):
        (root / name).write_text("id,label\n")
    with pytest.raises(DataError, match="data.path=.*/notes.csv$"):
        folder(root)
    (root / "train.csv").write_text("id,label\n"), (root / "a.json").write_text("{}")
    with pytest.raises(DataError, match=f"data.path={root}$"):  # with test.csv
        folder(root)
    (root / "test.csv").unlink()
    with pytest.raises(DataError, match="data.path=.*/train.csv$"):
        folder(root)


@pytest.mark.parametrize(("name", "hint"), [
    ("imagelabels.mat", "if imagelabels.mat labels the images, write a table with the columns image, label"),
    ("raw/train-images-idx3-ubyte.gz", "files of MNIST are read by data=mnist"),
    ("raw/data_batch_1", "batches of CIFAR-10 are read by data=cifar10"),
    ("data_batch_1.bin", "batches of CIFAR-10 are read by data=cifar10"),
    ("raw/metadata.csv", "data=table data.path=.*/raw/metadata.csv, or data=hub data.root="),
    ("arrays.npz", "data=table data.path=.*/arrays.npz$"),
])
def test_files_of_other_sources_are_named(class_folders, name, hint):
    root = class_folders({"raw": 3})
    (root / name).write_text("x")
    with pytest.raises(DataError, match=hint):
        folder(root)


def test_a_table_of_the_images_beside_the_class_folders_is_reported(class_folders, caplog):
    root = class_folders({"part_1": 4, "part_2": 4})
    for part in ("part_1", "part_2"):
        for path in (root / part).iterdir():
            path.rename(path.with_name(f"{part}_{path.name}"))
    names = [f"{part}_{i:03}" for part in ("part_1", "part_2") for i in range(4)]
    rows = [f"{i},{name},{'cat' if i % 2 else 'dog'}" for i, name in enumerate(names)]
    (root / "metadata.csv").write_text("\n".join(["number,image_id,label", *rows]))
    assert folder(root).classes == ["part_1", "part_2"]
    assert "metadata.csv names images and is not read; if it states their labels, set data=table data" in caplog.text
    assert set(table(root / "metadata.csv").classes) == {"cat", "dog"}  # the images are in both folders
    caplog.clear()
    rows = [f"{name}.png,{name[:6]}" for name in names]  # the classes are those of the folders
    (root / "metadata.csv").write_text("\n".join(["image_id,label", *rows]))
    folder(root)
    (root / "metadata.csv").write_text("\n".join(["key,value", *(f"{i},{i}" for i in range(8))]))
    folder(root)
    assert not caplog.text


@pytest.mark.parametrize(("name", "reported"), [("_unlabeled", True), ("Unlabelled", True), ("labeled", False)])
@pytest.mark.parametrize("split", ["", "train/"])
def test_a_class_folder_of_images_without_labels_is_reported(class_folders, caplog, name, reported, split):
    root = class_folders({f"{split}{each}": 4 for each in ("cat", "dog", name)})
    assert name in folder(root).classes
    assert (f"the folder {name} is read as a class; if its images have no labels" in caplog.text) == reported


@pytest.mark.parametrize(("name", "reported"), [("sample_submission.csv", False), ("SampleSubmission.csv", False),
                                                ("labels.csv", True)])
def test_a_table_of_placeholders_is_not_recommended(class_folders, caplog, name, reported):
    root = class_folders({"train/cat": 4, "train/dog": 4, "test": 3})
    (root / name).write_text("file,species\n" + "".join(f"{i:03}.png,cat\n" for i in range(3)))
    folder(root)
    assert (f"{name} names images and is not read" in caplog.text) == reported


@pytest.mark.parametrize(("other", "reported"), [(None, False), ("dog", True), ("cow", False)])
def test_a_table_with_paths_whose_labels_differ_from_the_folders_is_reported(class_folders, caplog, other, reported):
    root = class_folders({"train/cat": 60, "train/dog": 60})
    rows = [[f"{name}/{i:03}.png", name, i % 2] for name in ("cat", "dog") for i in range(60)]
    rows[57][1] = other or "cat"  # of a corrected label; cow has no folder, so that the column may be another one
    text = "\n".join(["file_name,label,left", *(",".join(map(str, row)) for row in rows)])
    (root / "train" / "metadata.csv").write_text(text)
    folder(root)
    assert ("metadata.csv names images and is not read" in caplog.text) == reported


def test_a_table_of_test_images_beside_train_is_reported(class_folders, caplog):
    root = class_folders({"Train/1": 4, "Train/2": 4, "Test": 3})
    for key, names in (("Train", [f"Train/{c}/{i:03}.png" for c in (1, 2) for i in range(4)]),
                       ("Test", [f"Test/{i:03}.png" for i in range(3)])):
        rows = [f"{1 + i % 2},{name}" for i, name in enumerate(names)]
        (root / f"{key}.csv").write_text("\n".join(["ClassId,Path", *rows]))
    assert "test" not in folder(root).splits
    assert f"Test.csv names images and is not read; if it states their labels, set data=table data.path={root}\n" in (
        caplog.text)


def test_lists_in_a_folder_labels_are_not_taken_for_boxes(class_folders):
    root = class_folders({"images/a": 3, "images/b": 3})
    (root / "labels").mkdir()
    (root / "labels" / "train1.txt").write_text("a/000.png\n")
    with pytest.raises(DataError, match=f"if the 2 folders in it are the classes, set data.root={root}/images"):
        folder(root)
    (root / "labels" / "train1.txt").write_text("0 0.5 0.5 0.1 0.1\n")
    with pytest.raises(DataError, match="is in the format of YOLO"):
        folder(root)


def test_the_error_about_a_data_set_of_datumaro_recommends_what_is_read(tmp_path, class_folders):
    """It recommended data=table, which reads no such file."""
    root = class_folders({"images/default": 4})
    (root / "annotations").mkdir()
    labels = {"labels": [{"name": "cat", "parent": ""}, {"name": "dog", "parent": ""}]}
    items = [{"id": str(i), "annotations": [{"type": "label", "label_id": i % 2}], "image": {"path": f"{i:03}.png"}}
             for i in range(4)]
    file = root / "annotations" / "default.json"
    file.write_text(json.dumps({"info": {}, "categories": {"label": labels}, "items": items}))
    fix = "export it from Datumaro or CVAT as ImageNet, a folder for each class, and read these with data=folder"
    with pytest.raises(DataError, match=f"annotations/default.json states labels in the format of Datumaro; {fix}"):
        folder(root)
    with pytest.raises(DataError, match=f"default.json: is in the format of Datumaro, which is not read; {fix}"):
        table(file)
    names = ["images/default/000.png", "images/default/001.png"]
    file.write_text(json.dumps({"items": names, "categories": ["a", "b"]}))
    assert table(file, image="items", label="categories", root=root, fractions=(1, 0, 0)).classes == ["a", "b"]


def test_tables_of_several_splits_are_recommended_together(class_folders):
    root = class_folders({"train": 3, "valid": 3})
    for key in ("train", "valid"):
        (root / key / "_classes.csv").write_text("filename,label\n000.png,a\n")
    with pytest.raises(DataError, match=f"if a table labels the images: data=table data.path={root}$"):
        folder(root)


@pytest.mark.parametrize("split", ["", "train/"])
def test_folders_in_the_class_folders_are_reported_or_the_classes(class_folders, caplog, split):
    root = class_folders({f"{split}{top}/{name}": 4 for top in ("color", "grey") for name in ("apple", "pear")})
    assert folder(root).classes == ["color", "grey"]
    assert ("the classes are the folders color, grey, each with the same folders apple, pear; if those are the "
            "classes, set data.class_depth=2") in caplog.text
    caplog.clear()
    class_folders({f"{split}color/plum": 4})
    folder(root)
    assert "are the folders color, grey, with the folders apple, pear, plum; if those are the classes" in caplog.text
    caplog.clear()
    found = folder(root, class_depth=2)
    assert found.classes == ["apple", "pear", "plum"] and not caplog.text
    rows = [row for rows in found.split_lists().values() for row in rows]
    assert len(rows) == 20 and all(name.split("/")[-2] == label for name, label in rows)
    class_folders({f"{split}grey": 1})
    folder(root)
    assert not caplog.text
    assert ("outside any class folder" in {reason for _, reason in folder(root, class_depth=2).left_out})


@pytest.mark.parametrize(("above", "options"), [("", {}), ("a/", {"class_depth": 2}),
                                                ("train/a/", {"class_depth": 2})])
def test_class_folders_of_different_depths_are_reported(class_folders, caplog, above, options):
    root = class_folders({f"{above}animals/cat": 4, f"{above}animals/dog": 4, f"{above}car": 4})
    assert folder(root, **options).classes == ["animals", "car"]
    assert ("the images of the class animals are in its folders cat, dog, and those of car are not in further folders; "
            "if the folders are classes, move them beside") in caplog.text


def test_versions_of_the_same_images_in_several_folders_are_reported(class_folders, caplog):
    root = class_folders({f"{top}/{name}": 4 for top in ("color", "grey") for name in ("apple", "pear")})
    folder(root)
    assert "data.class_depth=2; if they are versions of the same images, whose names are equal, set data.root" in (
        caplog.text)
    caplog.clear()
    for number, path in enumerate(sorted((root / "grey").rglob("*.png"))):
        path.rename(path.with_name(f"other{number}.png"))
    folder(root)
    assert "data.class_depth=2" in caplog.text and "they are versions" not in caplog.text


def test_folders_of_the_same_classes_beside_train_are_reported(class_folders, caplog):
    root = class_folders({f"{split}/{name}": 2 for split in ("train", "eval", "test") for name in ("cat", "dog")})
    assert sorted(folder(root).splits) == ["test", "train", "val"]
    assert "eval beside train has folders of the same classes and is not read; rename a folder to val" in caplog.text
    caplog.clear()
    shutil.rmtree(root / "eval")
    (root / "notes").mkdir()
    shutil.copy(next((root / "train/cat").iterdir()), root / "notes/1.png")
    folder(root)
    assert "beside train" not in caplog.text


def test_an_archive_of_a_split_that_has_no_folder_is_reported(class_folders, caplog):
    root = class_folders({"train/cat": 4, "train/dog": 4, "test": 2})  # test images without labels
    for name in ("train.zip", "test.zip", "photos.zip"):
        (root / name).write_bytes(b"")
    assert folder(root).left_out
    assert "not read" not in caplog.text
    (root / "Val.zip").write_bytes(b"")
    assert len(folder(root).splits["val"]) == 1
    assert "Val.zip beside train is not read; extract it to use this split" in caplog.text


@pytest.mark.parametrize("name", ["train_32x32.mat", "train.h5", "mnist-train.tfrecord-00000-of-00001", "train_X.bin",
                                  "ld_train00-1338.tfrec", "train.beton", "emnist-letters-train-images-idx3-ubyte.gz",
                                  "qmnist-train-labels-idx2-int"])
def test_files_of_many_images_are_named(tmp_path, name):
    (tmp_path / name).write_bytes(bytes(9))
    (tmp_path / "dataset_info.json").write_text("{}")
    with pytest.raises(DataError, match=r"; (\.\w+|IDX) files are not read: save the images to a folder per"):
        folder(tmp_path)


def test_backslashes_in_an_archive_are_named(tmp_path):
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        for name in ("cat", "dog"):
            member = zipfile.ZipInfo("x")
            member.filename = f"photos\\{name}\\1.png"
            archive.writestr(member, b"")
    with pytest.raises(DataError, match="left out: 2 a name with backslashes as separators"):
        folder(tmp_path / "a.zip")


def test_the_tables_of_splits_are_recommended_before_others(class_folders, caplog):
    root = class_folders({"Train/0": 2, "Train/1": 2, "Test": 2, "Meta": 1})
    for name in ("Train", "Test", "Meta"):
        listed = sorted(str(file.relative_to(root)) for file in (root / name).rglob("*.png"))
        (root / f"{name}.csv").write_text("ClassId,Path\n" + "".join(f"0,{each}\n" for each in listed))
    folder(root)
    assert caplog.messages[-1].endswith(f"data=table data.path={root}")


@pytest.mark.parametrize(("name", "hint"), [
    ("photos.tar.gz", "; if photos.tar.gz holds the images: extract it$"),
    ("photos.zip", "; if photos.zip holds the images: data.root=.*/photos.zip$"),
])
def test_an_archive_in_a_folder_without_images_is_named(tmp_path, name, hint):
    (tmp_path / name).write_bytes(b"x")
    with pytest.raises(DataError, match=hint):
        folder(tmp_path)


def test_several_archives_in_a_folder_without_images_are_named(tmp_path):
    for name in ("cat-samples.zip", "dog-samples.zip"):  # as of Teachable Machine
        (tmp_path / name).write_bytes(b"PK")
    with pytest.raises(DataError, match="if cat-samples.zip, dog-samples.zip hold the images of a class or split"):
        folder(tmp_path)


def test_folders_of_val_and_test_without_train_are_no_classes(class_folders):
    root = class_folders({"data_256/a/abbey": 2, "val_256": 2, "test_256": 2})  # as of Places365
    with pytest.raises(DataError, match="the folders test_256 and val_256 would be classes, but look like splits, and "
                                        "none looks like train; rename"):
        folder(root)
    root = class_folders({"mini/train_mini/cat": 2, "mini/train_mini/dog": 2, "mini/val/cat": 2}) / "mini"
    with pytest.raises(DataError, match="has val but no train folder; if train_mini is the training split, rename it"):
        folder(root)


def test_the_table_of_most_images_is_recommended(class_folders, caplog):
    root = class_folders({"images_001": 4, "images_002": 4})
    (root / "boxes.csv").write_text("image,finding\n000.png,Mass\n")
    (root / "data.csv").write_text("image,finding\n" + "".join(f"{i:03}.png,{'ab'[i % 2]}\n" for i in range(4)))
    folder(root)
    assert "data.csv names images and is not read" in caplog.text


def test_a_table_beside_splits_is_named_if_their_folders_are_no_classes(class_folders):
    root = class_folders({"train/patient1": 2, "train/patient2": 2, "valid/patient3": 2})  # as of CheXpert
    (root / "train.csv").write_text("Path,Edema\nset/train/patient1/000.png,1\n")
    with pytest.raises(DataError, match=f"patient3.*; if a table labels the images: data=table data.path={root}"):
        folder(root)


def test_the_files_of_cifar_100_are_named(tmp_path):
    for name in ("train", "test", "meta"):
        (tmp_path / name).write_bytes(b"x")
    with pytest.raises(DataError, match="the files of CIFAR-100 are read by data=cifar100 data.root="):
        folder(tmp_path)
