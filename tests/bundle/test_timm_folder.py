"""Bundles in timm and transformers: the same outputs, class names and pixels."""

import json
import warnings

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

import vit
from tests.bundle.conftest import CLASSES, PREPROCESSING, images, tiny
from vit.bundle import load_bundle, save_bundle
from vit.data import PackedPreprocessing
from vit.exchange.convert import convert


def test_timm_loads_the_folder(folder, model):
    import timm

    theirs = timm.create_model(f"local-dir:{folder}", pretrained=True).eval()
    torch.testing.assert_close(theirs(images()), model(images()), rtol=1e-5, atol=1e-5)
    assert list(theirs.pretrained_cfg["label_names"]) == CLASSES
    other = timm.create_model(f"local-dir:{folder}", pretrained=True, num_classes=7)
    assert torch.equal(other.blocks[1].mlp.fc1.weight, model.encoder.blocks[1].mlp.fc1.weight)


@pytest.mark.parametrize("options", [
    {"pool": "mean", "class_token": False, "final_norm": "pooled"},
    {"registers": 2, "layer_scale": 0.1, "prefix_positions": False},
    {"positions": "sincos", "qk_norm": True},
    {"pool": "attention"},
    {"mlp": "swiglu", "norm": "rms"},
    {"in_chans": 1},
    {"embed_norm": True, "patch_bias": False, "norm_eps": 1e-5, "activation": "quick_gelu"},
    {"positions": "learned_rotary", "mlp": "swiglu", "activation": "silu", "mlp_norm": True, "key_bias": False},
])
def test_timm_loads_other_architectures(tmp_path, options):
    import timm

    model = tiny(**options)
    channels = options.get("in_chans", 3)
    grey = {"mode": "L", "mean": (0.5,), "std": (0.5,)} if channels == 1 else {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        folder = save_bundle(tmp_path / "model", model, CLASSES, PREPROCESSING.replace(**grey))
    theirs = timm.create_model(f"local-dir:{folder}", pretrained=True).eval()
    torch.testing.assert_close(theirs(images()[:, :channels]), model(images()[:, :channels]), rtol=1e-5, atol=1e-5)
    assert torch.equal(load_bundle(folder).model(images()[:, :channels]), model(images()[:, :channels]))


@pytest.mark.parametrize("class_token", [True, False])
def test_a_sum_of_tokens_stays_in_our_format_and_no_export_replaces_it(tmp_path, class_token):
    model = tiny(pool="sum", class_token=class_token)
    with pytest.warns(UserWarning, match="saved under vit's own names.*no pooling by the sum of the tokens"):
        folder = save_bundle(tmp_path / "model", model, CLASSES, PREPROCESSING)
    assert torch.equal(load_bundle(folder).model(images()), model(images()))
    for target, reason in (("timm", "no pooling by the sum"), ("transformers", "this model has pool=sum")):
        with pytest.raises(ValueError, match=reason):
            convert(folder, tmp_path / target, target)


@pytest.mark.parametrize("kind", ["vit", "timm"])
def test_transformers_loads_the_folder_as_model_and_pipeline(tmp_path, kind):
    from transformers import AutoModelForImageClassification, pipeline

    model = tiny() if kind == "vit" else vit.create_model("timm:test_resnet", num_classes=3, image_size=(32, 48)).eval()
    folder = save_bundle(tmp_path / "model", model, CLASSES, PREPROCESSING)
    theirs = AutoModelForImageClassification.from_pretrained(folder).eval()
    torch.testing.assert_close(theirs(images()).logits, model(images()), rtol=1e-5, atol=1e-5)
    assert theirs.config.id2label == dict(enumerate(CLASSES))
    picture = Image.fromarray(np.random.default_rng(0).integers(0, 255, (40, 60, 3), np.uint8))
    predictions = pipeline("image-classification", model=str(folder))(picture)
    ours = vit.load(folder).predict(picture, top_k=3)[0]
    assert [prediction["label"] for prediction in predictions] == list(ours.names)
    np.testing.assert_allclose([prediction["score"] for prediction in predictions], ours.probabilities, atol=2e-3)


@pytest.mark.parametrize("dist_token", [False, True])
def test_timm_replaces_all_heads_for_another_number_of_classes(tmp_path, dist_token):
    import timm

    model = tiny(dist_token=dist_token)
    folder = save_bundle(tmp_path / "model", model, CLASSES, PREPROCESSING)
    theirs = timm.create_model(f"local-dir:{folder}", pretrained=True, num_classes=7)
    assert theirs(images()).shape == (2, 7) and torch.equal(theirs.cls_token, model.embed.cls_token)
    assert theirs.pretrained_cfg["classifier"] == (["head", "head_dist"] if dist_token else "head")


def photo():
    """A picture with smooth and sharp parts, larger than the model's size, neither square nor aligned."""
    y, x = np.mgrid[0:201, 0:317]
    waves = np.stack([np.sin(x / 17 + y / 31), np.cos(y / 9), np.sin((x - y) / 23)], axis=2)
    picture = (waves * 110 + 128).astype(np.uint8)
    picture[60:90, 100:180] = (250, 20, 30)
    return Image.fromarray(picture)


def colour(mean):
    return tuple(round(255 * value) for value in mean)


@pytest.mark.parametrize("changes", [
    {"resize": "squash"},
    {"resize": "squash", "crop_pct": 0.875, "interpolation": "bilinear"},
    {"resize": "shorter", "size": (32, 32)},
    {"resize": "shorter", "size": (48, 48), "crop_pct": 0.9},
    {"resize": "shorter"},
    {"resize": "pad", "background": colour(PREPROCESSING.mean)},
])
def test_timms_transform_gives_the_same_pixels(changes):
    from timm.data import create_transform, resolve_data_config

    preprocessing = PREPROCESSING.replace(**changes)
    model = vit.create_model("vit_tiny", image_size=preprocessing.size, patch_size=8, num_classes=3, depth=1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        config = timm_config(model, preprocessing)
    theirs = create_transform(**resolve_data_config(pretrained_cfg=config["pretrained_cfg"]))(photo())
    ours = preprocessing.normalize(preprocessing.image(photo())[None])[0]
    assert theirs.shape == ours.shape
    apart = (theirs - ours).abs() * torch.tensor(preprocessing.std)[:, None, None] * 255  # grey levels
    assert apart.mean() < 1.0


def test_images_of_the_models_size_that_are_not_resized_are_the_same_in_timm():
    from timm.data import create_transform, resolve_data_config

    preprocessing = PREPROCESSING.replace(resize="none")
    config, picture = timm_config(tiny(), preprocessing), photo().resize((48, 32))
    theirs = create_transform(**resolve_data_config(pretrained_cfg=config["pretrained_cfg"]))(picture)
    torch.testing.assert_close(theirs, preprocessing.normalize(preprocessing.image(picture)[None])[0])


def timm_config(model, preprocessing):
    from vit.bundle.timm_folder import timm_folder

    return json.loads(json.dumps(timm_folder(model, CLASSES, preprocessing)))


@pytest.mark.parametrize(("changes", "reason"), [
    ({"mode": "L", "mean": (0.5,), "std": (0.2,)}, "RGB"),
    ({"resize": "pad", "background": (255, 255, 255)}, "background"),
    ({"range": (0, 4095)}, "bits"),
    (None, "they resize every image to one size, this one keeps its aspect ratio"),
])
def test_a_warning_names_what_timm_does_not_support(changes, reason):
    if changes is None:
        preprocessing = PackedPreprocessing.of(PREPROCESSING, (8, 8))
    else:
        preprocessing = PREPROCESSING.replace(**changes)
    model = vit.create_model("vit_tiny", image_size=(32, 48), patch_size=8, num_classes=3, depth=1,
                             in_chans=preprocessing.channels)
    with pytest.warns(UserWarning, match=reason) as caught:
        timm_config(model, preprocessing)
    assert len(caught) == 1


@pytest.mark.parametrize("name", ["timm:test_resnet", "timm:test_vit"])  # of any input size, and of a fixed one
def test_timm_models_are_timm_folders_too(tmp_path, name):
    import timm

    torch.manual_seed(0)
    model = vit.create_model(name, num_classes=3, image_size=(32, 48)).eval()
    folder = save_bundle(tmp_path / "model", model, CLASSES, PREPROCESSING)
    theirs = timm.create_model(f"local-dir:{folder}", pretrained=True).eval()
    assert torch.equal(theirs(images()), model(images()))
    assert torch.equal(load_bundle(folder).model(images()), model(images()))
    published = timm.create_model(name.removeprefix("timm:")).pretrained_cfg
    for key in ("fixed_input_size", "first_conv", "classifier"):
        assert theirs.pretrained_cfg[key] == published[key], key
    assert theirs.pretrained_cfg["fixed_input_size"] == ("vit" in name)


def test_a_model_that_timm_does_not_support_keeps_vits_names(tmp_path):
    model = tiny(positions="rotary", norm="rms")
    with pytest.warns(UserWarning, match="timm"):
        folder = save_bundle(tmp_path / "model", model, CLASSES, PREPROCESSING)
    assert set(load_file(folder / "model.safetensors")) == set(model.state_dict())
    assert torch.equal(load_bundle(folder).model(images()), model(images()))
    assert "pretrained_cfg" not in json.loads((folder / "config.json").read_text())
