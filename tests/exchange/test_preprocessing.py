"""The preprocessing that transformers, timm and OpenCLIP state, compared with the pixels that they compute."""

import json
import math

import pytest
import timm
import torch
import torchvision
import transformers as hf
from open_clip.transform import PreprocessCfg, image_transform_v2
from PIL import Image
from safetensors.torch import save_file

from vit.bundle.files import SourceError
from vit.data import Preprocessing
from vit.data.images.preprocessing_values import as_size
from vit.exchange.export.pixel_differences import synthetic_images
from vit.exchange.preprocessing import (
    assumed_preprocessing,
    exact_crop_pct,
    from_openclip,
    from_timm,
    from_transformers,
    normalization,
    published_preprocessing,
    to_transformers,
    with_channels,
)
from vit.exchange.read import find_preprocessing, read_checkpoint

NORMALIZED = {"image_mean": [0.48, 0.45, 0.4], "image_std": [0.26, 0.25, 0.27], "do_normalize": True}
STATED = {
    "one number is CLIP's shorter edge": {"feature_extractor_type": "CLIPFeatureExtractor", "size": 32, "crop_size": 32,
                                          "do_center_crop": True, "do_resize": True, "resample": 3},
    "one number is both edges of a ViT": {"feature_extractor_type": "ViTFeatureExtractor", "size": 32},
    "DeiT crops a square": {"feature_extractor_type": "DeiTFeatureExtractor", "size": 36, "crop_size": 32,
                            "do_center_crop": True, "resample": 3},
    "other range of pixels": {"image_processor_type": "ViTImageProcessor", "size": {"height": 32, "width": 32},
                              "rescale_factor": 1 / 127.5},
    "pixels up to 255": {"image_processor_type": "ViTImageProcessor", "size": {"height": 32, "width": 32},
                         "do_rescale": False},
    "null is a missing key": {"image_processor_type": "ViTImageProcessorFast", "size": {"height": 32, "width": 32},
                              "crop_size": None, "do_center_crop": None, "resample": 2},
    "an edge without a crop that is stated": {"image_processor_type": "ViTImageProcessor", "crop_size": 24,
                                              "size": {"height": 32, "width": 32}, "do_center_crop": False},
    "a crop of the whole image": {"image_processor_type": "DeiTImageProcessor", "size": {"height": 32, "width": 32},
                                  "do_center_crop": True, "crop_size": {"height": 32, "width": 32}},
    "DINOv2 without its own keys": {"image_processor_type": "BitImageProcessor"},
}


@pytest.mark.parametrize("case", STATED)
def test_pixels_equal_those_of_transformers(case, tmp_path):
    values = NORMALIZED | STATED[case]
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(values))
    theirs, ours = hf.AutoImageProcessor.from_pretrained(tmp_path, backend="pil"), from_transformers(values)
    scale = torch.tensor(ours.std).view(-1, 1, 1) * 255
    for image in synthetic_images((32, 32))[:16]:
        image = image.convert("RGB")
        pixels = ours.normalize(ours.image(image)[None])
        expected = theirs(image, return_tensors="pt")["pixel_values"]
        assert ((pixels - expected).abs() * scale).max() < 0.6


WITHOUT_MEAN = {
    "of ViT": ("ViTImageProcessor", {"size": {"height": 32, "width": 32}}),
    "of DeiT": ("DeiTImageProcessor", {"size": 36, "crop_size": 32}),
    "of CLIP": ("CLIPImageProcessor", {"size": {"shortest_edge": 36}, "crop_size": 32}),
    "of DINOv2": ("BitImageProcessor", {"size": {"shortest_edge": 36}, "crop_size": {"height": 32, "width": 32}}),
    "of SigLIP": ("SiglipImageProcessorFast", {"size": {"height": 32, "width": 32}}),
    "only of the deviation": ("ViTImageProcessor", {"size": 32, "image_std": [0.2, 0.3, 0.4]}),
    "that is not used": ("ViTImageProcessor", {"size": 32, "do_normalize": False}),
}


