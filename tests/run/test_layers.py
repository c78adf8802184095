"""Runs with other attention, layers between tokens and positions: training, resuming, prediction, conversion."""

from pathlib import Path

import pytest

import vit
from tests.run.conftest import table, write_photos, write_questions
from tests.run.test_resume import assert_same, stopped_and_resumed
from tests.slow_values import quick_and_slow
from vit.cli import main
from vit.models import EncoderDecoderConfig, MaskedTextConfig, TextClassifierConfig
from vit.models.checks import CHOICES, TEXT_POSITIONS
from vit.nn import attention_maps
from vit.run.config.composing import ConfigError, compose, resolve
from vit.run.parts.text_networks import text_model

FAST = ["precision=32-true", "logger=csv", "report=false", "trainer.accelerator=cpu", "model.dim=16",
        "model.num_heads=2", "model.depth=1"]
RUN = [*FAST, "recipe.epochs=2", "data.workers=0"]
PHOTOS = ["data=folder", "data.image_size=16", "data.patch_size=4", "model=micro", "recipe.batch_size=8",
          "data.audit_seconds=1", *RUN]
TEXTS = ["data=text_table", "recipe.batch_size=80", *RUN]
TRANSLATION = ["data=spelled_numbers", "data.limit=1000", "data.train=120", "data.val=20", "data.test=8",
               "recipe.batch_size=40", "model.decoder_depth=1", *RUN]
# runs that together have each kind of attention, heads, projection, mixer, positions, norm and block
PARTS = {
    "scaled": ["heads=full", "value_dim=5", "positions=sincos", "norm=batch"],
    "dot": ["attention=dot", "projection=none", "positions=learned", "norm=rms", "block=parallel"],
    "cosine": ["attention=cosine", "positions=rotary", "pre_norm=false"],
    "bilinear": ["attention=bilinear", "positions=relative", "block=res_post_norm"],
    "additive": ["attention=additive", "projection=sliced", "positions=none", "residual=false"],
    "local": ["attention=local", "window=2", "dilation=2", "global_tokens=1", "positions=relative"],
    "lstm": ["mixer=lstm", "positions=none", "norm=batch"],
    "gru": ["mixer=gru", "positions=sincos"],
    "conv1d": ["mixer=conv1d", "kernel=5", "positions=learned"],
    "fnet": ["mixer=fnet", "positions=learned"],
}
POOLS = {
    "images": dict(zip(PARTS, ("class", "mean", "sum", "class_mean", "attention") * 2, strict=True)),
    "texts": dict(zip(PARTS, ("class", "pooler", "mean", "sum", "attention") * 2, strict=True)),
}
NOT_IN_TIMM = {"scaled": "value_dim=5", "local": "attention=local", "lstm": "mixer=lstm"}


