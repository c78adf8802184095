"""The guard against NaN, infinite and exploding values: a run stops before an update with such values."""

import logging
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

import pytorch_lightning as pl
import torch
import torch.distributed as dist
from torch import Tensor

from vit.messages import first_of
from vit.training.optimization.gradient_clipping import (
    gradient_norm,
    gradients_of,
    local,
    norms,
    remaining_loss_scale,
)

log = logging.getLogger(__name__)

LIMIT = 1e18  # below 1.8e19, from which on squares overflow float32: norms and optimizers square gradients
SHOWN = 8  # samples named in the error
WATCHED = ("training loss", "norm of the weights", "norm of the input")
ADVICE = "Lower the learning rate, lengthen the warm-up, clip gradients, or train in precision=32-true."
PARTS = 8  # subsets of the weights, one of which is checked per step


class RoundRobinWeights:
    """Selects the weights to check in a step: one of `PARTS` subsets in turn, or all weights if something other than
    the optimizer has changed one of them.

    A check of all weights would take 1 % of a step of a small model, and an update by a finite gradient does not make a
    weight infinite. Torch counts the changes of each tensor (`_version`). An optimizer makes the same number of changes
    in every step, so a different number shows that something else has changed a weight. Two faults are found up to
    `PARTS` steps late: changes that torch does not count, such as a memory fault, and weights that the optimizer makes
    too large while loss and gradients remain small. A checkpoint is saved only after a check of all weights.

    Args:
        weights: the parameters; those that are not floating point are ignored.
    """

    def __init__(self, weights: Sequence[Tensor]):
        self.all = [weight for weight in weights if weight.is_floating_point()]
        self._turn, self._changes, self._per_step = 0, 0, -1

    def select(self) -> list[Tensor]:
        """The weights to check in this step; call it once per step."""
        before, self._changes = self._changes, sum(map(attrgetter("_version"), self.all))
        usual, self._per_step = self._per_step, self._changes - before
        if self._per_step != usual:
            return self.all
        self._turn = (self._turn + 1) % PARTS
        return self.all[self._turn :: PARTS]


def sum_of_norms(tensors: Sequence[Tensor | None], device: torch.device | None = None) -> Tensor:
    """The sum of the norms of the tensors, a scalar: it is finite and small only if all elements in this process are.

    Tensors that are not floating point are ignored.

    Args:
        device: where the zero is created if there are no others; a copy from the host would wait for a GPU.
    """
    return norms([local(t) for t in tensors if t is not None and t.is_floating_point()], device).sum()


def gradient_norm_and_others(gradients: Sequence[Tensor], others: Sequence[Tensor]) -> tuple[Tensor, list[float]]:
    """The joint norm of the gradients, a scalar, and the norm of each other tensor, computed in one call."""
    sizes = norms([*gradients, *others])
    return torch.linalg.vector_norm(sizes[: len(gradients)]), sizes[len(gradients) :].tolist()


class NonFiniteError(FloatingPointError):
    """A loss, a gradient or a weight became NaN or infinite, or exploded."""


@dataclass(frozen=True)
class Step:
    """The numbers of one optimizer step that the guard checks.

    Args:
        number: counted from 1, as `epoch` is.
        batches: indices (B,) of the samples of each micro-batch, on the device.
        found: the checked numbers of each micro-batch in this process, in the order of WATCHED.
        norm: norm of the gradient, the same in every process.
        fine: whether the update is allowed; `copied` is an event after which the host can read it.
    """

    number: int
    epoch: int
    lr: float
    batches: list[Any]
    found: list[Sequence[float] | Tensor]
    norm: Tensor
    fine: Tensor
    copied: torch.Event | None = None


