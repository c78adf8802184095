"""Values that the parts of a run derive from its config, by hand."""

import logging
import os
import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from vit.bundle import save_bundle
from vit.data import Preprocessing, RandomCrop, RandomPatches, RandomResizedCrop
from vit.data.decoding.bit_depth import FULL
from vit.data.text.token_ids import target_tokens
from vit.data.text.tokenizers import ByteTokenizer
from vit.models import VisionTransformerConfig, create_model, model_from_config
from vit.run.config.composing import ConfigError
from vit.run.jobs import Job, masked_texts, texts
from vit.run.jobs.seq2seq import Seq2SeqJob
from vit.run.parts import batches, devices, preprocessing
from vit.run.parts.batches import build_augment, build_crop
from vit.run.parts.compilation import micro_batches
from vit.run.parts.data_source import data_overrides, with_absolute_paths
from vit.run.parts.devices import BF16_MIN_WIDTH, SMALL_STEP, Devices, choose_precision, find_devices, suited_threads
from vit.run.parts.finetuning import describe, what_freezes
from vit.run.parts.init_from import class_order
from vit.run.parts.loggers import build_loggers, logger_defaults
from vit.run.parts.named_targets import check_targets
from vit.run.parts.networks import model_name
from vit.run.parts.preprocessing import merged, stated_preprocessing, with_statistics
from vit.run.parts.recipe import build_loss, build_text_loss
from vit.run.parts.text_networks import matrix_flops
from vit.run.parts.trainer import cluster_plugins, monitor_mode, own_callbacks, time_limit, unfreezing, weight_averages
from vit.run.records.folder import RunFolder
from vit.tasks import BinaryCrossEntropy, CrossEntropy, MultiLabelLoss
from vit.training import AverageEpochs, AverageWeights, Finetune
from vit.training.finetuning.lora import add_lora

COLOURS = Preprocessing((8, 8), mean=(0.1, 0.2, 0.6), std=(0.2, 0.3, 0.4))


def trainer(accelerator="auto", devices="auto", num_nodes=1):
    return {"accelerator": accelerator, "devices": devices, "num_nodes": num_nodes}


@pytest.mark.parametrize(("gpus", "stated", "expected"), [
    (0, trainer(), ("cpu", 1)), (4, trainer(), ("gpu", 4)), (4, trainer("cpu"), ("cpu", 1)),
    (4, trainer("cpu", 3), ("cpu", 3)), (4, trainer("cuda", -1), ("gpu", 4)), (4, trainer("gpu", 4), ("gpu", 4)),
    (4, trainer("auto", 1), ("gpu", 1)),
    (4, trainer("gpu", 5), "trainer.devices=5: this machine has 4 GPUs; use 4, or trainer.accelerator=cpu"),
    (0, trainer("cuda"), "trainer.accelerator=cuda: this machine has no CUDA device"),
    (4, trainer("gpu", 0), "trainer.devices=0: must be a number of devices, or auto"),
    (0, trainer("cpu", "two"), "trainer.devices=two: must be a number of devices, or auto"),
])
def test_devices_are_those_of_the_machine(monkeypatch, gpus, stated, expected):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    if isinstance(expected, str):
        with pytest.raises(ConfigError, match=expected):
            find_devices(stated)
        return
    found = find_devices({**stated, "num_nodes": 2})
    assert (found.accelerator, found.number) == expected and found.world == 2 * found.number


