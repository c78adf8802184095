"""finetune=: which loaded weights are trained, by the results of a run: weights, optimizer state, metrics, bits."""

import csv
import json

import numpy as np
import pytest
import timm
import torch
import yaml
from safetensors.torch import load_file

import vit
from tests.run.conftest import QUICK, SMALL, run
from tests.run.test_resume import assert_same, stopped_and_resumed
from tests.run.test_strategies import TWO, losses
from vit.bundle import save_bundle
from vit.data import Preprocessing
from vit.run.config.composing import ConfigError, compose, resolve
from vit.run.jobs import build_job
from vit.run.parts.devices import find_devices

DIGITS = ["data=digits", "data.image_size=8", "recipe.batch_size=128", "trainer.accelerator=cpu", *QUICK]
TRAINED = "callbacks.monitor=train/loss"  # a trained epoch is saved, even where the start is better
ATTENTION = ("attn.qkv.weight", "attn.qkv.bias", "attn.proj.weight", "attn.proj.bias")


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    return vit.train([*DIGITS, "model.depth=2", f"run_dir={tmp_path_factory.mktemp('source')}"]).path


def weights(folder):
    return load_file(folder / "model" / "model.safetensors")


def moved(source, folder):
    before, after = weights(source), weights(folder)
    assert before.keys() == after.keys()
    return {name for name in before if not torch.equal(before[name], after[name])}


def inside(blocks, leaves):
    return {f"blocks.{i}.{leaf}" for i in blocks for leaf in leaves}


HEAD = {"head.weight", "head.bias"}
WAYS = {
    "full": None,
    "llrd": None,
    "gradual": None,
    "head": HEAD,
    "lora": HEAD | inside((0, 1), ["attn.qkv.weight"]),
    "attention_only": HEAD | inside((0, 1), ATTENTION) | {"pos_embed"},
}


@pytest.mark.parametrize("way", [way for way in WAYS if way != "llrd"])  # which is full at other rates
def test_only_trained_parameters_change_and_have_optimizer_state(source, tmp_path, way):
    folder = vit.train([*DIGITS, f"init_from={source}", f"finetune={way}", TRAINED, f"run_dir={tmp_path}"]).path
    everything = set(weights(source))
    assert moved(source, folder) == (WAYS[way] or everything)
    metrics = json.loads((folder / "metrics.json").read_text())
    sizes = {name: tensor.numel() for name, tensor in weights(folder).items()}
    expected = sum(sizes[name] for name in WAYS[way] or everything)
    if way == "lora":
        expected = sizes["head.weight"] + sizes["head.bias"] + 2 * 2 * 8 * (64 + 64)  # blocks, matrices, rank
    assert (metrics["trained_parameters"], metrics["parameters"]) == (expected, sum(sizes.values()))
    assert 1e8 < metrics["peak_memory"] < 1e11
    assert f"{expected:,}" in (folder / "log.txt").read_text()
    checkpoint = torch.load(folder / "checkpoints" / "last.ckpt", weights_only=True)
    (optimizer,) = checkpoint["optimizer_states"]
    held = sum(state["exp_avg"].numel() for state in optimizer["state"].values())
    assert held == expected


def test_the_head_of_the_same_classes_in_another_order_is_loaded(photos, tmp_path):
    base, names = [f"data.root={photos}", *SMALL, "data=folder"], ["cat", "dog", "emu"]
    first = vit.train([*base, *QUICK, "calibrate=none", f"run_dir={tmp_path / 'first'}"]).path
    order = [2, 0, 1]
    listed = [f"{name}/{i:03}.png,{name}\n" for name in names for i in range(10)]
    (tmp_path / "t.csv").write_text("".join(["file,label\n", *listed]))
    node = ["data=table", f"data.path={tmp_path / 't.csv'}", f"data.classes=[{','.join(names[i] for i in order)}]"]
    overrides = [*base[:-1], *node, f"init_from={first}", "on_leakage=warn"]
    config = resolve(compose(overrides)) | {"overrides": overrides}
    job = build_job(config, find_devices(config["trainer"]))
    assert torch.equal(job.model.head.weight.cpu(), weights(first)["head.weight"][order])


