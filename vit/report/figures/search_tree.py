"""The search of a generated text as a tree: a figure, and lines for the terminal."""

from collections.abc import Iterator
from os import PathLike
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from rich.text import Text

from vit.generation.search_tree import COLLECTED, Outcome
from vit.inference import RecordedSearch
from vit.messages import left_to_right, number_of
from vit.report.figures.style import FONT, fit, new_figure, save_figure, shorten
from vit.report.figures.theme import Theme, theme

FILE_TYPES = (".png", ".svg", ".pdf")
COLUMN, ROW = 1.25, 0.42  # inches per step and per hypothesis
LONGEST = 400  # inches, so that a figure of 150 dpi has fewer than 2**16 pixels


def write_search(path: str | PathLike[str], search: RecordedSearch, dark: bool = False) -> Path:
    """Draw the search: a column per step, an entry per hypothesis with the sum of its log-probabilities.

    The path to the best text is the straight line in the middle. Hypotheses with a grey line were dropped.

    Raises:
        ValueError: the file has another extension than .png, .svg or .pdf.
    """
    path = Path(path)
    check_file(path)
    colours, rows = theme(dark), node_rows(search)
    steps = max(node.step for node in search.tree.nodes)
    width = min(COLUMN * (steps + 1) + 0.8, LONGEST)
    figure = new_figure(max(width, 7.0), ROW * (np.ptp(rows) + 1) + 1.3, colours.paper)
    axes = figure.subplots()
    axes.set(xlim=(-0.3, max(steps + 1, (7.0 - 0.8) / COLUMN)), ylim=(rows.max() + 0.7, rows.min() - 0.7))
    axes.set_axis_off()
    dropped = [node.outcome is Outcome.dropped for node in search.tree.nodes]
    for index in sorted(range(len(rows)), key=lambda i: (i in search.chosen, not dropped[i])):  # the best text on top
        draw_node(axes, search, index, rows, colours)
    axes.legend(handles=legend_lines(colours), loc="lower left", bbox_to_anchor=(0, 1), ncols=4, frameon=False,
                labelcolor=colours.ink, prop={"family": FONT, "size": 11}, borderpad=0)
    title = fit(left_to_right(*heading(search)), 0.97 * figure.get_figwidth(), 14, bold=True)
    figure.suptitle(title, x=0.01, ha="left", fontsize=14, fontweight="bold", color=colours.ink, family=FONT)
    return save_figure(figure, path)


def check_file(path: Path) -> None:
    """Check the extension of a figure.

    Raises:
        ValueError: it is not .png, .svg or .pdf.
    """
    if path.suffix.lower() not in FILE_TYPES:
        raise ValueError(f"output={path} must end with {', '.join(FILE_TYPES[:-1])} or {FILE_TYPES[-1]}, the formats "
                         f"of a tree; for example {path.with_suffix('.svg')}")


def heading(search: RecordedSearch) -> tuple[str, ...]:
    """The parts of a line: the source, the best text and its score."""
    settings, text = search.tree.settings, search.generated
    kind = f"beam {settings.beam}" if settings.beam > 1 else "greedy"
    return text.source, " → ", text.text, f"   score {text.score:.4f}, {kind}"


