"""This machine: its hardware, and how fast it multiplies matrices."""

import os
import platform

import torch
from torch import Tensor

from vit.benchmarking.timing import Clock, Program, in_turns, seconds_of, wall_seconds
from vit.files.machine import available_cores, processor_name
from vit.nn.cpu.linear import linear
from vit.training.precision import BF16_RESIDUAL

DTYPES = {"32-true": torch.float32, "bf16-mixed": torch.bfloat16, "16-mixed": torch.float16,
          BF16_RESIDUAL: torch.bfloat16}
CPU_SIZE, GPU_SIZE = 1024, 8192  # rows and columns
MAX_SECONDS = 0.1  # longest product on a CPU; where bf16 is emulated, one of 1024 rows takes 2 s


def machine(device: str = "cpu") -> dict[str, object]:
    """Hardware, threads and versions."""
    gpu = torch.device(device).type == "cuda"
    return {
        "processor": processor_name(),
        "cores": available_cores(),
        "threads": torch.get_num_threads(),
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "gpu": torch.cuda.get_device_name(device) if gpu else None,
        "load": os.getloadavg()[0] if hasattr(os, "getloadavg") else None,  # waiting processes, mean of a minute
        "system": platform.system(),
        "python": platform.python_version(),
        "torch": torch.__version__,
    }


def select_gpu(device: str) -> None:
    """Make a GPU such as `cuda:1` the current one, which timing waits for and whose memory is measured; nothing for
    other devices.
    """
    chosen = torch.device(device)
    if chosen.type == "cuda" and chosen.index is not None:
        torch.cuda.set_device(chosen)


def matrix_rates(
    precisions: tuple[str, ...], device: str = "cpu", clock: Clock = wall_seconds, rounds: int = 15,
    size: int | None = None,
) -> dict[str, float]:
    """Precision -> operations per second of a product of square matrices, a multiply-add counted as two.

    The best round counts, because other work on the machine affects it least. In float32 on a CPU the faster operation
    of two counts, `torch.mm` and the linear layer of `vit.nn`, which use different libraries.

    Args:
        size: rows and columns of the matrices; by default 8192 on a GPU and on a CPU 1024, or fewer where a product of
            that size takes longer than `MAX_SECONDS`.
    """
    programs: dict[str, Program] = {}
    sizes: dict[str, int] = {}
    for precision in precisions:
        sizes[precision] = rows = size or default_size(precision, device)
        a, b = matrices(rows, precision, device)
        programs[f"{precision} mm"] = product(a, b)
        if precision == "32-true" and a.device.type == "cpu":
            programs[f"{precision} linear"] = linear_product(a, b)
    times = in_turns(programs, rounds, clock, warmup=2)
    return {precision: max(2 * rows**3 / min(each) for name, each in times.items() if name.startswith(f"{precision} "))
            for precision, rows in sizes.items()}


def default_size(precision: str, device: str) -> int:
    """Rows and columns of the matrices; a doubled size takes eight times as long."""
    if torch.device(device).type != "cpu":
        return GPU_SIZE
    rows = CPU_SIZE // 8
    while rows < CPU_SIZE:
        run = product(*matrices(rows, precision, device))
        if 8 * min(seconds_of(run) for _ in range(3)) > MAX_SECONDS:
            break
        rows *= 2
    return rows


def matrices(size: int, precision: str, device: str) -> tuple[Tensor, Tensor]:
    """Two matrices (size,size) of normally distributed numbers."""
    a, b = (torch.randn(size, size, device=device).to(DTYPES[precision]) for _ in range(2))
    return a, b


def product(a: Tensor, b: Tensor) -> Program:
    out = torch.empty_like(a)
    return lambda: torch.mm(a, b, out=out)


def linear_product(a: Tensor, b: Tensor) -> Program:
    def run() -> None:
        with torch.inference_mode():
            linear(a, b)

    return run
