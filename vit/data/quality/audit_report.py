"""The result of an audit: what a data set contains and what is wrong with it, as text and as plain values."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from vit.data.decoding.bit_depth import FULL, Range
from vit.data.errors import printable
from vit.data.image_sources.files import summary
from vit.messages import agree, number_of

CLASSES = 50  # in the table of the text


@dataclass(frozen=True)
class BadSample:
    """An unreadable sample and the reason."""

    split: str
    index: int
    name: str
    reason: str
    decoded: bool = False  # whether the fault was found by decoding, not in the header


@dataclass
class AuditReport:
    """The result of an audit; `problem()` is not None if the data should stop a run."""

    source: str
    classes: list[str]
    counts: dict[str, dict[str, int]]  # split → class → images
    headers: int = 0
    decoded: int = 0
    total: int = 0
    unreadable: list[BadSample] = field(default_factory=list)
    odd: dict[str, list[str]] = field(default_factory=dict)  # unusual property → names; these images are usable
    sizes: dict[str, int] = field(default_factory=dict)  # "WxH" before EXIF rotation → images, most frequent first
    duplicates: list[list[tuple[str, str]]] = field(default_factory=list)  # groups of (split, name) with equal content
    contradictions: list[list[tuple[str, str]]] = field(default_factory=list)  # groups of (name, label), equal content
    left_out: list[tuple[str, str]] = field(default_factory=list)
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    range: Range = FULL  # the values of images of more than 8 bits that are mapped to 0..255
    seconds: float = 0.0

    @property
    def complete(self) -> bool:
        return self.decoded == self.total

    def problem(self) -> str | None:
        """One line that names the first unreadable image and their number; None if all are readable."""
        if not self.unreadable:
            return None
        first = self.unreadable[0]
        return (
            f"{printable(first.name)}: {first.reason}; {len(self.unreadable)} of {number_of(self.total, 'image')} "
            f"{agree(len(self.unreadable), 'is', 'are')} unreadable: remove them, or leave them out with "
            "data.on_bad_sample=skip"
        )

    def bad_samples(self, decoded: bool = True) -> list[tuple[str, int, str]]:
        """(split, index, reason) for `Source.without`; those found in headers alone do not depend on the time limit."""
        return [(b.split, b.index, b.reason) for b in self.unreadable if decoded or not b.decoded]

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON; the lists are those of the report, since `asdict` would copy each name."""
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        return values | {"unreadable": [asdict(bad) for bad in self.unreadable], "complete": self.complete}

    def text(self, limit: int = 10) -> str:
        """A report for the terminal; lists longer than `limit` are cut, in contrast to `to_dict`."""
        classes = number_of(len(self.classes), "class")
        lines = [f"{self.source}: {number_of(self.total, 'image')}, {classes}, {self.seconds:.1f} s"]
        lines.append(f"headers read {self.headers}, decoded and hashed {self.decoded} of {self.total}")
        lines += list(_class_table(self.classes, self.counts))
        shown = list(self.sizes.items())[:limit]
        lines.append("sizes: " + ", ".join(f"{n} of {size}" for size, n in shown) + _more(len(self.sizes), limit))
        if self.mean is not None:
            mean, std = _format_numbers(self.mean), _format_numbers(self.std)
            lines.append(f"mean {mean}, std {std} (decoded training images)")
        if self.range != FULL:
            low, high = self.range
            lines.append(f"values {low:g}..{high:g} of images of more than 8 bits are mapped to 0..255")
        common = sorted(self.odd.items(), key=lambda item: -len(item[1]))
        lines += [f"{what}: {len(names)} ({_join_names(names, 3)})" for what, names in common[:limit]]
        if rare := common[limit:]:
            lines.append(f"{len(rare)} other remarks: {sum(len(names) for _, names in rare)}")
        lines.append(f"unreadable: {len(self.unreadable)}{_first(self.unreadable, limit)}")
        lines += [f"  {printable(b.name)}: {b.reason}" for b in self.unreadable[:limit]]
        lines.append("same content in different splits: "
                     f"{number_of(len(self.duplicates), 'group')}{_first(self.duplicates, limit)}")
        lines += [f"  {_join_names([name for _, name in group], 5, ' = ')}" for group in self.duplicates[:limit]]
        if self.contradictions:
            first = _first(self.contradictions, limit)
            lines.append(f"same content with different labels: {number_of(len(self.contradictions), 'group')}{first}")
            named = [[f"{name} ({label})" for name, label in group] for group in self.contradictions[:limit]]
            lines += [f"  {_join_names(group, 5, ' = ')}" for group in named]
        reasons = f" ({summary(self.left_out)})" if self.left_out else ""
        lines.append(f"left out: {len(self.left_out)}{reasons}{_first(self.left_out, limit)}")
        lines += [f"  {printable(name)}: {reason}" for name, reason in self.left_out[:limit]]
        return "\n".join(lines)


def _class_table(classes: list[str], counts: dict[str, dict[str, int]]) -> Iterator[str]:
    """A row per class with its name last, so that names of any length and script leave the numbers in columns."""
    yield " ".join([*(s.rjust(7) for s in counts), " class"])
    for name in classes[:CLASSES]:
        yield " ".join([*(str(counts[s][name]).rjust(7) for s in counts), f" {printable(name)}"])
    if len(classes) > CLASSES:
        yield f"... and {len(classes) - CLASSES} more classes"


def _join_names(names: list[str], limit: int, sign: str = ", ") -> str:
    return sign.join([*map(printable, names[:limit]), *(["..."] if len(names) > limit else [])])


def _first(found: list[Any], limit: int) -> str:
    return f", the first {limit}:" if len(found) > limit else ""


def _more(count: int, limit: int) -> str:
    return f" (and {count - limit} more)" if count > limit else ""


def _format_numbers(values: tuple[float, ...]) -> str:
    return " ".join(f"{v:.4f}" for v in values)
