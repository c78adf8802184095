"""DINOv2 of transformers whose two configs state different sizes of images, as its published models do."""

import json
import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch
import transformers as hf
from PIL import Image

import vit
from tests.exchange.conftest import CLOSE, SIZE, scramble
from vit.bundle import load_bundle
from vit.exchange import import_weights
from vit.exchange.convert import convert
from vit.exchange.importing import at_stated_size
from vit.exchange.read import read_checkpoint

MODELS = {"": (hf.Dinov2ForImageClassification, hf.Dinov2Config),
          "registers": (hf.Dinov2WithRegistersForImageClassification, hf.Dinov2WithRegistersConfig)}
LARGE = {key: value for key, value in SIZE.items() if key != "intermediate_size"} | {"image_size": 112, "num_labels": 5}


def save(folder, kind: str, processor: dict):
    model, config = MODELS[kind]
    torch.manual_seed(0)
    reference = scramble(model(config(**LARGE)))
    reference.save_pretrained(folder)
    hf.BitImageProcessor(**processor).save_pretrained(folder)
    return reference


@pytest.fixture
def picture():
    y, x = np.mgrid[:90, :120]
    pixels = np.stack([127 + 100 * np.sin(x / 9), 127 + 100 * np.cos(y / 7), 2 * x], axis=-1)
    return Image.fromarray(pixels.clip(0, 255).astype(np.uint8))


@pytest.mark.parametrize("kind", MODELS)
def test_outputs_for_an_image_are_those_of_transformers(kind, picture, tmp_path) -> None:
    reference = save(tmp_path / "theirs", kind, {"size": {"shortest_edge": 48}, "crop_size": 40})
    with pytest.warns(UserWarning, match="positions are resampled from 14x14 to 5x5 patches, as transformers does, "
                                         "because its config.json states images of 112x112 pixels and its "
                                         "preprocessor_config.json 40x40"):
        predictor = vit.load(tmp_path / "theirs", device="cpu")
    assert predictor.preprocessing.size == (40, 40)
    theirs = hf.BitImageProcessor.from_pretrained(tmp_path / "theirs")(picture, return_tensors="pt").pixel_values
    assert theirs.shape == (1, 3, 40, 40)
    with torch.no_grad():
        expected = reference(theirs).logits
        torch.testing.assert_close(predictor.model(theirs), expected, **CLOSE)
    found = predictor.predict([picture], top_k=5)[0]
    probabilities = dict(zip(found.names, found.probabilities, strict=True))
    assert [probabilities[f"LABEL_{i}"] for i in range(5)] == pytest.approx(expected.softmax(-1)[0].tolist(), abs=0.01)
    with pytest.warns(UserWarning, match="positions are resampled"):
        report = convert(tmp_path / "theirs", tmp_path / "ours")
    assert any("positions are resampled from 14x14 to 5x5" in note for note in report.notes)
    with torch.no_grad():
        torch.testing.assert_close(load_bundle(tmp_path / "ours").model(theirs), expected, **CLOSE)


def test_sizes_that_are_not_whole_patches_or_not_stated_change_nothing(tmp_path) -> None:
    save(tmp_path, "", {"size": {"shortest_edge": 48}, "crop_size": 40})
    found = read_checkpoint(tmp_path)
    prepared, config, table = found.stated_preprocessing, found.source_config, "dinov2.embeddings.position_embeddings"
    others = [{"stated_preprocessing": each} for each in (
        None, prepared.replace(size=(44, 40)), prepared.replace(size=(40, 44)), prepared.replace(size=(4, 40)))]
    others += [{"source_config": {key: value for key, value in config.items() if key != left_out}}
               for left_out in ("model_type", "image_size", "patch_size")]
    others += [{"state": {key: value for key, value in found.state.items() if key != table}},
               {"state": {**found.state, table: found.state[table][:, :-1]}}]
    for changes in others:
        checkpoint = replace(found, **changes)
        assert at_stated_size(checkpoint) is checkpoint
    with pytest.warns(UserWarning, match="from 14x14 to 6x5 patches, .* 112x112 pixels .* 48x40"):
        resampled = at_stated_size(replace(found, stated_preprocessing=prepared.replace(size=(48, 40))))
    assert resampled.state[table].shape == (1, 31, 32) and resampled.source_config["image_size"] == [48, 40]


def test_the_size_of_the_model_is_used_where_it_is_asked_for(tmp_path) -> None:
    save(tmp_path / "theirs", "", {"size": {"shortest_edge": 48}, "crop_size": 40})
    convert(tmp_path / "theirs", tmp_path / "ours", image_size=112)
    assert load_bundle(tmp_path / "ours").model.config.image_size == (112, 112)
    assert import_weights(tmp_path / "theirs")[0].config.image_size == (112, 112)


def test_equal_sizes_are_silent(tmp_path) -> None:
    save(tmp_path / "theirs", "", {"size": {"shortest_edge": 128}, "crop_size": 112})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert vit.load(tmp_path / "theirs", device="cpu").preprocessing.size == (112, 112)


def test_images_for_a_model_without_resampling_are_resized_to_its_size(tmp_path) -> None:
    scramble(hf.ViTForImageClassification(hf.ViTConfig(**SIZE, num_labels=5))).save_pretrained(tmp_path)
    values = {"image_processor_type": "ViTImageProcessor", "size": {"height": 40, "width": 40},
              "image_mean": [0.5] * 3, "image_std": [0.5] * 3}
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(values))
    with pytest.warns(UserWarning, match="resized to 32x32, the size of the model; its preprocessing states 40x40"):
        assert vit.load(tmp_path, device="cpu").preprocessing.size == (32, 32)