@pytest.mark.parametrize("way", ["random", "fit", "auto"])
def test_the_initialization_of_a_head_that_is_loaded_is_a_warning(source, caplog, way):
    overrides = [*DIGITS, f"init_from={source}", f"finetune.head_init={way}"]
    config = resolve(compose(overrides)) | {"overrides": overrides}
    job = build_job(config, find_devices(config["trainer"]))
    assert torch.equal(job.model.head.weight.cpu(), weights(source)["head.weight"])
    warning = f"finetune.head_init={way} has no effect: it is for a new head, but all weights of the head"
    assert (warning in caplog.text) == (way != "auto")


def test_a_model_with_additions_is_saved_as_a_plain_one(source, tmp_path):
    """The bundle, loaded by timm, computes the same as the trained model with its averaged additions."""
    overrides = ["finetune=lora", "finetune.lora.matrices=[q,k,v,proj,fc1]", TRAINED]
    folder = vit.train([*DIGITS, f"init_from={source}", *overrides, f"run_dir={tmp_path}"]).path
    theirs = timm.create_model(f"local-dir:{folder / 'model'}", pretrained=True).eval()
    config = yaml.safe_load((folder / "config.yaml").read_text())
    best = folder / "checkpoints" / "best.ckpt"
    job, checkpoint = build_job(config, find_devices(config["trainer"]), best), torch.load(best, weights_only=True)
    job.model.load_state_dict(checkpoint["callbacks"]["AverageWeights"]["average"])
    images = torch.from_numpy(np.random.default_rng(0).normal(size=(4, 3, 8, 8)))
    assert any(".lora." in name for name in job.model.state_dict())
    trained = job.model.eval().double()(images)  # in float64, where the order of sums does not show
    for saved in (theirs, vit.load(folder).model):
        torch.testing.assert_close(saved.double()(images), trained, rtol=0, atol=1e-6)
    start = timm.create_model(f"local-dir:{source / 'model'}", pretrained=True).eval()
    assert (start.double()(images) - trained).abs().max() > 0.01


PROBE = ["recipe=mae_linear", "finetune=linear_probe", "recipe.batch_size=100", "recipe.optimizer.lr=8", TRAINED]


@pytest.mark.parametrize("ema", [[], ["recipe.ema=0.9"]])
def test_a_linear_probe_is_saved_with_the_normalization_in_its_head(source, tmp_path, ema):
    """The bundle, loaded by timm, computes the same as the trained model, whose features are normalized."""
    folder = vit.train([*DIGITS, f"init_from={source}", *PROBE, *ema, f"run_dir={tmp_path}"]).path
    assert moved(source, folder) == HEAD
    config = yaml.safe_load((folder / "config.yaml").read_text())
    best = folder / "checkpoints" / "best.ckpt"
    job, checkpoint = build_job(config, find_devices(config["trainer"]), best), torch.load(best, weights_only=True)
    state = {name.removeprefix("model."): tensor for name, tensor in checkpoint["state_dict"].items()}
    job.model.load_state_dict(checkpoint["callbacks"]["AverageWeights"]["average"] if ema else state)
    assert (job.model.head.input_norm.running_var - 1).abs().max() > 0.1
    images = torch.from_numpy(np.random.default_rng(0).normal(size=(4, 3, 8, 8)))
    trained = job.model.eval().double()(images)
    theirs = timm.create_model(f"local-dir:{folder / 'model'}", pretrained=True).eval()
    for saved in (theirs, vit.load(folder).model):
        torch.testing.assert_close(saved.double()(images), trained, rtol=0, atol=1e-5)
    again = build_job({**config, "init_from": str(best), "finetune": {**config["finetune"], "head_norm": "none"}},
                      find_devices(config["trainer"]), None)
    assert torch.equal(again.model.head.weight.cpu(), weights(folder)["head.weight"])