@pytest.mark.parametrize(("variables", "rank", "gpu"), [
    ({}, 0, 0), ({"RANK": "5", "SLURM_PROCID": "2"}, 5, 1), ({"SLURM_PROCID": "2", "LOCAL_RANK": "1"}, 2, 2),
    ({"NODE_RANK": "2", "LOCAL_RANK": "1"}, 9, 1), ({"LOCAL_RANK": "3"}, 3, 3),
])
def test_the_rank_is_that_of_the_launcher(monkeypatch, variables, rank, gpu):
    for name in ("RANK", "SLURM_PROCID", "NODE_RANK", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(os, "environ", {**os.environ, **variables})
    devices = Devices("gpu", 4, 3)
    assert (devices.rank, devices.gpu) == (rank, torch.device("cuda", gpu))


@pytest.mark.parametrize(("found", "interval"), [
    (Devices("cpu", 1, 1), "step"), (Devices("cpu", 2, 1), "epoch"), (Devices("gpu", 1, 2), "epoch"),
])
def test_several_processes_check_the_time_limit_once_per_epoch(found, interval):
    timer = time_limit("1h", found)
    assert timer._interval == interval and timer.time_remaining() == 3600


def test_the_ranks_are_those_of_slurm_unless_torchrun_started_them(monkeypatch):
    for name in ("SLURM_JOB_NAME", "SLURM_NTASKS", "SLURM_NTASKS_PER_NODE", "TORCHELASTIC_RUN_ID"):
        monkeypatch.delenv(name, raising=False)
    assert cluster_plugins() == []
    monkeypatch.setenv("SLURM_JOB_NAME", "vit")
    monkeypatch.setenv("SLURM_NTASKS", "2")
    monkeypatch.setenv("SLURM_NTASKS_PER_NODE", "2")
    (plugin,) = cluster_plugins()
    assert not plugin.auto_requeue
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "1")
    assert cluster_plugins() == []


def test_batch_norms_stay_frozen_while_weights_are_unfrozen():
    job = SimpleNamespace(model=create_model("vit_micro", image_size=8, patch_size=4, num_classes=2, depth=1),
                          config={"recipe": {"epochs": 3}})
    for batch_norm, updated in (("frozen", False), ("train", True)):
        assert unfreezing(job, Finetune(trainable="head", batch_norm=batch_norm)).batch_norm is updated


def test_a_narrow_model_is_float32_on_a_processor(monkeypatch):
    monkeypatch.setattr(devices, "resolve_precision", lambda stated, accelerator: f"{stated} on {accelerator}")
    narrow, wide, other = (SimpleNamespace(config=SimpleNamespace(**{key: dim})) for key, dim in (
        ("dim", BF16_MIN_WIDTH - 1), ("dim", BF16_MIN_WIDTH), ("name", "resnet18")))
    assert choose_precision("auto", "cpu", narrow) == "32-true"
    assert choose_precision("auto", "gpu", narrow) == "auto on gpu"
    assert choose_precision("auto", "cpu", wide) == choose_precision("auto", "cpu", other) == "auto on cpu"


@pytest.mark.parametrize(("accelerator", "flops", "threads", "limit"), [
    ("cpu", SMALL_STEP - 1, 8, 1), ("cpu", SMALL_STEP, 8, None), ("gpu", 1.0, 8, None), ("cpu", 1.0, 1, None),
])
def test_small_steps_run_on_one_thread(monkeypatch, caplog, accelerator, flops, threads, limit):
    limits = []
    monkeypatch.setattr(devices, "busy_cores", lambda: 0)
    monkeypatch.setattr(devices.torch, "get_num_threads", lambda: threads)
    limited = devices.threadpool_limits
    monkeypatch.setattr(devices, "threadpool_limits", lambda **options: limits.append(options) or limited(**options))
    with caplog.at_level(logging.INFO, "vit"), suited_threads(flops, Devices(accelerator, 1, 1)):
        pass
    assert limits == ([] if limit is None else [{"limits": 1, "user_api": "openmp"}])
    assert (f"threads: 1 of {threads}" in caplog.text) == (limit is not None)


def test_mean_and_deviation_of_other_colour_modes_are_averaged():
    grey = merged(COLOURS, {"mode": "L"})
    assert grey["mean"] == pytest.approx([0.3]) and grey["std"] == pytest.approx([0.3]) and grey["mode"] == "L"
    colours = merged(Preprocessing((8, 8), mean=(0.3,), std=(0.2,), mode="L"), {"mode": "RGB", "std": [1, 2, 3]})
    assert colours["mean"] == pytest.approx([0.3] * 3) and colours["std"] == [1, 2, 3]
    same = merged(COLOURS, {"mode": "RGB", "crop_pct": 0.5})
    assert Preprocessing.from_dict(same) == COLOURS.replace(crop_pct=0.5)


