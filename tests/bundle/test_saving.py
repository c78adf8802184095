"""Saving is whole or not at all, and never overwrites anything but a bundle."""

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from tests.bundle.conftest import CLASSES, PREPROCESSING
from vit.bundle import BundleError, folder_replacement, load_bundle, save_bundle
from vit.weights.formats.timm import from_timm


def test_compiling_does_not_change_the_names(tmp_path, model, folder):
    compiled = save_bundle(tmp_path / "compiled", torch.compile(model), CLASSES, PREPROCESSING)
    assert set(load_file(compiled / "model.safetensors")) == set(load_file(folder / "model.safetensors"))


def test_other_weights_than_the_models_own_can_be_saved(tmp_path, model):
    state = {name: tensor + 1 for name, tensor in model.state_dict().items()}
    bundle = load_bundle(save_bundle(tmp_path / "model", model, CLASSES, PREPROCESSING, state=state))
    assert torch.equal(bundle.model.head.weight, model.head.weight + 1)


def test_a_failing_save_leaves_the_older_bundle_and_no_temporary_files(folder, model):
    before = (folder / "config.json").read_bytes()
    with pytest.raises(TypeError):
        save_bundle(folder, model, CLASSES, PREPROCESSING, extra={"thing": object()})
    assert (folder / "config.json").read_bytes() == before
    assert load_bundle(folder)
    assert [item.name for item in folder.parent.iterdir()] == ["model"]


def test_a_second_save_replaces_the_first_and_keeps_other_files(folder, model):
    (folder / "README.md").write_text("mine")
    save_bundle(folder, model, ["a", "b", "c"], PREPROCESSING)
    assert load_bundle(folder).classes == ["a", "b", "c"]
    assert (folder / "README.md").read_text() == "mine"
    assert [item.name for item in folder.parent.iterdir()] == ["model"]


@pytest.mark.parametrize("one_step", [True, False])
def test_a_failing_replacement_leaves_the_older_bundle(folder, model, monkeypatch, one_step):
    def failing(*_):
        raise OSError("disk gone")

    if one_step:
        monkeypatch.setattr(folder_replacement, "exchange_folders", failing)
    else:
        rename = Path.rename
        monkeypatch.setattr(folder_replacement, "exchange_folders", lambda *_: False)
        monkeypatch.setattr(Path, "rename", lambda self, to: (failing if self.suffix == ".part" else rename)(self, to))
    with pytest.raises(BundleError, match="could not be saved to .*disk gone"):
        save_bundle(folder, model, ["a", "b", "c"], PREPROCESSING)
    assert load_bundle(folder).classes == CLASSES
    assert [item.name for item in folder.parent.iterdir()] == ["model"]


def test_a_bundle_that_does_not_load_replaces_nothing(folder, model, monkeypatch):
    monkeypatch.setattr("vit.bundle.loading.from_timm", lambda weights, config: {
        name: tensor + (name == "head.bias") for name, tensor in from_timm(weights, config).items()})
    with pytest.raises(BundleError, match="head.bias does not load"):
        save_bundle(folder, model, ["a", "b", "c"], PREPROCESSING)
    monkeypatch.undo()
    assert load_bundle(folder).classes == CLASSES


def test_numbers_that_json_cannot_express_are_omitted_with_a_log_line(tmp_path, model, caplog):
    metrics, extra = {"val/loss": float("nan"), "val/accuracy": 0.5}, {"best": {"score": float("inf")}}
    bundle = load_bundle(save_bundle(tmp_path / "model", model, CLASSES, PREPROCESSING, metrics, extra))
    assert bundle.metrics == {"val/accuracy": 0.5} and bundle.extra == {"best": {"score": None}}
    assert [record.getMessage() for record in caplog.records] == [
        "val/loss is nan and is saved as null", "extra.best.score is inf and is saved as null"]


def test_a_folder_of_other_files_is_not_overwritten(tmp_path, model):
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "thesis.tex").write_text("years")
    with pytest.raises(BundleError, match="not empty"):
        save_bundle(tmp_path / "work", model, CLASSES, PREPROCESSING)
    (tmp_path / "file").write_text("")
    with pytest.raises(BundleError, match="is a file"):
        save_bundle(tmp_path / "file", model, CLASSES, PREPROCESSING)


@pytest.mark.parametrize("config", ['{"model_type": "vit"}', "[]", "7"])
def test_a_model_of_another_program_is_not_overwritten_and_a_damaged_bundle_is(folder, model, config):
    (folder / "config.json").write_text(config)
    before = (folder / "model.safetensors").read_bytes()
    with pytest.raises(BundleError, match="config.json was not written by this program; choose another folder"):
        save_bundle(folder, model, ["a", "b", "c"], PREPROCESSING)
    assert (folder / "model.safetensors").read_bytes() == before
    (folder / "config.json").write_text('{"vit": ')
    assert load_bundle(save_bundle(folder, model, ["a", "b", "c"], PREPROCESSING)).classes == ["a", "b", "c"]


def test_weights_that_do_not_load_are_reported_under_the_name_of_the_folder(tmp_path, model):
    state = {**model.state_dict(), "other": torch.ones(1)}
    with pytest.raises(BundleError) as caught:
        save_bundle(tmp_path / "model", model, CLASSES, PREPROCESSING, state=state)
    assert str(caught.value).startswith(f"{tmp_path / 'model'}: ") and "other" in str(caught.value)
    assert not list(tmp_path.iterdir())


def test_a_second_save_keeps_the_permissions_of_the_folder(folder, model):
    folder.chmod(0o2770)
    save_bundle(folder, model, CLASSES, PREPROCESSING)
    assert folder.stat().st_mode & 0o7777 == 0o2770


def test_a_folder_that_may_not_be_written_is_left_as_it_is(folder, model, monkeypatch):
    monkeypatch.setattr("vit.bundle.folder_replacement.os.access", lambda path, mode: path != folder)
    with pytest.raises(BundleError, match=r"could not be saved to .*model: \[Errno 13\] Permission denied"):
        save_bundle(folder, model, ["a", "b", "c"], PREPROCESSING)
    assert load_bundle(folder).classes == CLASSES
    assert [item.name for item in folder.parent.iterdir()] == ["model"]


def test_thresholds_may_be_an_array(tmp_path, model):
    bundle = load_bundle(save_bundle(tmp_path / "model", model, np.array(CLASSES), PREPROCESSING,
                                     thresholds=np.array([0.25, 0.5, 0.75])))
    assert (bundle.classes, bundle.thresholds) == (CLASSES, (0.25, 0.5, 0.75))


def test_classes_must_fit_the_model(tmp_path, model):
    with pytest.raises(BundleError, match="3 outputs, but 2 class names"):
        save_bundle(tmp_path / "model", model, ["a", "b"], PREPROCESSING)
    with pytest.raises(TypeError, match="classes"):
        save_bundle(tmp_path / "model", model, "abc", PREPROCESSING)
    with pytest.raises(BundleError, match="'a' is given twice"):
        save_bundle(tmp_path / "model", model, ["a", "b", "a"], PREPROCESSING)
