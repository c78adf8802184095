"""Comparison of measured speed ratios with those of an earlier report, which finds regressions."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vit.benchmarking.results import FORMAT

TOLERANCE = 0.1  # a ratio may be lower than that of the baseline by this fraction of it


@dataclass(frozen=True)
class Comparison:
    """The ratios of a report and of its baseline.

    Args:
        fallen: (baseline, measured) of each ratio that is lower by more than the tolerance, by the name of the ratio.
        compared: number of ratios that both reports have.
        missing: ratios of the baseline that were not measured.
        new: measured ratios that the baseline lacks.
        tolerance: decrease that is not a regression, as a fraction of the baseline.
        other_machine: a sentence that names both machines; None if they are equal.
    """

    fallen: dict[str, tuple[float, float]]
    compared: int
    missing: tuple[str, ...]
    new: tuple[str, ...]
    tolerance: float
    other_machine: str | None

    def lines(self) -> list[str]:
        """The lines that `vit bench` prints."""
        lines = [f"{name}: {now:.2f}, below the baseline's {before:.2f} by more than {self.tolerance:.0%}"
                 for name, (before, now) in self.fallen.items()]
        lines.append(f"{self.compared - len(self.fallen)} of {self.compared} ratios are within {self.tolerance:.0%} of "
                     "the baseline or above it")
        lines += [f"not measured: {name}" for name in self.missing]
        lines += [f"not in the baseline: {name}" for name in self.new]
        return [*lines, self.other_machine] if self.other_machine else lines


def read_baseline(path: Path) -> dict[str, Any]:
    """The report of an earlier `vit bench --json FILE`.

    Raises:
        ValueError: the file is not such a report, or has no ratios.
        OSError: it cannot be read.
    """
    try:
        report = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is not JSON: {error}") from None
    if not isinstance(report, dict) or report.get("format") != FORMAT or not isinstance(report.get("ratios"), dict):
        raise ValueError(f"{path} is not a report of vit bench --json (format {FORMAT})")
    values = report["ratios"].values()
    if not values or not all(isinstance(value, int | float) and value > 0 for value in values):
        raise ValueError(f"{path} has no ratios; measure some with vit bench --against PEER --json {path}")
    return report


def compare_with_baseline(
    report: dict[str, Any], baseline: dict[str, Any], tolerance: float = TOLERANCE
) -> Comparison:
    """Find the ratios that have fallen. Ratios are compared, not rates, because they depend less on the machine.

    Raises:
        ValueError: no ratio is in both reports, or the reports use different clocks.
    """
    now, before = report["ratios"], baseline["ratios"]
    if report["clock"] != baseline.get("clock"):
        raise ValueError(f"the baseline was measured with --clock {baseline.get('clock')}, this report with --clock "
                         f"{report['clock']}; use the same clock")
    common = [name for name in before if name in now]
    if not common:
        raise ValueError(f"no ratio of the baseline was measured; it has {', '.join(list(before)[:3])}, this report "
                         f"{', '.join(list(now)[:3]) or 'none (add --against)'}")
    fallen = {name: (before[name], now[name]) for name in common if now[name] < before[name] * (1 - tolerance)}
    earlier, this = name_of_machine(baseline), name_of_machine(report)
    other = None if earlier == this else f"the baseline is of another machine: {earlier} instead of {this}"
    return Comparison(
        fallen,
        len(common),
        tuple(name for name in before if name not in now),
        tuple(name for name in now if name not in before),
        tolerance,
        other,
    )


def name_of_machine(report: dict[str, Any]) -> str:
    """`AMD EPYC (AVX512)`: ratios depend on the instructions, by which `vit.nn.cpu` selects its operations."""
    machine = report.get("machine")
    return f"{machine.get('processor')} ({machine.get('instructions')})" if machine else "unknown"