def test_what_is_not_stated_of_mean_and_deviation_is_measured(monkeypatch):
    monkeypatch.setattr(preprocessing, "estimate", lambda train, made: ([0.7, 0.8, 0.9], [0.4, 0.5, 0.6]))
    found = with_statistics(COLOURS, None, {"std": [1.0, 2.0, 3.0]})
    assert found.mean == (0.7, 0.8, 0.9) and found.std == (1.0, 2.0, 3.0)
    found = with_statistics(COLOURS, None, {"mean": [1.0, 2.0, 3.0]})
    assert found.mean == (1.0, 2.0, 3.0) and found.std == (0.4, 0.5, 0.6)
    assert with_statistics(COLOURS, None, {"mean": 0, "std": 0}) is COLOURS


@pytest.mark.parametrize(("node", "values", "rule"), [
    ({}, {"range": FULL}, None), ({"range": None}, {}, ""), ({"range": "auto"}, {}, "auto"),
    ({"range": FULL}, {"range": FULL}, None), ({"range": [0, 4095]}, {"range": [0, 4095]}, None),
])
def test_the_range_of_pixel_values_is_stated_or_a_rule(node, values, rule):
    assert stated_preprocessing({"preprocessing": {**node, "mode": "L", "mean": None}}) == (
        {"mode": "L", **values}, rule)


def test_the_overrides_of_the_data_are_absolute():
    overrides = ["data=folder", "data.root=photos", "+data.note=1", "model=tiny", "recipe.epochs=3",
                 "experiment=finetune", "data.preprocessing.mode=L", "database=x"]
    data = {"root": "/there/my photos", "path": None, "leave_out": "/there/out.csv"}
    assert data_overrides({"overrides": overrides, "data": data}) == [
        "data=folder", "+data.note=1", "experiment=finetune", "data.preprocessing.mode=L",
        "data.root=/there/my photos", "data.leave_out=/there/out.csv"]


