"""Callbacks of training: checkpoints, the best epoch, faults between steps, and what is printed."""

import io
import os
from types import SimpleNamespace

import pytest
import pytorch_lightning as pl
import torch
from rich.console import Console

from tests.training.tiny_run import Data, Task, trainer
from vit.files.atomic import CheckpointError
from vit.training import (
    AverageWeights,
    Checkpoints,
    NonFiniteError,
    Patience,
    ProgressBar,
    ThroughputMeter,
    explain_out_of_memory,
    newest_valid,
    resolve_precision,
    trained_weights,
)
from vit.training.checkpointing.checkpoint_callback import START
from vit.training.checkpointing.checkpoint_io import AtomicCheckpointIO
from vit.training.monitoring.paired_comparison import SampleScores
from vit.training.monitoring.progress import clock
from vit.training.precision import cpu_precision, has_bfloat16, processor_flags


class RaiseIn(pl.Callback):
    def __init__(self, hook, count, error):
        self.count, self.error = count, error
        setattr(self, hook, self.hit)

    def hit(self, *_):
        self.count -= 1
        if self.count == 0:
            raise self.error


def saved(folder):
    return AtomicCheckpointIO().load_checkpoint(folder / "last.ckpt")


@pytest.mark.parametrize("late", [False, True])
def test_a_loss_that_is_not_finite_stops_before_it_is_saved(tmp_path, late):
    run = trainer(tmp_path, late=late, every_n_steps=1)
    with pytest.raises(
        NonFiniteError, match=r"loss is nan at optimizer step 9 \(epoch 2, lr 0.00\d+\).*Lower the learning"
    ):
        run.fit(Task(poison_at=8), datamodule=Data())
    path, skipped = newest_valid(tmp_path)
    assert not skipped and saved(tmp_path)["global_step"] == 8
    assert all(torch.isfinite(tensor).all() for tensor in saved(tmp_path)["state_dict"].values())


def test_a_weight_that_is_not_finite_is_not_saved(tmp_path):
    class Poison(pl.Callback):
        def on_train_epoch_end(self, trainer, module):
            with torch.no_grad():
                module.model.head.bias[0] = float("inf")

    message = "a weight is not finite after optimizer step 6.*head.bias is inf.*nothing was saved"
    with pytest.raises(NonFiniteError, match=message):
        trainer(tmp_path, [Poison()]).fit(Task(), datamodule=Data())
    assert not (tmp_path / "last.ckpt").exists()


def test_steps_between_epochs_are_saved_too(tmp_path):
    with pytest.raises(ZeroDivisionError):
        trainer(tmp_path, [RaiseIn("on_before_optimizer_step", 12, ZeroDivisionError())], every_n_steps=4).fit(
            Task(), datamodule=Data()
        )
    assert saved(tmp_path)["global_step"] == 11 - 11 % 4  # the step that failed is half done: not saved
    assert AtomicCheckpointIO().load_checkpoint(tmp_path / "previous.ckpt")["global_step"] == 6


def test_an_error_between_two_steps_loses_nothing(tmp_path):
    class Broken(Data):
        def train_dataloader(self):
            loader = super().train_dataloader()
            batches = type(loader).__iter__

            class Failing(type(loader)):
                def __iter__(self):
                    for index, batch in enumerate(batches(self)):
                        if (self.epoch, index) == (1, 3):
                            raise OSError("photos/cat.jpg cannot be read")
                        yield batch

            loader.__class__ = Failing
            return loader

    with pytest.raises(OSError, match="cat.jpg"):
        trainer(tmp_path).fit(Task(), datamodule=Broken())
    assert saved(tmp_path)["global_step"] == 9


def test_other_files_stay_and_stale_ones_are_removed(tmp_path):
    import socket

    (tmp_path / "mine.ckpt").write_text("keep")
    stale = tmp_path / f".last.ckpt.{socket.gethostname().split('.')[0]}.999999.tmp"
    stale.write_text("half")
    trainer(tmp_path, epochs=1).fit(Task(), datamodule=Data())
    assert (tmp_path / "mine.ckpt").read_text() == "keep" and not stale.exists()


def test_a_folder_that_cannot_be_written_stops_before_training(tmp_path):
    (tmp_path / "runs").write_text("a file")
    task = Task()
    with pytest.raises(CheckpointError, match="cannot write .*runs"):
        trainer(tmp_path / "runs" / "one").fit(task, datamodule=Data())
    assert task.log_lines == []


