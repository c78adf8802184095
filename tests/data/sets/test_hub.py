"""Data sets of the `datasets` library: all kinds of folders that it saves, and a local hub."""

import io
import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path

import datasets
import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from PIL import Image

from tests.data.shares import near
from tests.exchange.hub_server import Hub
from vit.data import DataError, Preprocessing, hub

ROOT = Path(__file__).parents[3]
NAMES = ["zebra", "ant", "mule"]  # in no alphabetical order


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """A cache folder of the library, without a network."""
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")


def encoded(i, exif=False):
    """A distinct PNG or JPEG; with EXIF it is rotated."""
    stream, image = io.BytesIO(), Image.new("RGB", (12, 8), (20 * i % 256, 7 * i % 256, 200))
    image.putpixel((0, 0), (255, 255, 255))
    marks = Image.Exif()
    marks[0x0112] = 6
    image.save(stream, "PNG", exif=marks if exif else None)
    return stream.getvalue()


def rows(n, start=0):
    return {"picture": [{"bytes": encoded(i, exif=i == 3), "path": f"{i}.png"} for i in range(start, start + n)],
            "animal": [i % 3 for i in range(start, start + n)], "note": ["x"] * n}


def features():
    return datasets.Features({"picture": datasets.Image(), "animal": datasets.ClassLabel(names=NAMES),
                              "note": datasets.Value("string")})


def made(n, start=0):
    return datasets.Dataset.from_dict(rows(n, start), features())


def listed(source):
    return {key: [label for _, label in rows] for key, rows in source.split_lists().items()}


def test_save_to_disk_with_and_without_splits(tmp_path):
    parts = datasets.DatasetDict({"train": made(20), "validation": made(6, 20), "test": made(4, 26), "extra": made(2)})
    parts.save_to_disk(tmp_path / "parts")
    source = hub(tmp_path / "parts")
    assert source.name == "parts" and source.classes == NAMES
    assert listed(source) == {"train": [NAMES[i % 3] for i in range(20)], "val": [NAMES[i % 3] for i in range(20, 26)],
                              "test": [NAMES[i % 3] for i in range(26, 30)]}
    assert source.left_out == [("split extra", "neither train, val nor test")]
    assert source.splits["val"].read(1) == encoded(21) and source.splits["val"].names[1] == "val row 1"
    made(30).select(range(29, -1, -1)).save_to_disk(tmp_path / "whole")  # written by way of an index
    whole = hub(tmp_path / "whole")
    assert {key: len(split) for key, split in whole.splits.items()} == {"train": 24, "val": 3, "test": 3}
    split = whole.splits["test"]
    row = int(split.names[0].split()[-1])
    assert split.read(0) == encoded(29 - row) and split.labels[0] == (29 - row) % 3


def test_a_subset_of_a_saved_data_set_is_reported(tmp_path, caplog):
    made(30).save_to_disk(tmp_path / "saved")
    hub(tmp_path / "saved")
    assert "no effect" not in caplog.text
    hub(tmp_path / "saved", subset="other")
    assert "data.subset=other has no effect, because" in caplog.text


def test_images_are_decoded_by_vit(tmp_path):
    made(9).save_to_disk(tmp_path / "saved")
    split = hub(tmp_path / "saved", fractions=(1, 0, 0)).splits["train"]
    upright, lying = (Preprocessing(size=(12, 8), resize="none").decode(split.read(i)) for i in (3, 4))
    assert lying.size == (12, 8) and upright.size == (8, 12)
    assert upright.getpixel((7, 0)) == (255, 255, 255)  # rotated by its EXIF orientation


def test_parquet_files_and_class_folders(tmp_path, class_folders):
    (tmp_path / "p" / "data").mkdir(parents=True)
    made(12).to_parquet(tmp_path / "p" / "data" / "train-00000-of-00001.parquet")
    made(4, 12).to_parquet(tmp_path / "p" / "data" / "test-00000-of-00001.parquet")
    source = hub(tmp_path / "p", fractions=(0.75, 0.25, 0))
    assert source.classes == NAMES and near(source.splits, {"train": 9, "val": 3, "test": 4})
    root = class_folders({"photos/train/cat": 4, "photos/train/ant": 3, "photos/test/cat": 1, "photos/test/ant": 2})
    source = hub(root / "photos", fractions=(0.8, 0.2, 0))
    assert source.classes == ["ant", "cat"] and len(source.splits["test"]) == 3
    for name, label in source.split_lists()["test"]:
        assert (root / "photos" / name).is_file() and name.split("/")[1] == label
    assert isinstance(source.splits["test"].location(0), Path)


