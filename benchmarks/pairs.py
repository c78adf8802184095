"""Shared by all benchmarks: programs timed in turns on one machine, and a report as table and JSON.

All cores are used unless OMP_NUM_THREADS limits them; `torch.set_num_threads` would change what is measured (see
vit/run/parts/devices.py).
"""

import json
import sys
from collections.abc import Mapping

import torch
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from vit.benchmarking import in_turns, machine, paired_ratio

__all__ = ["in_turns", "report", "times_as_fast"]


def times_as_fast(seconds: Mapping[str, list[float]], ours: str, peer: str) -> float:
    """Median ratio of the times of `peer` and `ours`: above 1, `ours` is faster."""
    return paired_ratio(seconds[ours], seconds[peer]).median


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
    facts_of_machine = machine("cuda" if torch.cuda.is_initialized() else "cpu")
    json.dump({"benchmark": title, **facts, "machine": facts_of_machine, "rows": rows}, sys.stdout, indent=2)
    print()


def text(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}" if abs(value) >= 100 else f"{value:.2f}"
    return str(value)
