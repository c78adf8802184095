"""Sources: contents, splits and error messages."""

import csv
import gzip
import json
import pickle
import struct

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest

from tests.data.shares import near
from vit.data import (
    DataError,
    Preprocessing,
    Source,
    Split,
    cifar10,
    cifar100,
    digits,
    fashion_mnist,
    folder,
    imagenet,
    mnist,
    table,
)
from vit.data.sample_names import ConcatSequence, PackedStrings
from vit.data.splits.split import array_split
from vit.data.splits.splitting import hold_out


def sizes(source):
    return {key: len(split) for key, split in source.splits.items()}


def lists(source, key):
    return dict(source.split_lists()[key])


def test_a_source_is_printed_without_its_samples():
    source = digits()
    assert repr(source.splits["val"]) == "Split(samples=180)"
    assert "'train': Split(samples=1257)" in repr(source) and len(repr(source)) < 300


def test_digits():
    from sklearn.datasets import load_digits

    source = digits()
    assert sizes(source) == {"train": 1257, "val": 180, "test": 360}
    assert source.classes == list("0123456789")
    bundled = load_digits()
    scaled = np.rint(bundled.images * 255 / 16).astype(np.uint8)
    seen = []
    for split in source.splits.values():
        for i in range(len(split)):
            row = int(split.names[i].split()[-1])
            seen.append(row)
            assert np.abs(split.read(i).astype(int) - scaled[row]).max() <= 1 and split.labels[i] == bundled.target[row]
    assert sorted(seen) == list(range(1797))
    for key in source.splits:
        assert np.ptp(source.counts(key)) <= 7  # the classes themselves differ by 9
    assert np.array_equal(digits().splits["test"].labels, source.splits["test"].labels)
    assert not np.array_equal(digits(split_seed=1).splits["test"].labels, source.splits["test"].labels)


def test_hold_out_is_stratified_and_leaves_every_class():
    labels = np.repeat([0, 1, 2, 3], [100, 50, 7, 1])
    remaining, held = hold_out(labels, 16, seed=0)
    assert np.array_equal(np.sort(np.concatenate([remaining, held])), np.arange(158))
    assert np.bincount(labels[held], minlength=4).tolist() == [10, 5, 1, 0]
    remaining, held = hold_out(labels, 1000, seed=0)
    assert np.bincount(labels[remaining]).tolist() == [1, 1, 1, 1]


def test_packed_strings():
    names = PackedStrings(["a.jpg", "", "ü/😀.png", "x\udce4.jpg"])
    assert list(names) == ["a.jpg", "", "ü/😀.png", "x\udce4.jpg"] and names[-1] == "x\udce4.jpg" and len(names) == 4
    with pytest.raises(IndexError):
        names[4]


def test_concatenated_names_have_negative_indices():
    names = ConcatSequence([["a", "b"], [], ["c"]])
    assert [names[i] for i in range(-3, 3)] == ["a", "b", "c"] * 2 and list(reversed(names)) == ["c", "b", "a"]
    for wrong in (-4, 3):
        with pytest.raises(IndexError):
            names[wrong]


def test_folder_with_splits(class_folders):
    root = class_folders({"train/cat": 4, "train/dog": 3, "validation/dog": 2, "test/cat": 1})
    source = folder(root)
    assert source.classes == ["cat", "dog"] and sizes(source) == {"train": 7, "val": 2, "test": 1}
    assert source.counts("val").tolist() == [0, 2]
    assert lists(source, "val") == {"validation/dog/000.png": "dog", "validation/dog/001.png": "dog"}


def test_folder_without_splits_is_split(class_folders):
    root = class_folders({"cat": 30, "dog": 20})
    source = folder(root)
    assert near(sizes(source), {"train": 40, "val": 5, "test": 5})
    assert min(source.counts("test").tolist() + source.counts("val").tolist()) >= 1
    assert folder(root).split_lists() == source.split_lists() != folder(root, split_seed=1).split_lists()
    assert near(sizes(folder(root, fractions=(0.5, 0.5, 0))), {"train": 25, "val": 25})


