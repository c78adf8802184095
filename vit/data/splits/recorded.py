"""The splits that a run recorded, and their restoration from the current data. The format of `splits/SPLIT.tsv` is one
row of cells per sample, with tabs and line breaks escaped. Samples with equal content in several splits, which make a
test too easy, or with different labels are warned about.
"""

import logging
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np

from vit.data.errors import DataError, printable
from vit.data.identity import to_nfc
from vit.data.pairs.source import PairSource
from vit.data.sample_names import has_names, locate
from vit.data.source import Source
from vit.data.text.corpus import CorpusSource, CorpusSplit, Documents
from vit.data.threads import StageProgress
from vit.messages import agree, first_of, number_of

AnySource = TypeVar("AnySource", Source, PairSource, CorpusSource)
NEW = "not in the data when training began"
UNESCAPES = {"t": "\t", "n": "\n", "r": "\r"}
ESCAPES = str.maketrans({"\\": "\\\\", **{char: "\\" + letter for letter, char in UNESCAPES.items()}})
log = logging.getLogger("vit")


class Entry(NamedTuple):
    """One sample: its name, its class or target, and the fingerprint of its content ("" if not recorded)."""

    name: str
    label: str
    fingerprint: str = ""


Recorded = Mapping[str, Sequence[Entry]]  # by split


def list_entries(
    source: AnySource, splits: Collection[str] | None = None, progress: StageProgress | None = None
) -> dict[str, list[Entry]]:
    """The entries of every sample, of all splits or of the given ones."""
    listed = {key: rows for key, rows in source.split_lists().items() if splits is None or key in splits}
    contents = {key: _units(source, key).fingerprints(progress) for key in listed}
    return {key: [Entry(*named, content) for named, content in zip(rows, contents[key], strict=True)]
            for key, rows in listed.items()}


def check_unchanged(source: AnySource, key: str, recorded: Sequence[Entry], fix: str) -> None:
    """Checks that the samples of a split, in the recorded order, still have the recorded content.

    Raises:
        DataError: some are missing or have other content; names the first and the `fix`.
    """
    pairs = zip(recorded, _units(source, key).fingerprints(), strict=True)
    changed = [(entry.name, "has other content" if content else "missing")
               for entry, content in pairs if entry.fingerprint not in ("", content)]
    if changed:
        raise DataError(_problem(source.name, changed, len(recorded), fix))


def restore_splits(
    source: AnySource,
    recorded: Recorded,
    compared: Collection[str] | None = None,
    left_out: Mapping[str, str] | None = None,
    fix: str = "",
) -> AnySource:
    """The source with the recorded samples in the recorded splits and order.

    Samples that were not recorded are added to the source's `left_out`, and a class that only such samples have is not
    in its classes. The argument `left_out` maps the images that the run could not read to the reason. Splits outside
    `compared` (None: all splits) may lack samples.

    Raises:
        DataError: compared samples are missing or have another label or content; names the first and the `fix`.
    """
    search = _Search(source, recorded)
    rows = {key: search.rows(key, compared is None or key in compared) for key in recorded}
    if search.problems:
        raise DataError(_problem(source.name, search.problems, sum(map(len, recorded.values())), fix))
    splits = {key: search.take(key, selected) for key, selected in rows.items() if len(selected)}
    rest = [search.names[i] for i in np.setdiff1d(np.arange(len(search.names)), np.concatenate(list(rows.values())))]
    known = {to_nfc(name): reason for name, reason in (left_out or {}).items()}
    new = [(name, NEW) for name in rest if to_nfc(name) not in known]
    restored = replace(source, **_without_new_classes(source, splits), left_out=[*source.left_out, *new])
    again = [(name, known[to_nfc(name)]) for name in rest if to_nfc(name) in known]
    if again and isinstance(restored, Source):
        return replace(restored, unreadable=[*restored.unreadable, *again])
    return restored


def _without_new_classes(source: AnySource, splits: dict) -> dict:
    """The fields `splits` and `classes` of a source, without the classes that no sample of the splits has."""
    if not isinstance(source, Source):
        return {"splits": splits}
    remaining = np.zeros(len(source.classes), bool)
    for split in splits.values():
        several = split.labels.ndim == 2
        remaining |= split.labels.any(axis=0) if several else np.bincount(split.labels, minlength=len(remaining)) > 0
    if remaining.all():
        return {"splits": splits}
    numbers = np.cumsum(remaining) - 1
    labels = {key: split.labels[:, remaining] if split.labels.ndim == 2 else numbers[split.labels]
              for key, split in splits.items()}
    return {"classes": [name for name, is_kept in zip(source.classes, remaining, strict=True) if is_kept],
            "splits": {key: replace(split, labels=labels[key]) for key, split in splits.items()}}


