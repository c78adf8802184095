"""init_from: weights, architecture and preprocessing of a model trained elsewhere, and the report of what was loaded.
"""

import json

import pytest
import timm
import torch
import yaml
from safetensors.torch import load, load_file, save_file
from timm.data import ImageNetInfo

import vit
from tests.run.conftest import SMALL, table, write_photos
from vit.bundle import save_bundle
from vit.data import Preprocessing
from vit.run.config.composing import ConfigError, compose, resolve
from vit.run.jobs import build_job
from vit.run.parts.devices import find_devices
from vit.run.parts.init_from import load_initial, load_initial_weights

QUICK = ["recipe.epochs=1", "precision=32-true", "logger=csv", "report=false", "calibrate=none"]
STILL = [
    *QUICK,
    "recipe.optimizer.lr=0.0",
    "recipe.ema=null",
]  # constant weights: the result shows what was loaded


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """A model of digits, 12 pixels wide, of an architecture that no default has."""
    overrides = ["model.depth=2", "data.image_size=12", "data.preprocessing.interpolation=bilinear", *QUICK]
    return vit.train([*overrides, f"run_dir={tmp_path_factory.mktemp('source')}"]).path


@pytest.fixture
def new_data(tmp_path):
    return ["data=folder", f"data.root={write_photos(tmp_path / 'photos', {'cat': 12, 'dog': 12})}", *SMALL[-2:]]


def weights(folder):
    return load_file(folder / "model" / "model.safetensors")


def config(folder):
    return yaml.safe_load((folder / "config.yaml").read_text())


def test_with_other_classes_everything_but_the_head_is_loaded(source, new_data, tmp_path):
    run = vit.train([*new_data, *STILL, f"init_from={source}", f"run_dir={tmp_path / 'run'}"])
    before, after = weights(source), weights(run.path)
    assert before.keys() == after.keys()
    assert {name for name in before if not torch.equal(before[name], after[name])} == {"head.weight", "head.bias"}
    assert after["head.weight"].shape == (2, 64)
    (theirs, ours) = (vit.load(path) for path in (source, run.path))
    assert ours.preprocessing == theirs.preprocessing and ours.preprocessing.size == (12, 12)
    assert ours.model.config.depth == 2 and ours.classes == ["cat", "dog"]
    log = (run.path / "log.txt").read_text()
    assert f"weights from {source}: " in log and "0 resized, 2 new" in log and "head.weight  (10, 64) -> (2, 64)" in log


def test_the_log_states_which_weights_of_a_file_are_loaded_and_what_was_assumed(source, new_data, tmp_path):
    state = {f"module.{name}": tensor for name, tensor in weights(source).items()}
    torch.save({"state_dict": state, "state_dict_ema": state}, tmp_path / "file.pth")
    run = vit.train([*new_data, *STILL, f"init_from={tmp_path / 'file.pth'}", "model.num_heads=4",
                     f"run_dir={tmp_path / 'run'}"])
    log = (run.path / "log.txt").read_text()
    assert "of state_dict_ema, state_dict the weights of state_dict_ema are used" in log
    assert "the prefix module. was removed from the names" in log


def test_another_resolution_resamples_positions(source, new_data, tmp_path):
    overrides = ["data.image_size=16", "data.preprocessing.interpolation=bicubic"]
    run = vit.train([*new_data, *STILL, *overrides, f"init_from={source / 'model'}", f"run_dir={tmp_path / 'run'}"])
    (theirs, ours) = (vit.load(path) for path in (source, run.path))
    assert ours.preprocessing.size == (16, 16) and ours.preprocessing.interpolation == "bicubic"
    assert ours.preprocessing.mean == theirs.preprocessing.mean
    assert ours.model.embed.pos_embed.shape == (1, 16, 64) and theirs.model.embed.pos_embed.shape == (1, 9, 64)
    log = (run.path / "log.txt").read_text()
    assert "1 resized" in log and "embed.pos_embed  (1, 9, 64) -> (1, 16, 64)" in log


