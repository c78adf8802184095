"""Devices, precision, compilation and threads of a run."""

import contextlib
import logging
import os
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from threadpoolctl import threadpool_limits
from torch import nn

from vit.files.machine import THREADS, busy_cores
from vit.low_precision import warn_if_slow
from vit.messages import number_of
from vit.run.config.composing import ConfigError
from vit.training import resolve_precision
from vit.training.precision import BF16_RESIDUAL

log = logging.getLogger("vit")

# speed of bf16 over float32 on two cores with AVX512-BF16: 0.8 at width 64, 1.2 at 128, 1.4 at 192
BF16_MIN_WIDTH = 128
SAMPLES, INTERVAL = 5, 0.01  # measurements of the number of busy cores, and the seconds between them
SMALL_STEP = 1e9  # operations per step; 8x8 digits need 3e8 and are twice as fast on one thread as on two


@dataclass(frozen=True)
class Devices:
    """The devices of a run: the accelerator, their number per node, and the number of nodes."""

    accelerator: str
    number: int
    nodes: int

    @property
    def world(self) -> int:
        return self.number * self.nodes

    @property
    def rank(self) -> int:
        """The global rank of this process, by the variables of torchrun, SLURM or Lightning."""
        if "RANK" in os.environ or "SLURM_PROCID" in os.environ:
            return int(os.environ.get("RANK", os.environ.get("SLURM_PROCID", 0)))
        return int(os.environ.get("NODE_RANK", 0)) * self.number + int(os.environ.get("LOCAL_RANK", 0))

    @property
    def gpu(self) -> torch.device:
        """The GPU of this process, which Lightning makes the current one only when training starts."""
        return torch.device("cuda", self.rank % self.number)

    @property
    def evaluation(self) -> str | None:
        """The device of evaluations after training, as `evaluation_device` returns it."""
        return evaluation_device(self.accelerator)


def evaluation_device(accelerator: str) -> str | None:
    """The device of evaluations of a run with this `trainer.accelerator`: None for the GPU if there is one, which a run
    on the CPU does not use, because it may be full or reserved for another process.
    """
    return "cpu" if accelerator == "cpu" else None


def find_devices(trainer: dict) -> Devices:
    """The devices that `accelerator` and `devices` select on this machine; `auto` is all GPUs, or one CPU process.

    Raises:
        ConfigError: devices that this machine does not have.
    """
    gpus = torch.cuda.device_count()
    accelerator = {"auto": "gpu" if gpus else "cpu", "cuda": "gpu"}.get(trainer["accelerator"], trainer["accelerator"])
    if accelerator == "gpu" and not gpus:
        raise ConfigError(
            f"trainer.accelerator={trainer['accelerator']}: this machine has no CUDA device; use cpu or auto"
        )
    if accelerator == "mps" and not torch.backends.mps.is_available():
        raise ConfigError("trainer.accelerator=mps: this machine has no GPU of Apple; use cpu or auto")
    number = trainer["devices"]
    if number in ("auto", -1):
        number = gpus if accelerator == "gpu" else 1
    if not isinstance(number, int) or number < 1:
        raise ConfigError(f"trainer.devices={number}: must be a number of devices, or auto")
    if accelerator == "gpu" and number > gpus:
        raise ConfigError(
            f"trainer.devices={number}: this machine has {number_of(gpus, 'GPU')}; use {gpus}, or "
            "trainer.accelerator=cpu"
        )
    return Devices(accelerator, number, trainer["num_nodes"])


def choose_precision(stated: str, accelerator: str, model: nn.Module) -> str:
    """The precision of Lightning's Trainer.

    `vit.training` resolves `auto`, except for narrow models on a CPU: they get float32, because the conversion costs
    more time than bf16 saves. Warns if the processor emulates a precision that was set explicitly.

    Raises:
        ConfigError: float16 on CPU.
    """
    width = getattr(model.config, "dim", BF16_MIN_WIDTH)
    if stated == "auto" and accelerator == "cpu" and width < BF16_MIN_WIDTH:
        log.info("precision: 32-true (auto: a model of width %d is not faster in bf16)", width)
        return "32-true"
    if stated == "auto":
        return resolve_precision(stated, accelerator)
    chosen = "bf16-mixed" if stated == BF16_RESIDUAL else stated
    if chosen == "16-mixed" and accelerator == "cpu":
        raise ConfigError("precision=16-mixed: processors have no float16 arithmetic; use bf16-mixed or 32-true")
    warn_if_slow(chosen, accelerator)
    return chosen


def check_compiler(device: str, option: str = "--mode compiled", fix: str = "use --mode eager") -> None:
    """Checks that `torch.compile` can be used on a device.

    Raises:
        ConfigError: there is no C++ compiler for a CPU.
    """
    compilers = ("c++", "g++", "clang++")
    if device == "cpu" and not any(shutil.which(name) for name in compilers):
        raise ConfigError(f"{option} needs a C++ compiler on CPU and found none of {', '.join(compilers)}; {fix}")


@contextlib.contextmanager
def deterministic_algorithms() -> Iterator[None]:
    """Within this context torch uses only operations whose results have the same bits each time.

    Lightning's Trainer would leave the setting on after the run.
    """
    is_set = "CUBLAS_WORKSPACE_CONFIG" in os.environ
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # torch refuses matrix products without it
    before = torch.are_deterministic_algorithms_enabled()
    only_warned = torch.is_deterministic_algorithms_warn_only_enabled()
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before, warn_only=only_warned)
        if not is_set:
            del os.environ["CUBLAS_WORKSPACE_CONFIG"]


@contextlib.contextmanager
def suited_threads(step_flops: float, devices: Devices) -> Iterator[None]:
    """A context with one CPU thread if the steps are so small that more threads are slower. If several threads are
    used, it warns about other processes on the same cores.

    The limit is set in OpenMP. `torch.set_num_threads` would make MKL use several threads within parallel regions too,
    until the process ends, which makes attention over many short sequences up to four times slower.
    """
    threads = torch.get_num_threads()
    if devices.accelerator != "cpu" or step_flops >= SMALL_STEP or threads == 1:
        if devices.accelerator == "cpu" and devices.world == 1 and threads > 1:
            warn_of_busy_cores(threads)
        yield
        return
    log.info("threads: 1 of %d (steps of %.2g operations are not faster with more)", threads, step_flops)
    with threadpool_limits(limits=1, user_api="openmp"):
        yield


def warn_of_busy_cores(threads: int) -> None:
    """Warn if fewer than `threads` cores are free: each operation waits for its last thread, so one busy core slows
    down all others.
    """
    cores, busy = os.cpu_count() or 1, busy_cores()
    for _ in range(SAMPLES - 1):
        time.sleep(INTERVAL)
        busy = min(busy, busy_cores())
    if (free := max(1, cores - busy)) < threads:
        log.warning("other processes use %d of %d cores, and training with %d threads waits for them: %s=%d before "
                    "the command may make it several times as fast", min(busy, cores), cores, threads, THREADS, free)