class _Search:
    """Index of the samples of all splits of a source, each of which is found at most once."""

    def __init__(self, source: AnySource, recorded: Recorded):
        self.source, self.recorded, self.problems = source, recorded, []
        self.units = {key: _units(source, key) for key in source.splits}
        self.ends = np.cumsum([len(unit) for unit in self.units.values()])
        listed = [named for lists in source.split_lists().values() for named in lists]
        self.names, self.labels = [name for name, _ in listed], [label for _, label in listed]
        self.named = all(has_names(unit.names) for unit in self.units.values())
        self.prints: dict[int, list[str]] = {}  # fingerprints by unit, computed on demand
        self.by_name = defaultdict(list)
        for i in reversed(range(len(listed))):
            self.by_name[to_nfc(self.names[i])].append(i)
        self.by_content: dict | None = None
        self.used: set[int] = set()

    def rows(self, key: str, strict: bool) -> np.ndarray:
        """Indices of the recorded samples of a split; with `strict`, samples that are not found are added to
        `problems`.
        """
        indices = [self._by_name(entry, strict) for entry in self.recorded[key]]
        for position, entry in enumerate(self.recorded[key]):
            if indices[position] is None and not self.named and entry.fingerprint:
                indices[position] = self._by_content(entry)
            if indices[position] is None and strict:
                self.problems.append((entry.name, self._reason(entry)))
        return np.array([i for i in indices if i is not None], dtype=np.int64)

    def take(self, key: str, rows: np.ndarray):
        """The samples as a split; the existing split if it has the same samples."""
        starts = dict(zip(self.units, self.ends - [len(unit) for unit in self.units.values()], strict=True))
        if key in self.units and np.array_equal(rows, starts[key] + np.arange(len(self.units[key]))):
            return self.source.splits[key]
        units = list(self.units.values())
        selected = type(units[0]).concat(units).take(rows)
        return selected.split if isinstance(selected, Documents) else selected

    def _by_name(self, entry: Entry, strict: bool) -> int | None:
        for i in reversed(self.by_name.get(to_nfc(entry.name), ())):
            exact = not entry.fingerprint or not (strict or not self.named) or self._print(i) == entry.fingerprint
            if i not in self.used and to_nfc(self.labels[i]) == to_nfc(entry.label) and exact:
                self.used.add(i)
                return i
        return None

    def _by_content(self, entry: Entry) -> int | None:
        """The index of an unused sample with the content and label of the entry; None if there is none."""
        if self.by_content is None:
            self.by_content = defaultdict(list)
            for i in reversed(range(len(self.names))):
                self.by_content[self._print(i), self.labels[i]].append(i)
        alike = self.by_content[entry.fingerprint, entry.label]
        while alike and alike[-1] in self.used:
            alike.pop()
        if not alike:
            return None
        self.used.add(alike[-1])
        return alike.pop()

    def _print(self, i: int) -> str:
        unit, row = locate(self.ends, i)
        if unit not in self.prints:
            self.prints[unit] = list(self.units.values())[unit].fingerprints()
        return self.prints[unit][row]

    def _reason(self, entry: Entry) -> str:
        there = self.by_name.get(to_nfc(entry.name), ())
        if not there:
            return "missing"
        labels = [self.labels[i] for i in there]
        if entry.label not in labels:
            return f"was {entry.label!r}, is {labels[0]!r}"
        return "has other content"


def _units(source: AnySource, key: str):
    """The units of a split that are recorded: samples, or the documents of a corpus."""
    split = source.splits[key]
    return split.documents() if isinstance(split, CorpusSplit) else split


def _problem(name: str, problems: Sequence[tuple[str, str]], total: int, fix: str) -> str:
    shown = first_of([f"{printable(each)} ({reason})" for each, reason in problems], 3)
    have = agree(len(problems), "has", "have")
    return (f"{name}: {len(problems)} of the {number_of(total, 'sample')} that the run recorded {have} changed: "
            f"{shown}; {fix}")


def format_rows(rows: Iterable[Sequence[str]]) -> str:
    """The text of a file of these rows."""
    return "".join("\t".join(cell.translate(ESCAPES) for cell in row) + "\n" for row in rows)


def read_rows(file: Path, escaped: bool | None = None) -> list[list[str]]:
    """Name, label and fingerprint of each sample; only name and label, unescaped, in the files of older runs.

    `escaped` states whether the cells of a file of two columns are escaped.
    """
    lines = file.read_text(encoding="utf-8", errors="surrogateescape").split("\n")[:-1]
    rows = [line.split("\t") for line in lines]
    if escaped or rows and len(rows[0]) == 3:
        return [[_unescaped(cell) for cell in row] for row in rows]
    return [line.split("\t", 1) for line in lines if "\t" in line]


def _unescaped(cell: str) -> str:
    if "\\" not in cell:
        return cell
    characters, escaped = [], False
    for char in cell:
        if escaped:
            characters.append(UNESCAPES.get(char, char))
        elif char != "\\":
            characters.append(char)
        escaped = char == "\\" and not escaped
    return "".join(characters)


def warn_about_repeats(entries: Mapping[str, Sequence[Entry]], labelled: bool) -> None:
    """Warns about samples of val and test whose content is in train, and about equal samples with different labels.

    Args:
        entries: the samples of each split with their fingerprints; of pairs these are those of the sources.
        labelled: whether each sample has a class; a source of pairs may have several targets.
    """
    trained = {entry.fingerprint: entry for entry in reversed(entries.get("train", ())) if entry.fingerprint}
    for split, each in entries.items():
        repeated = [entry for entry in each if entry.fingerprint in trained] if split != "train" else []
        if repeated:
            log.warning("%d of %s of %s %s the content of a training sample, such as %s = %s", len(repeated),
                        number_of(len(each), "sample"), split, agree(len(repeated), "has", "have"),
                        printable(repeated[0].name), printable(trained[repeated[0].fingerprint].name))
    if labelled:
        _warn_about_contradictions(entries)


def _warn_about_contradictions(entries: Mapping[str, Sequence[Entry]]) -> None:
    groups = defaultdict(dict)  # fingerprint → label → name
    for entry in (entry for each in entries.values() for entry in each if entry.fingerprint):
        groups[entry.fingerprint].setdefault(entry.label, entry.name)
    contradictions = [names for names in groups.values() if len(names) > 1]
    if contradictions:
        samples = [f"{printable(name)} ({printable(label)})" for label, name in contradictions[0].items()]
        example = first_of(samples, 3, " = ")  # an image such as "not available" may be in all of thousands of classes
        log.warning("groups of samples with equal content and different labels: %d, such as %s", len(contradictions),
                    example)