def test_best_follows_mode_and_ignores_nan(tmp_path):
    class Run:
        callback_metrics, current_epoch, global_step = {}, 0, 0

    for mode, expected in (("max", [True, False, False, True]), ("min", [True, False, True, False])):
        callback, run = Checkpoints(tmp_path, "m", mode), Run()
        seen = []
        for value in (0.5, float("nan"), 0.4, 0.6):
            run.callback_metrics = {"m": torch.tensor(value)}
            seen.append(callback._improves(run, 0))
        assert seen == expected
        again = Checkpoints(tmp_path, "m", mode)
        again.load_state_dict(callback.state_dict())
        assert again.best_path.name == "best.ckpt"
        worse = {"max": 0.3, "min": 0.7}[mode]
        for value, improves in ((worse, False), (again.best_score, True)):  # of equals the later one
            run.callback_metrics = {"m": torch.tensor(value, dtype=torch.float64)}
            assert again._improves(run, 0) is improves
        for loss, improves in ((0.3, True), (0.4, False), (0.3, True), (0.2, True)):  # of equals the lower loss
            run.callback_metrics = {"m": torch.tensor(again.best_score, dtype=torch.float64), "val/loss": loss}
            assert again._improves(run, 0) is improves
        run.callback_metrics = {"m": torch.tensor({"max": 0.7, "min": 0.3}[mode]), "val/loss": 9.0}
        assert again._improves(run, 0) and again.best_loss == 9
        start = Checkpoints(tmp_path, "m", mode)
        assert start._improves(run, START) and not start._improves(run, 0)
        run.callback_metrics["m"] = torch.tensor({"max": 0.71, "min": 0.29}[mode])
        assert start._improves(run, 0) and start._improves(run, 1)  # of equal epochs the later one
    with pytest.raises(ValueError, match="'val/acc'.*it has: m"):
        Checkpoints(tmp_path, "val/acc")._improves(run, 0)
    with pytest.raises(ValueError, match="'maximum'"):
        Checkpoints(tmp_path, "m", "maximum")


def test_only_a_clearly_better_epoch_replaces_the_start(tmp_path):
    """Each row: which of six samples are right, whether that epoch becomes the best one, and with a margin of 0."""
    class Run:
        callback_metrics, current_epoch, global_step = {}, 0, 0

    def improves(callback, right, epoch):
        callback.sample_scores = lambda metric: SampleScores(torch.arange(6), torch.tensor(right).float())
        Run.callback_metrics = {"m": torch.tensor(right).float().mean()}
        return callback._improves(Run(), epoch)

    table = [
        ([1, 1, 1, 0, 0, 0], True, True),  # the start
        ([1, 1, 1, 1, 0, 0], False, True),  # one more
        ([1, 1, 0, 1, 1, 1], False, True),  # three more, one less
        ([1, 1, 1, 1, 1, 0], True, True),  # two more
        ([1, 1, 1, 1, 0, 0], False, False),
        ([1, 1, 1, 1, 1, 1], True, True),
    ]
    by_rule, by_any = Checkpoints(tmp_path, "m"), Checkpoints(tmp_path, "m", margin=0)
    for epoch, (right, expected, any_better) in enumerate(table, START):
        assert improves(by_rule, right, epoch) is expected
        assert improves(by_any, right, epoch) is any_better
        again = Checkpoints(tmp_path, "m")
        again.load_state_dict(by_rule.state_dict())
        assert again.start_scores.score.tolist() == [1, 1, 1, 0, 0, 0]
        by_rule = again
    earlier = {name: value for name, value in by_rule.state_dict().items() if name != "start_scores"}
    again = Checkpoints(tmp_path, "m")
    again.load_state_dict(earlier | {"best_score": 0.5, "best_epoch": START})
    assert improves(again, [1, 1, 1, 1, 0, 0], 0)  # a run of an earlier version goes on by its rule


def test_bfloat16_with_clipping_and_a_fused_optimizer(tmp_path):
    task = Task()
    trainer(tmp_path, precision="bf16-mixed", gradient_clip_val=1.0).fit(task, datamodule=Data())
    assert task.model.head.weight.dtype == torch.float32 and len(task.log_lines) == 24


def test_a_line_per_epoch_off_a_terminal_and_a_bar_on_one(tmp_path):
    for terminal in (False, True):
        out = io.StringIO()
        bar = ProgressBar(interval=0.0, console=Console(file=out, force_terminal=terminal, width=80))
        meter = ThroughputMeter()
        pl.Trainer(
            max_epochs=2,
            accelerator="cpu",
            callbacks=[bar, meter],
            logger=False,
            enable_checkpointing=False,
            enable_model_summary=False,
        ).fit(Task(), datamodule=Data())
        text = out.getvalue()
        for part in ("epoch 1/2", "epoch 2/2", "images/s", "loss ", "val/loss", "left"):
            assert part in text
        assert terminal or len(text.splitlines()) == 2
        assert meter.batches == 12 and meter.rows == 88 and 0 < meter.data_wait < 1 and meter.rows_per_second > 0


def test_lightning_prints_nothing(tmp_path, capfd, recwarn):
    trainer(tmp_path, epochs=1).fit(Task(), datamodule=Data())
    out, errors = capfd.readouterr()
    assert out.splitlines()[0].startswith("epoch 1/1") and len(out.splitlines()) == 1 and errors == ""


def test_weights_to_use_are_the_runs_own_without_an_average(tmp_path):
    run = trainer(tmp_path, epochs=1)
    run.callbacks = [callback for callback in run.callbacks if not isinstance(callback, AverageWeights)]
    task = Task()
    run.fit(task, datamodule=Data())
    weights = trained_weights(tmp_path / "last.ckpt")
    task.model.load_state_dict(weights)
    assert all(torch.equal(weights[name], tensor) for name, tensor in task.model.state_dict().items())


