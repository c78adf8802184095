"""Sources of weights as bundles: which are foreign, models of the hub, and what cannot predict."""

import shutil
from pathlib import Path

import pytest
import torch
import transformers as hf

import vit
from tests.bundle.conftest import CLASSES, PREPROCESSING, tiny
from tests.inference.tiny_models import SIZES, save_classifier, save_image_to_text, save_masked, save_translator
from vit.bundle import Calibration, load_bundle, save_bundle, save_ensemble
from vit.exchange import SourceError
from vit.exchange.convert import convert
from vit.exchange.imagenet_classes import imagenet_synsets
from vit.exchange.opening import is_foreign, open_foreign, open_model
from vit.exchange.options import Hints
from vit.models import create_model
from vit.models.masked import Bert, MaskedTextConfig


def save_calibrated(folder):
    record = Calibration(9, 2.0, (0.5, 0.25), (0.125, 0.0625))
    return save_bundle(folder, tiny(), CLASSES, PREPROCESSING, {"val/loss": 0.5}, {"data": ["data=digits"]},
                       calibration=record)


def save_two(folder):
    return save_ensemble(folder, [save_calibrated(folder.with_name("member"))] * 2)


@pytest.mark.parametrize("save", [save_calibrated, save_two, save_classifier, save_translator, save_image_to_text,
                                  save_masked])
def test_a_model_of_the_hub_is_the_bundle_that_was_pushed(tmp_path, monkeypatch, save):
    """Ensembles and models of texts were refused, and the others had neither metrics nor calibrated copies."""
    saved = save(tmp_path / "model")
    fetched = []
    monkeypatch.setattr("vit.exchange.hub.fetch", lambda name: fetched.append(name) or saved)
    for source in ("hub:me/pets", saved):
        here, found = load_bundle(saved), vit.load(source).bundle
        for name in ("classes", "preprocessing", "metrics", "extra", "record", "calibration", "thresholds"):
            assert getattr(found, name) == getattr(here, name), name
        assert found.tokenizers.keys() == here.tokenizers.keys()
        assert all(torch.equal(each, here.model.state_dict()[name]) for name, each in found.model.state_dict().items())
    convert("hub:me/pets", tmp_path / "copy")
    assert load_bundle(tmp_path / "copy").record == here.record
    assert fetched == ["hub:me/pets"] * 2 and str(vit.load("hub:me/pets").bundle.path) == "hub:me/pets"


def test_a_hint_that_contradicts_a_model_of_the_hub_is_an_error(tmp_path, monkeypatch):
    saved = save_calibrated(tmp_path / "model")
    monkeypatch.setattr("vit.exchange.hub.fetch", lambda name: saved)
    heads = load_bundle(saved).model.config.num_heads
    assert vit.load("hub:me/pets", num_heads=heads).classes == CLASSES
    with pytest.raises(SourceError, match=f"hub:me/pets: num_heads=1 was given, but the saved model has {heads}"):
        vit.load("hub:me/pets", num_heads=1)


@pytest.mark.parametrize("save", [save_calibrated, save_two, save_classifier, save_translator, save_image_to_text,
                                  save_masked])
def test_a_hint_that_contradicts_a_bundle_is_an_error(tmp_path, save):
    """It was ignored."""
    bundle = save(tmp_path / "run" / "model")
    config = load_bundle(bundle).model.config.to_dict()
    config = config.get("member", config)
    for source in (bundle, bundle.parent, bundle / "config.json"):
        assert vit.load(source, num_heads=config["num_heads"], activation=config["activation"])
        for hint in ({"num_heads": 7}, {"activation": "gelu_tanh"}):
            (key, value), = hint.items()
            text = f"{source}: {key}={value} was given, but the saved model has {config[key]}; leave it out"
            with pytest.raises(SourceError) as error:
                vit.load(source, **hint)
            assert str(error.value) == text
            with pytest.raises(SourceError, match="but the saved model has"):
                open_model(source, Hints(**hint))
    with pytest.raises(SourceError, match="activation=tanh is unknown"):
        vit.load(bundle, activation="tanh")