def overrides_of(task: str, name: str, folder: Path) -> list[str]:
    """The overrides of one run; `folder` has the data."""
    parts = PARTS[name]
    if task == "translation":
        parts = [part for part in parts if part != "block=parallel"]  # with cross-attention blocks are serial
        more = {"fnet": ["model.decoder_mixer=conv1d"], "scaled": [
            "recipe.schedule.name=noam", "recipe.schedule.warmup=4"]}.get(name, [])
        return [*TRANSLATION, *(f"model.{part}" for part in parts), *more]
    parts = [*parts, f"pool={POOLS[task][name]}", *(["class_token=true"] if task == "images" else [])]
    data = [*PHOTOS, f"data.root={folder / 'photos'}"] if task == "images" else [
        *TEXTS, f"data.path={folder / 'questions.csv'}"]
    return [*data, *(f"model.{part}" for part in parts)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    write_photos(folder / "photos", {"cat": 14, "dog": 14})
    write_questions(folder / "questions.csv")
    return folder


TASKS = ("images", "texts", "translation")
CASES = [(task, name) for task in TASKS for name in PARTS]
EACH_PART_ONCE = list(zip(TASKS * len(PARTS), PARTS, strict=False))  # in one of the tasks


@pytest.mark.parametrize(("task", "name"), quick_and_slow(
    CASES, *EACH_PART_ONCE, *(("images", name) for name in NOT_IN_TIMM)
))
@pytest.mark.filterwarnings("ignore:saved under vit's own names")
def test_every_part_trains_resumes_and_predicts(task, name, folder, tmp_path, monkeypatch, capsys):
    overrides = overrides_of(task, name, folder)
    run = stopped_and_resumed(overrides, tmp_path / "run", monkeypatch, batches=4)
    rows = table(run.path / "metrics.csv")
    assert [row["epoch"] for row in rows] == ["1", "2"] and all(float(row["train/loss"]) > 0 for row in rows)
    predictor = vit.load(run.path)
    config = predictor.model.config
    for override in overrides:
        key, _, value = override.partition("=")
        if key.startswith("model."):
            assert str(getattr(config, key.removeprefix("model."))).lower() == value, override
    if task == "translation":
        assert isinstance(predictor.predict(["12"])[0].text, str)
        assert config.scale_embed is (config.positions == "sincos")
        with attention_maps(predictor.model) as maps:
            assert any("cross_attn" in layer for layer in maps)
    else:
        inputs = [folder / "photos/cat/000.png"] if task == "images" else ["ann has 3 coins"]
        (prediction,) = predictor.predict(inputs)
        assert prediction.label in predictor.classes and 0 < prediction.probability <= 1
    if task == "images" and name in NOT_IN_TIMM:
        assert main(["convert", str(run.path), str(tmp_path / "timm"), "--to", "timm"]) != 0
        assert NOT_IN_TIMM[name] in " ".join(capsys.readouterr().err.split())


def test_the_runs_have_every_value_of_the_parts():
    """The first choice is the default."""
    keys = ("attention", "heads", "projection", "mixer", "norm", "block")
    for key, values in {**{key: CHOICES[key][1:] for key in keys}, "positions": TEXT_POSITIONS}.items():
        assert set(values) == {part.partition("=")[2] for parts in PARTS.values() for part in parts
                               if part.startswith(f"{key}=")}, key
    assert set(POOLS["images"].values()) == set(CHOICES["pool"])
    assert set(POOLS["texts"].values()) == set(TextClassifierConfig.choices["pool"])


@pytest.mark.parametrize(("overrides", "message"), [
    (["model.mixer=lstm", "model.attention=dot"],
     "^model.attention=dot is an option of attention, but model.mixer=lstm; leave it out, or set model.mixer=att"),
    (["data=spelled_numbers", "model.mixer=fnet"], "^model.mixer=fnet has no causal.*; set model.decoder_mixer=att"),
    (["model.dim=50", "model.num_heads=4"], "^model: dim 50 is not divisible"),
])
def test_an_error_has_the_keys_in_full(overrides, message, tmp_path):
    with pytest.raises(ConfigError, match=message):
        vit.train([*overrides, *FAST[:4], f"run_dir={tmp_path / 'run'}"])


@pytest.mark.parametrize(("task", "name"), quick_and_slow(CASES, ("images", "lstm")))
@pytest.mark.filterwarnings("ignore:saved under vit's own names")
def test_a_stopped_run_ends_with_the_same_bits(task, name, folder, tmp_path, monkeypatch) -> None:
    overrides = overrides_of(task, name, folder)
    whole = vit.train([*overrides, f"run_dir={tmp_path / 'whole'}"])
    assert_same(whole.path, stopped_and_resumed(overrides, tmp_path / "run", monkeypatch, batches=4).path)


@pytest.mark.parametrize(("overrides", "scale"), [
    (["data=text_table"], 1.0),
    (["data=text_table", "model.positions=sincos"], 4.0),
    (["data=text_table", "model.positions=sincos", "model.scale_embed=false"], 1.0),
    (["data=spelled_numbers"], 1.0),
    (["data=spelled_numbers", "model.positions=sincos"], 4.0),
    (["data=spelled_numbers", "model=transformer_2017"], 4.0),
    (["data=corpus", "model.positions=sincos"], 4.0),
])
def test_embeddings_are_scaled_with_sincos_positions_by_default(overrides, scale) -> None:
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