def test_a_resumed_linear_probe_ends_with_the_same_bits(source, tmp_path, monkeypatch):
    overrides = [*DIGITS, f"init_from={source}", *PROBE, "recipe.ema=0.9"]
    through = vit.train([*overrides, f"run_dir={tmp_path / 'whole'}"]).path
    stopped_and_resumed(overrides, tmp_path / "parts", monkeypatch, 15)
    assert_same(tmp_path / "parts", through)


@pytest.mark.parametrize(("way", "recorded"), [("auto", "frozen"), ("frozen", "frozen"), ("train", "train")])
def test_batch_norms_keep_the_statistics_of_the_loaded_weights_unless_they_are_to_be_trained(tmp_path, way, recorded):
    network = vit.create_model("vit_micro", image_size=8, patch_size=4, depth=1, num_classes=10, class_token=False,
                               pool="mean", stem="pooled_conv")
    save_bundle(tmp_path / "model", network, [*map(str, range(10))], Preprocessing((8, 8)))
    overrides = [*DIGITS, f"init_from={tmp_path / 'model'}", f"finetune.batch_norm={way}", "recipe.epochs=1", TRAINED]
    run = vit.train([*overrides, f"run_dir={tmp_path / 'run'}"]).path
    before, after = network.state_dict(), vit.load(run).model.state_dict()
    means = [name for name in before if name.endswith("running_mean")]
    assert means and all(torch.equal(before[name], after[name]) == (way != "train") for name in means)
    assert not torch.equal(before["head.weight"], after["head.weight"])
    assert yaml.safe_load((run / "config.yaml").read_text())["finetune"]["batch_norm"] == recorded


def test_a_checkpoint_with_additions_is_a_source_of_weights_like_any_other(source, tmp_path):
    overrides = [*DIGITS, "recipe.optimizer.lr=0.02", "recipe.epochs=1", TRAINED]
    first = vit.train([*overrides, f"init_from={source}", "finetune=lora", f"run_dir={tmp_path / 'first'}"]).path
    checkpoint = first / "checkpoints" / "best.ckpt"
    still = ["recipe.optimizer.lr=0.0", "recipe.ema=null"]
    again = vit.train([*overrides, *still, f"init_from={checkpoint}", f"run_dir={tmp_path / 'again'}"]).path
    assert moved(source, first) and not moved(first, again)


@pytest.mark.parametrize(
    ("overrides", "batches"),
    [
        (["finetune=lora", "finetune.lora.dropout=0.3"], [12]),
        (["finetune=gradual", "recipe.epochs=3", "finetune.unfreeze_epochs=2", "model.dropout=0.1"], [9, 14]),
    ],
)
def test_stopped_and_resumed_bit_for_bit(source, tmp_path, monkeypatch, overrides, batches):
    """Nine steps an epoch: stopped within epochs, and where blocks begin to train."""
    overrides = [*DIGITS, f"init_from={source}", *overrides]
    through = vit.train([*overrides, f"run_dir={tmp_path / 'whole'}"]).path
    for batch in batches:
        parts = tmp_path / f"parts{batch}"
        stopped_and_resumed(overrides, parts, monkeypatch, batch)
        assert_same(parts, through)
        assert vit.load(parts).model.config.depth == 2


