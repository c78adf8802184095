import json
import shutil
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

import vit
from vit.bundle import BundleError, load_bundle, replacing, save_bundle
from vit.data import Preprocessing
from vit.weights.formats.timm import from_timm

CLASSES = ["cat", "dog", "hörse"]
PREPROCESSING = Preprocessing(size=(32, 48), resize="squash", mean=(0.4, 0.5, 0.6), std=(0.2, 0.3, 0.25))


def tiny(**overrides):
    torch.manual_seed(0)
    return vit.create_model("vit_tiny", image_size=(32, 48), patch_size=8, num_classes=3, depth=2, **overrides).eval()


def images(count=2, height=32, width=48):
    return torch.randn(count, 3, height, width, generator=torch.Generator().manual_seed(1))


@pytest.fixture
def model():
    return tiny()


@pytest.fixture
def folder(tmp_path, model):
    metrics, extra = {"val/accuracy": 0.9}, {"data": ["data=digits"]}
    return save_bundle(tmp_path / "model", model, CLASSES, PREPROCESSING, metrics, extra)


def test_a_bundle_gives_everything_back(folder, model):
    bundle = load_bundle(folder)
    assert torch.equal(bundle.model(images()), model(images()))
    assert not bundle.model.training
    assert bundle.model.config == model.config
    assert (bundle.classes, bundle.preprocessing) == (CLASSES, PREPROCESSING)
    assert (bundle.metrics, bundle.extra) == ({"val/accuracy": 0.9}, {"data": ["data=digits"]})
    assert bundle.record["versions"]["torch"] == torch.__version__
    assert sorted(item.name for item in folder.iterdir()) == ["config.json", "model.safetensors"]


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


@pytest.mark.parametrize("kind", ["vit", "timm"])
def test_transformers_loads_the_folder_as_model_and_pipeline(tmp_path, kind):
    from transformers import AutoModelForImageClassification, pipeline

    model = tiny() if kind == "vit" else vit.create_model("timm/test_resnet", num_classes=3, image_size=(32, 48)).eval()
    folder = save_bundle(tmp_path / "model", model, CLASSES, PREPROCESSING)
    theirs = AutoModelForImageClassification.from_pretrained(folder).eval()
    torch.testing.assert_close(theirs(images()).logits, model(images()), rtol=1e-5, atol=1e-5)
    assert theirs.config.id2label == dict(enumerate(CLASSES))
    picture = Image.fromarray(np.random.default_rng(0).integers(0, 255, (40, 60, 3), np.uint8))
    answers = pipeline("image-classification", model=str(folder))(picture)
    ours = vit.load(folder).predict(picture, top_k=3)[0]
    assert [answer["label"] for answer in answers] == list(ours.names)
    np.testing.assert_allclose([answer["score"] for answer in answers], ours.probabilities, atol=2e-3)


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
def test_timms_own_transform_gives_our_pixels(changes):
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


def timm_config(model, preprocessing):
    from vit.bundle.timm_folder import timm_folder

    return json.loads(json.dumps(timm_folder(model, CLASSES, preprocessing)))


@pytest.mark.parametrize(("changes", "reason"), [
    ({"mode": "L", "mean": (0.5,), "std": (0.2,)}, "RGB"),
    ({"resize": "pad", "background": (255, 255, 255)}, "background"),
])
def test_saving_says_what_timms_words_cannot_express(changes, reason):
    preprocessing = PREPROCESSING.replace(**changes)
    model = vit.create_model("vit_tiny", image_size=(32, 48), patch_size=8, num_classes=3, depth=1,
                             in_chans=preprocessing.channels)
    with pytest.warns(UserWarning, match=reason) as said:
        timm_config(model, preprocessing)
    assert len(said) == 1


@pytest.mark.parametrize("name", ["timm/test_resnet", "timm/test_vit"])  # of any input size, and of a fixed one
def test_timm_models_are_timm_folders_too(tmp_path, name):
    import timm

    torch.manual_seed(0)
    model = vit.create_model(name, num_classes=3, image_size=(32, 48)).eval()
    folder = save_bundle(tmp_path / "model", model, CLASSES, PREPROCESSING)
    theirs = timm.create_model(f"local-dir:{folder}", pretrained=True).eval()
    assert torch.equal(theirs(images()), model(images()))
    assert torch.equal(load_bundle(folder).model(images()), model(images()))