@pytest.mark.parametrize("case", WITHOUT_MEAN)
def test_a_processor_that_states_no_mean_has_that_of_its_class(case, tmp_path):
    name, values = WITHOUT_MEAN[case]
    values = {"image_processor_type": name, **values}
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(values))
    theirs, ours = hf.AutoImageProcessor.from_pretrained(tmp_path, backend="pil"), find_preprocessing({}, values)
    image = synthetic_images((32, 32))[0].convert("RGB")
    expected = theirs(image, return_tensors="pt")["pixel_values"]
    assert (ours.normalize(ours.image(image)[None]) - expected).abs().max() < 0.03


@pytest.mark.parametrize("values", [
    {"image_processor_type": "MobileViTImageProcessor", "size": {"shortest_edge": 32}, "crop_size": 32},
    {"image_processor_type": "LevitImageProcessor", "size": 32, **NORMALIZED},  # resizes to 256 / 224 of the edge
    {"image_processor_type": "EfficientNetImageProcessor", "size": 32, **NORMALIZED},  # normalizes twice
    {"feature_extractor_type": "ConvNextFeatureExtractor", "size": 32, **NORMALIZED},
])
def test_an_image_processor_with_other_steps_is_an_error(values):
    with pytest.raises(SourceError, match="steps that are not supported"):
        find_preprocessing({}, values)


@pytest.mark.parametrize("also_alone", [False, True])
def test_the_image_processor_that_is_saved_with_a_tokenizer_is_read(also_alone, tmp_path):
    model = hf.CLIPVisionModelWithProjection(hf.CLIPVisionConfig(
        hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2, image_size=32, patch_size=8))
    model.save_pretrained(tmp_path)
    tokenizer = hf.CLIPTokenizer(vocab={"<|startoftext|>": 0, "<|endoftext|>": 1}, merges=[])
    own = hf.CLIPImageProcessor(size={"shortest_edge": 36}, crop_size=32, image_mean=[0.1, 0.2, 0.3], resample=2)
    if also_alone:
        hf.CLIPImageProcessor(crop_size=32).save_pretrained(tmp_path)
    hf.CLIPProcessor(image_processor=own, tokenizer=tokenizer).save_pretrained(tmp_path)
    assert hf.AutoImageProcessor.from_pretrained(tmp_path).image_mean == own.image_mean
    found = read_checkpoint(tmp_path).preprocessing
    assert (found.mean, found.interpolation, found.size) == ((0.1, 0.2, 0.3), "bilinear", (32, 32))
    assert found.crop_pct == pytest.approx(32 / 36)
    (tmp_path / "processor_config.json").write_text("{}")  # names only classes before version 5
    assert read_checkpoint(tmp_path).preprocessing.mean == tuple(hf.CLIPImageProcessor().image_mean)


def test_the_model_type_stands_for_a_processor_that_is_not_named():
    google = NORMALIZED | {"do_resize": True, "size": 224}  # as in google/vit-base-patch16-224
    assert from_transformers(google, "vit").interpolation == "bilinear"
    assert from_transformers(google, "dinov2").resize == "shorter"


@pytest.mark.parametrize(("values", "problem"), [
    ({"do_resize": False, "size": 32}, "do_resize=false"),
    ({"size": {"shortest_edge": 36}, "do_center_crop": True, "crop_size": {"height": 32, "width": 24}}, "square crop"),
    ({"size": {"shortest_edge": 28}, "do_center_crop": True, "crop_size": 32}, "square crop"),  # which is padded
    ({"size": {"height": 32, "width": 48}, "do_center_crop": True, "crop_size": 24}, "square crop"),
])
def test_rules_that_there_are_not_are_an_error(values, problem):
    with pytest.raises(SourceError, match=problem):
        from_transformers(NORMALIZED | values)


@pytest.mark.parametrize(("crop", "size"), [(224, 256), (224, 400), (1, 93), (384, 384)])
def test_the_resized_edge_is_exact(crop, size):
    assert int(crop / exact_crop_pct(crop, size)) == size


@pytest.mark.parametrize("size", [(32, 32), (48, 32), (31, 44)])
@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic", "lanczos", None])
@pytest.mark.parametrize(("crop_mode", "crop_pct"), [
    ("center", 0.8), ("squash", 0.9), ("squash", 1.0), ("border", 1.0), (None, None)])
