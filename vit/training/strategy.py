"""How a run spreads over processes: one device, replicas (ddp) or shards (fsdp)."""

import re
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from lightning_fabric.plugins.collectives.torch_collective import default_pg_timeout
from pytorch_lightning.strategies import DDPStrategy, ModelParallelStrategy, Strategy
from torch import nn
from torch.distributed.device_mesh import DeviceMesh

from vit.training.names import clean_name

SLACK = 30  # seconds
NAMES = ("auto", "single", "ddp", "fsdp")
BLOCK = re.compile(r"(^|\.)blocks\.\d+$")  # a transformer block, or one of a timm convolution stage


def build_strategy(
    name: str = "auto",
    accelerator: str = "cpu",
    devices: int = 1,
    num_nodes: int = 1,
    timeout: float | None = None,
) -> str | Strategy:
    """What to hand to `Trainer(strategy=...)`. `auto` is single on one device and ddp on several.

    On CPU the processes communicate through gloo, on GPUs through nccl. A collective that takes `SLACK` seconds longer
    than `timeout` fails: the watchdog, which knows which rank is at fault, comes first.
    """
    if name not in NAMES:
        raise ValueError(f"strategy is {name!r}, but must be one of {', '.join(NAMES)}")
    world = devices * num_nodes
    if name == "single" and world > 1:
        raise ValueError(
            f"strategy=single uses 1 device, but trainer.devices={devices} on {num_nodes} node(s) asks for "
            f"{world}; use strategy=ddp or trainer.devices=1"
        )
    if name == "single" or (name == "auto" and world == 1):
        return "auto"
    backend = "gloo" if accelerator == "cpu" else None
    limit = default_pg_timeout if timeout is None else timedelta(seconds=timeout + SLACK)
    if name == "fsdp":
        return Shards(
            data_parallel_size=world,
            tensor_parallel_size=1,
            process_group_backend=backend,
            save_distributed_checkpoint=False,
            timeout=limit,
        )
    return Replicas(process_group_backend=backend, gradient_as_bucket_view=True, timeout=limit)


class Replicas(DDPStrategy):
    """DDP whose buckets are the same from the first step on, so that a resumed run adds gradients in the same order.

    DDP arranges its buckets anew after its first backward pass, in the order in which the gradients came. With three
    processes or more the place of a gradient in its bucket decides in which order the processes' parts are added, so
    the first step after a start would round differently from the same step of a run that was not stopped.
    """

    def configure_ddp(self) -> None:
        super().configure_ddp()
        arrange_buckets(self.model)


def arrange_buckets(replicas: nn.parallel.DistributedDataParallel) -> None:
    """A backward pass of zeros, from the last parameter to the first, as most models' gradients come."""
    parameters = [parameter for parameter in replicas.module.parameters() if parameter.requires_grad]
    zeros = [(parameter * 0).sum().float() for parameter in parameters]
    replicas.reducer.prepare_for_backward([])
    torch.stack(zeros).sum().backward()
    for parameter in parameters:
        parameter.grad = None


class Shards(ModelParallelStrategy):
    """FSDP2 that resumes from the checkpoints of every strategy.

    Lightning numbers the optimizer's parameters as the model does; a checkpoint of one process or of ddp numbers them
    group by group. The place in the groups is the same in both.
    """

    def load_checkpoint(self, checkpoint_path: str | Path, weights_only: bool | None = True) -> dict[str, Any]:
        from torch.distributed.checkpoint import state_dict

        path = self.broadcast(checkpoint_path)
        checkpoint = torch.load(path, mmap=True, map_location="cpu", weights_only=True)
        options = state_dict.StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
        state_dict.set_model_state_dict(self.model, checkpoint["state_dict"], options=options)
        for optimizer, saved in zip(self.optimizers, checkpoint["optimizer_states"], strict=True):
            state_dict.set_optimizer_state_dict(
                self.model, optimizer, named(saved, optimizer, self.model), options=options
            )
        return checkpoint


def named(saved: dict, optimizer: torch.optim.Optimizer, model: nn.Module) -> dict:
    """A saved optimizer state with parameter names in the place of numbers."""
    names = {parameter: clean_name(name) for name, parameter in model.named_parameters()}
    now = [[names[parameter] for parameter in group["params"]] for group in optimizer.param_groups]
    pairs = zip(saved["param_groups"], now, strict=True)
    numbers = {number: name for group, named in pairs for number, name in zip(group["params"], named, strict=True)}
    return {
        "state": {numbers[number]: state for number, state in saved["state"].items()},
        "param_groups": [{**group, "params": names} for group, names in zip(saved["param_groups"], now, strict=True)],
    }


def shard(model: nn.Module, mesh: DeviceMesh) -> nn.Module:
    """Splits every block's parameters over the processes, then the rest (FSDP2). Names and values stay the same.

    Called in `configure_model` with `self.device_mesh["data_parallel"]`; a second call changes nothing. The model must
    have the same weights in every process: each keeps its part of its own.
    """
    from torch.distributed.fsdp import FSDPModule, fully_shard

    if isinstance(model, FSDPModule):
        return model
    for name, module in model.named_modules():
        if BLOCK.search(name):
            fully_shard(module, mesh=mesh)
    return fully_shard(model, mesh=mesh)
