"""The findings of the audit: bad files, duplicates across splits, unusual modes, statistics."""

import io
import json
import threading
import time
import tracemalloc
from dataclasses import asdict

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
import torch
from PIL import Image

from vit.data import (
    DataError,
    ImageDataset,
    LinePreprocessing,
    PackedPreprocessing,
    Preprocessing,
    RandomResizedCrop,
    digits,
    estimate,
    folder,
    table,
    threads,
    unlabelled_images,
)
from vit.data.quality.audit import audit
from vit.data.quality.audit_report import AuditReport
from vit.data.source import Source
from vit.data.splits.split import Split, array_split, file_split
from vit.data.statistics import Histogram

P8 = Preprocessing(size=8)


@pytest.fixture
def root(class_folders):
    root = class_folders({"train/cat": 6, "train/dog": 6, "val/cat": 2, "val/dog": 2})
    (root / "train/cat/001.png").write_bytes(b"broken")
    cut = (root / "train/dog/002.png").read_bytes()
    (root / "train/dog/002.png").write_bytes(cut[: len(cut) // 2])
    (root / "val/cat/000.png").write_bytes((root / "train/cat/004.png").read_bytes())
    (root / "train/cat/notes.txt").write_text("x")
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.new("CMYK", (30, 20)).save(root / "train/dog/big.jpg", exif=exif)
    return root


def test_all_faults_are_found(root):
    seen = {}  # stage -> the last (done, total)
    report = audit(folder(root), P8, seconds=None, progress=lambda stage, *counts: seen.update({stage: counts}))
    assert seen == {"headers": (report.total,) * 2, "decodes": (report.total,) * 2}
    assert [(b.split, b.name) for b in report.unreadable] == [
        ("train", "train/cat/001.png"),
        ("train", "train/dog/002.png"),
    ]
    assert report.duplicates == [[("train", "train/cat/004.png"), ("val", "val/cat/000.png")]]
    assert report.left_out == [("train/cat/notes.txt", "not an image (.txt)")]
    assert report.odd["JPEG of mode CMYK"] == ["train/dog/big.jpg"] == report.odd["EXIF orientation 6"]
    assert report.sizes == {"10x12": 15, "30x20": 1} and report.counts["val"] == {"cat": 2, "dog": 2}
    assert report.complete and report.headers == report.decoded == report.total == 17
    json.dumps(report.to_dict())
    assert "train/cat/001.png: cannot be opened" in report.text() and "train/cat/001.png" in report.problem()
    assert "2 of 17 images are unreadable" in report.problem() and "\n" not in report.problem()


def test_small_sides_are_those_of_upright_images(tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.new("RGB", (400, 40)).save(tmp_path / "lying.jpg", exif=exif)  # upright 40 pixels wide and 400 high
    source = unlabelled_images(tmp_path, fractions=(1, 0, 0))
    small = "a side below a quarter of the input size"
    assert small in audit(source, Preprocessing(size=(32, 384)), seconds=None).odd
    assert small not in audit(source, Preprocessing(size=(384, 32)), seconds=None).odd
    assert small in audit(source, Preprocessing(size=(384, 32), exif=False), seconds=None).odd


@pytest.mark.parametrize("preprocessing", [
    P8, P8.replace(resize="pad"), Preprocessing(size=(12, 10), resize="none"), PackedPreprocessing(8, patch_size=4),
    LinePreprocessing(height=8, max_width=16, patch_size=4)], ids=lambda each: getattr(each, "resize", "line"))
def test_without_statistics_the_audit_finds_the_same_faults(root, preprocessing):
    """An image of another size is a fault with resize=none."""
    full = audit(folder(root), preprocessing, seconds=None)
    quick = audit(folder(root), preprocessing, seconds=None, statistics=False)
    assert len(full.unreadable) == (3 if getattr(preprocessing, "resize", "") == "none" else 2)
    assert full.mean and quick.mean is None
    full.mean = full.std = quick.std = None
    assert {**quick.to_dict(), "seconds": 0} == {**full.to_dict(), "seconds": 0}


@pytest.mark.parametrize("seconds", [None, 0])
@pytest.mark.parametrize("sizing", [None, RandomResizedCrop()], ids=["whole", "crop"])
def test_images_that_the_audit_decodes_are_not_decoded_again(class_folders, sizing, seconds, monkeypatch):
    source = folder(class_folders({"train/cat": 6, "train/dog": 6, "val/cat": 2, "val/dog": 2}))
    keys = [(epoch, i) for epoch in (0, 1) for i in range(12)]
    expected = ImageDataset(source.splits["train"], P8, sizing).__getitems__(keys)["image"]
    dataset, decoded = ImageDataset(source.splits["train"], P8, sizing, fill=False), []
    load = Preprocessing.decode
    monkeypatch.setattr(Preprocessing, "decode",
                        lambda self, raw, name="", *more: decoded.append(name) or load(self, raw, name, *more))
    audit(source, P8, seconds, statistics=False, caches={"train": dataset})
    dataset.fill()
    assert sorted(name for name in decoded if name.startswith("train")) == sorted(source.splits["train"].names)
    assert torch.equal(dataset.__getitems__(keys)["image"], expected)


def test_what_is_unreadable_is_so_with_a_cache_too(root):
    source = folder(root)
    dataset = ImageDataset(source.splits["train"], P8, on_bad_sample="skip", fill=False)
    found, expected = audit(source, P8, None, caches={"train": dataset}), audit(source, P8, None, statistics=False)
    assert {**found.to_dict(), "seconds": 0} == {**expected.to_dict(), "seconds": 0}
    dataset.fill()
    names = {source.splits["train"].names[i] for i in dataset.bad}
    assert names == {"train/cat/001.png", "train/dog/002.png"}


def test_unreadable_images_can_be_left_out(root):
    source = folder(root)
    rest = source.without(audit(source, P8, seconds=None).bad_samples())
    assert len(rest.splits["train"]) == 11 and len(rest.splits["val"]) == 4 and len(rest.left_out) == 3
    again = audit(rest, P8, seconds=None)
    assert again.unreadable == [] and again.problem() is None
    assert len(ImageDataset(rest.splits["train"], P8).images) == 11


def test_headers_are_read_without_a_time_budget(root):
    report = audit(folder(root), P8, seconds=0)
    assert report.headers == 17 and report.decoded <= 1 and not report.complete
    assert [b.name for b in report.unreadable] == ["train/cat/001.png"]  # the truncated file is found only by decoding


def test_headers_are_read_in_threads_and_reported_in_order(class_folders, monkeypatch):
    monkeypatch.setattr(threads, "available_cores", lambda: 3)
    images = folder(class_folders({"cat": 40, "dog": 40}), fractions=(1, 0, 0)).splits["train"]
    used = set()

    def read(i):
        used.add(threading.get_ident())
        time.sleep(0.001)
        return b"" if i in (3, 41) else images.read(i)

    seen = []
    source = Source("t", ["cat", "dog"], {"train": Split(images.labels, images.names, read)})
    report = audit(source, P8, seconds=0, progress=lambda *counts: seen.append(counts))
    assert len(used) > 1 and threading.get_ident() not in used
    assert [bad.name for bad in report.unreadable] == ["cat/003.png", "dog/001.png"]
    assert report.headers == 80 and report.sizes == {"10x12": 78} and ("headers", 80, 80) in seen


def test_statistics_equal_numpy():
    source = digits()
    pixels = source.splits["train"].pixels / 255
    mean, std = estimate(source.splits["train"], P8)
    assert np.allclose(mean, pixels.mean(), atol=1e-4) and np.allclose(std, pixels.std(), atol=1e-4)
    report = audit(source, P8, seconds=None)
    assert (report.mean, report.std) == (mean, std)
    dataset = ImageDataset(source.splits["train"], P8)
    assert estimate(source.splits["train"], P8, images=dataset.images) == (mean, std)


def test_statistics_of_files(photos):
    split = folder(photos, fractions=(1, 0, 0)).splits["train"]
    preprocessing = Preprocessing(size=32)
    images = np.stack([preprocessing.image(split.read(i)).numpy() for i in range(6)]) / 255
    mean, std = estimate(split, preprocessing)
    assert np.allclose(mean, images.mean((0, 2, 3)), atol=1e-4) and np.allclose(std, images.std((0, 2, 3)), atol=1e-4)
    assert estimate(split, preprocessing, limit=3) == estimate(split, preprocessing, limit=3) != (mean, std)


def test_sizes_of_arrays_are_width_by_height():
    pixels = np.zeros((3, 8, 5), np.uint8)
    report = audit(Source("toy", ["a", "b"], {"train": array_split(pixels, np.array([0, 1, 1]), "t")}), P8)
    assert report.sizes == {"5x8": 3} and report.headers == report.total == 3


def test_the_audit_of_files_has_the_statistics_of_the_training_images(photos):
    split = folder(photos, fractions=(1, 0, 0)).splits["train"]
    preprocessing = Preprocessing(size=32)
    source = Source("photos", ["a", "b"], {"train": split.take(np.arange(4)), "val": split.take(np.arange(4, 6))})
    report = audit(source, preprocessing, seconds=None)
    pixels = np.stack([preprocessing.image(split.read(i)).numpy() for i in range(4)]) / 255
    assert np.allclose(report.mean, pixels.mean((0, 2, 3)), atol=1e-4)
    assert np.allclose(report.std, pixels.std((0, 2, 3)), atol=1e-4)


def test_statistics_of_unreadable_data(tmp_path):
    flat = array_split(np.full((4, 8, 8), 51, np.uint8), np.zeros(4), "flat")
    assert estimate(flat, P8) == ((0.2, 0.2, 0.2), (1.0, 1.0, 1.0))
    (tmp_path / "a.png").write_bytes(b"")
    with pytest.raises(DataError, match="none of 1 training image can be .*; for example a.png: the file is empty"):
        estimate(file_split(tmp_path, ["a.png"], np.zeros(1)), P8)


def test_statistics_leave_out_damaged_members_of_an_archive():
    flat = np.full((8, 8), 51, np.uint8)

    def read(i):
        if i == 2:
            raise OSError("the archive member is damaged")
        return flat

    split = Split(np.zeros(4, np.int64), ["a", "b", "c", "d"], read)
    assert estimate(split, P8) == ((0.2, 0.2, 0.2), (1.0, 1.0, 1.0))


def test_duplicates_in_arrays():
    pixels = np.random.default_rng(0).integers(0, 256, (6, 8, 8), dtype=np.uint8)
    splits = {
        "train": array_split(pixels, np.arange(6) % 2, "train"),
        "test": array_split(pixels[4:], np.arange(2), "test"),
    }
    report = audit(Source("toy", ["a", "b"], splits), P8)
    assert sorted(report.duplicates) == [
        [("test", "test row 0"), ("train", "train row 4")],
        [("test", "test row 1"), ("train", "train row 5")],
    ]


def test_equal_images_with_different_labels(class_folders):
    root = class_folders({"cat": 4, "dog": 4})
    (root / "dog/001.png").write_bytes((root / "cat/000.png").read_bytes())
    (root / "dog/002.png").write_bytes((root / "dog/003.png").read_bytes())
    source = folder(root, fractions=(1, 0, 0))
    report = audit(source, P8)
    assert report.contradictions == [[("cat/000.png", "cat"), ("dog/001.png", "dog")]]
    assert "same content with different labels: 1 group\n  cat/000.png (cat) = dog/001.png (dog)" in report.text()
    json.dumps(report.to_dict())
    (root / "t.csv").write_text("file,label\ncat/000.png,cat|dog\ncat/000.png,dog|cat\ncat/001.png,elk\n")
    assert not audit(table(root / "t.csv", label_separator="|", fractions=(1, 0, 0)), P8).contradictions


def test_real_photos_and_nasty_images(real):
    report = audit(folder(real / "clothing_small"), Preprocessing(size=32), seconds=0.2)
    assert report.headers == 1379 and 0 < report.decoded < 1379 and not report.unreadable and not report.duplicates
    root = real / "nasty_images" / "images"
    names = sorted(p.name for p in root.iterdir())
    source = Source("nasty", ["a", "b"], {"train": file_split(root, names, np.arange(len(names)) % 2)})
    report = audit(source, Preprocessing(size=32), seconds=None)
    assert len(report.unreadable) == 14 and "empty_file.jpg" in {b.name for b in report.unreadable}


def test_the_length_of_the_report_is_bounded(tmp_path):
    """Rows of a table have no file names, so their numbers are not suffixes."""
    image = io.BytesIO()
    Image.new("RGB", (8, 8)).save(image, "PNG")
    splits = ["train"] * 150 + ["test"] * 50
    rows = {"image": [image.getvalue()] * 200, "label": [i % 2 for i in range(200)], "split": splits}
    pyarrow.parquet.write_table(pyarrow.table(rows), tmp_path / "t.parquet")
    report = audit(table(tmp_path / "t.parquet"), P8, seconds=None)
    assert report.odd == {}
    report.odd |= {f"remark {i}": ["a"] * (i + 1) for i in range(500)}
    report.left_out += [(f"{i}.txt", "not an image (.txt)") for i in range(500)]
    text = report.text()
    assert len(text.splitlines()) < 60 and max(map(len, text.splitlines())) < 300
    assert "remark 499: 500 (a, a, a, ...)" in text and "490 other remarks: 120295" in text
    assert "left out: 500 (500 not an image (.txt)), the first 10:" in text


def test_the_counts_of_classes_are_in_columns_beside_names_of_any_length():
    classes = ["a name that is longer than a terminal is wide " * 2, "狗", "قطة"]
    text = AuditReport("photos", classes, {s: dict.fromkeys(classes, 12) for s in ("train", "test")}).text()
    head, *rows = text.splitlines()[2:6]
    assert head == "  train    test  class"
    assert rows == [f"     12      12  {name}" for name in classes]


def test_the_histogram_converts_no_value_to_eight_bytes():
    images = torch.from_numpy(np.random.default_rng(0).integers(0, 256, (4, 3, 90, 110), dtype=np.uint8))
    histogram = Histogram(3)
    tracemalloc.start()
    for part in (images[0], images):
        histogram.add(part)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    expected = [np.bincount(torch.cat([images[:1, c], images[:, c]]).flatten(), minlength=256) for c in range(3)]
    assert np.array_equal(histogram.counts, expected) and histogram.pixels == 5 * 90 * 110
    assert peak < 4 * 90 * 110  # of one channel, whose values as int64 are eight times that


def test_plain_values_of_a_report_share_its_lists(root):
    report = audit(folder(root), P8, seconds=None)
    values = report.to_dict()
    assert json.loads(json.dumps(values)) == json.loads(json.dumps(asdict(report) | {"complete": True}))
    assert values["duplicates"] is report.duplicates  # of 100,000 names a copy takes seconds