class FiniteLoss(pl.Callback):
    """Stops a run before an update where the loss, the gradient, a weight or an input is not finite or exceeds `LIMIT`.

    A process that finds such a value makes its gradient NaN. Gradients are averaged over the processes, so the norm of
    the gradient, which clipping needs as well, gives all processes the same result without further communication. On a
    CPU the norm is read before the update. On other devices the update is skipped on the device, and the result is read
    one step later, so that the host never waits. With float16 the gradient scaler skips steps that overflow, and a run
    stops when the scale has fallen below 1. A single process on a CPU whose weights are not sharded checks the weights
    selected by `RoundRobinWeights` immediately before the update.

    Args:
        late: whether the host reads the result one step later; None decides by the device.
    """

    def __init__(self, late: bool | None = None):
        self.late = late
        self._batches: list[Any] = []
        self._found: list[Sequence[float] | Tensor] = []
        self._steps: deque[Step] = deque()
        self._weights: RoundRobinWeights | None = None
        self._weight_norm: Tensor | None = None  # norm of the checked weights before this step
        self._alone = False

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._weights = RoundRobinWeights(list(pl_module.parameters()))
        if self.late is None:
            self.late = pl_module.device.type != "cpu"
        sharded = any(hasattr(weight, "to_local") for weight in self._weights.all)
        self._alone = not self.late and trainer.world_size == 1 and not sharded

    def on_train_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        self._batches.append(batch.get("index") if isinstance(batch, dict) else None)

    def on_before_backward(self, trainer: pl.Trainer, pl_module: pl.LightningModule, loss: Tensor) -> None:
        """Make the gradient NaN if a value of the micro-batch is not below `LIMIT`; a single process on a CPU checks
        the values before the update instead.
        """
        inputs = vars(pl_module).get("inputs")
        vars(pl_module)["inputs"] = None  # nn.Module's __setattr__ takes longer than the check of the loss
        if self._alone:
            if self._found:  # only the input of the last micro-batch stays in memory
                self._found[-1] = numbers_of(*self._found[-1])
            self._found.append((loss.detach().float(), inputs))  # norms in float32 do not accept float64
            return
        if self._weight_norm is None:  # the same for all micro-batches of a step
            weight_norm = sum_of_norms(self._weights.select(), loss.device)
            self._weight_norm = weight_norm.to(loss.device, non_blocking=True)  # fsdp may offload weights to the CPU
        input_norm = sum_of_norms([inputs], loss.device)
        numbers = torch.stack([loss.detach().float().abs(), self._weight_norm, input_norm])
        fine = (numbers < LIMIT).all()
        loss.register_hook(lambda gradient: gradient.where(fine, torch.nan))
        self._found.append(numbers)

    def on_before_optimizer_step(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, optimizer: torch.optim.Optimizer
    ) -> None:
        gradients = gradients_of(self._weights.all)
        batches, found = self._batches, self._found
        self._batches, self._found, self._weight_norm = [], [], None
        norm = self._check_now(gradients, found) if self._alone else gradient_norm(gradients)
        scaler = getattr(trainer.precision_plugin, "scaler", None)
        norm = norm if scaler is None else norm / remaining_loss_scale(scaler, optimizer)
        vars(pl_module)["gradient_norm"] = norm
        if not self.late and norm.item() < LIMIT:
            return
        fine = norm < LIMIT
        if scaler is not None:
            fine = fine | (scaler._scale >= 1)
        step = Step(trainer.global_step + 1, trainer.current_epoch + 1, current_lr(trainer), batches, found, norm, fine)
        if self.late:
            if scaler is None:  # a scaler skips such updates itself
                skip_update(optimizer, gradients, ~fine)
                pl_module.gradient_norm = norm.where(fine, 0)  # clipping must not bring the NaN back
            step = copy_to_host(step)
        self._steps.append(step)
        self._check(trainer, pl_module, behind=int(self.late))

    def _check_now(self, gradients: list[Tensor], found: list[Sequence[float] | Tensor]) -> Tensor:
        """The norm of the gradients, a scalar; NaN if another checked value is not below `LIMIT`. In that case `found`
        is replaced by the values of all micro-batches.

        One call reads all tensors: calling the function twice costs more than reading the weights of a small model.
        """
        loss, inputs = found[-1]
        others = [loss, *([] if inputs is None else [inputs]), *self._weights.select()]
        norm, sizes = gradient_norm_and_others(gradients, others)
        sizes += [number for numbers in found[:-1] for number in numbers]
        if norm.item() < LIMIT and all(size < LIMIT for size in sizes):
            return norm
        weights = float(sum_of_norms(self._weights.all))
        found[-1] = numbers_of(loss, inputs)
        found[:] = [(loss, weights, inputs) for loss, _, inputs in found]
        return norm if all(n < LIMIT for numbers in found for n in numbers) else torch.full_like(norm, torch.nan)

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._check(trainer, pl_module)
        self._batches, self._found = [], []  # drops those of an unfinished step

    def on_validation_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._check(trainer, pl_module)

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Check the validation loss, which shows broken weights before the next training step does.

        Raises:
            NonFiniteError: it is not finite.
        """
        loss = trainer.callback_metrics.get("val/loss")
        if loss is not None and not trainer.sanity_checking and not abs(float(loss)) < LIMIT:
            raise NonFiniteError(
                f"the validation loss is {float(loss):.3g} after optimizer step {trainer.global_step} (epoch "
                f"{trainer.current_epoch + 1}, lr {current_lr(trainer):.3g}); stopped, the last checkpoint is from "
                f"before. {ADVICE}"
            )

    def on_save_checkpoint(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Check the weights and running statistics before they are saved.

        Raises:
            NonFiniteError: one of them is not finite.
        """
        self._check(trainer, pl_module)
        statistics = [buffer for name, buffer in pl_module.named_buffers() if ".running_" in name]
        fine = bool(sum_of_norms([*pl_module.parameters()]) + sum_of_norms(statistics) < LIMIT)
        if not trainer.strategy.reduce_boolean_decision(fine, all=True):
            raise NonFiniteError(
                f"a weight is not finite after optimizer step {trainer.global_step} "
                f"(lr {current_lr(trainer):.3g}{named(wrong_weights(pl_module))}); nothing was saved. {ADVICE}"
            )

    def _check(self, trainer: pl.Trainer, pl_module: pl.LightningModule, behind: int = 0) -> None:
        """Read the results of all steps but the last `behind`.

        Raises:
            NonFiniteError: an update was not allowed.
        """
        while len(self._steps) > behind:
            step = self._steps.popleft()
            if step.copied is not None:
                step.copied.synchronize()
            if not step.fine:
                raise NonFiniteError(explanation(step, trainer, pl_module))