def test_clock():
    assert [clock(s) for s in (0, 61, 3600, 3725)] == ["0:00", "1:01", "1:00:00", "1:02:05"]


def test_the_message_of_out_of_memory():
    error = RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 1 bytes")
    text = explain_out_of_memory(error, 512, "vit_large", (384, 224))
    assert "\n" not in text
    for part in ("batch_size=512", "vit_large", "384x224", "try 256"):
        assert part in text
    assert "or take a smaller model or image size" in text
    text = explain_out_of_memory(error, 1, "bert", batch="batch_tokens")
    assert "batch_tokens=1, model bert: lower" in text and "try 1" in text and "smaller model or shorter texts" in text
    assert explain_out_of_memory(torch.OutOfMemoryError("CUDA out of memory."), 1, "m", 32)
    for text in ("MPS backend out of memory (MPS allocated: 1 GB)", "CUDA error: CUBLAS_STATUS_ALLOC_FAILED"):
        assert explain_out_of_memory(RuntimeError(text), 1, "m", 32)
    for other in (ValueError("out of memory"), RuntimeError("mat1 and mat2 shapes cannot be multiplied")):
        assert explain_out_of_memory(other, 1, "m", 32) is None
    with pytest.raises(RuntimeError) as real:
        torch.empty(2**60, dtype=torch.uint8)
    assert explain_out_of_memory(real.value, 8, "m", 32)


def test_a_resumed_run_has_its_own_patience_and_the_epochs_that_were_waited():
    stopped, resumed = (Patience("val/accuracy", mode="max", patience=epochs) for epochs in (2, 5))
    stopped.wait_count, stopped.best_score = 1, torch.tensor(0.5)
    resumed.load_state_dict(stopped.state_dict())
    assert (resumed.patience, resumed.wait_count, float(resumed.best_score)) == (5, 1, 0.5)
    other_scores = Patience("val/accuracy", mode="max", patience=2, rescored=True)
    other_scores.load_state_dict(stopped.state_dict())
    assert (other_scores.wait_count, float(other_scores.best_score)) == (0, -float("inf"))


def test_patience_counts_from_the_model_before_the_first_step():
    stopping = Patience("val/accuracy", mode="max", patience=2)
    for steps, expected in ((2, -float("inf")), (float("inf"), 0.75)):  # of the validation before the first step
        run = SimpleNamespace(num_sanity_val_steps=steps, callback_metrics={"val/accuracy": torch.tensor([0.75])})
        stopping.on_sanity_check_end(run, None)
        assert float(stopping.best_score) == expected
    Patience("train/loss").on_sanity_check_end(run, None)  # not known yet
    run.callback_metrics["val/accuracy"].fill_(0.5)
    assert float(stopping.best_score) == 0.75
    assert not stopping._evaluate_stopping_criteria(torch.tensor(0.5))[0] and stopping.wait_count == 1


def test_without_a_monitored_metric_the_last_weights_are_used(tmp_path):
    assert Checkpoints(tmp_path).final_weights() == (tmp_path / "last.ckpt", None, None)


def test_precision_is_decided_by_flags_and_rejected_by_a_measurement(monkeypatch, caplog):
    assert cpu_precision({"avx2"})[0] == "32-true"
    monkeypatch.setattr("vit.training.precision.relative_speed", lambda dtype: 2.0)
    assert cpu_precision({"avx512_bf16", "avx2"})[0] == "bf16-mixed"
    monkeypatch.setattr("vit.training.precision.relative_speed", lambda dtype: 0.5)
    precision, reason = cpu_precision({"amx_bf16"})
    assert precision == "32-true" and "0.5 times" in reason
    with caplog.at_level("INFO"):
        assert resolve_precision("auto", "cpu") in ("32-true", "bf16-mixed")
    assert len(caplog.records) == 1 and "precision:" in caplog.text
    assert resolve_precision("auto", "mps") == "32-true"
    for fast, chosen in ((True, "bf16-mixed"), (False, "32-true")):
        monkeypatch.setattr("vit.training.precision.has_bfloat16", lambda device, fast=fast: fast)
        assert resolve_precision("auto", "gpu") == resolve_precision("auto", "cuda") == chosen
    assert resolve_precision("bf16") == "bf16-mixed" and resolve_precision("32") == "32-true"
    with pytest.raises(ValueError, match="'half'.*bf16-mixed"):
        resolve_precision("half")


def test_flags_are_read(tmp_path):
    (tmp_path / "cpuinfo").write_text("processor : 0\nflags\t\t: fpu avx2 avx512_bf16\n")
    assert processor_flags(tmp_path / "cpuinfo") == {"fpu", "avx2", "avx512_bf16"}
    assert processor_flags(tmp_path / "missing") == set()
    assert not has_bfloat16("mps") and has_bfloat16("cpu") is bool(processor_flags() & {"avx512_bf16", "amx_bf16"})
    assert os.path.exists("/proc/cpuinfo") is False or processor_flags() is not None
