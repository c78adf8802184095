"""12-bit values in 16-bit TIFFs have the same mapping in training and prediction."""

import json

import numpy as np
import pytest
import yaml

import vit
from tests.data.decoding.test_bit_depth import arrays, expected, noise, tiff, write_twelve_bits
from tests.run.conftest import QUICK, SMALL
from vit.data import DataError, Source
from vit.run.config.composing import compose, resolve
from vit.run.parts.data_source import build_source
from vit.run.parts.preprocessing import build_preprocessing
from vit.run.resume import read_overrides

OVERRIDES = ["data=folder", "trainer.accelerator=cpu", *SMALL, *QUICK]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    root = write_twelve_bits(tmp_path_factory.mktemp("deep") / "photos")
    return root, vit.train([*OVERRIDES, f"data.root={root}", f"run_dir={root.parent / 'run'}"])


def test_the_range_of_the_training_images_is_in_the_model_and_named(trained):
    root, run = trained
    record = json.loads((run.path / "model" / "config.json").read_text())["vit"]
    assert record["preprocessing"]["range"] == [1500, 2800]
    assert yaml.safe_load((run.path / "config.yaml").read_text())["data"]["preprocessing"]["range"] == [1500, 2800]
    assert "1500..2800 is mapped to 0..255 (data.preprocessing.range=auto" in (run.path / "log.txt").read_text()
    assert json.loads((run.path / "audit.json").read_text())["range"] == [1500, 2800]


def test_prediction_uses_the_range_of_training(trained):
    root, run = trained
    predictor = vit.load(run.path)
    path = sorted(root.rglob("*.tif"))[-1]
    values = noise(1900, 2800, np.uint16, (16, 16), seed=9)
    eight_bits = np.repeat(expected(values, 1500, 2800)[..., None], 3, axis=2)
    (by_file,), (by_array,) = predictor.predict([path]), predictor.predict([eight_bits])
    assert path.read_bytes() == tiff(values) and by_file.probability == by_array.probability


def test_a_run_of_a_version_without_ranges_is_resumed_with_the_full_one(trained):
    root, run = trained
    config = yaml.safe_load((run.path / "config.yaml").read_text())
    del config["data"]["preprocessing"]["range"]
    assert build_preprocessing(config["data"], build_source(config["data"]), None).range == "full"


@pytest.mark.parametrize(("stated", "span"), [("full", "full"), ("[1000,3000]", (1000, 3000))])
def test_the_range_can_be_chosen(trained, stated, span):
    overrides = [*OVERRIDES, f"data.root={trained[0]}", f"data.preprocessing.range={stated}"]
    data = read_overrides(resolve(compose(overrides)), overrides).config["data"]
    assert build_preprocessing(data, build_source(data), None).range == span


@pytest.mark.parametrize("stated", [{"range": "full"}, {}])  # {}: a run of a version without ranges
def test_a_stated_full_range_of_wide_integers(stated):
    data = {"image_size": 8, "preprocessing": stated}
    for dtype, high, span in ((np.int32, 65535, (0, 65535)), (np.uint16, 65535, "full"), (np.uint16, 255, "full")):
        source = Source("arrays", ["a", "b"], {"train": arrays(high, dtype)[1]})
        assert build_preprocessing(data, source, None).range == span
    with pytest.raises(DataError, match="int32 arrays with values 0..255"):
        build_preprocessing(data, Source("arrays", ["a", "b"], {"train": arrays(255, np.int32)[1]}), None)


def test_training_and_prediction_agree_about_wide_integers(tmp_path):
    values, split = arrays(255, np.int64)
    np.savez(tmp_path / "a.npz", images=values, labels=split.labels)
    run = vit.train(["data=table", f"data.path={tmp_path / 'a.npz'}", "data.image_size=8", "data.patch_size=4",
                     "trainer.accelerator=cpu", *SMALL[2:], *QUICK, f"run_dir={tmp_path / 'run'}"])
    assert "(int64 arrays); 0..255 is mapped to 0..255" in (run.path / "log.txt").read_text()
    predictor = vit.load(run.path)
    found = [predictor.predict(values.astype(dtype)) for dtype in (np.int64, np.int32, np.uint8, np.float32)]
    assert all([a.probabilities for a in each] == [a.probabilities for a in found[0]] for each in found)