@pytest.mark.slow
def test_replicas_learn_like_one_process(source, tmp_path):
    """One step an epoch, so that every row is the loss of a step; blocks begin to train in epochs 2 and 3."""
    overrides = [*DIGITS, f"init_from={source}", "finetune=lora", "finetune.unfreeze_epochs=3"]
    overrides += ["recipe.batch_size=1256", "recipe.epochs=5", "recipe.optimizer.lr=0.001", "recipe.ema=null"]
    alone = vit.train([*overrides, f"run_dir={tmp_path / 'alone'}"]).path
    code, _, err = run([*overrides, *TWO, "strategy=ddp", f"run_dir={tmp_path / 'two'}"], tmp_path)
    assert code == 0 and err == "", err
    for got, expected in zip(losses(tmp_path / "two"), losses(alone), strict=True):
        assert len(got) == 5 and got == pytest.approx(expected, rel=1e-5)
    for folder in (tmp_path / "two", alone):
        (optimizer,) = torch.load(folder / "checkpoints" / "last.ckpt", weights_only=True)["optimizer_states"]
        assert {int(state["step"]) for state in optimizer["state"].values()} == {5, 4, 3}


@pytest.mark.slow
def test_timms_networks(tmp_path):
    overrides = ["data=digits", "data.image_size=32", "recipe.batch_size=256", *QUICK, "recipe.epochs=1"]
    overrides += ["model=timm", "model.name=test_vit", "trainer.accelerator=cpu"]
    source = vit.train([*overrides, f"run_dir={tmp_path / 'source'}"]).path
    folder = vit.train([*overrides, f"init_from={source}", "finetune=lora", TRAINED,
                        f"run_dir={tmp_path / 'run'}"]).path
    assert moved(source, folder) == HEAD | inside(range(6), ["attn.qkv.weight"])


def test_parameters_missing_from_the_source_are_always_trained(source, tmp_path):
    """A frozen random token would stay random; a resumed run has the name from its own config."""
    overrides = [*DIGITS, f"init_from={source}", "finetune=head", "model=micro", "model.depth=2", "model.registers=1"]
    folder = vit.train([*overrides, f"run_dir={tmp_path}"]).path
    always = yaml.safe_load((folder / "config.yaml").read_text())["finetune"]["always_trainable"]
    assert always == ["embed.reg_token"]
    metrics = json.loads((folder / "metrics.json").read_text())
    state = vit.load(folder).model.state_dict()
    assert metrics["trained_parameters"] == sum(state[name].numel() for name in {*always, *HEAD})


def test_text_models(tmp_path):
    with open(tmp_path / "table.csv", "w", newline="") as file:
        csv.writer(file).writerows([["text", "label"], *([f"{w} {i}", w] for i in range(40) for w in ("yes", "no"))])
    overrides = ["data=text_table", f"data.path={tmp_path / 'table.csv'}", *QUICK, "recipe.epochs=1", "model.dim=16"]
    overrides += ["model.depth=2", "model.num_heads=2", "recipe.batch_size=16"]
    source = vit.train([*overrides, f"run_dir={tmp_path / 'source'}"]).path
    for way, inner in {"head": [], "lora": ["attn.qkv.weight"]}.items():
        tuned = [*overrides, TRAINED, f"init_from={source}", f"finetune={way}"]
        folder = vit.train([*tuned, f"run_dir={tmp_path / way}"]).path
        assert moved(source, folder) == HEAD | {f"encoder.{name}" for name in inside((0, 1), inner)}