def test_a_hint_about_a_network_of_timm_gives_a_warning(tmp_path):
    """It was ignored."""
    model = create_model("timm:cait_xxs24_224", num_classes=2)
    source = save_bundle(tmp_path / "model", model, ["a", "b"], PREPROCESSING)
    for each in (source, model):
        with pytest.warns(UserWarning, match="num_heads=3 has no effect on a model of kind timm; leave it out"):
            open_model(each, Hints(num_heads=3))


def test_what_is_neither_a_bundle_nor_a_run_folder_is_foreign(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    bundle = save_calibrated(tmp_path / "bundle")
    run = shutil.copytree(bundle, tmp_path / "run" / "model").parent
    shutil.copytree(bundle, tmp_path / "timm" / "mine")
    shutil.copy(bundle / "model.safetensors", run / "model.safetensors")
    for name in ("theirs", "bare", "empty"):
        (tmp_path / name).mkdir()
    (tmp_path / "theirs" / "config.json").write_text("{}")
    for name in ("bare/model.safetensors", "theirs/model.safetensors", "weights.pth"):
        (tmp_path / name).touch()
    own = [bundle, str(bundle / "config.json"), bundle / "model.safetensors", run, "timm/mine", "empty", "no/such"]
    foreign = ["timm:vit_tiny", "timm/vit_tiny", "hub:me/pets", tiny(), {}, "weights.pth", "bare", "theirs",
               Path("theirs/config.json"), "theirs/model.safetensors"]
    assert [is_foreign(source) for source in own] == [False] * len(own)
    assert [is_foreign(source) for source in foreign] == [True] * len(foreign)


@pytest.mark.parametrize(("build", "message"), [
    (lambda: Bert(MaskedTextConfig(**SIZES)), "this is a model of kind masked_text: it needs the tokenizers"),
    (lambda: create_model("mae_tiny", image_size=32, dim=32, depth=1, num_heads=2, decoder_depth=1, decoder_dim=32,
                          decoder_num_heads=2),
     r"this is a pre-trained model \(mae\), which makes no predictions; train it for a task with init_from=FILE \("),
    (lambda: hf.BertModel(hf.BertConfig(vocab_size=50, hidden_size=16, num_hidden_layers=1, num_attention_heads=2,
                                        intermediate_size=32)),
     "this is a model of kind [a-z_]+: it needs a tokenizer, which the weights do not include"),
    (lambda: tiny(num_classes=0), "the model has no classes to predict"),
    (lambda: hf.CLIPVisionModelWithProjection(hf.CLIPVisionConfig(
        hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2, image_size=32, patch_size=8)),
     "the model has no classes to predict"),
])
def test_models_that_need_more_than_weights_to_predict_are_refused(build, message):
    model = build()
    with pytest.raises(SourceError, match=message):
        open_foreign(model)
    with pytest.raises(SourceError, match=message):
        vit.load(model)


@pytest.mark.filterwarnings("ignore:.*does not state its preprocessing")
def test_features_need_neither_a_head_nor_class_names(recwarn):
    found = open_model(tiny(), features_only=True)
    assert found.classes == [] and found.preprocessing.size == (32, 48)
    assert open_model(tiny(num_classes=0), features_only=True).classes == []
    assert not any("does not name its" in str(each.message) for each in recwarn)
    with pytest.warns(UserWarning, match="does not name its 3 classes; numbers are used as names"):
        assert open_model(tiny()).classes == ["0", "1", "2"]


@pytest.mark.parametrize(("classes", "first"), [(1000, "n01440764"), (21841, "n00004475"), (10, None)])
def test_the_classes_of_imagenet_are_known_by_their_number(classes, first):
    names = imagenet_synsets(classes)
    assert (names[0], len(names)) == (first, classes) if first else names == []
