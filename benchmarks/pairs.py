"""Shared by all benchmarks: programs timed in turns on one machine, and a report as table and JSON.

Other work on the machine slows programs down at some moments only. Programs that are compared therefore run in turns,
A B B A A B ..., and a ratio is the median over the rounds of the ratio of two neighbouring times.

All cores are used unless OMP_NUM_THREADS limits them; `torch.set_num_threads` would change what is measured (see
vit/run/parts/devices.py).
"""

import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

Program = Callable[[], object]


def in_turns(programs: Mapping[str, Program], rounds: int, warmup: int = 1) -> dict[str, list[float]]:
    """Seconds of each program in each round; every second round runs in reverse order."""
    for program in list(programs.values()) * warmup:
        timed(program)
    seconds: dict[str, list[float]] = {name: [] for name in programs}
    for number in range(rounds):
        order = list(programs) if number % 2 == 0 else list(programs)[::-1]
        for name in order:
            seconds[name].append(timed(programs[name]))
    return seconds


def timed(program: Program) -> float:
    wait()
    start = time.perf_counter()
    program()
    wait()
    return time.perf_counter() - start


def wait() -> None:
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()


def times_as_fast(seconds: Mapping[str, list[float]], ours: str, peer: str) -> float:
    """Median ratio of the times of `peer` and `ours`: above 1, `ours` is faster."""
    return statistics.median(b / a for a, b in zip(seconds[ours], seconds[peer], strict=True))


def machine() -> dict[str, object]:
    """Hardware and versions."""
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    name = next(names, platform.processor())
    return {
        "processor": name,
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "threads": torch.get_num_threads(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_initialized() else None,
        "python": platform.python_version(),
        "torch": torch.__version__,
    }


def report(title: str, rows: list[dict[str, object]], **facts: object) -> None:
    """A table on standard error for people, JSON on standard output for programs."""
    table = Table(title=title, title_justify="left", title_style="bold", box=SIMPLE_HEAD, padding=(0, 1))
    columns = list(dict.fromkeys(name for row in rows for name in row))
    for name in columns:
        number = all(isinstance(row.get(name), int | float | None) for row in rows)
        table.add_column(name, justify="right" if number else "left")
    for row in rows:
        table.add_row(*(text(row.get(name)) for name in columns))
    Console(stderr=True).print(table)
    json.dump({"benchmark": title, **facts, "machine": machine(), "rows": rows}, sys.stdout, indent=2)
    print()


def text(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}" if abs(value) >= 100 else f"{value:.2f}"
    return str(value)