def test_pixels_equal_those_of_timm(crop_mode, crop_pct, interpolation, size):
    cfg = {"input_size": (3, *size), "mean": (0.2, 0.4, 0.6), "std": (0.3, 0.2, 0.25), "crop_mode": crop_mode,
           "crop_pct": crop_pct, "interpolation": interpolation}
    cfg = {key: value for key, value in cfg.items() if value is not None}
    ours = from_timm(cfg)
    theirs = timm.data.create_transform(**timm.data.resolve_data_config(pretrained_cfg=cfg), is_training=False)
    assert ours.background == ((51, 102, 153) if crop_mode == "border" else (255, 255, 255))  # of transparent images
    assert ours == Preprocessing.from_dict(json.loads(json.dumps(ours.to_dict())))
    images = [image.convert("RGB") for image in synthetic_images(size)[:16]]
    for image in (*images, images[0].resize((72, 108)), images[0].resize((7, 5))):
        torch.testing.assert_close(ours.normalize(ours.image(image)[None])[0], theirs(image), rtol=0, atol=1e-5)


FLAT = {"architecture": "vit_tiny_patch16_224", "num_classes": 3, "num_features": 192, "labels": ["b", "c", "a"],
        "input_size": [3, 224, 224], "fixed_input_size": True, "crop_pct": 1.0, "interpolation": "bilinear",
        "mean": [0.1, 0.2, 0.3], "std": [0.4, 0.5, 0.6], "first_conv": "patch_embed.proj", "classifier": "head"}
NAMED = {"architecture": "vit_tiny_patch16_224", "num_classes": 3, "label_names": ["b", "c", "a"]}
TIMM_CONFIGS = {  # config.json of a timm folder
    "keys beside the architecture, as before timm 0.8": FLAT,
    "without std": NAMED | {"pretrained_cfg": {"mean": [0.1, 0.2, 0.3], "input_size": [3, 224, 224]}},
    "of the mean alone": NAMED | {"pretrained_cfg": {"mean": [0.1, 0.2, 0.3]}},
    "with the size in model_args": NAMED | {"model_args": {"img_size": 32, "in_chans": 3},
                                            "pretrained_cfg": {"crop_pct": 1.0, "fixed_input_size": True}},
}


@pytest.mark.parametrize("case", TIMM_CONFIGS)
def test_a_timm_folder_is_read_as_by_timm(case, tmp_path):
    config = TIMM_CONFIGS[case]
    (tmp_path / "config.json").write_text(json.dumps(config))
    model = timm.create_model("vit_tiny_patch16_224", num_classes=3, **config.get("model_args", {}))
    save_file(model.state_dict(), tmp_path / "model.safetensors")
    theirs = timm.create_model(f"local-dir:{tmp_path}", pretrained=True)
    transform = timm.data.create_transform(**timm.data.resolve_model_data_config(theirs))
    found = read_checkpoint(tmp_path)
    for image in synthetic_images(found.preprocessing.size)[:8]:
        pixels = found.preprocessing.normalize(found.preprocessing.image(image)[None])[0]
        assert torch.allclose(pixels, transform(image.convert("RGB")), atol=1e-5)
    assert found.class_names == theirs.pretrained_cfg["label_names"] == ["b", "c", "a"]


@pytest.mark.parametrize("size", [32, (48, 32), (31, 44)])
@pytest.mark.parametrize("resize_mode", ["shortest", "longest", "squash"])
def test_pixels_equal_those_of_openclip(resize_mode, size):
    values = {"size": size, "mean": (0.2, 0.4, 0.6), "std": (0.3, 0.2, 0.25), "interpolation": "bilinear",
              "resize_mode": resize_mode}
    ours, theirs = from_openclip(values, {}), image_transform_v2(PreprocessCfg(**values), is_train=False)
    for image in synthetic_images(as_size(size))[:16]:
        image = image.convert("RGB")
        torch.testing.assert_close(ours.normalize(ours.image(image)[None])[0], theirs(image), rtol=0, atol=1e-5)