def test_the_same_classes_keep_the_head(source, tmp_path):
    run = vit.train([*STILL, "data.image_size=12", f"init_from={source}", f"run_dir={tmp_path}"])
    before, after = weights(source), weights(run.path)
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert "which is another one in the source" not in (run.path / "log.txt").read_text()
    start, end = table(run.path / "metrics.csv")  # of constant weights
    assert (start["epoch"], start["step"], start["train/loss"]) == ("0", "0", "") and end["epoch"] == "1"
    for name in ("val/loss", "val/accuracy"):
        assert start[name] == end[name]


@pytest.mark.parametrize("name", ["best.ckpt", "last.ckpt"])
def test_from_a_training_checkpoint(source, new_data, tmp_path, name):
    checkpoint = source / "checkpoints" / name
    run = vit.train([*new_data, *STILL, f"init_from={checkpoint}", f"run_dir={tmp_path / 'run'}"])
    before, after = weights(source), weights(run.path)
    assert all(torch.equal(before[name], after[name]) for name in before if not name.startswith("head."))


def test_an_option_of_the_adopted_model_may_differ(source, new_data, tmp_path):
    run = vit.train([*new_data, *QUICK, f"init_from={source}", "model.drop_path=0.2", f"run_dir={tmp_path / 'run'}"])
    assert (config(run.path)["model"]["drop_path"], config(run.path)["model"]["depth"]) == (0.2, 2)


def test_a_chosen_model_is_not_replaced(source, new_data, tmp_path):
    overrides = ["model=micro", "model.depth=2", "data.patch_size=4"]
    run = vit.train([*new_data, *STILL, *overrides, f"init_from={source}", f"run_dir={tmp_path / 'run'}"])
    assert config(run.path)["model_name"] == "vit_micro"  # adopted ones are called after their source
    assert vit.load(run.path).preprocessing.size == (12, 12)


def test_a_chosen_model_that_computes_the_weights_with_other_values_is_a_warning(tmp_path, caplog):
    values = {"image_size": 8, "patch_size": 4, "num_classes": 10, "class_token": False, "pool": "mean", "depth": 1}
    network = vit.create_model("vit_micro", **values, activation="relu", norm_eps=1e-5, dropout=0.1)
    save_bundle(tmp_path / "model", network, [*map(str, range(10))], Preprocessing((8, 8)))
    found = []
    for more in (["model=micro"], ["model=micro", "model.activation=relu", "model.norm_eps=1e-4"], []):
        overrides = [*more, "model.depth=1", *QUICK, f"init_from={tmp_path / 'model'}"]
        values = resolve(compose(overrides)) | {"overrides": overrides}
        caplog.clear()
        config = build_job(values, find_devices(values["trainer"])).model.config
        found.append((config.activation, config.norm_eps, caplog.text))
    assert [each[:2] for each in found] == [("gelu", 1e-6), ("relu", 1e-4), ("relu", 1e-5)]
    text = "with activation=gelu instead of relu, norm_eps=1e-06 instead of 1e-05; model=pretrained uses the values of"
    assert text in found[0][2] and not any("uses the weights of" in each[2] for each in found[1:])


@pytest.mark.parametrize("ending", [".safetensors", ".pth"])
def test_from_a_file_with_timms_names(new_data, tmp_path, ending):
    torch.manual_seed(1)
    arguments = {"img_size": 16, "patch_size": 8, "embed_dim": 64, "depth": 2, "num_heads": 2, "class_token": True,
                 "num_classes": 5}
    theirs = timm.models.VisionTransformer(**arguments).state_dict()
    file = tmp_path / f"weights{ending}"
    save_file(theirs, file) if ending == ".safetensors" else torch.save(theirs, file)
    overrides = [
        "data.image_size=16",
        "data.patch_size=8",
        "model=tiny",
        "model.dim=64",
        "model.depth=2",
        "model.num_heads=2",
    ]
    run = vit.train([*new_data, *STILL, *overrides, f"init_from={file}", f"run_dir={tmp_path / 'run'}"])
    after = weights(run.path)  # the bundle has timm's names too
    assert {name for name in after if not torch.equal(after[name], theirs[name])} == {"head.weight", "head.bias"}
    log = (run.path / "log.txt").read_text()
    assert f"init_from={file} does not state its preprocessing: mean and std are measured" in log