def test_the_paths_of_a_data_node_are_absolute(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    node = {"root": "photos", "path": None, "cache_dir": "~/cache", "corrections": "a/../b.csv", "name": "folder"}
    assert with_absolute_paths(node) == {
        "root": f"{tmp_path}/photos", "path": None, "cache_dir": f"{tmp_path}/home/cache",
        "corrections": f"{tmp_path}/b.csv", "name": "folder"}


def test_the_crop_is_that_of_the_recipe():
    assert isinstance(build_crop({"scale": None, "ratio": [0.75, 1.33]}, 3), RandomCrop)
    made = build_crop({"scale": [0.25, 1.0], "ratio": [0.5, 2.0]}, 3, relative=True)
    assert isinstance(made, RandomResizedCrop) and not isinstance(made, RandomPatches)
    with pytest.raises(ConfigError, match=r"recipe\.crop.*scale"):
        build_crop({"scale": [1.5, 0.5], "ratio": [0.5, 2.0]}, 3)


@pytest.mark.parametrize(("limit", "drop_last", "expected"), [
    (1.0, True, 3 * 4 * 2), (1.0, False, 3 * 5 * 2), (8, True, 3 * 8), (800, True, 3 * 8),
])
def test_the_micro_batches_of_a_run_are_counted(limit, drop_last, expected):
    job = SimpleNamespace(config={"recipe": {"batch_size": 8, "accumulate": 2, "drop_last": drop_last}},
                          train_samples=37)
    assert micro_batches(job, SimpleNamespace(limit_train_batches=limit, max_epochs=3)) == expected


@pytest.mark.parametrize("loader", [partial(masked_texts.train_loader, range(10)),
                                    partial(batches.train_loader, range(10), balance="none")])
def test_an_incomplete_last_batch_is_used_unless_the_recipe_drops_it(loader):
    """Recipes of earlier versions lack the key."""
    for more, steps in (({"drop_last": False}, 3), ({"drop_last": True}, 2), ({}, 2)):
        recipe = {"batch_size": 4, "accumulate": 1, **more}
        assert len(loader(recipe=recipe, seed=0, workers=0, rank=0, world=1)) == steps


def test_classes_in_another_order_are_found_by_name():
    assert class_order(["cat", "dog", "emu"], ["emu", "cat", "dog"]) == [2, 0, 1]
    assert class_order(["cat", "dog"], ["cat", "emu"]) is class_order(["cat", "dog"], ["cat"]) is None


def test_the_trained_parameters_are_counted():
    model = nn.Linear(3, 2)
    assert describe("head", model, {"bias": 0}) == "head, 2 of 8 parameters train (25.00%)"
    assert describe("gradual", model, {"bias": 0, "weight": 3}) == (
        "gradual, 2 of 8 parameters train from the start, 8 from epoch 4 on")


def test_the_frozen_weights_of_an_override_are_named():
    assert what_freezes(Finetune(name="head", trainable="head")) == ("finetune=head", "use finetune=full")
    assert what_freezes(Finetune(depth=2)) == ("finetune.depth=2", "leave finetune.depth out")
    assert what_freezes(Finetune(trainable="attention"))[0] == "finetune.trainable=attention"
    assert what_freezes(Finetune(unfreeze_epochs=0.5, depth=3))[0] == "finetune.unfreeze_epochs=0.5"
    assert what_freezes(Finetune(unfreeze_epochs=0, depth=3))[0] == "finetune.depth=3"


def test_a_loss_is_weighted_by_classes_only_where_the_balance_is_that_of_the_loss():
    source = SimpleNamespace(multi_label=False, class_weights=lambda: np.array([1.0, 3.0], np.float32))
    several = SimpleNamespace(multi_label=True, class_weights=source.class_weights)
    for name, kind in (("cross_entropy", CrossEntropy), ("bce", BinaryCrossEntropy)):
        node = {"name": name, "label_smoothing": 0.1}
        logits, labels = torch.randn(4, 2, generator=torch.Generator().manual_seed(0)), torch.tensor([0, 1, 1, 0])
        plain, weighted = (build_loss(node, source, balance) for balance in ("sampling", "loss"))
        assert type(plain) is type(weighted) is kind
        assert torch.equal(plain(logits, labels), kind(0.1)(logits, labels))
        assert torch.equal(weighted(logits, labels), kind(0.1, source.class_weights())(logits, labels))
        assert not torch.equal(plain(logits, labels), weighted(logits, labels))
        assert isinstance(build_loss(node, several, "none"), MultiLabelLoss)


def test_there_is_one_average_of_the_weights():
    assert weight_averages({"ema": None, "average_epochs": None}) == []
    (ema,) = weight_averages({"ema": 0.9, "average_epochs": None})
    (epochs,) = weight_averages({"ema": None, "average_epochs": 3})
    assert isinstance(ema, AverageWeights) and ema.decay == 0.9 and isinstance(epochs, AverageEpochs)
    with pytest.raises(ConfigError, match="recipe.ema and recipe.average_epochs are two ways to average"):
        weight_averages({"ema": 0.9, "average_epochs": 3})


def test_the_mode_of_a_resumed_run_follows_from_its_metric(caplog):
    def job(resumed, mode):
        callbacks = {"monitor": "val/loss", "mode": mode}
        return SimpleNamespace(config={"callbacks": callbacks, "resumed": resumed},
                               task=SimpleNamespace(metric_names=["val/loss", "val/accuracy"]))

    assert monitor_mode(job(False, None)) == monitor_mode(job(False, "min")) == "min" and not caplog.records
    with pytest.raises(ConfigError, match=r"callbacks.mode=max: val/loss is best where it is lowest \(min\)"):
        monitor_mode(job(False, "max"))
    assert monitor_mode(job(True, "max")) == "min" and "the resumed run uses min" in caplog.text


def test_a_callback_is_an_option_or_a_node_with_a_target():
    node = {"_target_": "pytorch_lightning.callbacks.DeviceStatsMonitor", "cpu_stats": True}
    (made,) = own_callbacks({"monitor": "val/loss", "patience": None, "mine": node})
    assert type(made).__name__ == "DeviceStatsMonitor" and made._cpu_stats is True
    with pytest.raises(ConfigError, match=r"callbacks.patienc=3: no such option.*patience.*callbacks.patienc._target_"):
        check_targets({"recipe": {}, "callbacks": {"patienc": 3}})
    schedule = {"_target_": "pytorch_lightning.callbacks.GradientAccumulationScheduler", "scheduling": {0: 2}}
    with pytest.raises(ConfigError, match=r"callbacks.mine: .* would sum their gradients; use recipe.accumulate"):
        own_callbacks({"mine": schedule})
    average = {"_target_": "pytorch_lightning.callbacks.StochasticWeightAveraging", "swa_lrs": 0.01}
    with pytest.raises(ConfigError, match=r"callbacks.mine: .* would have the average; recipe.average_epochs=N"):
        own_callbacks({"mine": average})


def test_a_target_that_returns_another_object_is_named(tmp_path):
    partial = {"_target_": "pytorch_lightning.callbacks.DeviceStatsMonitor", "_partial_": True}
    with pytest.raises(ConfigError, match=r"callbacks.mine: .*DeviceStatsMonitor returned .*; leave out _partial_"):
        own_callbacks({"mine": partial})
    with pytest.raises(ConfigError, match=r"callbacks.mine: builtins.dict returned .* class dict; .*Callback"):
        own_callbacks({"mine": {"_target_": "builtins.dict"}})
    with pytest.raises(ConfigError, match=r"logger.mine: builtins.dict returned .*lightning.loggers.Logger"):
        build_loggers({"logger": {"mine": {"_target_": "builtins.dict"}}}, SimpleNamespace(path=tmp_path))
    with pytest.raises(ConfigError, match=r"recipe.augment.flip: .*HorizontalFlip returned .*; leave out _partial_"):
        build_augment({"flip": {"_target_": "vit.data.HorizontalFlip", "_partial_": True}}, seed=0)


def test_the_name_of_a_model_has_the_library():
    assert model_name({"name": "vit_tiny"}) == "vit_tiny"
    assert [model_name({"name": name, "library": "timm"}) for name in ("resnet18", "timm:resnet18", "timm/resnet18")
            ] == ["timm:resnet18"] * 3
    assert model_name({"name": None, "fallback": "vit_small"}) == "vit_small"
    initial = SimpleNamespace(model={"kind": "timm", "name": "resnet18"}, name="runs/first")
    assert model_name({"name": None}, initial) == "resnet18" and model_name({"name": "vit_tiny"}, initial) == "vit_tiny"
    initial.model = VisionTransformerConfig(image_size=8, patch_size=4).to_dict()
    assert model_name({"name": None}, initial) == "runs/first"
    with pytest.raises(ConfigError, match=r"model.name=null: must be a string"):
        model_name({"name": None})


def test_matrices_of_a_text_model_are_counted_twice():
    model = nn.ModuleDict({"fc": nn.Linear(3, 5), "norm": nn.LayerNorm(5), "conv": nn.Conv1d(2, 3, 4)})
    model.pos_embed = nn.Parameter(torch.zeros(1, 7, 5))
    assert matrix_flops(model) == 2 * (15 + 24)
    sizes = {"dim": 8, "depth": 1, "num_heads": 2, "mlp_ratio": 1, "num_classes": 3, "max_len": 4}
    for vocabulary in (50, 5000):  # whose embeddings are looked up
        classifier = model_from_config({"kind": "text_classifier", "vocab_size": vocabulary, **sizes})
        assert matrix_flops(classifier) == 2 * (8 * 24 + 8 * 8 + 2 * 8 * 8 + 8 * 3)
    pairs = SimpleNamespace(tokens=SimpleNamespace(lengths=torch.tensor([3.0, 5.0])))  # of two sentences each
    job = SimpleNamespace(model=model, datasets={"train": pairs})
    assert masked_texts.MaskedTextJob.sample_flops.fget(job) == 2 * (15 + 24) * 2 * 4


def test_the_operations_of_a_text_are_counted_by_hand(tmp_path):
    """Per block 2 x 4 D^2 of projections and 2 x 2 D R of the MLP per token, and 4 N^2 D of attention."""
    D, ratio, V = 8, 2, 50
    sizes = {"vocab_size": V, "dim": D, "depth": 2, "num_heads": 2, "mlp_ratio": ratio, "max_len": 40}

    def counted(kind, datasets, config, **more):
        classes = "abc"[: config.get("num_classes", 0)]
        folder = save_bundle(tmp_path / config["kind"], model_from_config({**sizes, **config}), tuple(classes), None)
        return kind.count_flops(SimpleNamespace(datasets={"train": datasets}, **more), folder)

    def blocks(tokens, count=2):
        return count * (2 * tokens * (4 * D * D + 2 * ratio * D * D) + 4 * tokens**2 * D)

    lengths = SimpleNamespace(inputs=SimpleNamespace(tokens=SimpleNamespace(lengths=np.array([9, 11]))))
    found = counted(texts.TextClassificationJob, lengths, {"kind": "text_classifier", "num_classes": 3})
    assert found == blocks(10) + 2 * D * 3
    pairs = SimpleNamespace(lengths=np.array([[4, 10], [99, 99], [6, 14]]), rows=np.array([0, 2]))
    S, T = 5, 12
    cross = 2 * (2 * T * 2 * D * D + 2 * S * 2 * D * D + 4 * S * T * D)  # of two blocks
    found = counted(Seq2SeqJob, pairs, {"kind": "encoder_decoder", "decoder_depth": 2}, preprocessing=None)
    assert found == blocks(S) + blocks(T) + cross + 2 * T * D * V
    N, M = 10, 3
    batch = {"source_mask": torch.ones(4, N, dtype=torch.bool), "masked": torch.full((4, N), -100)}
    batch["masked"][:, :M] = 7
    pairs = type("Pairs", (), {"__getitems__": lambda self, keys: batch, "__len__": lambda self: 4})()
    found = counted(masked_texts.MaskedTextJob, pairs, {"kind": "masked_text"})
    assert found == blocks(N) + 2 * M * (D * D + D * V) + 2 * (D * D + D * 2)


def test_texts_without_a_column_of_patches_for_each_token_are_counted(caplog):
    """Lengths are those of patches, in two rows, and of tokens with eos. CTC has no loss for exactly these texts."""
    targets = target_tokens(ByteTokenizer(), ["abc", "abcd", "abc", "aab", "aab", "long text"])
    patches = np.array([6, 6, 4, 6, 8, 2])
    train = SimpleNamespace(lengths=np.stack([patches, targets.lengths - 1], 1), rows=np.arange(5), targets=targets)
    loss = build_text_loss({"label_smoothing": 0.0, "ctc": 0.5}, SimpleNamespace(rows=2), train)
    assert "3 of 5 texts have more tokens than their image has columns of patches" in caplog.text
    without = []
    for row in train.rows:
        text, count = torch.from_numpy(targets[row][1:]).long()[None], int(patches[row])
        without.append(loss.ctc_loss(torch.randn(1, count, 261), torch.ones(1, count, dtype=torch.bool), text) == 0)
    assert without == [False, True, True, True, False]


@pytest.mark.parametrize(("batch_tokens", "samples"), [(None, 4), (60, 10)])
def test_the_operations_of_a_step_count_the_backward_pass_twice(batch_tokens, samples):
    """A pair has as many tokens as the longer of its sides."""
    job = SimpleNamespace(config={"recipe": {"batch_size": 4, "batch_tokens": batch_tokens}}, sample_flops=7.0,
                          datasets={"train": SimpleNamespace(lengths=np.array([[3, 5], [7, 2]]))})
    job.batch_samples = Seq2SeqJob.batch_samples.fget(job)
    assert job.batch_samples == samples and Job.step_flops.fget(job) == 3 * 7 * samples


def test_the_parameters_of_lora_are_not_those_of_the_model():
    model = create_model("vit_tiny", dim=8, depth=1, num_heads=1, image_size=8, patch_size=4, num_classes=2)
    total = sum(parameter.numel() for parameter in model.parameters())
    add_lora(model, matrices=["q"], rank=2, alpha=2)
    begins = {name: 0 for name, _ in model.named_parameters() if "lora" in name or name.startswith("head.")}
    count = sum(parameter.numel() for name, parameter in model.named_parameters() if name in begins)
    assert describe("lora", model, begins).startswith(f"lora, {count} of {total:,} parameters train")


def test_mlflow_logs_to_its_own_store(monkeypatch):
    """MLflow 3 refuses Lightning's default, a folder."""
    target = "pytorch_lightning.loggers.MLFlowLogger"
    monkeypatch.setitem(sys.modules, "mlflow", SimpleNamespace(get_tracking_uri=lambda: "sqlite:///store.db"))
    folder = RunFolder(Path("runs/digits/3"), main=False)
    assert logger_defaults(target, {"run_id": "a"}, folder) == {"tracking_uri": "sqlite:///store.db"}
    assert logger_defaults(target, {"run_id": "a", "save_dir": "runs"}, folder) == {}
    monkeypatch.setitem(sys.modules, "mlflow", None)  # not installed
    assert logger_defaults(target, {"run_id": "a"}, folder) == {}