def node_rows(search: RecordedSearch) -> np.ndarray:
    """The row of each node (nodes,): children of a node are below each other, and the best text is in row 0."""
    nodes = search.tree.nodes
    rows = np.zeros(len(nodes))
    for step in range(1, 1 + max(node.step for node in nodes)):
        column = [index for index, node in enumerate(nodes) if node.step == step]
        column.sort(key=lambda index: (rows[nodes[index].parent], -nodes[index].total))
        middle = [row for row, index in enumerate(column) if index in search.chosen]
        rows[column] = np.arange(len(column)) - (middle[0] if middle else (len(column) - 1) // 2)
    return rows


def draw_node(axes: Axes, search: RecordedSearch, index: int, rows: np.ndarray, colours: Theme) -> None:
    """The token of a node with its log-probability, and the edge from its parent."""
    node = search.tree.nodes[index]
    if node.parent is None:
        axes.text(0, 0, shorten(root_name(search), 12), ha="right", va="center", color=colours.ink, fontsize=11,
                  family=FONT)
        return
    chosen = index in search.chosen
    colour = edge = colours.ink
    if chosen:
        colour = edge = colours.blue
    elif node.outcome is Outcome.dropped:
        colour, edge = colours.muted, colours.rule
    elif node.outcome in COLLECTED:
        colour = edge = colours.orange
    x, t = node.step, np.linspace(0, 1, 12 if rows[node.parent] != rows[index] else 2)
    start = x - 1 + (0.62 if node.parent else 0.04)
    bend = rows[node.parent] + (rows[index] - rows[node.parent]) * t**2 * (3 - 2 * t)
    axes.plot(start + (x - 0.06 - start) * t, bend, color=edge, linewidth=3 if chosen else 1.2,
              solid_capstyle="round")
    style = {"color": colour, "family": FONT, "va": "center"}
    axes.text(x, rows[index] - 0.17, shorten(search.tokens[index], 9), fontsize=11,
              fontweight="bold" if chosen else "normal", **style)
    axes.text(x, rows[index] + 0.23, f"{node.total:.2f}", fontsize=8, **style)


def root_name(search: RecordedSearch) -> str:
    """The number of forced tokens, or "start"."""
    return f"{len(search.tree.settings.prefix)} forced" if search.tree.settings.prefix else "start"


def legend_lines(colours: Theme) -> list[Line2D]:
    named = {"best text": colours.blue, "extended": colours.ink, "other finished texts": colours.orange,
             "dropped": colours.rule}
    return [Line2D([], [], color=colour, linewidth=3 if name == "best text" else 1.5, label=name)
            for name, colour in named.items()]


def search_lines(search: RecordedSearch) -> Iterator[Text]:
    """The tree for a terminal: a line per hypothesis that was not dropped, followed by what was dropped after it.

    The best text goes down the left side; other branches are indented at the hypothesis from which they depart.
    """
    tree, children = search.tree, search.tree.children()
    yield Text(f"{''.join(heading(search))}, {number_of(max(node.step for node in tree.nodes), 'step')}, "
               f"{number_of(len(tree.nodes) - 1, 'hypothesis', 'hypotheses')}",
               style="bold")
    stack = [(0, "", "")]  # node, the prefix of its line, and that of the lines that follow it
    while stack:
        index, first, rest = stack.pop()
        extended = [child for child in children[index] if tree.nodes[child].outcome is not Outcome.dropped]
        dropped = [child for child in children[index] if tree.nodes[child].outcome is Outcome.dropped]
        yield node_line(search, index, first, dropped)
        main = [child for child in extended if child in search.chosen] or extended[:1]
        others = [child for child in extended if child not in main]
        stack += [(child, rest, rest) for child in main]
        stack += [(child, f"{rest}├─ ", f"{rest}│  ") for child in reversed(others)]


def node_line(search: RecordedSearch, index: int, prefix: str, dropped: list[int]) -> Text:
    """One line: the token, the sum of its log-probabilities, its end if it is a text, and what was dropped after it."""
    node, chosen = search.tree.nodes[index], index in search.chosen
    line = Text(prefix, style="dim")
    name = root_name(search) if node.parent is None else f"{search.tokens[index]}  {node.total:.3f}"
    line.append(name, style="bold blue" if chosen else "not dim")
    if node.outcome in COLLECTED:
        rank = [number for number, found in enumerate(search.nodes, 1) if found == index]
        line.append(f"  {node.outcome}, score {search.tree.score(index):.4f}", style="not dim yellow")
        line.append(f", text {rank[0]}" if rank else "", style="not dim yellow")
    if dropped:
        parts = [f"{search.tokens[child]} {search.tree.nodes[child].total:.2f}" for child in dropped]
        line.append(f"   dropped: {', '.join(parts)}")
    return line
