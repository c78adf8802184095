"""Saving is whole or not at all, and never overwrites anything but a bundle."""

import errno
import os
import sys
from dataclasses import replace
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
    lower = {name: tensor.bfloat16() for name, tensor in state.items()}
    bundle = load_bundle(save_bundle(tmp_path / "lower", model, CLASSES, PREPROCESSING, state=lower))
    assert torch.equal(bundle.model.head.weight, lower["head.weight"].float())
    assert load_file(tmp_path / "lower" / "model.safetensors")["head.weight"].dtype == torch.bfloat16
    assert {parameter.dtype for parameter in bundle.model.parameters()} == {torch.float32}


def test_a_failing_save_leaves_the_older_bundle_and_no_temporary_files(folder, model):
    before = (folder / "config.json").read_bytes()
    with pytest.raises(TypeError):
        save_bundle(folder, model, CLASSES, PREPROCESSING, extra={"thing": object()})
    assert (folder / "config.json").read_bytes() == before
    assert load_bundle(folder)
    assert [item.name for item in folder.parent.iterdir()] == ["model"]


@pytest.mark.parametrize("atomic", [True, False])
@pytest.mark.parametrize("killed", [False, True])
def test_a_second_save_replaces_the_first_and_keeps_other_files(folder, model, monkeypatch, atomic, killed):
    """Also where the process of an earlier save was killed between two renames."""
    (folder / "README.md").write_text("mine")
    (folder / "notes" / "more").mkdir(parents=True)
    (folder / "notes" / "more" / "a.txt").write_text("a")
    (folder / "link").symlink_to("notes")
    (folder / "broken link").symlink_to("nowhere")
    if killed:
        folder.rename(folder_replacement.temporary_sibling(folder, "old"))
    if not atomic:
        monkeypatch.setattr(folder_replacement, "exchange_folders", lambda *_: False)
    save_bundle(folder, model, ["a", "b", "c"], PREPROCESSING)
    assert load_bundle(folder).classes == ["a", "b", "c"]
    assert (folder / "README.md").read_text() == "mine" and (folder / "notes" / "more" / "a.txt").read_text() == "a"
    assert [os.readlink(folder / name) for name in ("link", "broken link")] == ["notes", "nowhere"]
    assert [item.name for item in folder.parent.iterdir()] == ["model"]


def test_temporary_folders_of_killed_processes_are_removed(folder, model, monkeypatch):
    monkeypatch.setattr(folder_replacement, "is_alive", lambda pid: pid == os.getpid())
    running = folder_replacement.temporary_sibling(folder, "part")
    killed = running.with_name(running.name.replace(f".{os.getpid()}.", ".7."))
    elsewhere = killed.with_name(killed.name.replace(folder_replacement.host_name(), "another-machine"))
    for path in (running, killed, elsewhere):
        path.mkdir()
    save_bundle(folder, model, CLASSES, PREPROCESSING)
    assert {each.name for each in folder.parent.iterdir()} == {"model", running.name, elsewhere.name}


@pytest.mark.skipif(sys.platform != "linux", reason="renameat2 is a system call of Linux")
def test_folders_are_exchanged_in_one_step_where_the_system_can(tmp_path, monkeypatch):
    one, other = tmp_path / "one", tmp_path / "other"
    one.mkdir()
    with pytest.raises(FileNotFoundError, match="other"):
        folder_replacement.exchange_folders(one, other)
    monkeypatch.setattr(folder_replacement.ctypes, "get_errno", lambda: errno.EINVAL)
    assert folder_replacement.exchange_folders(one, other) is False


def test_a_record_that_changes_on_its_way_is_not_saved(tmp_path, model, monkeypatch):
    def changed(path):
        bundle = load_bundle(path)
        return replace(bundle, record={**bundle.record, "classes": CLASSES[::-1]})

    monkeypatch.setattr("vit.bundle.saving.load_bundle", changed)
    with pytest.raises(BundleError, match="classes does not load as it was saved; please report this"):
        save_bundle(tmp_path / "model", model, CLASSES, PREPROCESSING)
    assert not list(tmp_path.iterdir())


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
    with pytest.raises(BundleError, match="^the model has 3 outputs, but 2 class names were given"):
        save_bundle(tmp_path / "model", model, ["a", "b"], PREPROCESSING)
    with pytest.raises(BundleError, match="^1 threshold was given for 3 classes"):
        save_bundle(tmp_path / "model", model, CLASSES, PREPROCESSING, thresholds=[0.5])
    with pytest.raises(TypeError, match="classes"):
        save_bundle(tmp_path / "model", model, "abc", PREPROCESSING)
    with pytest.raises(BundleError, match="'a' is given twice"):
        save_bundle(tmp_path / "model", model, ["a", "b", "a"], PREPROCESSING)
