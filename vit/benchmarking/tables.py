"""Results of benchmarks as tables for people."""

from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from vit.benchmarking.ratios import Ratio
from vit.benchmarking.results import CONVENTION, OURS, Case, Settings, measured
from vit.messages import number_of

FACTS = {  # key of Case.facts -> (column, format)
    "call_memory": ("memory", "bytes"),
    "first_call_seconds": ("first call", "seconds"),
    "compile_seconds": ("compile", "seconds"),
    "first_batch_seconds": ("first batch", "seconds"),
    "first_step_seconds": ("first step", "seconds"),
    "load_seconds": ("load", "seconds"),
    "loader_wait": ("loader wait", "share"),
    "peak_memory": ("peak memory", "bytes"),
    "same_results": ("same results", "share"),
    "parameters": ("parameters", "count"),
}


def result_tables(cases: list[Case], settings: Settings, machine: dict[str, object]) -> RenderableType:
    """One table per benchmark, then the reasons of missing peers, and the hardware and conventions."""
    complete = measured(cases)
    names = list(dict.fromkeys(case.benchmark for case in complete))
    tables = [table(name, [case for case in complete if case.benchmark == name]) for name in names]
    return Group(*tables, *(Text(line) for line in [*remarks(complete), *conditions(settings, machine, complete)]))


def table(title: str, cases: list[Case]) -> Table:
    """A row per program of each case; empty columns are left out, and settings that all cases share are in the title.
    """
    rows = [row for case in cases for row in rows_of(case)]
    shared = {name: value for name, value in cases[0].setting.items()
              if all(case.setting.get(name) == value for case in cases)}
    title = ", ".join([title, *(f"{name} {value}" for name, value in shared.items())])
    columns = [name for name in dict.fromkeys(key for row in rows for key in row)
               if name not in shared and any(row.get(name) is not None for row in rows)]
    result = Table(title=title, title_justify="left", title_style="bold", box=SIMPLE_HEAD, padding=(0, 1))
    for name in columns:
        is_text = name in cases[0].setting or name == "library"
        result.add_column(name, no_wrap=True, justify="left" if is_text else "right")
    for row in rows:
        style = "bold" if row["library"] == OURS else None
        result.add_row(*("-" if row.get(name) is None else str(row[name]) for name in columns), style=style)
    return result


def rows_of(case: Case) -> list[dict[str, object]]:
    """The cells of each program."""
    rows = []
    for name in case.times:
        share, ratio = case.share(name), case.ratio(name)
        row = {**case.setting, "library": name, f"{case.unit}/s": number(case.per_second(name)),
               "of matrix rate": None if share is None else f"{share:.0%}", "ratio": shown(ratio)}
        facts = case.facts.get(name, {})
        row |= {column: formatted(facts.get(key), kind) for key, (column, kind) in FACTS.items()}
        rows.append(row)
    return rows


def shown(ratio: Ratio | None) -> str | None:
    return None if ratio is None else str(ratio)


def formatted(value: float | int | str | None, kind: str) -> str | None:
    """The text of a fact; None if there is no value."""
    if value is None:
        return None
    formats = {"bytes": lambda v: f"{v / 2**20:,.0f} MiB", "seconds": lambda v: f"{v:.2f} s",
               "share": lambda v: f"{v:.1%}", "count": lambda v: f"{v:,}"}
    return formats[kind](value)


def number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def remarks(cases: list[Case]) -> list[str]:
    """The reasons why peers are not measured, and the remarks about peers, each once."""
    lines = [f"{name} is not measured: {reason}" for case in cases for name, reason in case.missing.items()]
    lines += [f"{name}: {facts['remark']}" for case in cases for name, facts in case.facts.items()
              if facts.get("remark")]
    return list(dict.fromkeys(lines))


def conditions(settings: Settings, machine: dict[str, object], cases: list[Case]) -> list[str]:
    """Hardware, clock, matrix rates and conventions."""
    load = "" if machine["load"] is None else f", load {machine['load']:.1f}"
    gpu = f", {machine['gpu']}" if machine["gpu"] else ""
    lines = [f"{machine['processor']} ({machine['instructions']}), {number_of(machine['cores'], 'core')}, "
             f"{number_of(machine['threads'], 'thread')}{load}{gpu}, torch {machine['torch']}; {settings.clock} clock"]
    rates = {case.setting.get("precision"): case.matrix_rate for case in cases if case.matrix_rate}
    if rates:
        stated = ", ".join(f"{rate / 1e9:,.0f} GFLOP/s in {precision}" for precision, rate in rates.items())
        lines += [f"matrix rate: {stated}", CONVENTION]
    if any(len(case.times) > 1 for case in cases):
        lines.append("ratio: how many times as fast vit is, the median over rounds of paired times [95 % bootstrap "
                     "interval]")
    return lines