def test_a_model_unknown_to_timm_is_stored_under_our_names(tmp_path):
    model = tiny(positions="rotary", norm="rms")
    with pytest.warns(UserWarning, match="timm"):
        folder = save_bundle(tmp_path / "model", model, CLASSES, PREPROCESSING)
    assert set(load_file(folder / "model.safetensors")) == set(model.state_dict())
    assert torch.equal(load_bundle(folder).model(images()), model(images()))
    assert "pretrained_cfg" not in json.loads((folder / "config.json").read_text())


def test_compiling_does_not_change_the_names(tmp_path, model, folder):
    compiled = save_bundle(tmp_path / "compiled", torch.compile(model), CLASSES, PREPROCESSING)
    assert set(load_file(compiled / "model.safetensors")) == set(load_file(folder / "model.safetensors"))


def test_other_weights_than_the_models_own_can_be_given(tmp_path, model):
    state = {name: tensor + 1 for name, tensor in model.state_dict().items()}
    bundle = load_bundle(save_bundle(tmp_path / "model", model, CLASSES, PREPROCESSING, state=state))
    assert torch.equal(bundle.model.head.weight, model.head.weight + 1)


def test_a_save_that_fails_leaves_the_older_bundle_and_no_rubbish(folder, model):
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
def test_a_failing_swap_leaves_the_older_bundle(folder, model, monkeypatch, one_step):
    def failing(*_):
        raise OSError("disk gone")

    if one_step:
        monkeypatch.setattr(replacing, "exchange", failing)
    else:
        rename = Path.rename
        monkeypatch.setattr(replacing, "exchange", lambda *_: False)
        monkeypatch.setattr(Path, "rename", lambda self, to: (failing if self.suffix == ".part" else rename)(self, to))
    with pytest.raises(BundleError, match="could not be saved to .*disk gone"):
        save_bundle(folder, model, ["a", "b", "c"], PREPROCESSING)
    assert load_bundle(folder).classes == CLASSES
    assert [item.name for item in folder.parent.iterdir()] == ["model"]


def test_a_bundle_that_does_not_read_back_replaces_nothing(folder, model, monkeypatch):
    monkeypatch.setattr("vit.bundle.reading.from_timm", lambda weights, config: {
        name: tensor + (name == "head.bias") for name, tensor in from_timm(weights, config).items()})
    with pytest.raises(BundleError, match="head.bias does not read back"):
        save_bundle(folder, model, ["a", "b", "c"], PREPROCESSING)
    monkeypatch.undo()
    assert load_bundle(folder).classes == CLASSES


def test_numbers_that_json_cannot_express_are_left_out_with_a_log_line(tmp_path, model, caplog):
    metrics, extra = {"val/loss": float("nan"), "val/accuracy": 0.5}, {"best": {"score": float("inf")}}
    bundle = load_bundle(save_bundle(tmp_path / "model", model, CLASSES, PREPROCESSING, metrics, extra))
    assert bundle.metrics == {"val/accuracy": 0.5} and bundle.extra == {"best": {"score": None}}
    assert "val/loss is nan" in caplog.text and "best.score is inf" in caplog.text


def test_a_config_with_nan_is_refused(folder):
    text = (folder / "config.json").read_text().replace("0.9", "NaN", 1)
    (folder / "config.json").write_text(text)
    with pytest.raises(BundleError, match="config.json cannot be read: NaN is no JSON number; write null"):
        load_bundle(folder)


def test_a_config_edited_by_hand_says_how_to_go_on(folder, caplog):
    edit(folder, lambda c: c["vit"]["preprocessing"].update(crop_pct=0.5))
    with pytest.raises(BundleError, match="was changed after it was saved.*if you edited it, remove"):
        load_bundle(folder)
    edit(folder, lambda c: c["vit"].pop("config_sha256"))
    with caplog.at_level("INFO"):
        assert load_bundle(folder).preprocessing.crop_pct == 0.5
    assert "has no SHA-256 of its own" in caplog.text


