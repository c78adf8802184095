"""Flowers-102, Stanford Cars and Stanford Dogs, whose MATLAB lists number the classes from 1."""

import numpy as np
import pytest
from scipy.io import savemat
from torchvision import datasets

from vit.data import DataError, folder, table

CARS = ["Zenvo ST1", "AM General Hummer", "smart fortwo"]  # not in alphabetical order
DOGS = ["n02085620-Chihuahua", "n02085782-Japanese_spaniel"]


def write(class_folders, folder, names, suffix=".jpg"):
    """Images of these names in a folder."""
    root = class_folders({folder: len(names)})
    for file, name in zip(sorted((root / folder).iterdir()), names, strict=True):
        file.rename(root / folder / f"{name}{suffix}")
    return root


def objects(values, column=False):
    """A cell array of MATLAB."""
    found = np.empty((len(values), 1) if column else (1, len(values)), object)
    found.flat[:] = values
    return found


def source_of(root, **options):
    return table(root, fractions=(1, 0, 0), **options)


def found(source):
    return {key: sorted(split) for key, split in source.split_lists().items()}


@pytest.fixture
def flowers(class_folders):
    root = write(class_folders, "flowers-102/jpg", [f"image_{i:05}" for i in range(1, 23)]) / "flowers-102"
    savemat(root / "imagelabels.mat", {"labels": np.array([[i % 11 + 1 for i in range(22)]], np.uint8)})
    savemat(root / "setid.mat", {"trnid": np.array([[11, *range(1, 11)]], np.uint16), "valid": np.array([[13, 12]]),
                                 "tstid": np.arange(14, 23)[None]}, do_compression=True)
    return root


def test_flowers_as_torchvision_reads_them(flowers, monkeypatch, caplog):
    monkeypatch.setattr(datasets.Flowers102, "_file_dict",
                        {key: (name, None) for key, (name, _) in datasets.Flowers102._file_dict.items()})
    source = source_of(flowers)
    assert source.classes == [str(number) for number in range(1, 12)] and not caplog.text
    for part in ("train", "val", "test"):
        other = datasets.Flowers102(flowers.parent, part)
        pairs = zip(other._image_files, other._labels, strict=True)
        assert found(source)[part] == sorted((file.name, str(label + 1)) for file, label in pairs)
    named = source_of(flowers, classes=[f"flower {number}" for number in range(11)])
    assert dict(found(named)["val"]) == {"image_00012.jpg": "flower 0", "image_00013.jpg": "flower 1"}


@pytest.mark.parametrize(("name", "values", "message"), [
    ("trnid", [1, 99], "setid.mat: the image 99 is not one of 1 to 22"),
    ("trnid", [0, 1], "setid.mat: the image 0 is not one of 1 to 22"),
    ("valid", [1], "setid.mat: the image 1 is in two splits"),
])
def test_numbers_of_no_flower_are_errors(flowers, name, values, message):
    ids = {"trnid": [1, 2], "valid": [3], "tstid": [4]} | {name: values}
    savemat(flowers / "setid.mat", ids)
    with pytest.raises(DataError, match=message):
        table(flowers)


def test_damaged_lists_are_errors(flowers):
    content = (flowers / "setid.mat").read_bytes()
    for wrong, message in ((content[:-20], "cannot be read"), (b"", "cannot be read"),
                           (b"MATLAB 7.3 MAT-file" + bytes(500), "save it in MATLAB")):
        (flowers / "setid.mat").write_bytes(wrong)
        with pytest.raises(DataError, match=f"setid.mat: .*{message}"):
            table(flowers)
    savemat(flowers / "setid.mat", {"other": 1})
    with pytest.raises(DataError, match="setid.mat: has no variable trnid"):
        table(flowers)


@pytest.fixture
def cars(class_folders):
    write(class_folders, "stanford_cars/cars_train", [f"{i:05}" for i in range(1, 10)])
    root = write(class_folders, "stanford_cars/cars_test", [f"{i:05}" for i in range(1, 8)]) / "stanford_cars"
    (root / "devkit").mkdir()
    savemat(root / "devkit/cars_meta.mat", {"class_names": objects(CARS)})
    fields = [(name, object) for name in ("bbox_x1", "class", "fname")]
    for file, count, shift in (("devkit/cars_train_annos.mat", 9, 0), ("cars_test_annos_withlabels.mat", 7, 1)):
        rows = np.array([(np.uint8(1), np.uint8((i + shift) % 3 + 1), f"{i + 1:05}.jpg") for i in range(count)], fields)
        savemat(root / file, {"annotations": rows[None]})
    return root


def test_cars_as_torchvision_reads_them(cars, caplog):
    source = source_of(cars)
    assert source.classes == CARS and not caplog.text
    for part in ("train", "test"):
        other = datasets.StanfordCars(cars.parent, part)
        pairs = [(file.split("stanford_cars/")[1], other.classes[label]) for file, label in other._samples]
        assert found(source)[part] == sorted(pairs)


def test_test_images_of_cars_without_labels_are_left_out_with_a_warning(cars, caplog):
    (cars / "cars_test_annos_withlabels.mat").rename(cars / "devkit/cars_test_annos_withlabels.mat")
    assert len(source_of(cars).splits["test"]) == 7
    (cars / "devkit/cars_test_annos_withlabels.mat").unlink()
    assert set(source_of(cars).splits) == {"train"} and "cars_test_annos_withlabels.mat with the labels" in caplog.text


def test_a_class_that_the_names_lack_is_an_error(cars):
    savemat(cars / "devkit/cars_meta.mat", {"class_names": objects(CARS[:2])})
    with pytest.raises(DataError, match="cars_train_annos.mat: class 3 is not one of 1 to 2"):
        table(cars)


@pytest.fixture
def dogs(class_folders):
    root = class_folders({f"Images/{name}": 6 for name in DOGS})
    for part, numbers in (("train", range(4)), ("test", range(4, 6))):
        files = [f"{name}/{i:03}.png" for name in DOGS for i in numbers]
        labels = [[1 + DOGS.index(file.split("/")[0])] for file in files]
        savemat(root / f"{part}_list.mat", {"file_list": objects(files, column=True), "labels": labels})
    return root


def test_dogs_have_the_classes_of_their_folders(dogs, caplog):
    source = source_of(dogs)
    assert source.classes == DOGS and not caplog.text
    assert found(source) == {part: [(f"{name}/{i:03}.png", name) for name in DOGS for i in numbers]
                             for part, numbers in (("train", range(4)), ("test", range(4, 6)))}


def test_labels_that_contradict_the_folders_are_an_error(dogs):
    files = [f"{name}/000.png" for name in DOGS]
    savemat(dogs / "train_list.mat", {"file_list": objects(files, column=True), "labels": [[1], [1]]})
    with pytest.raises(DataError, match=f"class 1 has the folders {DOGS[0]} and {DOGS[1]}"):
        table(dogs)


def test_other_paths_of_the_data_set_are_answered_with_its_folder(dogs, cars, caplog):
    for read, path in ((folder, dogs), (table, dogs / "Images")):
        with pytest.raises(DataError, match=f"Stanford Dogs with its splits is read by data=table data.path={dogs}"):
            read(path)
    folder(dogs / "Images")
    assert f"state splits of the images and are not used; to use them, set data=table data.path={dogs}" in caplog.text
    for read, path in ((folder, cars), (folder, cars / "cars_train"), (table, cars / "devkit")):
        with pytest.raises(DataError, match=f"Stanford Cars with its splits is read by data=table data.path={cars}"):
            read(path)
