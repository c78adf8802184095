"""Distributed strategies: one device, replicas (ddp) or shards (fsdp)."""

import inspect
import re
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from lightning_fabric.plugins.collectives.torch_collective import default_pg_timeout
from pytorch_lightning.strategies import DDPStrategy, ModelParallelStrategy, Strategy
from torch import nn
from torch.distributed.device_mesh import DeviceMesh

from vit.messages import number_of
from vit.training.option_values import check_option
from vit.weights.training_checkpoint import clean_name

SLACK = 30  # seconds
NAMES = ("auto", "single", "ddp", "fsdp")
DDP_OPTIONS = dict(inspect.signature(nn.parallel.DistributedDataParallel).parameters)
DDP_OPTIONS |= {name: DDP_OPTIONS[name].replace(annotation=kind)  # annotations that torch leaves out
                for name, kind in (("broadcast_buffers", "bool | None"), ("bucket_cap_mb", "float | None"))}
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

    On CPUs the processes communicate through gloo, on GPUs through nccl. The timeout of collectives is `SLACK` seconds
    longer than `timeout`, so that the watchdog, which finds the lost rank, reports first.

    Args:
        options: keyword arguments of `DistributedDataParallel` for ddp, of `shard` for fsdp.

    Raises:
        ValueError: an unknown strategy or option, or more devices than the strategy uses.
    """
    options = dict(options or {})
    if name not in NAMES:
        raise ValueError(f"strategy is {name!r}, but must be one of {', '.join(NAMES)}")
    world = devices * num_nodes
    if name == "single" and world > 1:
        raise ValueError(
            f"strategy=single uses 1 device, but trainer.devices={devices} on {number_of(num_nodes, 'machine')} "
            f"means {world}; use strategy=ddp or trainer.devices=1"
        )
    if name == "single" or (name == "auto" and world == 1):
        if options:
            check_options(name, options, {})
        return "auto"
    backend = "gloo" if accelerator == "cpu" else None
    limit = default_pg_timeout if timeout is None else timedelta(seconds=timeout + SLACK)
    if name == "fsdp":
        check_options(name, options, SHARD_OPTIONS)
        offloads = options.get("cpu_offload") and accelerator != "cpu"
        return FSDP2Strategy(
            options,
            data_parallel_size=world,
            tensor_parallel_size=1,
            process_group_backend="cpu:gloo,cuda:nccl" if offloads else backend,
            save_distributed_checkpoint=False,
            timeout=limit,
        )
    check_options(name, options, DDP_OPTIONS)
    options = {"gradient_as_bucket_view": True, **options}
    return ReproducibleDDPStrategy(process_group_backend=backend, timeout=limit, **options)


def check_options(name: str, options: Mapping[str, Any], known: Mapping[str, inspect.Parameter]) -> None:
    """Check the options of a strategy.

    Raises:
        ValueError: an option that it does not have, or a value of another kind, such as text where it takes true or
            false.
    """
    for option in options:
        if option not in known:
            listed = f"its options are {', '.join(known)}" if known else "it has no options"
            raise ValueError(f"strategy={name} has no option {option}; {listed}")
        check_option(f"options.{option}", options[option], known[option], f"strategy={name}")


class ReproducibleDDPStrategy(DDPStrategy):
    """DDP with the same buckets from the first step on, so that a resumed run sums gradients in the same order.

    DDP rebuilds its buckets after the first backward pass, in the order of the gradients. With three or more processes
    the position of a gradient in its bucket determines in which order the parts of the processes are summed, so the
    first step after a resume would be rounded differently than in an uninterrupted run. Not so with
    `static_graph=True`, where DDP takes the first backward pass for the graph of all steps.
    """

    def configure_ddp(self) -> None:
        super().configure_ddp()
        if not self.model.static_graph:  # otherwise the gradients of later steps would not be averaged
            arrange_buckets(self.model)


def arrange_buckets(replicas: nn.parallel.DistributedDataParallel) -> None:
    """Make DDP build its buckets by a backward pass with zero gradients, from the last parameter to the first."""
    parameters = [parameter for parameter in replicas.module.parameters() if parameter.requires_grad]
    zeros = [(parameter * 0).sum().float() for parameter in parameters]
    total = torch.stack(zeros).sum()
    replicas.reducer.prepare_for_backward([total])
    total.backward()
    for parameter in parameters:
        parameter.grad = None


class FSDP2Strategy(ModelParallelStrategy):
    """FSDP2 that resumes from the checkpoints of all strategies, and can be saved before the first step.

    Lightning numbers the optimizer's parameters in the order of the model, but checkpoints of one process or of ddp
    number them in the order of the groups. The positions within the groups are the same in both.

    Args:
        shard_options: keyword arguments of `shard`.
        options: keyword arguments of Lightning's `ModelParallelStrategy`.
    """

    def __init__(self, shard_options: Mapping[str, Any], **options: Any):
        super().__init__(**options)
        self.shard_options = dict(shard_options)

    def model_to_device(self) -> None:
        """Move the module to its device, except for shards with `cpu_offload`, which FSDP2 expects in CPU memory."""
        if not self.shard_options.get("cpu_offload"):
            super().model_to_device()
            return
        self.model._apply(lambda tensor: tensor if hasattr(tensor, "to_local") else tensor.to(self.root_device))

    def optimizer_state(self, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
        """The full state in process 0, an empty dict in the others.

        Where there is no state yet, as before the first step, torch makes one by a step with zero gradients, which
        would count in the bias corrections of Adam; it is undone.
        """
        before = optimizer.state_dict()
        saved = super().optimizer_state(optimizer)
        if before["state"]:
            return saved
        optimizer.load_state_dict(before)
        return saved and saved | {"state": {}}

    def load_checkpoint(self, checkpoint_path: str | Path, weights_only: bool | None = True) -> dict[str, Any]:
        from torch.distributed.checkpoint import state_dict

        path = self.broadcast(checkpoint_path)
        checkpoint = torch.load(path, mmap=True, map_location="cpu", weights_only=True)
        options = state_dict.StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
        state_dict.set_model_state_dict(self.model, checkpoint["state_dict"], options=options)
        for optimizer, saved in zip(self.optimizers, checkpoint["optimizer_states"], strict=True):
            if saved["state"]:
                state_dict.set_optimizer_state_dict(
                    self.model, optimizer, named(saved, optimizer, self.model), options=options
                )
            else:  # before the first step, or of an optimizer without state, such as SGD without momentum
                for group, before in zip(optimizer.param_groups, saved["param_groups"], strict=True):
                    group["lr"] = before["lr"]
        return checkpoint


def named(saved: dict, optimizer: torch.optim.Optimizer, model: nn.Module) -> dict:
    """A saved optimizer state with parameter names instead of numbers, for the implementation of `optimizer`: the fused
    kernels of a run in one process may not support shards.
    """
    names = {parameter: clean_name(name) for name, parameter in model.named_parameters()}
    now = [{"params": [names[parameter] for parameter in group["params"]],
            **{key: group[key] for key in ("fused", "foreach") if key in group}} for group in optimizer.param_groups]
    pairs = [*zip(saved["param_groups"], now, strict=True)]
    numbers = {number: name for old, new in pairs for number, name in zip(old["params"], new["params"], strict=True)}
    return {
        "state": {numbers[number]: state for number, state in saved["state"].items()},
        "param_groups": [{**old, **new} for old, new in pairs],
    }


def shard(
    model: nn.Module, mesh: DeviceMesh, reshard_after_forward: bool = True, cpu_offload: bool = False
) -> nn.Module:
    """Shard the parameters of each block over the processes, then the others (FSDP2); names and values do not change.

    Called in `configure_model` with `self.device_mesh["data_parallel"]`; a second call changes nothing. The weights
    must be equal in all processes, because each shards its own copy.

    Args:
        reshard_after_forward: free the gathered weights of a block after its forward pass, and gather them again
            for the backward pass.
        cpu_offload: store weights and optimizer state in CPU memory while they are not used.
    """
    from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, OffloadPolicy, fully_shard

    if isinstance(model, FSDPModule):
        return model
    policy = CPUOffloadPolicy(pin_memory=mesh.device_type == "cuda") if cpu_offload else OffloadPolicy()
    for name, module in model.named_modules():
        if BLOCK.search(name):
            fully_shard(module, mesh=mesh, reshard_after_forward=reshard_after_forward, offload_policy=policy)
    return fully_shard(model, mesh=mesh, offload_policy=policy)


SHARD_OPTIONS = dict([*inspect.signature(shard).parameters.items()][2:])