def test_a_copy_with_the_line_ends_of_windows_is_no_damage(folder):
    file = folder / "config.json"
    file.write_bytes(file.read_bytes().replace(b"\n", b"\r\n"))
    assert load_bundle(folder).classes == CLASSES


def test_a_bundle_whose_saving_was_killed_between_two_renames_is_brought_back(folder, model):
    old = replacing.temporary(folder, "old")
    folder.rename(old)
    assert load_bundle(folder).classes == CLASSES
    assert [item.name for item in folder.parent.iterdir()] == ["model"]


def test_somebodys_folder_is_not_overwritten(tmp_path, model):
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "thesis.tex").write_text("years")
    with pytest.raises(BundleError, match="not empty"):
        save_bundle(tmp_path / "work", model, CLASSES, PREPROCESSING)
    (tmp_path / "file").write_text("")
    with pytest.raises(BundleError, match="is a file"):
        save_bundle(tmp_path / "file", model, CLASSES, PREPROCESSING)


def test_classes_must_fit_the_model(tmp_path, model):
    with pytest.raises(BundleError, match="3 outputs, but 2 class names"):
        save_bundle(tmp_path / "model", model, ["a", "b"], PREPROCESSING)
    with pytest.raises(BundleError, match="'a' is given twice"):
        save_bundle(tmp_path / "model", model, ["a", "b", "a"], PREPROCESSING)


def test_run_folder_and_single_files_lead_to_the_bundle(tmp_path, folder):
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


@pytest.mark.parametrize(("damage", "says"), [
    (cut, "SHA-256"),
    (flip, "SHA-256"),
    (lambda f: (f / "model.safetensors").unlink(), "no model.safetensors"),
    (lambda f: (f / "config.json").unlink(), "holds no model"),
    (lambda f: (f / "config.json").write_text('{"vit": '), "cannot be read"),
    (lambda f: (f / "config.json").write_bytes(b"\xff\xfe"), "cannot be read"),
    (lambda f: (f / "config.json").write_text("[1]"), "not written by this program"),
    (lambda f: edit(f, lambda c: c.pop("vit")), "no key vit"),
    (lambda f: edit(f, lambda c: c["vit"].pop("classes")), "vit.classes is missing"),
    (lambda f: edit(f, lambda c: c["vit"].update(format=99)), "bundle format 99"),
    (lambda f: edit(f, lambda c: c["vit"]["model"].update(kind="os.system")), "os.system"),
    (lambda f: edit(f, lambda c: c["vit"]["model"].update(depth=3)), "blocks.2"),
    (lambda f: edit(f, lambda c: c["vit"]["preprocessing"].update(size=[0, 3])), "size"),
    (lambda f: edit(f, lambda c: c["vit"]["classes"].pop()), "3 outputs, but 2"),
    (lambda f: edit(f, lambda c: c["vit"].update(classes=None)), "config.json"),
    (lambda f: edit(f, lambda c: c["vit"].update(model=[])), "config.json"),
])
def test_damage_is_named_on_one_line(folder, damage, says):
    damage(folder)
    with pytest.raises(BundleError) as caught:
        load_bundle(folder)
    assert says in str(caught.value) and str(folder) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_both_digests_are_named(folder):
    promised = json.loads((folder / "config.json").read_text())["vit"]["sha256"]
    cut(folder)
    with pytest.raises(BundleError, match=promised[:16]):
        load_bundle(folder)


def test_what_is_no_model_is_said(tmp_path):
    with pytest.raises(FileNotFoundError, match="there is no such model"):
        load_bundle(tmp_path / "nothing")
    (tmp_path / "last.ckpt").write_bytes(b"PK")
    with pytest.raises(BundleError, match=r"last\.ckpt is a single file"):
        load_bundle(tmp_path / "last.ckpt")
    with pytest.raises(BundleError, match="holds no model"):
        load_bundle(tmp_path)


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
    assert "of an older version: val/loss is nan and is left out" in caplog.text
    edit(folder, lambda c: c["vit"]["preprocessing"].update(crop_pct=float("nan")))
    with pytest.raises(BundleError, match="config.json cannot be read: NaN is no JSON number"):
        load_bundle(folder)
