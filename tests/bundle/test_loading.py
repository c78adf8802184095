"""Everything that was saved is loaded, and damage is an error that names the file."""

import json
import shutil
import subprocess
import sys

import pytest
import torch

from tests.bundle.conftest import CLASSES, PREPROCESSING, images
from vit.bundle import (
    BundleError,
    Calibration,
    LabelCalibration,
    Quantiles,
    folder_replacement,
    load_bundle,
    loading,
    save_bundle,
)
from vit.bundle.record import text_with_checksum
from vit.data import ByteTokenizer
from vit.exchange.read import read_checkpoint
from vit.models import model_from_config


def test_everything_that_was_saved_is_loaded(folder, model):
    bundle = load_bundle(folder)
    assert torch.equal(bundle.model(images()), model(images()))
    assert not bundle.model.training
    assert bundle.model.config == model.config
    assert (bundle.classes, bundle.preprocessing) == (CLASSES, PREPROCESSING)
    assert (bundle.metrics, bundle.extra) == ({"val/accuracy": 0.9}, {"data": ["data=digits"]})
    assert bundle.record["versions"]["torch"] == torch.__version__
    assert sorted(item.name for item in folder.iterdir()) == ["config.json", "model.safetensors"]


@pytest.mark.parametrize(("thresholds", "record"), [
    ((), Calibration(4, 2.0, (0.5, 0.25), (0.125, 0.0625), {"aps": Quantiles(2, (0.25, 0.75))})),
    ((0.25, 0.5, 0.0), LabelCalibration(4, (2.0, 0.5, 1.0), (0.5, 0.25), (0.125, 0.0625), ("dog",))),
])
def test_a_calibration_is_loaded_as_it_was_saved(tmp_path, model, thresholds, record):
    saved = save_bundle(tmp_path / "model", model, CLASSES, PREPROCESSING, thresholds=thresholds, calibration=record)
    bundle = load_bundle(saved)
    assert (bundle.thresholds, bundle.calibration) == (thresholds, record)


def test_a_tokenizer_of_another_model_is_named(tmp_path):
    config = {"kind": "text_classifier", "num_classes": 3, "vocab_size": 100, "max_len": 9, "dim": 8, "depth": 1,
              "num_heads": 2}
    tokenizers = {"source": ByteTokenizer()}
    saved = save_bundle(tmp_path / "model", model_from_config(config), CLASSES, tokenizers=tokenizers)
    with pytest.raises(BundleError, match="config.json: the source tokenizer has 261 tokens, the model only 100"):
        load_bundle(saved).tokenizer("source")
    with pytest.raises(BundleError, match="config.json has no target tokenizer, which texts need"):
        load_bundle(saved).tokenizer("target")


def test_a_config_with_nan_is_refused(folder):
    text = (folder / "config.json").read_text().replace("0.9", "NaN", 1)
    (folder / "config.json").write_text(text)
    with pytest.raises(BundleError, match="config.json cannot be read: NaN is not a JSON number; write null"):
        load_bundle(folder)


def test_a_config_edited_by_hand_is_refused_with_the_fix(folder, caplog):
    edit(folder, lambda c: c["vit"]["preprocessing"].update(crop_pct=0.5))
    with pytest.raises(BundleError, match="was changed after it was saved.*if you edited it, remove"):
        load_bundle(folder)
    edit(folder, lambda c: c["vit"].pop("config_sha256"))
    with caplog.at_level("INFO"):
        assert load_bundle(folder).preprocessing.crop_pct == 0.5
    assert "has no SHA-256 of its own" in caplog.text


