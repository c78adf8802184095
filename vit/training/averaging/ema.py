"""Averages of a model's weights, and their callbacks: exponential moving average (EMA) and mean of the last epochs.

The callbacks validate with the average and save both in every checkpoint. Lightning's `EMAWeightAveraging` is not used:
it does not support sharded models, and it holds a second copy of the whole model, frozen parameters included.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import pytorch_lightning as pl
import torch
from torch import nn

from vit.messages import agree, number_of
from vit.training.optimization.gradient_clipping import local
from vit.weights.training_checkpoint import clean_name


class WeightAverage:
    """average <- decay * average + (1 - decay) * weight after every optimizer step; buffers are copied.

    Parameters that require no gradient at construction are frozen: their average shares their memory. Sharded models
    are averaged shard by shard, under the names of the unwrapped model. The tensors of the model must stay the same
    objects: it may be moved between devices, but must be sharded before this object is made. The average of weights in
    bfloat16 or float16 has float32, because its changes in a step are below their precision.

    Args:
        decay: in [0, 1); 0.999 averages about 1000 steps.
        warmup: limit the decay of step t to (1 + t) / (10 + t), as TensorFlow's `ExponentialMovingAverage` does with
            `num_updates`, so that the initial weights soon lose their influence; DeiT has no such limit.

    Raises:
        ValueError: a decay outside [0, 1).
    """

    def __init__(self, model: nn.Module, decay: float, warmup: bool = True):
        if not 0 <= decay < 1:
            raise ValueError(f"ema decay is {decay}, but must lie in [0, 1); 0.999 averages about 1000 steps")
        self.decay, self.warmup = decay, warmup
        self.tensors = saved_tensors(model)
        parameters = {clean_name(name): parameter for name, parameter in model.named_parameters()}
        self.moving = [name for name in self.tensors if name not in parameters or parameters[name].requires_grad]
        self.average = {name: tensor.detach() for name, tensor in self.tensors.items()}
        self.average |= {name: precise(self.average[name]).clone() for name in self.moving}
        self._lerped = [n for n in self.moving if n in parameters and self.tensors[n].is_floating_point()]
        self._copied = [name for name in self.moving if name not in set(self._lerped)]
        self._sharded = [part for part in model.modules() if hasattr(part, "reshard")]  # modules of FSDP2
        self._raw: list[torch.Tensor] | None = None  # the raw weights while the model holds the average

    @property
    def swapped(self) -> bool:
        return self._raw is not None

    def decay_at(self, step: int) -> float:
        """The decay of optimizer step `step`, counted from 1."""
        return min(self.decay, (1 + step) / (10 + step)) if self.warmup else self.decay

    @torch.no_grad()
    def update(self, step: int) -> None:
        """Update the average after optimizer step `step` (counted from 1).

        Raises:
            RuntimeError: the model holds the averaged weights.
        """
        if self.swapped:
            raise RuntimeError("the model holds the averaged weights; call swap_out() before update()")
        averages = local_tensors(self.average, self._lerped)
        weights = [precise(weight) for weight in local_tensors(self.tensors, self._lerped)]
        torch._foreach_lerp_(averages, weights, 1 - self.decay_at(step))
        if self._copied:
            torch._foreach_copy_(local_tensors(self.average, self._copied), local_tensors(self.tensors, self._copied))

    @torch.no_grad()
    def swap_in(self) -> None:
        """Copy the averaged weights into the model; `swap_out` restores the raw ones bit for bit.

        Raises:
            RuntimeError: it holds them already.
        """
        if self.swapped:
            raise RuntimeError("the model already holds the averaged weights")
        self._raw = [tensor.clone() for tensor in local_tensors(self.tensors, self.moving)]
        self._copy_to_model(local_tensors(self.average, self.moving))

    @torch.no_grad()
    def swap_out(self) -> None:
        """Restore the raw weights that `swap_in` replaced.

        Raises:
            RuntimeError: the model holds its raw weights.
        """
        if not self.swapped:
            raise RuntimeError("the model already holds its raw weights")
        self._copy_to_model(self._raw)
        self._raw = None

    def _copy_to_model(self, weights: list[torch.Tensor]) -> None:
        """Set the weights of the model, as shards. Those that a forward pass without gradients has gathered are freed,
        because the next one would compute with their former values.
        """
        torch._foreach_copy_(local_tensors(self.tensors, self.moving), weights)
        for part in self._sharded:
            part.reshard()

    @contextmanager
    def swap(self) -> Iterator[None]:
        """Context manager: the model holds the averaged weights inside it."""
        self.swap_in()
        try:
            yield
        finally:
            self.swap_out()

    def state_dict(self) -> dict[str, torch.Tensor]:
        """Full tensors under the unwrapped model's names; every process of a sharded model must call it."""
        return full_tensors(self.average)

    def load_state_dict(self, state: dict[str, torch.Tensor]) -> None:
        copy_full_tensors(self.average, state)


