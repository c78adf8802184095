"""A list of runs in the terminal, and as one self-contained HTML file."""

import math
import os
from collections.abc import Sequence
from html import escape
from typing import Any

from rich import markup
from rich.box import SIMPLE_HEAD
from rich.cells import cell_len
from rich.table import Table

from vit.messages import duration, number_of, visible
from vit.report.pages.page import html_page

STYLES = {"running": "blue", "failed": "red", "damaged": "red", "stopped": "yellow", "finished": "green"}
HEADINGS = ("run", "state", "data", "model", "metric", "val", "test", "epochs", "time", "started")
NUMBERS = ("val", "test", "epochs", "time")
ABBREVIATED, LONGEST = ("data", "model"), 12  # columns of a narrow terminal with at most so many characters
MIN_NAME = 8  # characters of the name of a run, even if the table is then wider than the terminal
DROPPED = ("time", "epochs", "data", "model", "metric")  # columns that a narrower one leaves out, in this order
WIDTH, HEIGHT = 90, 22  # size of a curve in pixels

STYLE = "td:first-child { min-width: 12rem; } td:nth-child(10) { white-space: nowrap; }"  # name and start of a run
SORTING = """
const table = document.querySelector('table'), body = table.tBodies[0];
const value = (row, i) => row.cells[i].dataset.value ?? row.cells[i].textContent;
const order = new Intl.Collator(undefined, { numeric: true });  // of texts: run2 before run10
const compare = (x, y) => x !== '' && y !== '' && !isNaN(x) && !isNaN(y) ? x - y : order.compare(x, y);
table.querySelectorAll('th button').forEach(button => button.addEventListener('click', () => {
  const head = button.parentElement, i = head.cellIndex, up = head.getAttribute('aria-sort') !== 'ascending';
  table.querySelectorAll('th').forEach(each => each.removeAttribute('aria-sort'));
  head.setAttribute('aria-sort', up ? 'ascending' : 'descending');
  const empty = v => v === '';
  [...body.rows].sort((a, b) => { const [x, y] = [value(a, i), value(b, i)];
    if (empty(x) || empty(y)) return empty(x) - empty(y);
    return compare(x, y) * (up ? 1 : -1); }).forEach(row => body.append(row));
}));
const box = document.querySelector('#search'), count = document.querySelector('#count');
const filter = () => { let shown = 0; for (const row of body.rows) {
  row.hidden = !box.value.toLowerCase().split(' ').every(word => row.textContent.toLowerCase().includes(word));
  shown += !row.hidden; } count.textContent = `${shown} of ${body.rows.length} runs`; };
box.addEventListener('input', filter); filter();
"""


def runs_table(runs: Sequence[Any], folder: str | os.PathLike[str], width: int = 80) -> Table:
    """A row per run, named relative to `folder`.

    Args:
        runs: as `vit.run.records.listing.list_runs` returns them.
        width: characters of the terminal. Where it is too narrow for the names of the runs on one line, other columns
            are abbreviated or left out, as the caption states.
    """
    rows = [{**dict(zip(HEADINGS, _cells(run), strict=True)), "run": visible(os.path.relpath(run.path, folder))}
            for run in runs]
    metrics = {run.metric for run in runs if run.metric}
    hidden = ("started",) if len(metrics) > 1 else ("started", "metric")  # a page and a file have all
    remark = max((cell_len(run.remark) for run in runs), default=0)  # below the name
    names = [name for name in HEADINGS if name not in hidden]
    widths, dropped = _fitting_columns(rows, names, width, min(remark, MIN_NAME))
    notes = [f"val and test: {min(metrics)}"] if len(metrics) == 1 else []
    notes += [f"a wider terminal, --csv and --html also have {', '.join(dropped)}"] if dropped else []
    room = width - _total(widths)  # negative where not even the names fit, which are then folded
    least = min(widths["run"], MIN_NAME)
    widths["run"] = max(min(max(widths["run"], remark), widths["run"] + room), least)
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), caption="; ".join(notes), caption_justify="left",
                  width=_total(widths))  # whole numbers, also where the terminal is narrower
    for name, size in widths.items():
        table.add_column(name, justify="right" if name in NUMBERS else "left", width=size,
                         overflow="ellipsis" if name in ABBREVIATED else "fold", no_wrap=name != "run")
    for run, row in zip(runs, rows, strict=True):
        cells = {name: markup.escape(text) for name, text in row.items()}
        cells["state"] = f"[{STYLES[run.state]}]{run.state}[/]"
        if run.remark:
            cells["run"] += f"\n[dim]{markup.escape(visible(run.remark))}[/]"
        table.add_row(*(cells[name] for name in widths))
    return table