def test_parquet_files_with_structs_and_without_metadata(tmp_path):
    cells = [{"bytes": encoded(i), "path": None} for i in range(12)]
    pyarrow.parquet.write_table(pyarrow.table({"image": cells, "label": [i % 3 for i in range(12)]}),
                                tmp_path / "train.parquet")
    train = hub(tmp_path, fractions=(1, 0, 0)).splits["train"]
    assert [train.read(i) for i in range(12)] == [encoded(i) for i in range(12)]


def test_multi_label_lists_and_texts(tmp_path):
    sets = [[0, 2], [], [1], [2, 1], [0], [1]]
    column = datasets.Sequence(datasets.ClassLabel(names=NAMES))
    lists = datasets.Dataset.from_dict({"image": rows(6)["picture"], "tags": sets},
                                       datasets.Features({"image": datasets.Image(), "tags": column}))
    lists.save_to_disk(tmp_path / "lists")
    texts = [";".join(NAMES[i] for i in labels) for labels in sets]
    datasets.Dataset.from_dict({"image": rows(6)["picture"], "label": texts},
                               datasets.Features({"image": datasets.Image(), "label": datasets.Value("string")})
                               ).save_to_disk(tmp_path / "texts")
    a = hub(tmp_path / "lists", fractions=(1, 0, 0))
    b = hub(tmp_path / "texts", fractions=(1, 0, 0), label_separator=";")
    assert a.multi_label and b.multi_label and a.classes == NAMES and b.classes == sorted(NAMES)
    assert a.splits["train"].labels.tolist() == [[i in labels for i in range(3)] for labels in sets]
    order = [sorted(NAMES).index(name) for name in NAMES]
    assert np.array_equal(b.splits["train"].labels[:, order], a.splits["train"].labels)


def test_withheld_labels_and_splits_by_name(tmp_path):
    secret = made(5).remove_columns("animal").add_column("animal", [-1] * 5).cast(features())
    datasets.DatasetDict({"a": made(12), "b": made(6), "test": secret}).save_to_disk(tmp_path / "s")
    source = hub(tmp_path / "s", splits={"train": "a", "val": "b", "test": "test"})
    assert set(source.splits) == {"train", "val"}
    assert source.left_out == [("split test", "all of its 5 labels are -1, so they are withheld")]


def test_minus_one_may_be_a_class(tmp_path):
    kinds = datasets.Features({"image": datasets.Image(), "label": datasets.Value("int64")})
    parts = {key: datasets.Dataset.from_dict({"image": rows(len(labels))["picture"], "label": labels}, kinds)
             for key, labels in (("train", [1, -1] * 6), ("test", [-1] * 3))}
    datasets.DatasetDict(parts).save_to_disk(tmp_path / "s")
    source = hub(tmp_path / "s")
    assert source.left_out == [] and {source.classes[i] for i in source.splits["test"].labels} == {"-1"}


def test_labels_in_the_objects_of_a_web_dataset(tmp_path):
    (tmp_path / "set").mkdir()
    for key, count in (("train", 12), ("test", 6)):
        with tarfile.open(tmp_path / "set" / f"{key}-000000.tar", "w") as shard:
            for i in range(count):
                meta = json.dumps({"width": 12, "label": NAMES[i % 3]}).encode()
                for ending, content in (("png", encoded(i)), ("json", meta)):
                    member = tarfile.TarInfo(f"{i:06}.{ending}")
                    member.size = len(content)
                    shard.addfile(member, io.BytesIO(content))
    source = hub(tmp_path / "set", label="json.label")
    assert source.classes == sorted(NAMES) and listed(source)["test"] == NAMES * 2
    for options, message in (
        ({}, "no label column found among png, json.width, json.label, .*; set data.label=json.label"),
        ({"label": "json"}, "'json' has objects; data.label can be json.width, json.label"),
        ({"label": "json.kind"}, "no column 'json.kind' for data.label; its columns are png, json.width, json.label"),
    ):
        with pytest.raises(DataError, match=message):
            hub(tmp_path / "set", **options)


