"""SVHN and STL-10, whose images are arrays in files of a split each."""

import numpy as np
import pytest
from scipy.io import savemat
from torchvision import datasets

from vit.data import DataError, folder, table

NAMES = ["airplane", "bird", "car"]


def equal(split, other):
    """Compares a split, in the order of its rows, with a data set of torchvision."""
    assert len(split) == len(other) and split.labels.tolist() == other.labels.tolist()
    assert np.array_equal(split.pixels, other.data.transpose(0, 2, 3, 1))


@pytest.fixture
def svhn(tmp_path, monkeypatch):
    monkeypatch.setattr(datasets.SVHN, "split_list", {key: [url, name, None] for key, (url, name, _) in
                                                      datasets.SVHN.split_list.items()})
    rng = np.random.default_rng(0)
    for part, count in (("train", 20), ("test", 12), ("extra", 3)):
        savemat(tmp_path / f"{part}_32x32.mat", {"X": rng.integers(0, 256, (32, 32, 3, count), dtype=np.uint8),
                                                 "y": np.arange(count, dtype=np.uint8)[:, None] % 10 + 1})
    return tmp_path


def test_svhn_as_torchvision_reads_it(svhn):
    source = table(svhn, fractions=(1, 0, 0))
    assert source.classes == list("0123456789") and ("extra_32x32.mat", "further training images") in source.left_out
    for part, split in source.splits.items():
        equal(split, datasets.SVHN(svhn, part))


@pytest.mark.parametrize(("images", "label"), [((32, 32, 3, 4), 0), ((32, 32, 3, 4), 11), ((4, 32, 32, 3), 1)])
def test_damaged_files_of_svhn_are_errors(svhn, images, label):
    savemat(svhn / "test_32x32.mat", {"X": np.zeros(images, np.uint8), "y": np.full((4, 1), label)})
    with pytest.raises(DataError, match=f"test_32x32.mat: has images .* and labels {label} to {label}, expected"):
        table(svhn)


@pytest.fixture
def stl10(tmp_path, monkeypatch):
    monkeypatch.setattr(datasets.STL10, "_check_integrity", lambda _: True)
    root, rng = tmp_path / "stl10_binary", np.random.default_rng(0)
    root.mkdir()
    for part, count in (("train", 6), ("test", 3), ("unlabeled", 2)):
        (root / f"{part}_X.bin").write_bytes(rng.integers(0, 256, (count, 3, 96, 96), dtype=np.uint8).tobytes())
        if part != "unlabeled":
            (root / f"{part}_y.bin").write_bytes(bytes(i % 3 + 1 for i in range(count)))
    (root / "class_names.txt").write_text("".join(f"{name}\n" for name in NAMES))
    return root


def test_stl10_as_torchvision_reads_it(stl10):
    source = table(stl10, fractions=(1, 0, 0))
    assert source.classes == NAMES and source.left_out == [("unlabeled_X.bin", "images without labels")]
    for part, split in source.splits.items():
        equal(split, datasets.STL10(stl10.parent, part))


@pytest.mark.parametrize(("labels", "message"), [
    (b"\1\2", "test_X.bin: has 82944 bytes, but 2 labels in test_y.bin need 55296"),
    (b"\0\1\2", "test_y.bin: has labels 0 to 2, expected 1 to 3"),
    (b"\1\2\4", "test_y.bin: has labels 1 to 4, expected 1 to 3"),
])
def test_damaged_labels_of_stl10_are_errors(stl10, labels, message):
    (stl10 / "test_y.bin").write_bytes(labels)
    with pytest.raises(DataError, match=message):
        table(stl10)


def test_other_paths_name_the_folder_of_the_files(svhn, stl10):
    for read, path in ((folder, svhn), (table, svhn / "train_32x32.mat")):
        with pytest.raises(DataError, match=f"SVHN with its splits is read by data=table data.path={svhn}"):
            read(path)
    for read, path in ((folder, stl10), (table, stl10 / "train_X.bin")):
        with pytest.raises(DataError, match=f"STL-10 with its splits is read by data=table data.path={stl10}"):
            read(path)


def test_arrays_of_patch_camelyon_have_labels_of_four_dimensions(tmp_path):
    labels = np.arange(6, dtype=np.uint8).reshape(-1, 1, 1, 1) % 2
    np.savez(tmp_path / "pcam.npz", train_images=np.zeros((6, 8, 8, 3), np.uint8), train_labels=labels)
    assert table(tmp_path / "pcam.npz", fractions=(1, 0, 0)).splits["train"].labels.tolist() == [0, 1] * 3