def test_a_model_of_this_project_and_of_earlier_versions_rounds_as_torchvision():
    ours = Preprocessing((31, 44), "shorter", 0.9)
    assert "rounding" not in ours.to_dict() and ours.rounding == "torchvision"
    assert from_timm({"input_size": (3, 32, 32), "mean": (0.5,) * 3, "std": (0.5,) * 3}).rounding == "torchvision"
    with pytest.raises(ValueError, match="rounding='up' is not one of torchvision, timm, transformers"):
        ours.replace(rounding="up")


@pytest.mark.parametrize("mean", [(0.2, 0.4, 0.6), (0.4,)])
def test_a_model_of_one_channel_has_the_averages_of_three(mean):
    cfg = {"input_size": (1, 48, 32), "mean": mean, "std": mean, "crop_pct": 0.9}
    found = from_timm(cfg)
    assert (found.mode, found.size) == ("L", (48, 32))
    assert found.mean == found.std == pytest.approx((0.4,))


@pytest.mark.parametrize(("changes", "gap"), [
    ({}, ""),
    ({"crop_pct": 0.8}, ""),
    ({"resize": "squash", "size": (48, 32)}, ""),
    ({"size": (48, 32)}, "they do not crop a rectangle"),
    ({"resize": "squash", "crop_pct": 0.75}, "they do not crop to crop_pct 0.75 after squashing"),
    ({"resize": "pad"}, "they do not pad"),
    ({"resize": "none"}, "they resize every image"),
    ({"mode": "L", "mean": (0.4,), "std": (0.4,)}, "they read RGB, this model L"),
    ({"range": (0, 4095)}, "bits"),
])
def test_transformers_has_the_same_pixels_or_the_difference_is_named(changes, gap, tmp_path):
    ours = Preprocessing((32, 32), "shorter", 1.0, "bilinear", (0.2, 0.4, 0.6), (0.3, 0.2, 0.25)).replace(**changes)
    values, found = to_transformers(ours)
    assert gap in found and bool(gap) == bool(found)
    if not gap:
        assert from_transformers(values).replace(rounding="torchvision") == ours
        (tmp_path / "preprocessor_config.json").write_text(json.dumps(values))
        image = synthetic_images((96, 96))[0].resize((128, 128))
        theirs = hf.AutoImageProcessor.from_pretrained(tmp_path, backend="pil")(image, return_tensors="pt")
        torch.testing.assert_close(theirs["pixel_values"], ours.normalize(ours.image(image)[None]), rtol=0, atol=1e-5)


@pytest.mark.parametrize("crop_pct", [0.9, None])  # None is 0.875 in timm
def test_padded_images_that_timm_also_crops_are_an_error(crop_pct):
    cfg = {"input_size": (3, 32, 32), "mean": (0.5,) * 3, "std": (0.5,) * 3, "crop_mode": "border",
           **({"crop_pct": crop_pct} if crop_pct else {})}
    with pytest.raises(SourceError, match=f"crop_mode=border with crop_pct={crop_pct or 0.875}"):
        from_timm(cfg)


@pytest.mark.parametrize("source", ["timm", "OpenCLIP", "OpenCLIP, white"])
def test_the_padding_has_the_colour_of_the_library(source):
    values = {"mean": (0.2, 0.4, 0.6), "std": (0.3, 0.3, 0.3), "interpolation": "bicubic"}
    if source == "timm":
        values |= {"input_size": (3, 32, 32), "crop_mode": "border", "crop_pct": 1.0}
        ours, theirs = from_timm(values), timm.data.create_transform(**values, is_training=False)
    else:
        values |= {"size": 32, "resize_mode": "longest", **({"fill_color": 255} if "white" in source else {})}
        ours, theirs = from_openclip(values, {}), image_transform_v2(PreprocessCfg(**values), is_train=False)
    wide = Image.new("RGB", (64, 32), (90, 60, 30))
    torch.testing.assert_close(ours.normalize(ours.image(wide)[None])[0], theirs(wide), rtol=0, atol=1e-5)