@pytest.mark.parametrize("name", [None, 3])
def test_weights_for_a_network_of_timm_without_a_name_state_no_preprocessing(tmp_path, name):
    """The model is an error of one line, which `model_name` raises."""
    save_file({"head.weight": torch.zeros(2, 3)}, tmp_path / "weights.safetensors")
    assert load_initial(str(tmp_path / "weights.safetensors"), {"library": "timm", "name": name}).preprocessing is None


@pytest.mark.parametrize("prefix", ["", "timm:", "timm/"])
def test_a_bare_file_of_a_network_of_timm_has_the_preprocessing_of_its_published_weights(tmp_path, caplog, prefix):
    network, file = timm.create_model("resnet10t", num_classes=3), tmp_path / "weights.safetensors"
    save_file(network.state_dict(), file)
    stated = {"library": "timm", "name": f"{prefix}resnet10t.c3_in1k"}
    with caplog.at_level("INFO", "vit"):
        found = load_initial(str(file), stated).preprocessing
    assert (found.size, found.crop_pct, found.mean) == ((176, 176), 0.875, (0.485, 0.456, 0.406))
    assert "as for timm's published weights of resnet10t.c3_in1k: 176x176 pixels, crop_pct 0.875" in caplog.text
    own = Preprocessing((48, 48), mean=(0.1, 0.2, 0.3))
    save_bundle(tmp_path / "model", vit.create_model("timm:resnet10t", num_classes=3), [*"abc"], own)
    assert load_initial(str(tmp_path / "model"), stated).preprocessing == own


def test_the_model_node_states_what_tensors_do_not_show(tmp_path):
    values = {"dim": 24, "num_heads": 4, "activation": "relu", "depth": 1, "image_size": 8, "patch_size": 4}
    torch.save(vit.create_model("vit_micro", **values, num_classes=3).state_dict(), tmp_path / "weights.pth")
    source = str(tmp_path / "weights.pth")
    found = load_initial(source, {"name": None, "num_heads": 4, "activation": "relu"})
    assert (found.model["num_heads"], found.model["activation"], found.reason) == (4, "relu", "")
    for stated in (None, {"activation": "relu"}, {"num_heads": 4}):
        assert load_initial(source, stated).model is None
        assert "cannot be inferred from tensors" in load_initial(source, stated).reason


def test_the_log_states_a_number_of_heads_that_is_assumed(tmp_path, caplog):
    network = vit.create_model("vit_micro", dim=128, depth=2, num_heads=2, image_size=8, patch_size=4, num_classes=3)
    torch.save(network.state_dict(), tmp_path / "weights.pth")
    with caplog.at_level("INFO", "vit"):
        load_initial_weights(load_initial(str(tmp_path / "weights.pth"), {"activation": "gelu"}), network)
    assert "num_heads 2 is that of the published models of dim 128 and depth 2" in caplog.text


def test_positions_of_a_grid_that_is_not_square_are_resampled(tmp_path, caplog):
    values = {"patch_size": 4, "depth": 1, "num_classes": 3}
    wide = vit.create_model("vit_micro", image_size=(8, 16), **values)
    save_bundle(tmp_path / "model", wide, [*"abc"], Preprocessing((8, 16)))
    network = vit.create_model("vit_micro", image_size=8, **values)
    with caplog.at_level("INFO", "vit"):
        load_initial_weights(load_initial(str(tmp_path / "model")), network)
    assert "grid of 2x4 to 2x2 patches" in caplog.text