def test_missing_validation_is_split_off_train(class_folders):
    source = folder(class_folders({"train/cat": 20, "train/dog": 16, "test/cat": 3}))
    assert near(sizes(source), {"train": 32, "val": 4, "test": 3})


def test_classes_are_matched_by_name(class_folders):
    """Labels do not shift if validation lacks the first class."""
    source = folder(class_folders({"train/a": 2, "train/b": 2, "train/c": 2, "val/c": 2, "val/b": 1}))
    assert set(lists(source, "val").values()) == {"b", "c"}
    assert all(name.split("/")[1] == cls for name, cls in source.split_lists()["val"])


def test_folder_lists_what_it_leaves_out(class_folders):
    root = class_folders(
        {"train/cat": 2, "train/dog": 2, "train/.ipynb_checkpoints": 1, "val/cat": 1, "val/dog/deep": 1, "more/x": 1}
    )
    (root / "train" / "cat" / "notes.txt").write_text("x")
    (root / "train" / "cat" / "._000.png").write_text("x")
    (root / "train" / "stray.png").write_text("x")
    source = folder(root)
    assert source.classes == ["cat", "dog"] and sizes(source) == {"train": 4, "val": 2}
    assert dict(source.left_out) == {
        "more/x/000.png": "outside the split folders",
        "train/.ipynb_checkpoints": "hidden",
        "train/stray.png": "outside any class folder",
        "train/cat/._000.png": "hidden",
        "train/cat/notes.txt": "not an image (.txt)",
    }


def test_a_class_may_be_called_train(class_folders):
    assert folder(class_folders({"train": 5, "car": 5})).classes == ["car", "train"]


@pytest.mark.parametrize(
    ("tree", "text"),
    [
        (
            {"train/a": 2, "train/b": 2, "val/z": 1, "val/a": 1},
            r"1 of its 2 classes is not among the 2 of train \(z\)",
        ),
        ({"train/a": 2, "train/b": 0}, r"1 of 2 classes has no training image \('b'\)"),
        ({"a": 9}, r"found 1 class \('a'\), a classifier needs at least 2"),
        ({"val/a": 2, "val/b": 2}, "has val but no train folder"),
        ({"train/a": 2, "train/b": 2, "val/a": 1, "valid/a": 1}, "both val and valid"),
        ({"train/a": 2, "train/b": 2, "test/a": 0}, "test folder has 0 images"),
        ({}, "holds no class folders"),
    ],
)
def test_wrong_folders(class_folders, tree, text):
    with pytest.raises(DataError, match=text) as error:
        folder(class_folders(tree))
    assert "\n" not in str(error.value)


def test_missing_folder(tmp_path):
    with pytest.raises(FileNotFoundError, match="data.root: the folder .*nowhere does not exist"):
        folder(tmp_path / "nowhere")
    for named in (mnist, fashion_mnist, cifar10, cifar100, imagenet):
        with pytest.raises(FileNotFoundError, match="set data.root to the folder of"):
            named(tmp_path / "nowhere")
    with pytest.raises(FileNotFoundError, match="neither train-images-idx3-ubyte.* data.download=true"):
        mnist(tmp_path)
    with pytest.raises(FileNotFoundError, match="neither data_batch_1 nor .* data.download=true"):
        cifar10(tmp_path)


def test_labels_out_of_range_are_found():
    pixels, labels = np.zeros((4, 8, 8), np.uint8), np.array([0, 1, 5, -1])
    with pytest.raises(
        DataError, match=r"toy row 2: label 5 is out of range, toy has 2 classes \(0..1\); 2 of 4 train"
    ):
        Source("toy", ["a", "b"], {"train": array_split(pixels, labels, "toy")})


@pytest.mark.parametrize(("labels", "names", "text"), [
    ([0, 1], ["a", "b"], "the train labels are of the type list; they must be a numpy array"),
    (np.array([0.0, 1.0]), ["a", "b"], "the train labels are of the type float64; they must be a numpy array"),
    (np.array([0, 1]), ["a"], "the train split has 2 labels and 1 name; it needs one of each per image"),
])
def test_splits_of_a_function_of_the_user(labels, names, text):
    with pytest.raises(DataError, match=text):
        Source("toy", ["a", "b"], {"train": Split(labels, names, lambda i: b"")})


