"""Values that follow from the recipe, by hand: rates, warm-up, batches, caches; and the rows of metrics.csv."""

import csv
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from vit.data import Augment, ByteTokenizer, LinePreprocessing, digit_strips, digits
from vit.data.decoding.bit_depth import FULL
from vit.run.config.composing import ConfigError
from vit.run.parts.batches import (
    build_augment,
    build_pair_datasets,
    check_batch,
    check_no_augment,
    image_loading,
    micro_batch,
    val_loader,
)
from vit.run.parts.preprocessing import build_line_preprocessing, build_preprocessing
from vit.run.parts.recipe import (
    batch_size,
    ema_decay,
    epochs,
    is_progressive,
    learning_rate,
    steps_per_epoch,
    warmup_steps,
)
from vit.run.records.metrics_table import MetricsTable

NOAM = {"name": "noam", "warmup": 100}


def recipe(lr: float | None, base: int | None = None, **schedule) -> dict:
    optimizer = {"lr": lr, "lr_base_batch": base}
    return {"batch_size": 64, "optimizer": optimizer, "schedule": {"name": "cosine", **schedule}}


def test_the_learning_rate_is_scaled_to_the_batch_only_with_a_base() -> None:
    assert learning_rate(recipe(0.5), None, 10) == 0.5
    assert learning_rate(recipe(0.5, 256), None, 10) == 0.125
    with pytest.raises(ConfigError, match="lr is null, but recipe.schedule.name=cosine needs a rate"):
        learning_rate(recipe(None), None, 10)