def test_the_head_of_imagenet_is_loaded_by_the_wordnet_ids_of_the_data(tmp_path, caplog):
    network = timm.models.VisionTransformer(img_size=8, patch_size=4, embed_dim=64, depth=1, num_heads=2)
    torch.nn.init.normal_(network.head.weight)
    save_file(network.state_dict(), tmp_path / "weights.safetensors")
    initial = load_initial(str(tmp_path / "weights.safetensors"), {"num_heads": 2, "activation": "gelu"})
    model, ids = vit.create_model("vit_micro", **initial.model), ImageNetInfo().label_names()
    line = "does not name its 1,000 classes; they are those of ImageNet"
    for order in (list(range(1000)), list(range(999, -1, -1))):
        caplog.clear()
        with caplog.at_level("INFO", "vit"):
            report = load_initial_weights(initial, model, classes=[ids[i] for i in order])
        assert torch.equal(model.head.weight, network.head.weight[order]) and not report.named("new")
        assert line in caplog.text
    caplog.clear()
    with caplog.at_level("INFO", "vit"):
        for classes in ([f"class {i}" for i in range(1000)], [*ids[:999], "n00000001"]):
            report = load_initial_weights(initial, model, classes=classes)
            assert set(report.named("new")) == {"head.weight", "head.bias"}
    assert line not in caplog.text


def test_a_bare_file_of_weights_has_the_image_size_of_its_positions(new_data, tmp_path):
    network = timm.models.VisionTransformer(img_size=24, patch_size=8, embed_dim=64, depth=1, num_heads=2)
    save_file(network.state_dict(), tmp_path / "weights.safetensors")
    overrides = [*new_data, f"init_from={tmp_path / 'weights.safetensors'}", "model.num_heads=2"]
    config = resolve(compose(overrides)) | {"overrides": overrides}
    job = build_job(config, find_devices(config["trainer"]))
    assert job.preprocessing.size == job.model.config.image_size == (24, 24) and job.model.config.grid == (3, 3)


def test_weights_that_contradict_the_config_beside_them_are_an_error(tmp_path):
    network = vit.create_model("vit_micro", image_size=8, patch_size=4, num_classes=3, depth=2)
    folder = save_bundle(tmp_path / "model", network, [*"abc"], Preprocessing((8, 8)))
    record = json.loads((folder / "config.json").read_text())
    del record["vit"]  # a folder of timm
    (folder / "config.json").write_text(json.dumps(record))
    weights = folder / "model.safetensors"
    state = load(weights.read_bytes())  # not mapped: safetensors before 0.8 overwrites a file in place
    save_file({name: tensor for name, tensor in state.items() if ".1." not in name}, weights)
    with pytest.raises(ConfigError, match=r"init_from=.*the file is truncated"):
        vit.train([*QUICK, "model=micro", "model.depth=1", f"init_from={folder}", f"run_dir={tmp_path / 'run'}"])


def test_a_patch_size_of_the_data_does_not_change_that_of_the_weights(source, new_data, tmp_path):
    overrides = [*new_data, *STILL, f"init_from={source}", f"run_dir={tmp_path / 'run'}"]
    with pytest.raises(ConfigError, match="data.patch_size=2 is .* this one has patches of 4x4; .*model.patch_size=2"):
        vit.train([*overrides, "data.patch_size=2"])
    run = vit.train([*overrides, "data.patch_size=2", "model.patch_size=2"])
    assert weights(run.path)["patch_embed.proj.weight"].shape[-1] == 2


def test_the_finetune_experiment(source, new_data, tmp_path):
    overrides = ["experiment=finetune", *new_data[1:], *QUICK, "recipe.batch_size=8"]
    run = vit.train([*overrides, f"init_from={source}", f"run_dir={tmp_path / 'adopted'}"])
    made = config(run.path)
    assert (
        made["model"]["depth"] == 2
        and made["recipe"]["optimizer"]["layer_decay"] == 0.75
        and made["name"] == "finetune"
    )
    run = vit.train(
        [*overrides, "init_from=null", "data.image_size=32", "model.depth=1", f"run_dir={tmp_path / 'nothing'}"]
    )
    assert (config(run.path)["model_name"], config(run.path)["model"]["dim"]) == ("vit_tiny", 192)


def test_without_a_network_the_default_of_finetuning_is_a_line(new_data, tmp_path, capsys):
    code = vit.run.main(["experiment=finetune", *new_data[1:], f"run_dir={tmp_path / 'run'}"])
    printed = capsys.readouterr().err
    assert (
        code == 2
        and printed.startswith("error: init_from=timm:vit_")
        and "data=folder data.root=PHOTOS" in printed
        and printed.count("\n") == 1
    )
