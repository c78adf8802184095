"""Runs with other attention, layers between tokens and positions: training, resuming, prediction, conversion."""

import json

import pytest

import vit
from tests.run.conftest import table, write_photos
from tests.run.test_resume import assert_same, stopped_and_resumed
from vit.bundle import load_bundle
from vit.cli import main
from vit.models import EncoderDecoderConfig, MaskedTextConfig, TextClassifierConfig
from vit.nn import attention_maps
from vit.run.config.composing import compose, resolve
from vit.run.parts.networks import text_model

FAST = ["precision=32-true", "logger=csv", "report=false", "trainer.accelerator=cpu", "model.dim=16",
        "model.num_heads=2", "model.depth=1"]
PHOTOS = ["data=folder", "data.image_size=16", "data.patch_size=4", "model=micro", "recipe.batch_size=8",
          "data.audit_seconds=1", "recipe.epochs=2", *FAST]
SPELL = ["data=spelled_numbers", "data.limit=1000", "data.train=200", "data.val=20", "data.test=24", "recipe.epochs=1",
         "recipe.batch_size=32", "model.decoder_depth=1", *FAST]
LOCAL = ["model.attention=local", "model.window=2", "model.global_tokens=1"]
IMAGES = {
    "local": [*LOCAL, "model.class_token=true", "model.pool=class", "model.dilation=2"],
    "gru": ["model.mixer=gru", "model.pool=sum"],
    "batch norm": ["model.norm=batch", "model.attention=bilinear"],
}
TEXTS = {
    "lstm": ["model.mixer=lstm", "model.positions=none"],
    "relative, local": ["model.positions=relative", *LOCAL],
    "fnet, conv1d": ["model.mixer=fnet", "model.decoder_mixer=conv1d", "model.positions=sincos"],
    "noam": ["recipe.schedule.name=noam", "recipe.schedule.warmup=4", "model.heads=full", "model.attention=additive"],
}


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    return write_photos(tmp_path_factory.mktemp("images") / "photos", {"cat": 16, "dog": 14, "emu": 12})


@pytest.mark.parametrize("name", IMAGES)
@pytest.mark.filterwarnings("ignore:saved under vit's own names")
def test_a_run_on_images_trains_predicts_and_keeps_its_options(name, small, tmp_path, capsys) -> None:
    run = vit.train([*PHOTOS, f"data.root={small}", *IMAGES[name], f"run_dir={tmp_path / 'run'}"])
    predictor = vit.load(run.path)
    for override in IMAGES[name]:
        key, _, value = override.removeprefix("model.").partition("=")
        assert str(getattr(predictor.model.config, key)).lower() == value
    assert next(iter(predictor.predict(small))).label in ("cat", "dog", "emu")
    assert main(["convert", str(run.path), str(tmp_path / "timm"), "--to", "timm"]) != 0
    part = {"local": "attention=", "gru": "mixer=", "batch norm": "bilinear"}[name]
    assert part in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize("name", TEXTS)
def test_a_run_on_translations_trains_and_generates(name, tmp_path, capfd) -> None:
    run = vit.train([*SPELL, *TEXTS[name], f"run_dir={tmp_path / 'run'}"])
    assert isinstance(next(iter(vit.load(run.path).predict(["12"]))).text, str)
    assert json.loads((run.path / "metrics.json").read_text())["test/loss"] > 0
    config = load_bundle(run.path).model.config
    assert config.scale_embed is (config.positions == "sincos")
    with attention_maps(load_bundle(run.path).model) as maps:
        assert any("cross_attn" in layer for layer in maps)


@pytest.mark.filterwarnings("ignore:saved under vit's own names")
def test_a_stopped_run_with_a_recurrent_layer_ends_with_the_same_bits(small, tmp_path, monkeypatch) -> None:
    overrides = [*PHOTOS, f"data.root={small}", "model.mixer=lstm", "model.norm=batch", "recipe.epochs=3"]
    whole = vit.train([*overrides, f"run_dir={tmp_path / 'whole'}"])
    resumed = stopped_and_resumed(overrides, tmp_path / "stopped", monkeypatch, batches=7)
    assert_same(whole.path, resumed.path)


@pytest.mark.parametrize(("overrides", "scale"), [
    (["data=text_table"], 1.0),
    (["data=text_table", "model.positions=sincos"], 4.0),
    (["data=text_table", "model.positions=sincos", "model.scale_embed=false"], 1.0),
    (["data=spelled_numbers"], 1.0),
    (["data=spelled_numbers", "model.positions=sincos"], 4.0),
    (["data=spelled_numbers", "model=transformer_2017"], 4.0),
    (["data=corpus", "model.positions=sincos"], 4.0),
])
def test_embeddings_are_scaled_with_sincos_positions_unless_the_config_says_otherwise(overrides, scale) -> None:
    config = resolve(compose([*overrides, *FAST]))
    kinds = {"encoder_decoder": EncoderDecoderConfig, "text_classifier": TextClassifierConfig,
             "masked_text": MaskedTextConfig}
    cls = kinds[config["model"]["name"]]
    fits = {"vocab_size": 30, **({"num_classes": 2} if cls is TextClassifierConfig else {})}
    assert text_model({**config, "overrides": []}, fits, cls, None).embed.scale == scale


@pytest.mark.slow
@pytest.mark.parametrize("name", ["scores", "mixers", "positions"])
@pytest.mark.filterwarnings("ignore:saved under vit's own names")
def test_every_kind_of_the_comparisons_trains(name, tmp_path) -> None:
    run = vit.train([f"experiment={name}", "debug=true", "logger=csv", f"run_dir={tmp_path / 'runs'}"])
    names = [row["name"] for row in table(run.path / "comparison.csv")]
    assert names == list(compose([f"experiment={name}"])["compare"])
    assert (run.path / "comparison.png").exists()