def _fitting_columns(
    rows: Sequence[dict[str, str]], names: Sequence[str], width: int, least: int
) -> tuple[dict[str, int], list[str]]:
    """The columns that fit into the terminal with their widths, and those that are left out; `least` characters are for
    the name of a run.
    """
    widths = {name: max(map(cell_len, (name, *(row[name] for row in rows)))) for name in names}
    widths["run"] = max(widths["run"], least)
    if _total(widths) > width:
        widths |= {name: min(widths[name], LONGEST) for name in ABBREVIATED}
    dropped = []
    for name in DROPPED:
        if _total(widths) > width and name in widths:
            dropped.append(name)
            del widths[name]
    return widths, dropped


def _total(widths: dict[str, int]) -> int:
    """The width of a table: two characters between columns, one at the left edge and two at the right one."""
    return sum(widths.values()) + 2 * len(widths) + 1


def runs_page(runs: Sequence[Any], heading: str) -> str:
    """The text of the page: a table that sorts by a click on a heading, and a box that searches."""
    head = "".join(f"<th scope=col{_alignment(name)}><button type=button>{name}</button></th>"
                   for name in (*HEADINGS, "curve"))
    rows = "".join(_html_row(run) for run in runs)
    search = ("<p><label>Search <input id=search type=search placeholder='text in any column'></label> "
              "<span id=count aria-live=polite></span></p>")
    table = ("<div class=scroll tabindex=0 role=region aria-label=Runs><table>"
             f"<thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>")
    return html_page(heading, search + table, SORTING, STYLE)


def _cells(run: Any) -> tuple[str, ...]:
    planned = f"/{run.planned_epochs}" if run.planned_epochs else ""
    epochs = "" if run.epochs is None else f"{run.epochs}{planned}"
    texts = (visible(text) for text in (str(run.path), run.state, run.data, run.model, run.metric))
    return (*texts, _number(run.val), _number(run.test), epochs,
            "" if run.seconds is None else duration(run.seconds), run.started)


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.4f}"


def _html_row(run: Any) -> str:
    values = (None, None, None, None, None, run.val, run.test, run.epochs, run.seconds, None)
    cells = []
    for name, text, value in zip(HEADINGS, _cells(run), values, strict=True):
        absent = value is None or math.isnan(value)  # sorted last
        sorted_by = "" if name not in NUMBERS else f' data-value="{"" if absent else value}"'
        shown = escape(text)
        if name == "state":
            shown = f'<span class="{run.state}">{shown}</span>' + (f"<br><small>{escape(visible(run.remark))}</small>"
                                                                   if run.remark else "")
        cells.append(f'<td{sorted_by}{_alignment(name)}>{shown}</td>')
    return f"<tr>{''.join(cells)}<td>{_curve(run)}</td></tr>\n"


def _alignment(column: str) -> str:
    return " class=number" if column in NUMBERS else ""


def _curve(run: Any) -> str:
    """The finite validation values of the epochs as a small drawing."""
    values = [(i, v) for i, v in enumerate(run.curve) if math.isfinite(v)]
    if len(values) < 2:
        return ""
    low, high = min(v for _, v in values), max(v for _, v in values)
    scale, epochs = (high - low) or 1.0, len(run.curve)
    points = " ".join(f"{i * WIDTH / (epochs - 1):.1f},{(HEIGHT - 2) * (high - v) / scale + 1:.1f}" for i, v in values)
    label = f"val {run.metric} over {number_of(epochs, 'epoch')}, {values[0][1]:.4f} to {values[-1][1]:.4f}"
    return (f'<svg width={WIDTH} height={HEIGHT} viewBox="0 0 {WIDTH} {HEIGHT}" role=img aria-label="{escape(label)}">'
            f'<polyline points="{points}" fill=none stroke=currentColor stroke-width=1.2 /></svg>')
