"""Small SVG drawings for the formulas: lines, bars, matrices and boxes, whose colours follow the reader's scheme."""

from collections.abc import Mapping, Sequence
from html import escape

import numpy as np

STYLE = (
    ".p{fill:#fff}.ink{fill:#1f2933}.muted{fill:#66727f}.blue{fill:#2f6fb7}.orange{fill:#d9622b}.box{fill:#dce9f7;"
    "stroke:#2f6fb7}.rule{stroke:#c6d0da;fill:none}.l0,.l1,.l2,.arrow{fill:none;stroke-width:2}.l0{stroke:#2f6fb7}"
    ".l1{stroke:#d9622b}.l2{stroke:#66727f}.arrow{stroke:#1f2933;stroke-width:1.4}"
    "text{font:13px 'DejaVu Sans',sans-serif}.t{font-weight:bold}.m{text-anchor:middle}.e{text-anchor:end}"
    "@media(prefers-color-scheme:dark){.p{fill:#171c22}.ink{fill:#e8edf2}.muted{fill:#9aa7b4}.blue{fill:#6aa5e6}"
    ".orange{fill:#ef8a5a}.box{fill:#1d3550;stroke:#6aa5e6}.rule{stroke:#46525f}.l0{stroke:#6aa5e6}.l1{stroke:#ef8a5a}"
    ".l2{stroke:#9aa7b4}.arrow{stroke:#e8edf2}}"
)


def number(value: float) -> str:
    """At most one decimal, so that the drawing is small and the same on every machine."""
    return f"{value + 0.0:.1f}".removesuffix(".0").replace("-0", "0") if abs(value) < 0.05 else (
        f"{value:.1f}".removesuffix(".0"))


class Drawing:
    """An SVG picture of `width` x `height` pixels, built from the top left corner."""

    def __init__(self, width: int, height: int, title: str) -> None:
        self.parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
                      f'height="{height}"><title>{escape(title)}</title><style>{STYLE}</style>'
                      f'<rect class="p" width="{width}" height="{height}"/>']

    def svg(self) -> str:
        return "\n".join([*self.parts, "</svg>\n"])

    def text(self, x: float, y: float, content: str, style: str = "ink") -> None:
        """Text with its base line at y; styles: ink, muted, blue, orange, t (bold), m (centred), e (right-aligned)."""
        self.parts.append(f'<text class="{style}" x="{number(x)}" y="{number(y)}">{escape(content)}</text>')

    def rect(self, x: float, y: float, width: float, height: float, style: str, opacity: float = 1.0) -> None:
        shade = "" if opacity >= 0.995 else f' fill-opacity="{opacity:.2f}"'
        self.parts.append(f'<rect class="{style}" x="{number(x)}" y="{number(y)}" width="{number(width)}" '
                          f'height="{number(height)}"{shade}/>')

    def line(self, points: Sequence[tuple[float, float]], style: str) -> None:
        joined = " ".join(f"{number(x)},{number(y)}" for x, y in points)
        self.parts.append(f'<polyline class="{style}" points="{joined}"/>')

    def arrow(self, *points: tuple[float, float]) -> None:
        """A line along the points with a head at the last one."""
        self.line(points, "arrow")
        (x0, y0), (x, y) = points[-2:]
        dx, dy = np.sign(x - x0), np.sign(y - y0)
        self.line([(x - 5 * dx - 4 * dy, y - 5 * dy - 4 * dx), (x, y), (x - 5 * dx + 4 * dy, y - 5 * dy + 4 * dx)],
                  "arrow")

    def box(self, x: float, y: float, width: float, content: str, height: float = 26) -> None:
        """A part of a network, with its name."""
        self.rect(x, y, width, height, "box")
        self.text(x + width / 2, y + height / 2 + 5, content, "ink m")

    def matrix(self, x: float, y: float, cell: float, values: np.ndarray, largest: float | None = None) -> None:
        """Values (rows,columns): blue above zero, orange below, transparent at zero."""
        top = largest or max(float(np.abs(values).max()), 1e-12)
        rows, columns = values.shape
        for i, j in np.ndindex(rows, columns):
            if abs(values[i, j]) >= 0.005 * top:
                style = "blue" if values[i, j] > 0 else "orange"
                self.rect(x + j * cell, y + i * cell, cell, cell, style, min(abs(values[i, j]) / top, 1.0))
        self.rect(x, y, columns * cell, rows * cell, "rule")

    def bars(self, x: float, y: float, width: float, height: float, values: Sequence[float], labels: Sequence[str],
             top: float | None = None) -> None:
        """Bars from left to right with their values above and names below; (x, y) is the left end of the base line."""
        top, step = top or max(values), width / len(values)
        for i, (value, label) in enumerate(zip(values, labels, strict=True)):
            high = height * value / top
            self.rect(x + (i + 0.15) * step, y - high, 0.7 * step, high, "blue")
            self.text(x + (i + 0.5) * step, y - high - 5, f"{value:.2f}".strip("0").rstrip(".") or "0", "muted m")
            self.text(x + (i + 0.5) * step, y + 17, label, "ink m")
        self.line([(x, y), (x + width, y)], "rule")

    def plot(self, x: float, y: float, width: float, height: float, across: Sequence[float],
             series: Mapping[str, Sequence[float]], limits: tuple[float, float], names: tuple[str, str]) -> None:
        """Lines over `across`, in a frame with its upper left corner at (x, y); `names` are those of the axes."""
        low, high = limits
        self.rect(x, y, width, height, "rule")
        start, end = across[0], across[-1]
        for index, (name, values) in enumerate(series.items()):
            points = [(x + width * (a - start) / (end - start), y + height * (1 - (v - low) / (high - low)))
                      for a, v in zip(across, values, strict=True)]
            self.line(points, f"l{index}")
            self.line([(x + 10, y + 16 + 18 * index), (x + 30, y + 16 + 18 * index)], f"l{index}")
            self.text(x + 36, y + 20 + 18 * index, name)
        for value, row in ((high, y + 10), (low, y + height)):
            self.text(x - 6, row, f"{value:g}", "muted e")
        for value, column, style in ((start, x, "muted"), (end, x + width, "muted e")):
            self.text(column, y + height + 16, f"{value:g}", style)
        self.text(x + width / 2, y + height + 32, names[0], "ink m")
        self.text(x, y - 8, names[1])
