"""Where a run computes and in which numbers: devices, precision, torch.compile."""

import contextlib
import logging
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from threadpoolctl import threadpool_limits
from torch import nn

from vit.run.config.composing import ConfigError, nearest
from vit.training import resolve_precision

log = logging.getLogger("vit")

NARROW = 128  # measured on two cores with AVX512-BF16: 64 wide bf16 is 0.8 times as fast, 128 wide 1.2, 192 wide 1.4
ACCELERATORS = ("auto", "cpu", "gpu", "cuda", "mps")
SMALL_STEP = 1e9  # floating point operations: 8x8 digits take 3e8 a step and ran twice as fast on one thread as on two
EVALUATED = ("32-true", "bf16-mixed", "16-mixed")


@dataclass(frozen=True)
class Devices:
    """Where a run computes: kind, number per node, nodes."""

    accelerator: str
    number: int
    nodes: int

    @property
    def world(self) -> int:
        return self.number * self.nodes

    @property
    def rank(self) -> int:
        """This process's number among all, as torchrun, SLURM or Lightning's variables count them."""
        if "RANK" in os.environ or "SLURM_PROCID" in os.environ:
            return int(os.environ.get("RANK", os.environ.get("SLURM_PROCID", 0)))
        return int(os.environ.get("NODE_RANK", 0)) * self.number + int(os.environ.get("LOCAL_RANK", 0))


def find_devices(trainer: dict) -> Devices:
    """What `accelerator` and `devices` mean on this machine; `auto` is every GPU, or one CPU process."""
    gpus = torch.cuda.device_count()
    if trainer["accelerator"] not in ACCELERATORS:
        raise ConfigError(f"trainer.accelerator={trainer['accelerator']}: must be one of {', '.join(ACCELERATORS)}")
    accelerator = {"auto": "gpu" if gpus else "cpu", "cuda": "gpu"}.get(trainer["accelerator"], trainer["accelerator"])
    if accelerator == "gpu" and not gpus:
        raise ConfigError(
            f"trainer.accelerator={trainer['accelerator']}: this machine has no CUDA device; use cpu or auto"
        )
    number = trainer["devices"]
    if number in ("auto", -1):
        number = gpus if accelerator == "gpu" else 1
    if not isinstance(number, int) or number < 1:
        raise ConfigError(f"trainer.devices={number}: must be a number of devices, or auto")
    if accelerator == "gpu" and number > gpus:
        raise ConfigError(
            f"trainer.devices={number}: this machine has {gpus} GPUs; take {gpus}, or trainer.accelerator=cpu"
        )
    return Devices(accelerator, number, trainer["num_nodes"])


def choose_precision(wanted: str, accelerator: str, model: nn.Module) -> str:
    """`auto` as `vit.training` resolves it, but float32 for narrow models on CPU, where converting costs more than it
    saves.
    """
    width = getattr(model.config, "dim", NARROW)
    if wanted == "auto" and accelerator == "cpu" and width < NARROW:
        log.info("precision: 32-true (auto: a model %d wide gains nothing from bf16)", width)
        return "32-true"
    chosen = str(wanted) if wanted != "auto" else resolve_precision(wanted, accelerator)
    if chosen not in EVALUATED:
        raise ConfigError(
            f"precision={wanted}: must be auto or one of {', '.join(EVALUATED)}{nearest(chosen, list(EVALUATED))}"
        )
    if chosen == "16-mixed" and accelerator == "cpu":
        raise ConfigError("precision=16-mixed: processors have no float16 arithmetic; use bf16-mixed or 32-true")
    return chosen


def compile_model(model: nn.Module, devices: Devices) -> None:
    """torch.compile in place, which keeps all names; a missing compiler is told now, not in the first step."""
    compilers = ("c++", "g++", "clang++")
    if devices.accelerator == "cpu" and not any(shutil.which(name) for name in compilers):
        raise ConfigError(
            f"compile=true needs a C++ compiler on CPU and found none of {', '.join(compilers)}; use compile=false"
        )
    model.compile()


@contextlib.contextmanager
def suited_threads(step_flops: float, devices: Devices) -> Iterator[None]:
    """One CPU thread while steps are so small that a second one is not worth waking.

    OpenMP is told, not torch: after `torch.set_num_threads` MKL no longer computes on one thread what already runs on
    one of several, for as long as the program lives, and attention over many short sequences takes up to four times as
    long.
    """
    threads = torch.get_num_threads()
    if devices.accelerator != "cpu" or step_flops >= SMALL_STEP or threads == 1:
        yield
        return
    log.info("threads: 1 of %d (steps of %.2g operations gain nothing from more)", threads, step_flops)
    with threadpool_limits(limits=1, user_api="openmp"):
        yield
