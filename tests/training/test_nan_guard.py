"""The guard against numbers that are not finite: the state after a skipped update, and when the host checks."""

import math
from types import SimpleNamespace

import pytest
import timm.optim
import torch
from torch import nn

from tests.simulated_gpu import simulated_gpu
from tests.training.tiny_run import Data, Task, trainer
from vit.training import NonFiniteError
from vit.training.fault_tolerance.nan_guard import (
    LIMIT,
    PARTS,
    SHOWN,
    FiniteLoss,
    RoundRobinWeights,
    current_lr,
    gradient_norm_and_others,
    shortened,
    skip_update,
    sum_of_norms,
)

OPTIMIZERS = {
    "fused AdamW": lambda p: torch.optim.AdamW(p, lr=0.1, fused=True),
    "AdamW": lambda p: torch.optim.AdamW(p, lr=0.1, fused=False),
    "SGD": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, fused=False),
    "LAMB": lambda p: timm.optim.Lamb(p, lr=0.1),
}


def step(model, optimizer, skip):
    optimizer.zero_grad()
    (model(torch.ones(2, 3)).sum() * (math.nan if skip else 1.0)).backward()
    skip_update(optimizer, [p.grad for p in model.parameters()], torch.tensor(skip))
    optimizer.step()


def test_the_learning_rate_of_the_message_is_the_highest_one():
    groups = [{"lr": 0.1}, {"lr": 0.3}], [{"lr": 0.2}]
    assert current_lr(SimpleNamespace(optimizers=[SimpleNamespace(param_groups=each) for each in groups])) == 0.3


@pytest.mark.parametrize(("weight", "inputs", "fine"), [(1.0, 1.0, True), (1e20, 1.0, False), (1.0, math.inf, False)])
def test_the_gradient_of_a_loss_with_a_wrong_weight_or_input_is_nan(weight, inputs, fine):
    """Off the processor and with several processes, where the norm of the gradient informs all of them."""
    module, guard = nn.Linear(1, 1), FiniteLoss(late=True)
    nn.init.constant_(module.weight, weight)
    module.device, module.inputs = torch.device("cpu"), torch.tensor([inputs])
    guard.on_train_start(SimpleNamespace(world_size=1), module)
    loss = module.bias.sum()  # its own number and gradient are finite
    guard.on_before_backward(SimpleNamespace(), module, loss)
    loss.backward()
    assert bool(torch.isfinite(module.bias.grad)) is fine


@pytest.mark.parametrize("weight", [1.0, 1e20])
def test_weights_that_are_offloaded_to_the_cpu_are_checked_beside_a_loss_on_the_gpu(weight):
    module, guard = nn.Linear(1, 1), FiniteLoss()
    nn.init.constant_(module.weight, weight)
    with simulated_gpu() as waits:
        module.device, module.inputs = torch.device("cuda"), torch.ones(1).to("cuda")
        guard.on_train_start(SimpleNamespace(world_size=1), module)
        loss = module.bias.to("cuda").sum()
        before = len(waits)
        guard.on_before_backward(SimpleNamespace(), module, loss)
        assert waits[before:] == []
        loss.backward()
    assert bool(torch.isfinite(module.bias.grad)) is (weight == 1)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_skipped_update_leaves_finite_weights_and_states(name):
    model = nn.Linear(3, 4)
    optimizer = OPTIMIZERS[name](model.parameters())
    step(model, optimizer, skip=False)
    before = [p.detach().clone() for p in model.parameters()]
    step(model, optimizer, skip=True)
    after = list(model.parameters())
    if name.startswith("fused"):
        assert all(torch.equal(x, y) for x, y in zip(before, after, strict=True))
    step(model, optimizer, skip=False)
    assert all(p.isfinite().all() for p in after)
    assert not any(torch.equal(x, y) for x, y in zip(before, after, strict=True)), "training goes on"


@pytest.mark.parametrize("others", [[], [torch.float32], [torch.bfloat16]])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 1e30, -1e30])
def test_one_bad_element_of_any_tensor_is_detected(value, others):
    """At once if something besides the optimizer changed it."""
    tensors = [torch.randn(4), torch.randn(300, 300), torch.randn(3, 4), *(torch.randn(5, dtype=d) for d in others)]
    tensors.append(torch.randn(4, 3, 2, 2).to(memory_format=torch.channels_last) if others else torch.tensor(2.0))
    weights = RoundRobinWeights(tensors)
    for tensor in tensors:
        for _ in range(3):
            update(tensors)
            due = weights.select()
            assert sum_of_norms(tensors) < LIMIT and sum_of_norms(due) < LIMIT
        assert len(due) < len(tensors)
        update(tensors)
        before = tensor.clone()
        tensor[(-1,) * tensor.dim()] = value
        assert not sum_of_norms(tensors) < LIMIT and not sum_of_norms(weights.select()) < LIMIT
        tensor.copy_(before)