def test_labels_of_all_splits_are_indices_of_the_classes_of_train(tmp_path):
    """As texts, of which a split may lack some, and whichever split is named first."""
    def texts(*labels):
        kinds = datasets.Features({"image": datasets.Image(), "label": datasets.Value("string")})
        return datasets.Dataset.from_dict({"image": rows(len(labels))["picture"], "label": list(labels)}, kinds)

    parts = {"a": texts("mule"), "b": texts("zebra", "mule"), "c": texts("zebra", "ant", "mule", "ant")}
    datasets.DatasetDict(parts).save_to_disk(tmp_path / "set")
    source = hub(tmp_path / "set", splits={"test": "a", "val": "b", "train": "c"})
    assert source.classes == sorted(NAMES) and list(source.splits) == ["train", "val", "test"]
    assert {key: split.labels.tolist() for key, split in source.splits.items()} == {
        "train": [2, 0, 1, 0], "val": [2, 1], "test": [1]}


def test_the_seed_decides_which_samples_are_held_out(tmp_path):
    made(60).save_to_disk(tmp_path / "whole")
    datasets.DatasetDict({"train": made(60), "test": made(3, 60)}).save_to_disk(tmp_path / "parts")
    for folder in ("whole", "parts"):
        names = [list(hub(tmp_path / folder, split_seed=seed).splits["val"].names) for seed in (0, 1, 1)]
        assert names[0] != names[1] == names[2]


def test_a_split_with_some_labels_of_minus_1_is_not_withheld(tmp_path):
    some = made(5).remove_columns("animal").add_column("animal", [-1, 0, 1, 2, 0]).cast(features())
    datasets.DatasetDict({"train": made(12), "test": some}).save_to_disk(tmp_path / "s")
    with pytest.raises(DataError, match="-1"):
        hub(tmp_path / "s")


def test_a_column_of_images_is_preferred_to_one_of_bytes(tmp_path):
    made(12).add_column("mask", [b"x"] * 12).save_to_disk(tmp_path / "s")
    assert hub(tmp_path / "s", fractions=(1, 0, 0)).splits["train"].read(4) == encoded(4)


def two_labels(folder):
    data = made(12).add_column("coarse", [i % 2 for i in range(12)])
    data.cast_column("coarse", datasets.ClassLabel(names=["x", "y"])).save_to_disk(folder)
    return folder


def only(folder):
    datasets.DatasetDict({"all": made(12)}).save_to_disk(folder)
    return folder


def nothing(folder):
    folder.mkdir()
    (folder / "notes.txt").write_text("no data")
    return folder


@pytest.mark.parametrize(
    ("build", "options", "message"),
    [
        (two_labels, {}, "animal, coarse could each be the label column; set data.label=COLUMN"),
        (two_labels, {"label": "fine"}, "no column 'fine' for data.label; its columns are picture, animal, note, coa"),
        (two_labels, {"label": "animal", "image": "note"},
         "column 'note' has the type Value, not images; data.image can be "),
        (only, {}, r"none of its splits \(all\) is called train; set 'data.splits=\{train:all\}'"),
        (only, {"splits": {"train": "some"}}, r"'data.splits=\{train:some\}' must name one of its splits \(all\)"),
        (lambda folder: folder, {}, "data.root: the folder .* does not exist"),
        (lambda folder: folder, {"repo": "o/n"}, "set either data.repo"),
    ],
)
def test_errors_are_one_line(tmp_path, build, options, message):
    with pytest.raises((DataError, FileNotFoundError), match=message) as caught:
        hub(build(tmp_path / "set"), **options)
    assert "\n" not in str(caught.value)


def test_a_folder_without_images_is_an_error(tmp_path):
    with pytest.raises(DataError) as caught:
        hub(nothing(tmp_path / "set"))
    assert str(tmp_path / "set") in str(caught.value) and "\n" not in str(caught.value)