class EpochAverage(WeightAverage):
    """The mean of the last `epochs` snapshots of the weights.

    Raises:
        ValueError: `epochs` is below 1.
    """

    def __init__(self, model: nn.Module, epochs: int):
        if epochs < 1:
            raise ValueError(f"the average is over {number_of(epochs, 'epoch')}, but needs at least 1")
        super().__init__(model, 0.0)
        self.epochs = epochs
        self.snapshots: list[tuple[int, dict[str, torch.Tensor]]] = []  # (optimizer step, weights), oldest first

    @torch.no_grad()
    def add_snapshot(self, step: int) -> None:
        """Add the weights after optimizer step `step`; a snapshot of the same step, as after a resume, is replaced."""
        snapshot = {name: self.tensors[name].detach().clone() for name in self.moving}
        others = [each for each in self.snapshots if each[0] != step]
        self.snapshots = [*others, (step, snapshot)][-self.epochs :]
        for name in self._lerped:
            parts = [precise(local(weights[name])) for _, weights in self.snapshots]
            local(self.average[name]).copy_(torch.stack(parts).mean(0))
        for name in self._copied:
            local(self.average[name]).copy_(local(snapshot[name]))

    def snapshots_dict(self) -> list[dict]:
        """The snapshots for `load_state_dict`; every process of a sharded model must call it."""
        return [{"step": step, "weights": full_tensors(weights)} for step, weights in self.snapshots]

    def load_state_dict(self, state: dict[str, torch.Tensor], snapshots: list[dict] | None = None) -> None:
        super().load_state_dict(state)
        for saved in snapshots or []:
            weights = {name: torch.empty_like(self.tensors[name].detach()) for name in self.moving}
            copy_full_tensors(weights, saved["weights"])
            self.snapshots.append((saved["step"], weights))


def full_tensors(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The tensors, with sharded ones gathered on the CPU; every process must call it."""
    return {
        name: tensor.full_tensor().cpu() if hasattr(tensor, "full_tensor") else tensor
        for name, tensor in tensors.items()
    }


@torch.no_grad()
def copy_full_tensors(tensors: dict[str, torch.Tensor], state: dict[str, torch.Tensor]) -> None:
    """Copy full tensors into the tensors of the same names, shard by shard.

    Raises:
        ValueError: a different name or shape.
    """
    if state.keys() != tensors.keys():
        odd = sorted(state.keys() ^ tensors.keys())
        raise ValueError(f"the saved average does not fit the model: {number_of(len(odd), 'name')} "
                         f"{agree(len(odd), 'differs', 'differ')}, the first is {odd[0]!r}")
    for name, tensor in tensors.items():
        if state[name].shape != tensor.shape:
            raise ValueError(
                f"the saved average of {name!r} has shape {tuple(state[name].shape)}, the model {tuple(tensor.shape)}"
            )
        local(tensor).copy_(local(sharded_like(state[name], tensor)))


def precise(tensor: torch.Tensor) -> torch.Tensor:
    """any shape -> the same, in float32 if it has a lower precision; otherwise the tensor itself"""
    is_lower = tensor.is_floating_point() and tensor.dtype.itemsize < torch.float32.itemsize
    return tensor.float() if is_lower else tensor


def local_tensors(tensors: dict[str, torch.Tensor], names: Iterable[str]) -> list[torch.Tensor]:
    return [local(tensors[name].detach()) for name in names]


def saved_tensors(model: nn.Module) -> dict[str, torch.Tensor]:
    """Parameters and persistent buffers by clean name; a tied tensor once, under its first name."""
    saved = {clean_name(name) for name in model.state_dict(keep_vars=True)}
    tensors = [*model.named_parameters(), *model.named_buffers()]
    return {clean_name(name): tensor for name, tensor in tensors if clean_name(name) in saved}


def sharded_like(tensor: torch.Tensor, model_tensor: torch.Tensor) -> torch.Tensor:
    """A full tensor, distributed as the model's tensor of the same shape is; unchanged if that is not sharded."""
    if not hasattr(model_tensor, "placements"):
        return tensor
    from torch.distributed.tensor import distribute_tensor

    tensor = tensor.to(model_tensor.device)
    return distribute_tensor(tensor, model_tensor.device_mesh, model_tensor.placements, src_data_rank=None)


class AverageWeights(pl.Callback):
    """Exponential moving average of the weights of `pl_module.model`; validation uses it, checkpoints save both.

    In a checkpoint file the average is `callbacks.AverageWeights.average`, under the unwrapped model's names.
    """

    def __init__(self, decay: float, warmup: bool = True):
        self.decay, self.warmup = decay, warmup
        self.average: WeightAverage | None = None
        self._restored: dict[str, torch.Tensor] | None = None
        self._step = 0

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Only from here on are the weights on their device, sharded and restored."""
        self.average = WeightAverage(pl_module.model, self.decay, self.warmup)
        self._step = trainer.global_step
        if self._restored is not None:
            self.average.load_state_dict(self._restored)
            self._restored = None

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if trainer.global_step != self._step:  # unchanged while gradients accumulate
            self._step = trainer.global_step
            self.average.update(self._step)

    def on_validation_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if self.average is not None:  # the sanity check comes before training
            self.average.swap_in()

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._swap_out()

    def on_exception(self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException) -> None:
        self._swap_out()  # before the checkpoint callback, which comes last, saves the weights

    def _swap_out(self) -> None:
        if self.average is not None and self.average.swapped:
            self.average.swap_out()

    def state_dict(self) -> dict[str, Any]:
        return {"average": self.average.state_dict()} if self.average is not None else {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._restored = state.get("average")


class AverageEpochs(AverageWeights):
    """The mean of the weights at the end of the last `epochs` epochs ("checkpoint averaging", arXiv 1706.03762)."""

    def __init__(self, epochs: int):
        super().__init__(0.0)
        self.epochs = epochs

    @property
    def state_key(self) -> str:
        return AverageWeights.__name__  # a run has one average, saved under one key

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.average = EpochAverage(pl_module.model, self.epochs)
        if self._restored is not None:
            self.average.load_state_dict(self._restored, self._snapshots)
            self._restored = None

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Does nothing: a snapshot is added once per epoch."""

    def on_validation_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if self.average is not None:
            self.average.add_snapshot(trainer.global_step)
        super().on_validation_start(trainer, pl_module)

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | ({"snapshots": self.average.snapshots_dict()} if self.average else {})

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self._snapshots = state.get("snapshots", [])
