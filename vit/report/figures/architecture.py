"""The parts of a model as a table for the terminal and as an SVG picture."""

from dataclasses import replace
from os import PathLike
from pathlib import Path
from xml.sax.saxutils import escape

from rich.table import Table

from vit.files.outputs import write_output
from vit.models.explanation import Explanation, Part

WIDTH, ROW, TOP, INDENT = 860, 24, 84, 18
COLUMNS = {"output": 520, "parameters": 620, "FLOPs": 710}  # right edges of the columns of numbers
COUNTED = "FLOPs of matrix products and convolutions; a multiply-add counts as two"
BAR = (726, 110)  # left edge and full width of the bars of FLOPs
STYLE = """
  .paper { fill: #ffffff } .ink { fill: #1f2933 } .muted { fill: #66727f } .box { fill: #eef2f6; stroke: #c6d0da }
  .block { fill: #dce9f7; stroke: #2f6fb7 } .bar { fill: #d9622b }
  text { font: 12px 'DejaVu Sans', sans-serif } .title { font: bold 17px 'DejaVu Sans', sans-serif }
  .number { text-anchor: end }
  @media (prefers-color-scheme: dark) {
    .paper { fill: #171c22 } .ink { fill: #e8edf2 } .muted { fill: #9aa7b4 } .box { fill: #232b34; stroke: #46525f }
    .block { fill: #1d3550; stroke: #6aa5e6 } .bar { fill: #ef8a5a }
  }
"""


def shown_parts(explanation: Explanation) -> list[Part]:
    """The parts without lists of blocks. The parts of a block are only shown if it differs from the block before."""
    parts, former, hidden = [], None, None
    for part in explanation.parts:
        if hidden is not None and part.name.startswith(hidden):
            continue
        hidden = None
        if part.kind in ("ModuleList", "Sequential") and not part.leaf:
            continue
        if part.is_block:
            size = (part.name.rpartition(".")[0], part.kind, part.shape, part.parameters, part.flops)
            hidden = f"{part.name}." if size == former else None
            former = size
        parts.append(part)
    names = {part.name for part in parts}
    return [replace(part, level=sum(above in names for above in prefixes(part.name))) for part in parts]


def prefixes(name: str) -> list[str]:
    """The names of the modules that contain a part: `a` and `a.b` for `a.b.c`."""
    parts = name.split(".")
    return [".".join(parts[:count]) for count in range(1, len(parts))]


def short(number: int) -> str:
    """A number with three digits and a unit: 5,362,762 is 5.36 M."""
    for size, unit in ((10**12, "T"), (10**9, "G"), (10**6, "M"), (10**3, "k")):
        if number >= size:
            return f"{number / size:.3g} {unit}" if number < 999.5 * size else f"{number / size:.0f} {unit}"
    return str(number)


def size_text(shape: tuple[int, ...] | None) -> str:
    """The shape without the batch: (1, 65, 192) is 65 x 192."""
    return " x ".join(map(str, shape[1:])) if shape and len(shape) > 1 else ""


def totals(explanation: Explanation) -> str:
    """One line with the totals and the inputs."""
    inputs = ", ".join(f"{name} {size_text(shape)}" for name, shape in explanation.inputs.items())
    return f"{explanation.parameters:,} parameters, {short(explanation.flops)}FLOPs for {inputs}"


def architecture_table(explanation: Explanation) -> Table:
    """The parts as a table of rich; indented parts belong to the one above them."""
    title = f"{explanation.name}: {totals(explanation)}"
    table = Table(box=None, title=title, title_justify="left", title_style="bold", caption=COUNTED,
                  caption_justify="left")
    table.add_column("part", no_wrap=True)
    table.add_column("class", style="dim", no_wrap=True)
    for name in ("output", "parameters", "FLOPs", "share"):
        table.add_column(name, justify="right", no_wrap=True)
    for part in shown_parts(explanation):
        share = f"{part.flops / explanation.flops:.1%}" if explanation.flops and part.flops else ""
        style = "bold" if part.is_block or not part.level else None
        table.add_row("  " * part.level + part.name, part.kind, size_text(part.shape), f"{part.parameters:,}",
                      short(part.flops), share, style=style)
    return table


def architecture_svg(explanation: Explanation) -> str:
    """The parts as an SVG picture, from the input at the top to the output, with a bar for the share of the FLOPs.

    Its colours follow the light or dark scheme of the reader.
    """
    parts = shown_parts(explanation)
    height = TOP + ROW * len(parts) + 14
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}">',
        f"<title>{escape(explanation.name)}</title><style>{STYLE}</style>",
        f'<rect class="paper" width="{WIDTH}" height="{height}"/>',
        text(16, 28, explanation.name, "ink title"),
        text(16, 48, totals(explanation), "muted"),
        *(text(x, TOP - 10, name, "muted number") for name, x in COLUMNS.items()),
        text(BAR[0], TOP - 10, "share of FLOPs", "muted"),
    ]
    for row, part in enumerate(parts):
        lines += drawn_part(part, TOP + ROW * row, explanation.flops)
    return "\n".join([*lines, "</svg>\n"])


def drawn_part(part: Part, y: int, flops: int) -> list[str]:
    """The row of a part with its upper edge at y: a box, its name and class, its numbers and its bar."""
    x = 16 + INDENT * part.level
    kind = "block" if part.is_block else "box"
    label = part.name if part.is_block else part.name.rpartition(".")[2]
    lines = [
        f'<rect class="{kind}" x="{x}" y="{y + 1}" width="{400 - x}" height="{ROW - 3}" rx="4">'
        f"<title>{escape(part.name)}</title></rect>",
        text(x + 8, y + 16, label, "ink"),
        text(392, y + 16, part.kind, "muted number"),
        text(COLUMNS["output"], y + 16, size_text(part.shape), "ink number"),
        text(COLUMNS["parameters"], y + 16, f"{part.parameters:,}" if part.parameters else "", "ink number"),
        text(COLUMNS["FLOPs"], y + 16, short(part.flops) if part.flops else "", "ink number"),
    ]
    if part.flops:
        width = max(1.0, BAR[1] * part.flops / flops)
        lines.append(f'<rect class="bar" x="{BAR[0]}" y="{y + 6}" width="{width:.1f}" height="{ROW - 13}" rx="2"/>')
    return lines


def text(x: float, y: float, content: str, style: str) -> str:
    return f'<text class="{style}" x="{x}" y="{y}">{escape(content)}</text>'


def write_architecture(explanation: Explanation, path: str | PathLike[str]) -> Path:
    """Write the SVG picture.

    Raises:
        ValueError: the extension is not .svg.
    """
    path = Path(path)
    check_svg(path)
    write_output(path, architecture_svg(explanation).encode())
    return path


def check_svg(path: Path | None) -> None:
    """Check the extension of the picture.

    Raises:
        ValueError: there is a path, and its extension is not .svg.
    """
    if path is not None and path.suffix.lower() != ".svg":
        raise ValueError(f"{path} must end in .svg, the format of the picture; for example {path.with_suffix('.svg')}")