def test_an_unknown_key_is_accepted_only_from_a_version_that_signs(folder):
    edit(folder, lambda c: c["vit"].update(other=1) or c["vit"].pop("config_sha256"))
    with pytest.raises(BundleError, match="config.json has an unknown key vit.other and no config_sha256"):
        load_bundle(folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(text_with_checksum(config))  # a later version may add keys
    assert load_bundle(folder).record["other"] == 1


@pytest.mark.parametrize(("found", "fix"), [(2, "update vit"), (0, "copy the folder again"), ("1", "copy the folder")])
def test_another_format_is_named_with_the_fix(folder, found, fix):
    edit(folder, lambda c: c["vit"].update(format=found))
    with pytest.raises(BundleError, match=f"has bundle format {found!r}, but vit .* reads 1; {fix}"):
        load_bundle(folder)


def test_windows_line_endings_are_not_damage(folder):
    file = folder / "config.json"
    file.write_bytes(file.read_bytes().replace(b"\n", b"\r\n"))
    assert load_bundle(folder).classes == CLASSES


def test_a_bundle_whose_save_was_killed_between_two_renames_is_restored(folder, model):
    old = folder_replacement.temporary_sibling(folder, "old")
    folder.rename(old)
    assert load_bundle(folder).classes == CLASSES
    assert [item.name for item in folder.parent.iterdir()] == ["model"]


def test_a_run_whose_save_was_killed_between_two_renames_is_restored(tmp_path, folder):
    """Beside the old folder is the part that was to replace it."""
    (tmp_path / "run").mkdir()
    run = shutil.copytree(folder, tmp_path / "run" / "model").parent
    (run / "model").rename(folder_replacement.temporary_sibling(run / "model", "old"))
    folder_replacement.temporary_sibling(run / "model", "part").mkdir()
    assert load_bundle(run).classes == CLASSES and (run / "model" / "config.json").is_file()


def test_a_folder_that_is_being_replaced_is_loaded_when_it_is_there_again(folder, model, monkeypatch):
    """It is missing for a moment, and then another folder while the first one is being read."""
    hidden, newer = folder.with_name("hidden"), folder.with_name("newer")
    save_bundle(newer, model, ["a", "b", "c"], PREPROCESSING)
    folder.rename(hidden)
    monkeypatch.setattr(loading.time, "sleep", lambda seconds: hidden.rename(folder))
    load, steps = loading._load, iter([lambda: (folder.rename(hidden), newer.rename(folder))])

    def replaced(path):
        found = load(path)
        next(steps, lambda: None)()
        return found

    monkeypatch.setattr(loading, "_load", replaced)
    assert load_bundle(folder).classes == ["a", "b", "c"]
    shutil.rmtree(folder)
    monkeypatch.setattr(loading.time, "sleep", lambda seconds: None)
    with pytest.raises(FileNotFoundError, match="there is no such model"):
        load_bundle(folder)


def test_a_path_may_begin_with_the_home_folder(tmp_path, model, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    assert save_bundle("~/model", model, CLASSES, PREPROCESSING) == tmp_path / "model"
    assert load_bundle("~/model").classes == CLASSES and [each.name for each in tmp_path.iterdir()] == ["model"]


def test_a_bundle_whose_save_was_killed_is_restored_through_a_link_to_it(tmp_path, folder):
    (tmp_path / "link").symlink_to(folder)
    folder.rename(folder_replacement.temporary_sibling(folder, "old"))
    assert load_bundle(tmp_path / "link").classes == CLASSES
    (tmp_path / "link").unlink()
    (tmp_path / "link").symlink_to("link")
    with pytest.raises(FileNotFoundError, match="link: there is no such model"):
        load_bundle(tmp_path / "link")


def test_a_run_folder_and_single_files_lead_to_the_bundle(tmp_path, folder):
    (tmp_path / "run").mkdir()
    run = shutil.copytree(folder, tmp_path / "run" / "model").parent
    for path in (run, run / "model", run / "model" / "config.json", str(folder / "model.safetensors")):
        assert load_bundle(path).classes == CLASSES


def edit(folder, change):
    config = json.loads((folder / "config.json").read_text())
    change(config)
    (folder / "config.json").write_text(json.dumps(config))


def cut(folder):
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])


def flip(folder):
    file = folder / "model.safetensors"
    raw = bytearray(file.read_bytes())
    raw[-50] ^= 1
    file.write_bytes(raw)


@pytest.mark.parametrize(("damage", "message"), [
    (cut, "SHA-256"),
    (flip, "SHA-256"),
    (lambda f: (f / "model.safetensors").unlink(), "no model.safetensors"),
    (lambda f: (f / "model.safetensors").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\n"),
     "is a Git LFS pointer"),
    (lambda f: (f / "config.json").unlink(), "holds no model"),
    (lambda f: (f / "config.json").write_text('{"vit": '), "line 1 column 9 (char 8); copy the folder again"),
    (lambda f: (f / "config.json").write_bytes(b"\xff\xfe"), "cannot be read"),
    (lambda f: (f / "config.json").write_text("[1]"), "not written by this program"),
    (lambda f: edit(f, lambda c: c.pop("vit")), "no key vit"),
    (lambda f: edit(f, lambda c: c["vit"].pop("classes")), "vit.classes is missing"),
    (lambda f: edit(f, lambda c: c["vit"].update(format=99)), "reads 1; update vit"),
    (lambda f: edit(f, lambda c: c["vit"].pop("format")), "bundle format None, but"),
    (lambda f: edit(f, lambda c: c["vit"]["model"].update(kind="os.system")), "os.system"),
    (lambda f: edit(f, lambda c: c["vit"]["model"].update(depth=3)), "blocks.2"),
    (lambda f: edit(f, lambda c: c["vit"]["preprocessing"].update(size=[0, 3])), "size"),
    (lambda f: edit(f, lambda c: c["vit"]["classes"].pop()), "3 outputs, but 2"),
    (lambda f: edit(f, lambda c: c["vit"].update(classes=None)), "vit.classes must be a list, not NoneType"),
    (lambda f: edit(f, lambda c: c["vit"].update(thresholds=[0.5])), "1 threshold was given for 3 classes"),
    (lambda f: edit(f, lambda c: c["vit"].update(thresholds=[0.5, 2, 0])), "threshold 2 is not a probability"),
    (lambda f: edit(f, lambda c: c["vit"]["model"].update(dim=48000, depth=2)), "it describes a model of "),
    (lambda f: edit(f, lambda c: c["vit"].update(model=[])), "vit.model must be a dict, not list"),
])
def test_damage_is_named_on_one_line(folder, damage, message):
    damage(folder)
    with pytest.raises(BundleError) as caught:
        load_bundle(folder)
    assert message in str(caught.value) and str(folder) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_ensemble_far_larger_than_its_weights_is_not_built(folder):
    def more_members(config, depth, count):
        member = config["vit"]["model"] | {"depth": depth}
        numbers = {"means": [[0, 0, 0]] * count, "stds": [[1, 1, 1]] * count}
        config["vit"]["model"] = {"kind": "ensemble", "member": member, **numbers}

    edit(folder, lambda c: more_members(c, depth=20, count=2))
    with pytest.raises(BundleError, match="depth is 20 in each of 2 members, but .*model.safetensors has 32 tensors"):
        load_bundle(folder)
    edit(folder, lambda c: c["vit"]["model"].update(means=[[0, 0, 0]] * 33))
    with pytest.raises(BundleError, match="it has 33 members, but .*model.safetensors has 32 tensors"):
        load_bundle(folder)