def test_class_weights_and_leaving_out():
    labels = np.array([0, 0, 0, 1])
    source = Source("toy", ["a", "b"], {"train": array_split(np.zeros((4, 8, 8), np.uint8), labels, "toy")})
    weights = source.class_weights()
    assert np.allclose(weights, [2 / 3, 2]) and np.isclose(weights[labels].mean(), 1)
    rest = source.without([("train", 1, "broken")])
    assert rest.splits["train"].labels.tolist() == [0, 0, 1] and rest.left_out == [("toy row 1", "broken")]
    assert list(rest.splits["train"].names) == ["toy row 0", "toy row 2", "toy row 3"]


def write_csv(path, rows):
    with path.open("w", newline="") as file:
        csv.writer(file).writerows(rows)
    return path


def test_csv_tables(class_folders):
    root = class_folders({"images": 10})
    rows = [[f"images/{i:03}.png", "cat" if i % 2 else "dog", "train" if i < 8 else "valid"] for i in range(10)]
    source = table(write_csv(root / "t.csv", [["path", "label", "split"], *rows]))
    assert source.classes == ["cat", "dog"] and sizes(source) == {"train": 8, "val": 2}
    assert Preprocessing(size=8).image(source.splits["train"].read(3)).shape == (3, 8, 8)
    numbers = [[f"images/{i:03}.png", 7 + i % 3] for i in range(10)]
    source = table(write_csv(root / "n.csv", [["file", "what"], *numbers]), label="what", fractions=(1, 0, 0))
    assert source.classes == ["7", "8", "9"] and sizes(source) == {"train": 10}
    assert all(int(name[7:10]) % 3 + 7 == int(cls) for name, cls in source.split_lists()["train"])


@pytest.mark.parametrize(
    ("rows", "options", "text"),
    [
        ([["path", "label"], ["no.png", "a"]], {}, "1 of 1 file does not exist under"),
        ([["path", "label"], ["images/000.png", ""]], {}, "row 0: the label is empty"),
        ([["path", "kind"], ["images/000.png", "a"]], {}, "no label column found among path, kind"),
        (
            [["path", "label"], ["images/000.png", "a"]],
            {"label": "x"},
            "no column 'x' for data.label; its columns are path, label",
        ),
        ([["path", "label"], ["images/000.png", 3]], {"classes": ["a", "b"]}, "label 3 is out of range for 2 classes"),
        ([["path", "label"], ["images/000.png", "c"]], {"classes": ["a", "b"]}, "class 'c' is not among the 2 known"),
        ([["path", "label", "split"], ["images/000.png", "a", "held out"]], {}, "split 'held out' is not one of train"),
        ([["path", "label"], ["images/000.png"]], {}, "line 2: has 1 fields, the header has 2"),
        ([["path", "label"]], {}, "has 0 rows"),
    ],
)
def test_wrong_tables(class_folders, rows, options, text):
    with pytest.raises((DataError, FileNotFoundError), match=text):
        table(write_csv(class_folders({"images": 1}) / "t.csv", rows), **options)


def parquet(path, columns, names=None):
    data = pyarrow.table(columns)
    if names:
        features = {"label": {"names": names, "_type": "ClassLabel"}, "image": {"_type": "Image"}}
        data = data.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})
    pyarrow.parquet.write_table(data, path)
    return path


