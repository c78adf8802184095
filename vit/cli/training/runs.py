"""`vit runs`: all runs of a folder at a glance."""

import csv
import io
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from vit.cli.file_checks import check_different, check_table, check_writable
from vit.cli.terminal import print_written
from vit.messages import number_of

if TYPE_CHECKING:
    from vit.run.records.listing import ListedRun


def runs(
    folder: Annotated[Path, typer.Argument(help="Folder that contains the runs, at any depth.")] = Path("runs"),
    sort: Annotated[str | None, typer.Option(
        help="Column to sort by, with a leading - for the highest first: -test, seconds, ...; by default the newest "
             "run is first.",
        show_default=False)] = None,
    filters: Annotated[list[str] | None, typer.Option(
        "--filter", help="List only runs with KEY=PATTERN or KEY>NUMBER, such as state=failed, data=dig*, test>0.9; "
                         "may be repeated.",
        show_default=False)] = None,
    csv_file: Annotated[Path | None, typer.Option("--csv", help="Write the list to this CSV file.")] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the list to this JSON file.")] = None,
    html: Annotated[Path | None, typer.Option(
        help="Write the list to this HTML page, which can be sorted and searched.")] = None,
) -> None:
    """List all runs with data, model, best numbers, time and state: running, stopped, failed or finished."""
    for file in (csv_file, json_file, html):
        check_writable(file)
    check_different({"--csv": csv_file, "--json": json_file, "--html": html})
    check_table("--csv", csv_file, (".csv",))
    check_table("--json", json_file, (".json",))
    check_table("--html", html, (".html", ".htm"))
    from vit.files.outputs import write_output
    from vit.files.strict_json import json_text
    from vit.report.pages.runs_table import runs_page
    from vit.run.records.listing import list_runs, select

    found = list_runs(folder)
    chosen = select(found, filters or [], sort)
    print_runs(chosen, len(found), folder)
    if csv_file is not None:
        write_output(csv_file, runs_csv(chosen).encode())
    if json_file is not None:
        rows = [run.to_dict() | {"curve": list(run.curve)} for run in chosen]
        write_output(json_file, f"{json_text({'runs': rows})}\n".encode())
    if html is not None:
        write_output(html, runs_page(chosen, f"Runs in {Path(folder).resolve().name or folder}").encode())
    for file in (csv_file, json_file, html):
        if file is not None:
            print_written(str(file))


def print_runs(chosen: Sequence["ListedRun"], total: int, folder: Path) -> None:
    """Print the table of the chosen ones of `total` runs, and their number in each state."""
    from rich.console import Console

    from vit.report.pages.runs_table import runs_table

    if not total:
        typer.echo(f"{folder} holds no runs")
        return
    console = Console()
    console.print(runs_table(chosen, folder, console.width), crop=False)
    counts = sorted(Counter(run.state for run in chosen).items())
    listed = ": " + ", ".join(f"{count} {state}" for state, count in counts) if counts else ""
    typer.echo(f"{len(chosen)} of {number_of(total, 'run')}{listed}")


def runs_csv(runs: Sequence["ListedRun"]) -> str:
    """The list as CSV, with a header line."""
    from vit.run.records.listing import COLUMNS

    table = io.StringIO(newline="")
    writer = csv.DictWriter(table, COLUMNS)
    writer.writeheader()
    writer.writerows(run.to_dict() for run in runs)
    return table.getvalue()
