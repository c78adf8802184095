"""The loss and the norm of the gradient of single steps that loggers receive, and their means over an epoch."""

import math
from copy import deepcopy

import pytest
import pytorch_lightning as pl
import torch
from pytorch_lightning.loggers.logger import DummyLogger
from pytorch_lightning.plugins import MixedPrecision
from torch import nn

from vit.tasks import Optimization, Task
from vit.training import FiniteLoss, build_optimizer, build_schedule, quiet_lightning


class Recorder(DummyLogger):
    def __init__(self):
        super().__init__()
        self.found, self.norms = {}, {}

    def log_metrics(self, metrics, step=None):
        if "train/step_loss" in metrics:
            self.found[step] = metrics["train/step_loss"]
        if "train/step_grad_norm" in metrics:
            self.norms[step] = metrics["train/step_grad_norm"]


class Linear(Task):
    losses: dict[int, float]

    @property
    def metric_names(self):
        return ["train/loss"]

    def training_loss(self, batch, step, micro):
        loss = self.model(batch["x"]).square().sum() / batch["samples"]
        self.losses[step] = 2 * float(loss.detach())  # of the last micro-batch, of two
        return loss


class Gradients(pl.Callback):
    def __init__(self):
        self.norms = []

    def on_before_optimizer_step(self, trainer, module, optimizer):
        self.norms.append(float(module.model[0].weight.grad.norm()))


class Modes(nn.Module):
    """Its input; records whether it is in training mode."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def forward(self, x):
        self.seen.append(self.training)
        return x


def test_a_filler_batch_changes_nothing(tmp_path):
    quiet_lightning()
    torch.manual_seed(0)
    recipe = Optimization(lambda model: build_optimizer(model, lr=0.1),
                          lambda optimizer, steps: build_schedule(optimizer, "constant", steps))
    task, gradients, modes = Linear(nn.Sequential(nn.Linear(3, 1), Modes()), recipe), Gradients(), Modes()
    task.losses, task.model[1] = {}, modes
    batches = [{"x": torch.randn(2, 3), "samples": 2, **({"filler": True} if step == 1 else {})} for step in range(3)]
    trainer = pl.Trainer(max_epochs=1, callbacks=[gradients], logger=False, accelerator="cpu",
                         enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
                         default_root_dir=tmp_path)
    trainer.fit(task, torch.utils.data.DataLoader(batches, batch_size=None))
    assert [norm > 0 for norm in gradients.norms] == [True, False, True] and modes.seen == [True, False, True]


@pytest.mark.parametrize("clip", [0.01, None])
def test_a_step_is_at_most_the_maximum_norm_times_the_rate(tmp_path, clip):
    quiet_lightning()
    torch.manual_seed(0)
    recipe = Optimization(lambda model: build_optimizer(model, "sgd", lr=0.5, weight_decay=0),
                          lambda optimizer, steps: build_schedule(optimizer, "constant", steps), clip)
    task = Linear(nn.Linear(3, 1), recipe)
    task.losses, before = {}, [parameter.detach().clone() for parameter in task.parameters()]
    trainer = pl.Trainer(max_steps=1, logger=False, accelerator="cpu", enable_checkpointing=False,
                         enable_progress_bar=False, enable_model_summary=False, default_root_dir=tmp_path)
    trainer.fit(task, torch.utils.data.DataLoader([{"x": torch.randn(2, 3), "samples": 2}], batch_size=None))
    steps = [new.detach() - old for new, old in zip(task.parameters(), before, strict=True)]
    moved = nn.utils.get_total_norm(steps)
    assert moved > 0.05 if clip is None else float(moved) == pytest.approx(0.5 * clip, rel=1e-3)


@pytest.mark.parametrize("callbacks", [[], [FiniteLoss()], [FiniteLoss(late=True)]])
@pytest.mark.parametrize("clip", [0.01, 100.0])
def test_gradients_in_float16_are_clipped_without_the_scale_of_the_loss(tmp_path, callbacks, clip):
    """Fused optimizers divide the gradients by the scale in their step, after clipping."""
    quiet_lightning()
    steps = {}
    for fused in (False, True):
        torch.manual_seed(0)
        recipe = Optimization(lambda model, fused=fused: torch.optim.SGD(model.parameters(), lr=0.5, fused=fused),
                              lambda optimizer, steps: build_schedule(optimizer, "constant", steps), clip)
        task = Linear(nn.Linear(3, 1), recipe)
        task.losses, before = {}, [parameter.detach().clone() for parameter in task.parameters()]
        precision = MixedPrecision("16-mixed", "cpu", torch.amp.GradScaler("cpu", init_scale=2.0**10))
        trainer = pl.Trainer(max_steps=1, plugins=[precision], accelerator="cpu", logger=False,
                             callbacks=deepcopy(callbacks), enable_checkpointing=False, enable_progress_bar=False,
                             enable_model_summary=False, default_root_dir=tmp_path)
        trainer.fit(task, torch.utils.data.DataLoader([{"x": torch.randn(2, 3), "samples": 2}], batch_size=None))
        steps[fused] = [new.detach() - old for new, old in zip(task.parameters(), before, strict=True)]
        moved = float(nn.utils.get_total_norm(steps[fused]))
        assert moved > 0.05 if clip == 100 else moved == pytest.approx(0.5 * clip, rel=1e-3)
        if callbacks:
            assert float(task.gradient_norm) < 10
    torch.testing.assert_close(steps[True], steps[False])


def test_loggers_receive_the_loss_of_the_step_that_they_name(tmp_path):
    quiet_lightning()
    torch.manual_seed(0)
    recipe = Optimization(lambda model: build_optimizer(model, lr=0.1),
                          lambda optimizer, steps: build_schedule(optimizer, "cosine", steps))
    task, logger = Linear(nn.Linear(3, 1), recipe), Recorder()
    task.losses = {}
    batches = [{"x": torch.randn(2, 3), "samples": 4} for _ in range(10)]
    trainer = pl.Trainer(max_epochs=2, accumulate_grad_batches=2, log_every_n_steps=3, logger=logger, accelerator="cpu",
                         enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
                         default_root_dir=tmp_path)
    trainer.fit(task, torch.utils.data.DataLoader(batches, batch_size=None))
    assert logger.found == {step: task.losses[step] for step in (2, 5, 8)}


class Recorded(Linear):
    def training_loss(self, batch, step, micro):
        loss = super().training_loss(batch, step, micro)
        self.parts.append((step, micro, float(loss.detach())))
        return loss


def test_an_epoch_has_the_mean_of_its_own_steps_and_the_highest_rate(tmp_path):
    quiet_lightning()
    torch.manual_seed(0)
    recipe = Optimization(
        lambda model: torch.optim.SGD([{"params": [model.weight], "lr": 0.01}, {"params": [model.bias], "lr": 0.03}]),
        lambda optimizer, steps: build_schedule(optimizer, "constant", steps))
    task = Recorded(nn.Linear(3, 1), recipe)
    task.losses, task.parts = {}, []
    batches = [{"x": torch.randn(2, 3), "samples": 4} for _ in range(4)]
    trainer = pl.Trainer(max_epochs=2, accumulate_grad_batches=2, logger=False, accelerator="cpu",
                         enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
                         default_root_dir=tmp_path)
    trainer.fit(task, torch.utils.data.DataLoader(batches, batch_size=None))
    assert [part[:2] for part in task.parts] == [(step, micro) for step in range(4) for micro in (0, 1)]
    of_steps = [task.parts[i][2] + task.parts[i + 1][2] for i in (4, 6)]  # of the second epoch
    assert float(trainer.callback_metrics["train/loss"]) == pytest.approx(sum(of_steps) / 2)
    assert float(trainer.callback_metrics["lr"]) == pytest.approx(0.03)


class Norms(pl.Callback):
    """torch's norm of the gradient of each step, before clipping."""

    def __init__(self):
        self.found = []

    def on_before_optimizer_step(self, trainer, module, optimizer):
        self.found.append(float(nn.utils.get_total_norm([parameter.grad for parameter in module.parameters()])))


