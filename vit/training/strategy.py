"""How a run spreads over processes: one device, replicas (ddp) or shards (fsdp)."""

import re

from pytorch_lightning.strategies import DDPStrategy, ModelParallelStrategy, Strategy
from torch import nn
from torch.distributed.device_mesh import DeviceMesh

NAMES = ("auto", "single", "ddp", "fsdp")
BLOCK = re.compile(r"(^|\.)blocks\.\d+$")  # a transformer block, or one of a timm convolution stage


def build_strategy(
    name: str = "auto", accelerator: str = "cpu", devices: int = 1, num_nodes: int = 1
) -> str | Strategy:
    """What to hand to `Trainer(strategy=...)`. `auto` is single on one device and ddp on several.

    On CPU the processes talk through gloo, on GPUs through nccl.
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
    if name == "fsdp":
        return ModelParallelStrategy(
            data_parallel_size=world,
            tensor_parallel_size=1,
            process_group_backend=backend,
            save_distributed_checkpoint=False,
        )
    return DDPStrategy(process_group_backend=backend, gradient_as_bucket_view=True)


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