def test_finetune_head_of_a_seq2seq_model_trains_the_decoder_only(tmp_path):
    overrides = ["data=spelled_numbers", "data.limit=1000", "data.train=200", "data.val=20", "data.test=24", *QUICK]
    overrides += ["recipe.batch_size=32", "recipe.epochs=1", "model.dim=16", "model.num_heads=2", "model.depth=1"]
    overrides += ["model.decoder_depth=1"]
    source = vit.train([*overrides, f"run_dir={tmp_path / 'source'}"]).path
    folder = vit.train([*overrides, f"init_from={source}", "finetune=head", TRAINED,
                        f"run_dir={tmp_path / 'run'}"]).path
    changed = moved(source, folder)
    assert changed and all(name.startswith("decoder.") for name in changed)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["finetune=head", "init_from=null"], "finetune=head freezes weights, and without init_from they are random"),
        (["finetune.unfreeze_epochs=3", "init_from=null"],
         "finetune.unfreeze_epochs=3 freezes weights, and without .* or leave finetune.unfreeze_epochs out"),
        (["finetune.depth=1", "init_from=null"], "finetune.depth=1 freezes weights, .* or leave finetune.depth out"),
        (["finetune.batch_norm=frozen", "init_from=null"], "finetune.batch_norm=frozen uses .* without init_from"),
        (["finetune.unfreeze_epochs=1", "strategy=fsdp"], "finetune.unfreeze_epochs=1 unfreezes blocks during"),
        (["finetune.depth=3"], "finetune: depth is 3, but the model has 2 blocks"),
        (["finetune=gradual", "recipe.epochs=1"], "be unfrozen in epoch 2 of 1"),
        (["finetune=lora", "finetune.lora.matrices=[q,prj]"], r"has 'prj', but the blocks have .*did you mean proj\?"),
        (["finetune=lora", "finetune.lora.rank=100"], "rank is 100, but the largest rank of .*attn.qkv is 64"),
        (["finetune=lora", "finetune.trainable=all"], "trainable is all; set finetune.trainable=head"),
        (["finetune.head_norm=batch"], "head_norm is for a head on frozen features, but trainable is all"),
        (["finetune=linear_probe", "finetune.head_init=fit"], "set finetune.head_init=random with finetune.head_norm"),
        (["finetune=lorra"], r"finetune=lorra: no such finetune; did you mean lora\?"),
        (["finetune=lora", "finetune.lora.rnk=2"], r"unknown key finetune.lora.rnk; did you mean finetune.lora.rank\?"),
        (["finetune=gradual", "strategy=fsdp", "recipe.epochs=4"], "strategy=fsdp does not support; use strategy=ddp"),
    ],
)
def test_errors_are_raised_before_training(source, tmp_path, overrides, message):
    with pytest.raises(ConfigError, match=message):
        vit.train([*DIGITS, f"init_from={source}", *overrides, f"run_dir={tmp_path / 'run'}"])
    assert not (tmp_path / "run").exists()


def test_pre_training_trains_everything(tmp_path):
    (tmp_path / "x").touch()
    with pytest.raises(ConfigError, match="finetune=lora freezes weights, but task=masked_text trains the whole model"):
        vit.train(["data=corpus", "finetune=lora", f"init_from={tmp_path / 'x'}", f"run_dir={tmp_path / 'run'}"])
    with pytest.raises(ConfigError, match=r"finetune.trainable=head freezes .*whole model; leave finetune.trainable"):
        vit.train(["data=corpus", "finetune.trainable=head", f"init_from={tmp_path / 'x'}",
                   f"run_dir={tmp_path / 'run'}"])


def test_the_trained_parameters_cannot_change_on_resuming(source, tmp_path, monkeypatch):
    overrides = [*DIGITS, f"init_from={source}", "finetune=head"]
    with pytest.raises(ConfigError, match="a resumed run cannot change which weights are trained"):
        stopped_and_resumed(overrides, tmp_path, monkeypatch, 5, ["finetune.trainable=all"])


def test_lora_on_a_weight_used_outside_its_layer_is_an_error(source, tmp_path, monkeypatch):
    from vit.nn import Attention

    def bare(self, x, rotary=None):
        return self.split(torch.nn.functional.linear(x, self.qkv.weight, self.qkv.bias), self.qkv.parts)

    monkeypatch.setattr(Attention, "project", bare)
    with pytest.raises(ValueError, match=r"reads the weight of encoder.blocks.0.attn.qkv without calling the layer"):
        vit.train([*DIGITS, f"init_from={source}", "finetune=lora", f"run_dir={tmp_path}"])


def test_recipe_finetune_has_no_layer_decay_of_its_own():
    rates = {
        way: compose(["data=digits", "recipe=finetune", f"finetune={way}"]).recipe.optimizer.layer_decay
        for way in WAYS
    }
    assert rates.pop("llrd") == 0.75 and set(rates.values()) == {None}