def norms_of_two_epochs(folder, callbacks=(), clip=None, plugins=()):
    """Of 10 steps with two micro-batches each: torch's norms, those of the logger, the mean of the second epoch."""
    quiet_lightning()
    torch.manual_seed(0)
    recipe = Optimization(lambda model: torch.optim.SGD(model.parameters(), lr=0.1),
                          lambda optimizer, steps: build_schedule(optimizer, "constant", steps), clip)
    task, logger, norms = Linear(nn.Linear(3, 1), recipe), Recorder(), Norms()
    task.losses = {}
    batches = [{"x": torch.randn(2, 3), "samples": 4} for _ in range(10)]
    trainer = pl.Trainer(max_epochs=2, accumulate_grad_batches=2, log_every_n_steps=3, logger=logger, accelerator="cpu",
                         callbacks=[norms, *callbacks], plugins=[*plugins], enable_checkpointing=False,
                         enable_progress_bar=False, enable_model_summary=False, default_root_dir=folder)
    trainer.fit(task, torch.utils.data.DataLoader(batches, batch_size=None))
    mean = trainer.callback_metrics.get("train/grad_norm")
    return norms.found, logger.norms, mean if mean is None else float(mean)


@pytest.mark.parametrize(("late", "clip"), [(None, 0.01), (None, None), (True, 0.01), (True, None)])
def test_the_norm_of_the_gradient_is_that_before_clipping(tmp_path, late, clip):
    norms, logged, mean = norms_of_two_epochs(tmp_path, [FiniteLoss(late)], clip)
    assert len(norms) == 10 and max(norms) > 0.05 and mean == pytest.approx(sum(norms[5:]) / 5)
    assert logged == pytest.approx({step: norms[step] for step in (2, 5, 8)})


def test_without_the_guard_only_clipping_computes_the_norm_of_the_gradient(tmp_path):
    norms, logged, mean = norms_of_two_epochs(tmp_path, clip=0.01)
    assert mean == pytest.approx(sum(norms[5:]) / 5) and sorted(logged) == [2, 5, 8]
    assert norms_of_two_epochs(tmp_path)[1:] == ({}, None)


@pytest.mark.parametrize("clip", [0.01, None])
def test_steps_that_float16_skips_are_not_in_the_mean_norm_of_the_gradient(tmp_path, clip):
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**24, backoff_factor=2.0**-14)  # overflows at first
    precision = MixedPrecision("16-mixed", "cpu", scaler)
    means = []

    class Means(pl.Callback):
        def on_train_epoch_end(self, trainer, module):
            means.append(float(module.grad_norm.compute()))

    norms, _, _ = norms_of_two_epochs(tmp_path, [FiniteLoss(), Means()], clip, [precision])
    used = [[norm for norm in epoch if math.isfinite(norm)] for epoch in (norms[:5], norms[5:])]
    assert 1 <= len(used[0]) < 5 and means == pytest.approx([sum(epoch) / len(epoch) for epoch in used])
