"""How a run spreads over processes: one device, replicas (ddp) or shards (fsdp)."""

import inspect
import re
from collections.abc import Collection, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from lightning_fabric.plugins.collectives.torch_collective import default_pg_timeout
from pytorch_lightning.strategies import DDPStrategy, ModelParallelStrategy, Strategy
from torch import nn
from torch.distributed.device_mesh import DeviceMesh

from vit.weights.trained import clean_name

SLACK = 30  # seconds
NAMES = ("auto", "single", "ddp", "fsdp")
BLOCK = re.compile(r"(^|\.)blocks\.\d+$")  # a transformer block, or one of a timm convolution stage


def build_strategy(
    name: str = "auto",
    accelerator: str = "cpu",
    devices: int = 1,
    num_nodes: int = 1,
    timeout: float | None = None,
    options: Mapping[str, Any] | None = None,
) -> str | Strategy:
    """The argument for `Trainer(strategy=...)`. `auto` is single on one device and ddp on several.

    On CPU the processes communicate through gloo, on GPUs through nccl. A collective that takes `SLACK` seconds longer
    than `timeout` fails: the watchdog, which knows which rank is at fault, comes first.

    Args:
        options: for ddp those of `DistributedDataParallel`, for fsdp those of `shard`.

    Raises:
        ValueError: an unknown strategy or option, or more devices than the strategy uses.
    """
    options = dict(options or {})
    if name not in NAMES:
        raise ValueError(f"strategy is {name!r}, but must be one of {', '.join(NAMES)}")
    world = devices * num_nodes
    if name == "single" and world > 1:
        raise ValueError(
            f"strategy=single uses 1 device, but trainer.devices={devices} on {num_nodes} node(s) asks for "
            f"{world}; use strategy=ddp or trainer.devices=1"
        )
    if name == "single" or (name == "auto" and world == 1):
        check_options(name, options, ())
        return "auto"
    backend = "gloo" if accelerator == "cpu" else None
    limit = default_pg_timeout if timeout is None else timedelta(seconds=timeout + SLACK)
    if name == "fsdp":
        check_options(name, options, SHARD_OPTIONS)
        offloads = options.get("cpu_offload") and accelerator != "cpu"
        return Shards(
            options,
            data_parallel_size=world,
            tensor_parallel_size=1,
            process_group_backend="cpu:gloo,cuda:nccl" if offloads else backend,
            save_distributed_checkpoint=False,
            timeout=limit,
        )
    check_options(name, options, inspect.signature(nn.parallel.DistributedDataParallel).parameters)
    options = {"gradient_as_bucket_view": True, **options}
    return Replicas(process_group_backend=backend, timeout=limit, **options)


def check_options(name: str, options: Collection[str], known: Collection[str]) -> None:
    """Raises ValueError for an option that the strategy does not have."""
    for option in options:
        if option not in known:
            listed = f"its options are {', '.join(known)}" if known else "it has no options"
            raise ValueError(f"strategy={name} has no option {option}; {listed}")


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
    total = torch.stack(zeros).sum()
    replicas.reducer.prepare_for_backward([total])
    total.backward()
    for parameter in parameters:
        parameter.grad = None


class Shards(ModelParallelStrategy):
    """FSDP2 that resumes from the checkpoints of every strategy.

    Lightning numbers the optimizer's parameters as the model does; a checkpoint of one process or of ddp numbers them
    group by group. The place in the groups is the same in both.

    Args:
        shard_options: keyword arguments of `shard`.
        options: of Lightning's `ModelParallelStrategy`.
    """

    def __init__(self, shard_options: Mapping[str, Any], **options: Any):
        super().__init__(**options)
        self.shard_options = dict(shard_options)

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


def shard(
    model: nn.Module, mesh: DeviceMesh, reshard_after_forward: bool = True, cpu_offload: bool = False
) -> nn.Module:
    """Splits the parameters of every block over the processes, then the rest (FSDP2). Names and values stay the same.

    Called in `configure_model` with `self.device_mesh["data_parallel"]`; a second call changes nothing. The model must
    have the same weights in every process: each keeps its part of its own.

    Args:
        reshard_after_forward: whether the gathered weights of a block are freed after its forward pass and gathered
            again for the backward pass.
        cpu_offload: whether weights and optimizer state stay in CPU memory between their uses.
    """
    from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, OffloadPolicy, fully_shard

    if isinstance(model, FSDPModule):
        return model
    policy = CPUOffloadPolicy(pin_memory=torch.cuda.is_available()) if cpu_offload else OffloadPolicy()
    for name, module in model.named_modules():
        if BLOCK.search(name):
            fully_shard(module, mesh=mesh, reshard_after_forward=reshard_after_forward, offload_policy=policy)
    return fully_shard(model, mesh=mesh, offload_policy=policy)


SHARD_OPTIONS = tuple(inspect.signature(shard).parameters)[2:]
