"""The loss of single steps that loggers receive."""

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
        self.found = {}

    def log_metrics(self, metrics, step=None):
        if "train/step_loss" in metrics:
            self.found[step] = metrics["train/step_loss"]


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