def test_parquet_tables(class_folders, tmp_path):
    root = class_folders({"x": 10})
    files = [(root / "x" / f"{i:03}.png").read_bytes() for i in range(10)]
    labels = [i % 2 for i in range(10)]
    plain = table(parquet(tmp_path / "p.parquet", {"image": files, "label": labels}), classes=["no", "yes"])
    assert plain.classes == ["no", "yes"] and near(sizes(plain), {"train": 8, "val": 1, "test": 1})
    structs = [{"bytes": f, "path": None} for f in files]
    hugging = table(parquet(tmp_path / "h.parquet", {"image": structs, "label": labels}, ["no", "yes"]))
    assert hugging.split_lists().keys() == plain.split_lists().keys() and hugging.classes == ["no", "yes"]
    for source in (plain, hugging):
        row = int(source.splits["test"].names[0].split()[-1])
        assert source.splits["test"].read(0) == files[row]


def test_parquet_splits_by_name(class_folders, tmp_path):
    root = class_folders({"x": 10})
    files = [(root / "x" / f"{i:03}.png").read_bytes() for i in range(10)]
    parquet(tmp_path / "train-00000-of-00002.parquet", {"image": files[:5], "label": [0, 1, 0, 1, 0]})
    parquet(tmp_path / "train-00001-of-00002.parquet", {"image": files[5:], "label": [0, 1, 0, 1, 0]})
    parquet(tmp_path / "test.parquet", {"image": files[:2], "label": [1, 1]})
    (tmp_path / "classes.json").write_text('["a", "b"]')
    source = cifar10(tmp_path, val=2)
    assert source.classes == ["a", "b"] and sizes(source) == {"train": 8, "val": 2, "test": 2}
    parquet(tmp_path / "test.parquet", {"image": files[:2], "label": [1, 2]})
    with pytest.raises(DataError, match="test.parquet row 1: label 2 is out of range for 2 classes"):
        cifar10(tmp_path, val=2)
    with pytest.raises(DataError, match="val=10: so many images cannot be held out of 10"):
        parquet(tmp_path / "test.parquet", {"image": files[:2], "label": [1, 1]})
        cifar10(tmp_path, val=10)
    (tmp_path / "test.parquet").write_bytes(b"PAR1 no")
    with pytest.raises(DataError, match="test.parquet: cannot be read as Parquet"):
        cifar10(tmp_path, val=2)


def test_parquet_numbers_without_names_are_matched_by_value(class_folders, tmp_path):
    image = (class_folders({"x": 1}) / "x" / "000.png").read_bytes()
    parquet(tmp_path / "train.parquet", {"image": [image] * 4, "label": [3, 7, 3, 7]})
    parquet(tmp_path / "validation.parquet", {"image": [image] * 2, "label": [7, 7]})
    source = cifar100(tmp_path)
    assert source.classes == ["3", "7"] and source.splits["val"].labels.tolist() == [1, 1]
    parquet(tmp_path / "validation.parquet", {"image": [image] * 2, "label": [7, 1]})
    with pytest.raises(DataError, match=r"validation.parquet row 1: class '1' is not among the 2 known .* \(3, 7\)"):
        cifar100(tmp_path)


def write_idx(path, array, zipped):
    data = struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape) + array.tobytes()
    if zipped:
        path.with_name(path.name + ".gz").write_bytes(gzip.compress(data))
    else:
        path.write_bytes(data)


@pytest.mark.parametrize("directory", [".", "raw", "MNIST/raw"])
def test_idx_files_in_all_locations(tmp_path, directory):
    (tmp_path / directory).mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(0).integers(0, 256, (40, 28, 28), dtype=np.uint8)
    labels = np.arange(40, dtype=np.uint8) % 10
    for stem, zipped in (("train", directory == "."), ("t10k", True)):
        write_idx(tmp_path / directory / f"{stem}-images-idx3-ubyte", pixels, zipped)
        write_idx(tmp_path / directory / f"{stem}-labels-idx1-ubyte", labels, zipped)
    source = mnist(tmp_path, val=10)
    assert sizes(source) == {"train": 30, "val": 10, "test": 40}
    assert np.array_equal(source.splits["test"].pixels, pixels)
    write_idx(tmp_path / directory / "t10k-labels-idx1-ubyte", labels[:39], zipped=False)
    with pytest.raises(DataError, match="t10k has 40 images but 39 labels"):
        mnist(tmp_path)
    (tmp_path / directory / "t10k-labels-idx1-ubyte").write_bytes(b"\0\0\x08\x01\0\0\0\x28abc")
    with pytest.raises(DataError, match=r"has 3 bytes, but its header \(40,\) needs 40"):
        mnist(tmp_path)