def test_both_checksums_are_named(folder):
    promised = json.loads((folder / "config.json").read_text())["vit"]["sha256"]
    cut(folder)
    with pytest.raises(BundleError, match=promised[:16]):
        load_bundle(folder)


def test_paths_without_a_model_are_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match="there is no such model"):
        load_bundle(tmp_path / "nothing")
    (tmp_path / "last.ckpt").write_bytes(b"PK")
    with pytest.raises(BundleError, match=r"last\.ckpt is a single file"):
        load_bundle(tmp_path / "last.ckpt")
    with pytest.raises(BundleError, match="holds no model.* is there$"):
        load_bundle(tmp_path)
    for count, run in enumerate(("ensemble", "fold1/model", "fold2/model", "fold3/model"), start=1):
        (tmp_path / run).mkdir(parents=True)
        (tmp_path / run / "config.json").write_text("{}")
        (tmp_path / run / "model.safetensors").write_bytes(b"")
        if count == 3:
            with pytest.raises(BundleError, match="; models in it: fold2, fold1, ensemble$"):
                load_bundle(tmp_path)
    for read in (load_bundle, read_checkpoint):
        with pytest.raises(ValueError, match="; models in it: fold3, fold2, fold1 and 1 more"):
            read(tmp_path)
    (tmp_path / "run" / "checkpoints").mkdir(parents=True)
    (tmp_path / "run" / "checkpoints" / "best.ckpt").write_bytes(b"PK")
    message = r"the run has not ended: finish it by vit train resume=\S+, or use \S+best\.ckpt"
    for read in (load_bundle, read_checkpoint):
        with pytest.raises(ValueError, match=message):
            read(tmp_path / "run")
    (tmp_path / "run" / "metrics.json").touch()  # a finished run is not resumed
    for read in (load_bundle, read_checkpoint):
        with pytest.raises(ValueError, match=r"its model is lost: copy the folder again, or use \S+best\.ckpt"):
            read(tmp_path / "run")
    (tmp_path / "killed").mkdir()
    for name in ("config.yaml", "environment.json"):
        (tmp_path / "killed" / name).touch()
    for read in (load_bundle, read_checkpoint):
        with pytest.raises(ValueError, match=r"the run has saved no checkpoint yet: finish it by vit train resume=\S+"):
            read(tmp_path / "killed")


def test_loading_imports_neither_lightning_nor_hydra_and_unpickles_nothing(folder):
    code = ("import sys, pickle, torch, vit\n"
            "def refuse(*args, **kwargs): raise SystemExit('unpickled')\n"
            "torch.load = pickle.load = pickle.loads = refuse\n"
            f"vit.load({str(folder)!r})\n"
            "heavy = {'pytorch_lightning', 'hydra', 'omegaconf', 'transformers', 'matplotlib'} & set(sys.modules)\n"
            "sys.exit(f'imported {heavy}' if heavy else 0)\n")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_an_older_bundle_with_nan_in_its_metrics_still_loads(folder, caplog):
    edit(folder, lambda c: c["vit"].pop("config_sha256"))
    edit(folder, lambda c: c["vit"]["metrics"].update({"val/loss": float("nan"), "val/top5": float("inf")}))
    found = load_bundle(folder).metrics
    assert found and not {"val/loss", "val/top5"} & set(found)
    assert "of an older version: val/loss is nan and is ignored" in caplog.text
    edit(folder, lambda c: c["vit"]["preprocessing"].update(crop_pct=float("nan")))
    with pytest.raises(BundleError, match="config.json cannot be read: NaN is not a JSON number"):
        load_bundle(folder)
