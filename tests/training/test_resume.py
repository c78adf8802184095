"""A run that is stopped anywhere and resumed ends with the same bits as a run without a stop."""

import json
import os
import signal

import pytest
import pytorch_lightning as pl
import torch

from tests.training.tiny_run import Data, Task, outcome, trainer
from vit.training import AverageEpochs, AverageWeights, Checkpoints, Interrupted, newest_valid, trained_weights
from vit.training.checkpointing.checkpoint_io import AtomicCheckpointIO

EPOCHS, BATCHES = 3, 6


class StopAt(pl.Callback):
    """Sends the process a signal in a training batch, or in a validation batch with `where="val"`."""

    def __init__(self, count, where="train", signum=signal.SIGTERM):
        self.count, self.where, self.signum = count, where, signum

    def _hit(self, where):
        if where == self.where:
            self.count -= 1
            if self.count == 0:
                os.kill(os.getpid(), self.signum)

    def on_train_batch_start(self, trainer, module, batch, batch_idx):
        self._hit("train")

    def on_validation_batch_start(self, trainer, module, batch, batch_idx):
        self._hit("val")


def fit(folder, stop=None, resume=None, accumulate=1):
    run, task = trainer(folder, [stop] if stop else [], accumulate=accumulate, epochs=EPOCHS), Task()
    if stop:
        with pytest.raises(Interrupted) as stopped:
            run.fit(task, datamodule=Data())
        return stopped.value, task
    run.fit(task, datamodule=Data(), ckpt_path=resume)
    return run, task


@pytest.fixture(scope="module", params=[1, 4], ids=lambda n: f"accumulate{n}")
def whole(request, tmp_path_factory):
    run, task = fit(tmp_path_factory.mktemp("whole"), accumulate=request.param)
    return request.param, outcome(task, run), task.log_lines


def check(folder, whole, stop):
    accumulate, expected, lines = whole
    stopped, first = fit(folder, stop, accumulate=accumulate)
    path, skipped = newest_valid(folder)
    assert not skipped
    run, second = fit(folder, resume=path, accumulate=accumulate)
    assert all(torch.equal(a, b) for a, b in zip(expected, outcome(second, run), strict=True))
    return stopped, first.log_lines, second.log_lines, lines