def test_without_the_library_the_error_names_the_command_to_install_it(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(DataError, match=r"not installed: pip install 'vitwright\[hub\]'"):
        hub(tmp_path)


FETCH = """
import json, logging, sys
logging.basicConfig(format="%(message)s")
from vit.data import DataError, hub
found = []
for argument in sys.argv[1:]:
    repo, _, revision = argument.partition("@")
    try:
        source = hub(repo=repo, revision=revision or None)
        found.append([source.classes, len(source.splits["train"]), source.pinned, source.splits["test"].read(0).hex()])
    except DataError as error:
        found.append(str(error))
print(json.dumps(found))
"""


def fetched(folder, endpoint, *arguments):
    """The description or error of each repository (`REPO` or `REPO@REVISION`), all in one process, and its log."""
    clean = {key: value for key, value in os.environ.items() if not key.startswith("HF_")}
    more = {"HF_ENDPOINT": endpoint, "HF_HOME": str(folder / "home"), "HF_HUB_DISABLE_XET": "1",
            "PYTHONPATH": str(ROOT), "HF_HUB_DISABLE_TELEMETRY": "1", "OMP_NUM_THREADS": "1",
            "HF_DATASETS_DISABLE_PROGRESS_BARS": "1"}
    done = subprocess.run([sys.executable, "-c", FETCH, *arguments], cwd=folder, capture_output=True, text=True,
                          env=clean | more)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1]), done.stderr


def test_the_hub_by_commit_and_offline(tmp_path):
    def parquet(data, name):
        data.to_parquet(tmp_path / name)
        return (tmp_path / name).read_bytes()

    with Hub() as running:
        first = running.commit("datasets/me/pets", {"data/train.parquet": parquet(made(12), "a.parquet"),
                                                    "data/test.parquet": parquet(made(4, 12), "b.parquet")})
        second = running.commit("datasets/me/pets", {"data/train.parquet": parquet(made(20), "c.parquet")})
        loaded, log = fetched(tmp_path, running.endpoint, "me/pets", f"me/pets@{first}", "me/nothing",
                              f"me/nothing@{first}")
    (names, newest, pinned, raw), (_, older, known, _), text, _ = loaded
    assert names == NAMES and raw == encoded(12).hex() and newest + older == 18 + 11
    assert pinned == {"revision": second} and known == {"revision": first}
    assert f"data.repo=me/pets is commit {second}; set data.revision={second} to load the same" in log
    assert "data.repo=me/nothing" in text and "\n" not in text
    (again, gone, text), log = fetched(tmp_path, "http://127.0.0.1:1", f"me/pets@{first}", f"me/pets@{'0' * 40}",
                                     "me/other")
    assert again == loaded[1]
    assert "data.repo=me/pets: the hub cannot be reached" in log and "Retrying" not in log
    assert "data.repo=me/pets" in gone and "\n" not in gone
    assert "data.repo=me/other cannot be downloaded and is not in the cache" in text and "data.root=FOLDER" in text
    assert "Connection refused" in log


def test_an_error_of_the_library_names_its_cause(tmp_path):
    """The library reports only that an error occurred while generating the data set."""
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "train.jsonl").write_text('{"label": 1}\n' * 3 + "{cut off")
    with pytest.raises(DataError, match=r"cannot be loaded: An error occurred while generating the dataset \(.*JSON"):
        hub(tmp_path / "set")


def test_a_row_without_an_image_among_paths_is_named_by_its_number(tmp_path, class_folders):
    files = sorted((class_folders({"x": 3}) / "x").iterdir())
    images = [{"bytes": None, "path": str(files[0])}, None, {"bytes": None, "path": str(files[2])}] * 2
    kinds = {"image": datasets.Image(decode=False), "label": datasets.ClassLabel(names=["a", "b"])}
    rows = datasets.Dataset.from_dict({"image": images, "label": [0, 1, 1] * 2}, datasets.Features(kinds))
    (tmp_path / "set").mkdir()
    rows.to_parquet(str(tmp_path / "set" / "train.parquet"))
    train = hub(tmp_path / "set", fractions=(1, 0, 0)).splits["train"]
    assert list(train.names)[:3] == [str(Path("x", files[0].name)), "train row 1", str(Path("x", files[2].name))]
    assert train.read(1) == b""
