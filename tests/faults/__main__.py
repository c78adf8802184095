"""Run the fault-injection cases and print one row per promise: `python -m tests.faults [PROMISE ...] [--quick]`."""

import argparse
import importlib
import json
import pkgutil
import signal
import sys
import tempfile
import time
import traceback
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

import tests.faults
from tests.faults.promise import Case, Promise


def promises() -> dict[str, Promise]:
    """Module name → promise, for every module of this package that has one."""
    names = sorted(module.name for module in pkgutil.iter_modules(tests.faults.__path__))
    modules = {n: importlib.import_module(f"tests.faults.{n}") for n in names if not n.startswith(("__", "test_"))}
    return {name: module.PROMISE for name, module in modules.items() if hasattr(module, "PROMISE")}


def failure(case: Case) -> str | None:
    """Runs one case in an empty folder; the traceback if it failed, None if the promise held."""
    with tempfile.TemporaryDirectory(prefix="vit-faults-", ignore_cleanup_errors=True) as folder:
        try:
            case.run(Path(folder))
        except Exception:
            return traceback.format_exc()
    return None


def measure(chosen: dict[str, Promise], quick: bool, console: Console) -> list[dict]:
    """One row per promise: the number of cases, how many held, the tracebacks of failures, the seconds."""
    rows = []
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
               TimeRemainingColumn())
    for name, promise in chosen.items():
        cases = [case for case in promise.cases() if case.quick or not quick]
        failures, start = {}, time.monotonic()
        with Progress(*columns, console=console) as progress:
            for case in progress.track(cases, description=name):
                if found := failure(case):
                    failures[case.name] = found
                    console.print(f"{name}: {case.name} failed: {found.strip().splitlines()[-1]}", markup=False)
        rows.append({"promise": name, "title": promise.title, "cases": len(cases), "held": len(cases) - len(failures),
                     "seconds": round(time.monotonic() - start, 1), "failures": failures})
    return rows


def write(path: Path, rows: list[dict]) -> None:
    """Adds rows to a JSON file, which keeps the rows of other promises, and prints all as Markdown."""
    earlier = json.loads(path.read_text(encoding="utf-8")) if path.exists() else []
    found = {row["promise"]: row for row in [*earlier, *rows]}
    path.write_text(json.dumps([found[name] for name in sorted(found)], indent=2) + "\n", encoding="utf-8")
    for name in sorted(found):
        row = found[name]
        print(f"| {row['title']} | {row['held']} of {row['cases']} | {row['seconds']:.0f} s |")


def main() -> int:
    known = promises()
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.add_argument("promises", nargs="*", metavar="PROMISE", help=f"all by default: {', '.join(known)}")
    parser.add_argument("--quick", action="store_true", help="only the cases of the default test suite")
    parser.add_argument("--output", type=Path, help="add the rows to this JSON file; print it as Markdown")
    options = parser.parse_args()
    if unknown := set(options.promises) - set(known):
        parser.error(f"unknown promise {sorted(unknown)[0]!r}; known: {', '.join(known)}")
    signal.signal(signal.SIGINT, signal.default_int_handler)  # which a shell ignores in background processes
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # which nohup ignores; processes that are started inherit it
    console = Console()
    rows = measure({name: known[name] for name in options.promises or known}, options.quick, console)
    table = Table("promise", "held", "seconds")
    for row in rows:
        table.add_row(row["title"], f"{row['held']} of {row['cases']}", f"{row['seconds']:.0f}")
    console.print(table)
    if options.output:
        write(options.output, rows)
    return int(any(row["failures"] for row in rows))


if __name__ == "__main__":
    sys.exit(main())
