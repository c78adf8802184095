"""Layers that depend on neighbouring patches, in runs that leave patches out in training."""

import pytest

import vit
from tests.run.test_resume import DIGITS, StopAfter
from vit.bundle import save_bundle
from vit.data import Preprocessing
from vit.models import create_model
from vit.run.config.composing import ConfigError, compose, resolve
from vit.run.jobs import check_job, classification
from vit.run.parts.devices import Devices

MASKED = ["task=masked_image", "model=mae", "recipe=scratch"]
LOCAL = "model.attention=local has a window along the rows of patches; set {fix}model.attention=scaled"


@pytest.mark.parametrize(("overrides", "text"), [
    (["model.patch_dropout=0.5", "model.attention=local"], LOCAL.format(fix="model.patch_dropout=0, or ")),
    (["recipe.progressive.patch_drop=[0.5,0.0]", "model.attention=local"],
     LOCAL.format(fix="recipe.progressive.patch_drop=null, or ")),
    ([*MASKED, "model.attention=local"], LOCAL.format(fix="")),
    *((["model.patch_dropout=0.5", f"model.mixer={mixer}", "model.positions=learned"],
       f"model.mixer={mixer} depends on the order of the patches; set model.patch_dropout=0, or model.mixer=attention")
      for mixer in ("lstm", "gru", "conv1d", "fnet")),
    ([*MASKED, "model.mixer=conv1d"],
     "model.mixer=conv1d depends on the order of the patches; set model.mixer=attention"),
])
def test_new_runs_are_refused_before_the_data_is_read(overrides, text):
    with pytest.raises(ConfigError) as error:
        check_job(resolve(compose(overrides)), Devices("cpu", 1, 1))
    assert str(error.value).endswith(text)


@pytest.mark.parametrize("overrides", [
    ["model.patch_dropout=0.5"], ["model.attention=local"], MASKED,
    ["recipe.progressive.patch_drop=[0.5,0.0]", "model.attention=cosine"],
])
def test_other_runs_are_not(overrides):
    check_job(resolve(compose(overrides)), Devices("cpu", 1, 1))


def test_the_values_may_be_those_of_init_from(tmp_path):
    model = create_model("vit_micro", image_size=8, patch_size=2, in_chans=1, num_classes=10, attention="local")
    preprocessing = Preprocessing(size=8, mode="L", mean=(0.5,), std=(0.5,))
    save_bundle(tmp_path / "model", model, [str(digit) for digit in range(10)], preprocessing)
    overrides = ["model=pretrained", f"init_from={tmp_path / 'model'}", "model.patch_dropout=0.5", "recipe.epochs=1"]
    with pytest.raises(ConfigError, match=r"model\.patch_dropout=0\.5 leaves patches out .* model\.attention=local"):
        vit.train([*overrides, f"run_dir={tmp_path / 'run'}"])


def test_a_run_of_an_earlier_version_is_resumed_and_its_model_loaded(tmp_path, monkeypatch):
    overrides = [*DIGITS[1:], "recipe.epochs=1", "model.patch_dropout=0.5", "model.attention=local"]
    with monkeypatch.context() as patch:
        patch.setattr(classification, "check_neighbours", lambda *arguments: None)
        StopAfter(patch, 10)
        with pytest.raises(SystemExit):
            vit.train([*overrides, f"run_dir={tmp_path}"])
    assert vit.load(vit.train([f"resume={tmp_path}"]).path).model.config.patch_dropout == 0.5
