"""The key report: what happened to each tensor of a source, and where each tensor of the model comes from."""

import warnings
from dataclasses import dataclass, field

MAX_ROWS = 8  # most rows of one status in the table
ALWAYS_COUNTED = ("loaded", "resized", "new", "unused")  # in the first line even if there are none
STATUSES = ("loaded", "fused", "split", "implied", "resized", "new", "unused", "excluded")
LISTED = STATUSES[3:]  # tensors of these statuses are listed one by one
FORMER_STATUSES = {"taken": "loaded", "left out": "excluded"}


@dataclass(frozen=True)
class KeyRow:
    """What happened to one tensor.

    Args:
        status: "loaded" unchanged; "fused" from several tensors; "split", one of several from the same tensor;
            "implied", a zero or identity that the source omits; "resized"; "new", not in the source, so that the model
            keeps its initial values; "unused", without a counterpart in the model; or "excluded", not part of the
            model in the first place.
        how: details, such as the two grids of resampled positions.
        sources: names of the source's tensors from which this tensor was made.
    """

    name: str
    status: str
    shape: tuple[int, ...] | None
    source_shape: tuple[int, ...] | None
    how: str = ""
    sources: tuple[str, ...] = ()


@dataclass(frozen=True)
class KeyReport:
    """One row per tensor, and notes on what was detected or assumed."""

    rows: list[KeyRow]
    notes: list[str] = field(default_factory=list)

    def count(self, status: str) -> int:
        return len(self.named(status))

    def named(self, status: str) -> list[str]:
        """Names of the tensors with this status."""
        status = current_status(status)
        return [row.name for row in self.rows if row.status == status]

    def table(self) -> str:
        """The number of tensors per status, the notes, then each tensor that was not only loaded, fused or split."""
        counts = [f"{self.count(status)} {status}" for status in ALWAYS_COUNTED]
        others = [status for status in STATUSES if status not in ALWAYS_COUNTED]
        counts += [f"{count} {status}" for status in others if (count := self.count(status))]
        lines = [", ".join(counts), *(f"  {note}" for note in self.notes)]
        for status in LISTED:
            rows = [row for row in self.rows if row.status == status]
            lines += [f"  {status + ' ':8}{format_row(row)}" for row in rows[:MAX_ROWS]]
            if len(rows) > MAX_ROWS:
                lines.append(f"  {status + ' ':8}... and {len(rows) - MAX_ROWS} more")
        return "\n".join(lines)


def current_status(status: str) -> str:
    """The status by its present name."""
    if status not in FORMER_STATUSES:
        return status
    warnings.warn(f"the status {status!r} is now {FORMER_STATUSES[status]!r}", DeprecationWarning, stacklevel=3)
    return FORMER_STATUSES[status]


def format_row(row: KeyRow) -> str:
    """Name, shapes and details."""
    return f"{row.name}  {format_shapes(row)}{f'  {row.how}' if row.how else ''}"


def format_shapes(row: KeyRow) -> str:
    """`(1, 197, 192) -> (1, 65, 192)`, or the only shape."""
    return " -> ".join(str(shape) for shape in (row.source_shape, row.shape) if shape is not None)
