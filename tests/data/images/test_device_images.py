"""A data set on the device of the model: its batches equal those of the same data set on the host."""

import numpy as np
import pytest
import torch
from PIL import Image

import vit
from tests.run.test_resume import DIGITS, assert_same, stopped_and_resumed
from vit.data import DataError, DeviceImages, EvalBatches, ImageDataset, Preprocessing, RandomCrop, TrainBatches, folder
from vit.run.config.composing import ConfigError

P = Preprocessing((6, 5))


@pytest.fixture
def split(tmp_path):
    """12 files in two classes, one of which is not an image."""
    random = np.random.default_rng(0)
    for i in range(12):
        file = tmp_path / "ab"[i % 2] / f"{i}.png"
        file.parent.mkdir(exist_ok=True)
        Image.fromarray(random.integers(0, 256, (9, 8, 3), dtype=np.uint8)).save(file)
    (tmp_path / "a" / "4.png").write_bytes(b"no image")
    return folder(tmp_path, fractions=(1.0, 0.0, 0.0)).splits["train"]


@pytest.mark.parametrize("batches", [TrainBatches, EvalBatches])
def test_batches_equal_those_of_the_host(split, batches):
    device = batches(DeviceImages(split, P, cache_bytes=10**6, on_bad_sample="skip"), 4)
    host = batches(ImageDataset(split, P, on_bad_sample="skip"), 4)
    for _ in range(2):
        for found, expected in zip(device, host, strict=True):
            assert "image" not in found
            found = found["images"].add_images(found)
            assert found.keys() == expected.keys()
            assert all(torch.equal(found[key], expected[key]) for key in found)
    assert device.bad == host.bad and len(device.bad) == 1


def test_the_images_move_to_the_device_of_the_batch(split):
    data = DeviceImages(split, P, cache_bytes=10**6, on_bad_sample="skip")
    batch = data.__getitems__([(0, 1), (0, 2)])
    found = data.add_images({key: value.to("meta") if key == "index" else value for key, value in batch.items()})
    assert found["image"].device.type == "meta" and found["image"].shape == (2, 3, 6, 5)


@pytest.mark.parametrize("rows", [(1, 2), range(12)])
def test_the_host_selects_no_images(split, rows, monkeypatch):
    """Selecting them with indices on the host is an error once they are on a GPU."""
    data = DeviceImages(split, P, cache_bytes=10**6, on_bad_sample="skip")
    monkeypatch.setattr(torch.Tensor, "index_select", lambda *_: pytest.fail("selected on the host"))
    assert len(data.__getitems__([(0, row) for row in rows])["index"]) == len(rows) - (len(rows) == 12)


def test_what_cannot_be_on_the_device(split):
    with pytest.raises(DataError, match="recipe.crop cuts random boxes .* use recipe.crop=null, or data.cache=memory"):
        DeviceImages(split, P, RandomCrop(), cache_bytes=10**6)
    with pytest.raises(DataError, match="needs 1.08e-06 GB for 12 images of 6x5 pixels, but data.cache_limit is 1e-06"):
        DeviceImages(split, P, cache_bytes=1000)


def test_a_run_has_the_same_bits(tmp_path, monkeypatch):
    short = [*DIGITS, "recipe.epochs=2"]
    host = vit.train([*short, f"run_dir={tmp_path / 'host'}"]).path
    device = tmp_path / "device"
    stopped_and_resumed([*short, "data.cache=device"], device, monkeypatch, 25)
    assert_same(device, host)


@pytest.mark.parametrize(("override", "error", "text"), [
    ("data.workers=2", ConfigError, "data.workers=2 has no effect with data.cache=device"),
    ("data.cache_limit=0.00001", DataError, "data.cache_limit is 1e-05"),
    ("recipe.crop={scale:[0.5,1],ratio:[0.9,1.1]}", ConfigError, "use recipe.crop=null"),
])
def test_errors_before_training(tmp_path, override, error, text):
    with pytest.raises(error, match=text):
        vit.train([*DIGITS, "data.cache=device", override, f"run_dir={tmp_path / 'run'}"])
    assert not (tmp_path / "run").exists()
