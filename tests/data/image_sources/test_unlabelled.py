"""Unlabelled images, and the selection of masked patches."""

import numpy as np
import pytest
import torch
from PIL import Image

from tests.data.shares import near
from vit.counters import uniform
from vit.data import DataError, pictures
from vit.data.images.masked_patches import patch_noise
from vit.data.images.preprocessing import Preprocessing
from vit.data.quality.audit import audit


def write(root, names):
    for number, name in enumerate(names):
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.full((6, 5, 3), number, np.uint8)).save(path)
    return root


def test_all_images_below_a_folder_are_split(tmp_path):
    root = write(tmp_path / "photos", [f"{'a' if i % 2 else 'b/c'}/{i:02}.png" for i in range(20)])
    (root / "notes.txt").write_text("no image")
    source = pictures(root, (0.7, 0.1, 0.2))
    assert near(source.splits, {"train": 14, "val": 2, "test": 4})
    names = [name for split in source.splits.values() for name in split.names]
    assert sorted(names) == sorted({str(p.relative_to(root)) for p in root.rglob("*.png")})
    assert source.classes == [] and source.left_out == [("notes.txt", "not an image (.txt)")]
    assert source.split_lists()["val"] == [(name, "") for name in source.splits["val"].names]
    assert [list(split.names) for split in pictures(root, (0.7, 0.1, 0.2)).splits.values()] == [
        list(split.names) for split in source.splits.values()
    ]
    report = audit(source, Preprocessing(8), None)
    assert report.total == 20 and report.complete and not report.unreadable and "0 classes" in report.text()


def test_split_folders(tmp_path):
    root = write(tmp_path / "photos", [*(f"train/{i}.png" for i in range(10)), "test/x/1.png", "other/2.png"])
    source = pictures(root, (0.5, 0.2, 0.3))
    assert near(source.splits, {"train": 7, "val": 3, "test": 1})
    assert list(source.splits["test"].names) == ["test/x/1.png"]
    (root / "notes.txt").write_text("no image")
    left_out = [(name, "outside the split folders") for name in ("other/2.png", "notes.txt")]
    assert pictures(root, (0.5, 0.2, 0.3)).left_out == left_out


def test_missing_and_empty_folders(tmp_path):
    with pytest.raises(FileNotFoundError, match="does not exist; expected a folder of images"):
        pictures(tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="empty: there are 0 training images; add files with .*jpg"):
        pictures(tmp_path / "empty")


def test_masked_patches_depend_only_on_sample_and_epoch():
    index = torch.tensor([3, 900, 3, 7])
    noise = patch_noise(5, torch.tensor([0, 0, 1, 2]), index, 16)
    assert noise.shape == (4, 16) and noise.min() >= 0 and noise.max() < 1
    expected = uniform(5, torch.tensor([[0], [0], [1], [2]]), index[:, None], torch.arange(2000, 2016))
    assert torch.equal(noise, expected)  # the slots after those of augmentations and crops
    for row, epoch in ((0, 0), (1, 0), (2, 1), (3, 2)):
        assert torch.equal(patch_noise(5, epoch, index[row : row + 1], 16)[0], noise[row])
    assert not torch.equal(noise[0], noise[2]) and not torch.equal(patch_noise(6, 0, index, 16)[0], noise[0])
    chosen = patch_noise(0, 0, torch.arange(4000), 8).argsort(1)[:, :2]  # each patch is visible equally often
    counts = torch.bincount(chosen.flatten(), minlength=8)
    assert (counts - 1000).abs().max() < 5 * (4000 * 0.25 * 0.75) ** 0.5