@pytest.mark.parametrize("batch", range(1, EPOCHS * BATCHES + 1))
def test_stopped_in_any_training_batch(tmp_path, whole, batch):
    stopped, first, second, lines = check(tmp_path, whole, StopAt(batch))
    assert stopped.code == 143 and stopped.agreed
    trained = [line for line in first + second if line[0] == "train"]
    assert trained == [line for line in lines if line[0] == "train"]
    # a validation that was under way is run again from its start; none is left out
    validated = {line for line in first + second if line[0] == "val"}
    assert validated == {line for line in lines if line[0] == "val"}
    epoch, inside = divmod(batch - 1, BATCHES)
    finished = min(BATCHES, -(-(inside + 1) // whole[0]) * whole[0])  # with the accumulated batches of that step
    if finished < BATCHES:
        assert sum(line[0] == "train" for line in first) == epoch * BATCHES + finished


@pytest.mark.parametrize("batch", range(1, 2 * EPOCHS + 1))
def test_stopped_in_any_validation_batch(tmp_path, whole, batch):
    stopped, first, second, lines = check(tmp_path, whole, StopAt(batch, "val", signal.SIGINT))
    assert stopped.code == 130
    assert [x for x in first + second if x[0] == "train"] == [x for x in lines if x[0] == "train"]
    assert {x for x in first + second if x[0] == "val"} == {x for x in lines if x[0] == "val"}


class Weights(pl.Callback):
    """The weights at the end of each epoch, and those that validation sees."""

    def __init__(self):
        self.raw, self.validated = [], []

    def on_validation_batch_start(self, trainer, module, batch, batch_idx):
        if batch_idx == 0:
            self.validated.append(module.model.head.weight.detach().clone())

    def on_train_epoch_end(self, trainer, module):
        self.raw.append(module.model.head.weight.detach().clone())


def fit_averaging_epochs(folder, *callbacks, resume=None):
    run, task = trainer(folder, callbacks, epochs=EPOCHS), Task()
    run.callbacks = [AverageEpochs(2) if isinstance(each, AverageWeights) else each for each in run.callbacks]
    run.fit(task, datamodule=Data(), ckpt_path=resume)
    return run, task


def test_validation_and_checkpoints_have_the_mean_of_the_last_epochs(tmp_path):
    seen = Weights()
    fit_averaging_epochs(tmp_path, seen)
    means = [torch.stack(seen.raw[max(0, epoch - 1) : epoch + 1]).mean(0) for epoch in range(EPOCHS)]
    torch.testing.assert_close(seen.validated, means)
    torch.testing.assert_close(trained_weights(tmp_path / "last.ckpt")["head.weight"], means[-1])


@pytest.mark.parametrize(("batch", "where"), [(BATCHES + 2, "train"), (2 * BATCHES + 1, "train"), (4, "val")])
def test_the_mean_of_epochs_is_that_of_a_run_without_the_stop(tmp_path, batch, where):
    run, task = fit_averaging_epochs(tmp_path / "whole")
    with pytest.raises(Interrupted):
        fit_averaging_epochs(tmp_path / "stopped", StopAt(batch, where))
    other, resumed = fit_averaging_epochs(tmp_path / "stopped", resume=newest_valid(tmp_path / "stopped")[0])
    assert all(torch.equal(a, b) for a, b in zip(outcome(task, run), outcome(resumed, other), strict=True))


def test_an_epoch_that_was_ended_early_counts_as_done(tmp_path):
    class TimeIsUp(pl.Callback):
        def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
            trainer.should_stop = trainer.current_epoch == 0 and batch_idx == 2

    task = Task()
    trainer(tmp_path, [TimeIsUp()], epochs=EPOCHS).fit(task, datamodule=Data())
    assert [line[1:3] for line in task.log_lines if line[0] == "train"] == [(0, 0), (0, 1), (0, 2)]
    stopped, task = Task(), Task()
    with pytest.raises(Interrupted):
        trainer(tmp_path, [StopAt(2)], epochs=EPOCHS).fit(stopped, datamodule=Data(), ckpt_path=tmp_path / "last.ckpt")
    trainer(tmp_path, epochs=EPOCHS).fit(task, datamodule=Data(), ckpt_path=tmp_path / "last.ckpt")
    order = [line[1:3] for line in stopped.log_lines + task.log_lines if line[0] == "train"]
    assert order == [(epoch, batch) for epoch in (1, 2) for batch in range(BATCHES)]


def test_a_second_ctrl_c_stops_at_once_and_saves_nothing(tmp_path):
    class Twice(StopAt):
        def _hit(self, where):
            if where == "train" and self.count == 3:
                os.kill(os.getpid(), signal.SIGINT)
                os.kill(os.getpid(), signal.SIGINT)
            self.count += where == "train"

    before = signal.getsignal(signal.SIGINT)
    stopped, task = fit(tmp_path, Twice(0))
    assert stopped.code == 130 and not stopped.agreed and len(task.log_lines) == 3
    assert newest_valid(tmp_path) == (None, []) and signal.getsignal(signal.SIGINT) == before


def test_a_finished_run_has_nothing_left_to_do(tmp_path):
    run, task = fit(tmp_path)
    again, repeated = fit(tmp_path, resume=tmp_path / "last.ckpt")
    assert repeated.log_lines == [] and again.global_step == run.global_step


def test_the_checkpoint_holds_plain_values_both_weights_and_the_best(tmp_path):
    run, task = fit(tmp_path)
    saved = AtomicCheckpointIO().load_checkpoint(tmp_path / "last.ckpt")
    average = trained_weights(tmp_path / "last.ckpt")
    assert average.keys() == task.model.state_dict().keys()
    assert all(
        torch.equal(tensor, task.model.state_dict()[name.removeprefix("model.")])
        for name, tensor in saved["state_dict"].items()
    )
    assert not torch.equal(average["head.weight"], task.model.head.weight)
    validated = [sum(line[4] for line in task.log_lines if line[:2] == ("val", epoch)) / 2 for epoch in range(EPOCHS)]
    best = next(c for c in run.callbacks if type(c).__name__ == "Checkpoints")
    assert best.best_epoch == min(range(EPOCHS), key=validated.__getitem__)
    assert best.best_score == pytest.approx(min(validated))
    assert AtomicCheckpointIO().load_checkpoint(best.best_path)["epoch"] == best.best_epoch
    assert sorted(os.listdir(tmp_path)) == ["best.ckpt", "last.ckpt", "manifest.json", "previous.ckpt"]


def checkpoints_of(run):
    return next(c for c in run.callbacks if isinstance(c, Checkpoints))


@pytest.mark.parametrize("loss", ["removed", "damaged", "of an earlier epoch"])
def test_a_lost_best_checkpoint_is_detected_on_resuming_and_the_run_continues(tmp_path, loss, caplog):
    fit(tmp_path, StopAt(2 * BATCHES + 3))
    best = tmp_path / "best.ckpt"
    if loss == "removed":
        best.unlink()
    elif loss == "damaged":
        content = best.read_bytes()
        best.unlink()  # it may be a link to last.ckpt
        best.write_bytes(content[:-100])
    else:  # a complete file that the manifest has under this name, but not the best one of the checkpoint
        record = json.loads((tmp_path / "manifest.json").read_text())
        record["files"]["best.ckpt"]["step"] -= 3
        (tmp_path / "manifest.json").write_text(json.dumps(record))
    run, _ = fit(tmp_path, resume=newest_valid(tmp_path)[0])
    assert "the best epoch is chosen among those that follow" in caplog.text
    path, score, epoch = checkpoints_of(run).final_weights()
    assert (path.name, epoch) == ("best.ckpt", EPOCHS) and score == checkpoints_of(run).best_score
    assert AtomicCheckpointIO().load_checkpoint(path)["epoch"] == EPOCHS - 1


def test_a_best_checkpoint_lost_at_the_end_is_replaced_by_the_last(tmp_path, caplog):
    run, _ = fit(tmp_path)
    (tmp_path / "best.ckpt").unlink()  # it may be a link to last.ckpt
    (tmp_path / "best.ckpt").write_bytes(b"half")
    path, score, epoch = checkpoints_of(run).final_weights()
    assert (path.name, epoch) == ("last.ckpt", EPOCHS) and score == checkpoints_of(run).last_score
    assert "the model is made from" in caplog.text
    trained_weights(path)