def test_a_change_that_torch_does_not_count_is_found_in_turn():
    """As a fault of the memory."""
    tensors = [torch.ones(3) for _ in range(2 * PARTS + 1)]
    weights = RoundRobinWeights(tensors)
    for _ in range(2):
        update(tensors)
        weights.select()
    tensors[6].numpy()[1] = math.nan
    found = 0
    for _ in range(PARTS):
        update(tensors)
        found += not sum_of_norms(weights.select()) < LIMIT
    assert found == 1


def update(tensors):
    """A step of an optimizer, as torch counts it."""
    torch._foreach_mul_(tensors, 1.0)


def test_weights_that_are_not_finite_are_no_fault_of_the_input(tmp_path):
    class Spoilt(Task):
        def training_step(self, batch, batch_idx):
            if self.global_step == 8:
                next(self.parameters()).detach().view(-1)[0] = math.nan
            return super().training_step(batch, batch_idx)

    with pytest.raises(NonFiniteError, match="norm of the weights is nan") as caught:
        trainer(tmp_path).fit(Spoilt(), datamodule=Data())
    assert "input" not in str(caught.value)


def test_a_running_statistic_that_is_not_finite_is_not_saved(tmp_path):
    class Normed(Task):
        def __init__(self):
            super().__init__()
            self.model.norm = nn.BatchNorm1d(3)

        def on_train_epoch_end(self):
            self.model.norm.running_var[0] = math.inf

    with pytest.raises(NonFiniteError, match="after optimizer step 6.*nothing was saved"):
        trainer(tmp_path).fit(Normed(), datamodule=Data())


@pytest.mark.parametrize(("dtype", "strategy"), [(torch.float64, "auto"), (torch.float32, "fsdp")])
def test_one_process_checks_losses_in_float64_and_sharded_weights(tmp_path, own_processes, dtype, strategy):
    class Converted(Task):
        def training_step(self, batch, batch_idx):
            return super().training_step(batch, batch_idx).to(dtype)

    with pytest.raises(NonFiniteError, match=r"loss is nan at optimizer step 3 "):
        trainer(tmp_path, strategy=strategy).fit(Converted(poison_at=2), datamodule=Data())


@pytest.mark.parametrize(("late", "steps"), [(False, 0), (True, 1)])
def test_on_a_device_the_host_checks_one_step_later(tmp_path, late, steps):
    """Nothing is saved in between, and the weights stay those of the last good step."""
    task = Task(poison_at=8)
    run = trainer(tmp_path, late=late)
    with pytest.raises(NonFiniteError, match=r"loss is nan at optimizer step 9 "):
        run.fit(task, datamodule=Data())
    assert [line[3] for line in task.log_lines if line[0] == "train"][-1] == 8 + steps
    assert all(p.isfinite().all() for p in task.parameters())


def test_a_validation_loss_that_is_not_finite_is_not_saved(tmp_path):
    class Breaking(Task):
        def validation_step(self, batch, batch_idx):
            self.log("val/loss", torch.tensor(math.nan))

    with pytest.raises(NonFiniteError, match=r"validation loss is nan after optimizer step 6 \(epoch 1"):
        trainer(tmp_path).fit(Breaking(), datamodule=Data())
    assert not (tmp_path / "last.ckpt").exists()


def test_the_norm_of_the_gradients_is_joint_and_those_of_other_tensors_are_their_own():
    gradients, others = [torch.randn(3, 4), torch.randn(5)], [torch.randn(6), torch.randn(2, 2)]
    norm, found = gradient_norm_and_others(gradients, others)
    torch.testing.assert_close(norm, torch.cat([each.flatten() for each in gradients]).norm())
    assert found == pytest.approx([float(each.norm()) for each in others])
    assert gradient_norm_and_others(gradients, [])[1] == []


def test_an_error_names_the_first_samples_and_the_number_of_the_others():
    names = [f"{i}.png" for i in range(SHOWN + 3)]
    assert shortened(names) == ", ".join(names[:SHOWN]) + " and 3 more (log.txt has all)"
    assert shortened(names[:SHOWN]) == ", ".join(names[:SHOWN]) and shortened([]) == "unknown"
