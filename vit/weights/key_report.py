"""The key report: what became of every tensor of a source, and where each of the model's came from."""

import dataclasses
from dataclasses import dataclass, field
from typing import Any, Self

SHOWN = 8  # rows of one status in the table
ALWAYS = ("taken", "resized", "new", "unused")  # counted in every table, the others where there are any
STATUSES = ("taken", "fused", "split", "implied", "resized", "new", "unused", "left out")


@dataclass(frozen=True)
class KeyRow:
    """What became of one tensor.

    "taken" as it is, "fused" of several or one of several "split" from one, "implied" where the source has none because
    it would be zero or change nothing, "resized", "new" (random as before), "unused", or "left out" because it stands
    beside the network.

    Args:
        how: in words, where the status alone does not say it.
        sources: the source's names it was made of.
    """

    name: str
    status: str
    shape: tuple[int, ...] | None
    source_shape: tuple[int, ...] | None
    how: str = ""
    sources: tuple[str, ...] = ()

    def but(self, **changes: Any) -> Self:
        """The same with other values."""
        return dataclasses.replace(self, **changes)


@dataclass(frozen=True)
class KeyReport:
    """A row per tensor, and what was done or assumed while reading (`notes`)."""

    rows: list[KeyRow]
    notes: list[str] = field(default_factory=list)

    def count(self, status: str) -> int:
        return sum(row.status == status for row in self.rows)

    def named(self, status: str) -> list[str]:
        return [row.name for row in self.rows if row.status == status]

    def table(self) -> str:
        """The sum, then the notes, then every tensor that was not simply taken, fused or split."""
        counts = [f"{self.count(status)} {status}" for status in ALWAYS]
        counts += [f"{count} {status}" for status in STATUSES if status not in ALWAYS and (count := self.count(status))]
        lines = [", ".join(counts), *(f"  {note}" for note in self.notes)]
        for status in STATUSES[3:]:
            rows = [row for row in self.rows if row.status == status]
            lines += [f"  {status + ' ':8}{line(row)}" for row in rows[:SHOWN]]
            if len(rows) > SHOWN:
                lines.append(f"  {status:8}... and {len(rows) - SHOWN} more")
        return "\n".join(lines)


def line(row: KeyRow) -> str:
    """Name, shapes, and how in words."""
    return f"{row.name}  {shapes(row)}{f'  {row.how}' if row.how else ''}"


def shapes(row: KeyRow) -> str:
    """`(1, 197, 192) -> (1, 65, 192)`, or the one there is."""
    return " -> ".join(str(shape) for shape in (row.source_shape, row.shape) if shape is not None)