@pytest.mark.parametrize("values", [{}, {"resize_mode": "squash", "interpolation": "bilinear"}, {"size": (40, 24)}])
def test_pixels_equal_those_of_openclip_for_photos(values):
    stated = {"size": 32, "mean": (0.2, 0.4, 0.6), "std": (0.3, 0.25, 0.35), **values}
    ours, theirs = from_openclip(stated, {}), image_transform_v2(PreprocessCfg(**stated), is_train=False)
    picture = synthetic_images((80, 80))[0].resize((144, 96))  # whose scaled edges and crops need no rounding
    torch.testing.assert_close(ours.normalize(ours.image(picture)[None])[0], theirs(picture), rtol=0, atol=1e-5)
    nulls = from_openclip(dict.fromkeys(("resize_mode", "interpolation", "fill_color")) | stated, {})
    model = {"vision_cfg": {"image_size": stated["size"]}}
    assert nulls == ours == from_openclip({**stated, "size": None}, model)


def test_channels_are_averaged_or_repeated():
    colours = Preprocessing(32, mean=(0.2, 0.4, 0.9), std=(0.1, 0.2, 0.6))
    grey = with_channels(colours, 1)
    assert (grey.mode, grey.mean, grey.std) == ("L", pytest.approx((0.5,)), pytest.approx((0.3,)))
    again = with_channels(grey, 3)
    assert (again.mode, again.mean, again.std) == ("RGB", grey.mean * 3, grey.std * 3)
    assert with_channels(colours, 3) == with_channels(colours, 4) == colours
    padded = from_timm({"input_size": (1, 8, 8), "mean": (0.4,), "std": (0.4,), "crop_mode": "border", "crop_pct": 1})
    assert padded.background == (102, 102, 102)


def test_rescaling_and_normalization_are_one_mean_and_deviation():
    values = {"image_mean": [0.25, 0.5], "image_std": [0.5, 0.125]}
    assert normalization(values) == normalization({**values, "rescale_factor": 1 / 255}) == ([0.25, 0.5], [0.5, 0.125])
    assert normalization({**values, "do_normalize": False}) == ([0.0, 0.0], [1.0, 1.0])
    for changes, scale in (({"do_rescale": False}, 255), ({"rescale_factor": 2 / 255}, 2)):
        mean, std = normalization({**values, **changes})
        pixel = torch.tensor([0.5, 0.75])  # in [0, 1]; the library has `scale` times as much
        expected = (pixel * scale - torch.tensor([0.25, 0.5])) / torch.tensor([0.5, 0.125])
        torch.testing.assert_close((pixel - torch.tensor(mean)) / torch.tensor(std), expected)


def test_a_model_that_states_nothing_has_the_preprocessing_of_its_format():
    clip = assumed_preprocessing("transformers CLIP", (32, 32), 3)
    assert clip == published_preprocessing("transformers CLIP", (32, 32)) and clip.crop_pct == 1.0
    other = assumed_preprocessing("no such format", (32, 48), 1)
    assert published_preprocessing("no such format", (32, 48)) is None
    assert (other.size, other.resize, other.crop_pct, other.mode) == ((32, 48), "shorter", 0.875, "L")
    assert other.mean == pytest.approx([(0.485 + 0.456 + 0.406) / 3])


@pytest.mark.parametrize("weights", ["ViT_B_16_Weights.IMAGENET1K_V1", "ViT_B_16_Weights.IMAGENET1K_SWAG_E2E_V1",
                                     "ViT_L_16_Weights.IMAGENET1K_SWAG_E2E_V1",
                                     "ViT_H_14_Weights.IMAGENET1K_SWAG_E2E_V1"])
def test_torchvision_s_models_have_the_preprocessing_of_their_size(weights):
    transform = torchvision.models.get_weight(weights).transforms()
    (crop,), (resized,) = transform.crop_size, transform.resize_size
    found = published_preprocessing("torchvision", (crop, crop))
    assert (math.floor(crop / found.crop_pct), found.interpolation) == (resized, transform.interpolation.value)
    assert (list(found.mean), list(found.std)) == (transform.mean, transform.std)