def test_cifar_pickles_are_read_without_running_code(tmp_path):
    directory = tmp_path / "cifar-10-batches-py"
    directory.mkdir()
    pixels = np.random.default_rng(0).integers(0, 256, (10, 3, 32, 32), dtype=np.uint8)
    batch = {b"data": pixels.reshape(10, -1), b"labels": list(range(10)), b"filenames": [b"x"] * 10}
    for name in [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]:
        (directory / name).write_bytes(pickle.dumps(batch, protocol=2))
    source = cifar10(tmp_path, val=10)
    assert sizes(source) == {"train": 40, "val": 10, "test": 10}
    assert np.array_equal(source.splits["test"].read(1), pixels[1].transpose(1, 2, 0))

    class Evil:
        def __reduce__(self):
            return (print, ("this must not be printed",))

    (directory / "test_batch").write_bytes(pickle.dumps({b"data": Evil()}, protocol=2))
    with pytest.raises(DataError, match="test_batch: .*the pickle calls .*print"):
        cifar10(tmp_path)


@pytest.mark.parametrize(("read", "folder", "labels", "parts"), [
    (cifar10, "cifar-10-batches-bin", 1, [[f"data_batch_{i}" for i in range(1, 6)], ["test_batch"]]),
    (cifar100, "cifar-100-binary", 2, [["train"], ["test"]]),
])
@pytest.mark.parametrize("inside", [True, False])
def test_binary_files_of_cifar_equal_the_pickles(tmp_path, read, folder, labels, parts, inside):
    python = tmp_path / "python" / {1: "cifar-10-batches-py", 2: "cifar-100-python"}[labels]
    binary = tmp_path / "binary" / folder
    for each in (python, binary):
        each.mkdir(parents=True)
    rng = np.random.default_rng(0)
    names = [f"class {i}".replace(" ", "_") for i in range(10)]
    for name in sum(parts, []):
        pixels, numbers = rng.integers(0, 256, (20, 3072), dtype=np.uint8), rng.permutation(20).astype(np.uint8) % 10
        key = b"labels" if labels == 1 else b"fine_labels"
        (python / name).write_bytes(pickle.dumps({b"data": pixels, key: numbers.tolist()}, protocol=2))
        records = np.concatenate([*[np.full((20, 1), 3, np.uint8)] * (labels - 1), numbers[:, None], pixels], axis=1)
        (binary / f"{name}.bin").write_bytes(records.tobytes())
    (python / "meta").write_bytes(pickle.dumps({b"fine_label_names": [name.encode() for name in names]}, protocol=2))
    (binary / "fine_label_names.txt").write_text("\n".join(names) + "\n")
    one, other = read(python.parent, val=10), read(binary.parent if inside else binary, val=10)
    assert one.classes == other.classes and sizes(one) == sizes(other)
    for key, split in one.splits.items():
        assert np.array_equal(split.pixels, other.splits[key].pixels)
        assert np.array_equal(split.labels, other.splits[key].labels)
    file = binary / f"{parts[1][0]}.bin"
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(DataError, match=f"bytes, which is no multiple of {labels + 3072}"):
        read(binary, val=10)
    file.write_bytes(b"\xc8" * (labels + 3072))
    with pytest.raises(DataError, match="has the label 200, expected 0 to 9"):
        read(binary, val=10)


def test_real_sets(real):
    source = mnist(real / "mnist")
    assert sizes(source) == {"train": 55000, "val": 5000, "test": 10000}
    assert source.counts("test").tolist() == [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]
    source = cifar10(real / "cifar10")
    assert sizes(source) == {"train": 45000, "val": 5000, "test": 10000} and set(source.counts("val")) == {500}
    source = folder(real / "clothing_small")
    assert sizes(source) == {"train": 900, "val": 186, "test": 293} and set(source.counts("train")) == {90}