def numbers_of(loss: Tensor, inputs: Tensor | None) -> tuple[float, float, float]:
    """The numbers of a micro-batch in the order of `WATCHED`, with 0 for the weights."""
    return abs(loss.item()), 0.0, float(sum_of_norms([inputs]))


def skip_update(optimizer: torch.optim.Optimizer, gradients: list[Tensor], skip: Tensor) -> None:
    """Disable the next update if `skip`, a bool scalar on the device, is true.

    Fused optimizers read this flag and change nothing. Other optimizers get gradients of zero, so that only their
    momentum changes the weights.
    """
    sharded = any(hasattr(gradient, "to_local") for gradient in gradients)
    if getattr(optimizer, "_step_supports_amp_scaling", False) and not sharded:
        optimizer.found_inf = skip.float()
        return
    for gradient in gradients:
        local(gradient).masked_fill_(skip, 0)


def copy_to_host(step: Step) -> Step:
    """Start to copy the result of a step to the host, without waiting for the device; returns the step with the copy.
    """
    if step.fine.device.type == "cpu":
        return step
    fine = step.fine.to("cpu", non_blocking=True)
    copied = torch.Event(step.fine.device)
    copied.record()
    return Step(**vars(step) | {"fine": fine, "copied": copied})


def explanation(step: Step, trainer: pl.Trainer, module: pl.LightningModule) -> str:
    """The error message: the value, its process and the samples of the batch. All processes call this at the same step.
    """
    found = [[float(number) for number in numbers] for numbers in step.found]
    wrong = [micro for micro, numbers in enumerate(found) if not all(number < LIMIT for number in numbers)]
    what = {WATCHED[i]: found[m][i] for m in wrong for i in range(len(WATCHED)) if not found[m][i] < LIMIT}
    if WATCHED[1] in what:
        what |= {f"weight {name}": number for name, number in wrong_weights(module)[:1]}
    names = [name for m in wrong or range(len(found)) for name in sample_names(trainer, step.batches[m])]
    reports = [(trainer.global_rank, what, names)]
    if trainer.world_size > 1:
        reports = [None] * trainer.world_size
        dist.all_gather_object(reports, (trainer.global_rank, what, names))
    wrong_reports = [report for report in reports if report[1]]
    causes = [f"the {name} is {number:.3g}" + (f" in process {rank}" if len(reports) > 1 else "")
              for rank, what, _ in wrong_reports for name, number in what.items()]
    causes = causes or [f"the norm of the gradient is {float(step.norm):.3g}"]
    for rank, _, names in reports:
        log.debug("the batch of optimizer step %d, process %d: %s", step.number, rank, ", ".join(names))
    samples = [name for report in wrong_reports or reports for name in report[2]]
    return (f"{', '.join(causes)} at optimizer step {step.number} (epoch {step.epoch}, lr {step.lr:.3g}); stopped "
            f"before the update, the last checkpoint is from before. The batch: {shortened(samples)}. {ADVICE}")


def wrong_weights(module: torch.nn.Module) -> list[tuple[str, float]]:
    """(name, largest absolute value) of the weights in this process that are not finite or above `LIMIT`."""
    sizes = [(name, local(p.detach()).abs().max()) for name, p in module.named_parameters() if p.numel()]
    return [(name.removeprefix("model."), float(size)) for name, size in sizes if not size < LIMIT]


def named(wrong: list[tuple[str, float]]) -> str:
    return f", {wrong[0][0]} is {wrong[0][1]:.3g}" if wrong else ""


def sample_names(trainer: pl.Trainer, index: Tensor | None) -> list[str]:
    """Names of the samples with these indices (B,), or the indices if the loader has no names."""
    loader = trainer.train_dataloader
    if index is None:
        return []
    return loader.names(index.tolist()) if hasattr(loader, "names") else [str(i) for i in index.tolist()]


def shortened(names: list[str]) -> str:
    """The first `SHOWN` names and the number of the others."""
    return first_of(names, SHOWN) + (" (log.txt has all)" if len(names) > SHOWN else "") or "unknown"


def current_lr(trainer: pl.Trainer) -> float:
    """The highest learning rate of all parameter groups."""
    return max(group["lr"] for optimizer in trainer.optimizers for group in optimizer.param_groups)