@pytest.mark.parametrize(("warmup", "steps"), [(100, 100), (0.25, 250)])
def test_noam_computes_its_rate(warmup: float, steps: int, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", logger="vit")
    model = SimpleNamespace(config=SimpleNamespace(dim=512))
    found = learning_rate(recipe(None, **{**NOAM, "warmup": warmup}), model, 1000)
    assert found == pytest.approx((512 * steps) ** -0.5) and "is not used" not in caplog.text
    assert learning_rate(recipe(0.5, 256, **{**NOAM, "warmup": warmup}), model, 1000) == found
    assert "recipe.optimizer.lr=0.5 is not used" in caplog.text
    with pytest.raises(ConfigError, match="which models of timm do not name"):
        learning_rate(recipe(None, **NOAM), SimpleNamespace(), 1000)


def test_a_warmup_below_one_is_a_fraction_and_others_are_scaled_with_the_run() -> None:
    assert warmup_steps(0.1, 1000, 1000) == warmup_steps(0.1, 1000, 50) == 100
    assert warmup_steps(40, 1000, 1000) == 40 and warmup_steps(40, 50, 1000) == 2 and warmup_steps(0, 50, 50) == 0
    assert warmup_steps(1, 1000, 1000) == warmup_steps(1.0, 1000, 1000) == 1


def test_the_edges_of_the_automatic_values() -> None:
    assert [batch_size(samples, 1) for samples in (1, 5, 16 * 16 - 1, 16 * 16, 16 * 64, 10**6)] == [1, 5, 8, 16, 64, 64]
    assert [batch_size(10**6, multiple) for multiple in (6, 48, 200)] == [66, 48, 200]
    assert [epochs(steps) for steps in (0, 1, 3, 4, 9, 10, 666, 667, 1000, 10**5)] == [
        100, 100, 100, 75, 34, 30, 30, 29, 20, 5]
    assert [ema_decay(steps) for steps in (0, 200, 400, 100_000, 10**6)] == [0.9, 0.9, 0.95, 0.9998, 0.9998]
    assert steps_per_epoch({"batch_size": 8}, 23) == steps_per_epoch({"batch_size": 8, "drop_last": True}, 23) == 2
    assert [steps_per_epoch({"batch_size": 8, "drop_last": False}, samples) for samples in (23, 24, 25)] == [3, 3, 4]


def test_a_recipe_is_progressive_with_either_schedule() -> None:
    assert not any(map(is_progressive, ({}, {"progressive": None}, {"progressive": {"stages": 3, "image_size": None}})))
    assert is_progressive({"progressive": {"patch_drop": [0.5, 0.0]}})
    assert is_progressive({"progressive": {"image_size": [16, 32], "patch_drop": None}})


def test_a_training_set_fills_a_batch() -> None:
    check_batch({"batch_size": 8, "accumulate": 2}, 8, "images")
    for train, near in ((7, 2), (3, 2)):
        with pytest.raises(ConfigError, match=f"training set of {train} texts; use recipe.batch_size={near}$"):
            check_batch({"batch_size": 8, "accumulate": 2}, train, "texts")
    assert str(micro_batch({"batch_size": 8, "accumulate": 2})) == "4"


@pytest.mark.parametrize(("batch", "world", "own"), [(8, 3, 2), (2, 3, 1), (8, 2, 4), (9, 1, 9)])
def test_a_validation_batch_has_equal_parts_of_the_processes(batch: int, world: int, own: int) -> None:
    assert val_loader([{"index": torch.tensor(0)}], batch, 0, 0, world).batch_size == own * world


def test_the_arguments_of_a_cache_are_those_of_the_data_node() -> None:
    data = {"on_bad_sample": "skip", "cache_limit": 1.5, "cache_side": 64, "cache_dir": "~/photos"}
    plain = {"decoder": "auto", "resampling": "pillow", "on_bad_sample": "skip"}
    assert image_loading(data) == {**plain, "cache": "auto"}
    assert image_loading({**data, "cache": "none"}) == {**plain, "cache": False}
    assert image_loading({**data, "decoder": "pillow", "resampling": "torch"})["resampling"] == "torch"
    limits = {"cache_bytes": 1_500_000_000, "cache_side": 64}
    assert image_loading({**data, "cache": "disk"}) == {
        **plain, **limits, "cache": "disk", "cache_dir": Path.home() / "photos"}
    assert image_loading({**data, "cache": "memory", "cache_dir": None})["cache_dir"] is None


def test_steps_that_are_null_are_left_out_of_the_augmentation() -> None:
    assert build_augment(None, 0) is build_augment({"erase": None}, 0) is None
    erasing = {"_target_": "vit.data.RandomErasing", "probability": None}
    assert len(build_augment({"mixup": None, "erase": erasing}, 3).steps) == 1
    for step in (0.5, {"probability": 0.5}):
        with pytest.raises(ConfigError, match="recipe.augment.erase=.*: must be null, or a node with the _target_"):
            build_augment({"erase": step}, 0)
    check_no_augment({"augment": {"erase": None}})
    check_no_augment({})
    with pytest.raises(ConfigError, match=r"recipe.augment \(erase\) is for images"):
        check_no_augment({"augment": {"mixup": None, "erase": erasing}})


def test_pairs_of_the_test_are_read_before_training_only_to_report_long_ones_and_only_those_of_training_augmented(
) -> None:
    source, augment = digit_strips(2, train=3, val=2, test=2), Augment([], 0)
    preprocessing = LinePreprocessing(8, 16, (8, 8), mode="L", mean=(0.5,), std=(0.5,))
    data = {"max_source_len": None, "max_target_len": None, "on_bad_sample": "error"}
    for on_long, splits in (("error", ["train", "val", "test"]), ("cut", ["train", "val"])):
        node = {**data, "on_long": on_long}
        made = build_pair_datasets(node, source, preprocessing, {"target": ByteTokenizer()}, 9, augment)
        assert {key: each.sources.augment for key, each in made.items()} == {
            key: augment if key == "train" else None for key in splits}


def test_lines_are_as_wide_as_those_of_the_training_or_of_the_model_that_they_start_from() -> None:
    data = {"preprocessing": {"height": 8, "mode": "L", "range": FULL}, "patch_size": [8, 8]}
    known = LinePreprocessing(8, 256, (8, 8), mode="L", mean=(0.25,), std=(0.5,))
    source = digit_strips(2, train=3, val=2, test=2)
    assert build_line_preprocessing(data, source, None).max_width == 128
    assert build_line_preprocessing(data, source, SimpleNamespace(preprocessing=known)) == known
    narrow = known.replace(max_width=64)
    assert build_line_preprocessing(data, source, SimpleNamespace(preprocessing=narrow)).max_width == 128


def test_weights_without_preprocessing_are_a_warning_where_mean_and_std_are_not_stated(caplog) -> None:
    initial = SimpleNamespace(preprocessing=None, image_size=(8, 8), name="weights.pth", check_classifies=lambda: None)
    for stated, warns in (({"mean": [0.5], "std": [0.25]}, False), ({"mean": [0.5]}, True)):
        data = {"preprocessing": {"mode": "L", "range": FULL, **stated}, "image_size": None}
        made = build_preprocessing(data, digits(), initial)
        assert made.size == (8, 8) and made.mean == (0.5,)
        assert ("init_from=weights.pth does not state its preprocessing" in caplog.text) == warns


def test_a_resumed_table_continues_after_the_rows_of_its_checkpoint(tmp_path: Path) -> None:
    def trainer(step: int, **values: float) -> SimpleNamespace:
        metrics = {name.replace("_", "/", 1): torch.tensor(value) for name, value in values.items()}
        return SimpleNamespace(current_epoch=step // 10 - 1, global_step=step, is_global_zero=True,
                               callback_metrics=metrics)

    def rows() -> list[dict[str, str]]:
        with open(tmp_path / "metrics.csv", newline="", encoding="utf-8") as file:
            return list(csv.DictReader(file))

    table = MetricsTable(tmp_path / "metrics.csv")
    table.on_train_start(None, None)
    for step in (10, 20, 30):
        table.on_train_epoch_end(trainer(step, train_loss=0.5, train_step_loss=9.0, train_step_grad_norm=9.0), None)
    assert rows() == [{"epoch": str(step // 10), "step": str(step), "train/loss": "0.5"} for step in (10, 20, 30)]
    resumed = MetricsTable(tmp_path / "metrics.csv", done=20)
    resumed.on_train_start(None, None)
    resumed.on_train_epoch_end(trainer(30, train_loss=0.25, val_loss=2.0), None)
    assert [row["train/loss"] for row in rows()] == ["0.5", "0.5", "0.25"]
    assert [row["val/loss"] for row in rows()] == ["", "", "2.0"]
