"""The audit of a data set: its contents and its faults, found before a long run starts.

The headers of all images are read; then images are decoded and hashed in a fixed random order until the time limit.
"""

import hashlib
import math
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from itertools import takewhile
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from torch import Tensor

from vit.counters import permutation
from vit.data.errors import printable
from vit.data.images.bit_depth import FULL, Range
from vit.data.images.decode import BadImage
from vit.data.images.files import summary
from vit.data.images.image_header import read_header
from vit.data.images.line_images import AnyPreprocessing, LinePreprocessing
from vit.data.progress import StageProgress
from vit.data.source import Source
from vit.data.splits.split import Raw, Split
from vit.data.statistics import Histogram
from vit.data.threads import map_in_threads

Content = tuple[bytes, Tensor | np.ndarray | None]  # hash of a sample, and its image where that is needed
_SUFFIXES = {
    "JPEG": (".jpg", ".jpeg", ".jpe", ".jfif"),
    "MPO": (".jpg", ".jpeg"),
    "PNG": (".png", ".apng"),
    "TIFF": (".tif", ".tiff"),
}


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
    sizes: dict[str, int] = field(default_factory=dict)  # "WxH" → images, most frequent first
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
            f"{printable(first.name)}: {first.reason}; {len(self.unreadable)} of {self.total} images are unreadable: "
            "remove them, or leave them out with data.on_bad_sample=skip"
        )

    def bad_samples(self, decoded: bool = True) -> list[tuple[str, int, str]]:
        """(split, index, reason) for `Source.without`; those found in headers alone do not depend on the time limit."""
        return [(b.split, b.index, b.reason) for b in self.unreadable if decoded or not b.decoded]

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return asdict(self) | {"complete": self.complete}

    def text(self, limit: int = 10) -> str:
        """A report for the terminal; lists longer than `limit` are cut, in contrast to `to_dict`."""
        lines = [f"{self.source}: {self.total} images, {len(self.classes)} classes, {self.seconds:.1f} s"]
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
        lines.append(f"same content in different splits: {len(self.duplicates)} groups{_first(self.duplicates, limit)}")
        lines += [f"  {_join_names([name for _, name in group], 5, ' = ')}" for group in self.duplicates[:limit]]
        if self.contradictions:
            first = _first(self.contradictions, limit)
            lines.append(f"same content with different labels: {len(self.contradictions)} groups{first}")
            named = [[f"{name} ({label})" for name, label in group] for group in self.contradictions[:limit]]
            lines += [f"  {_join_names(group, 5, ' = ')}" for group in named]
        reasons = f" ({summary(self.left_out)})" if self.left_out else ""
        lines.append(f"left out: {len(self.left_out)}{reasons}{_first(self.left_out, limit)}")
        lines += [f"  {printable(name)}: {reason}" for name, reason in self.left_out[:limit]]
        return "\n".join(lines)


class Cache(Protocol):
    """A data set that holds its images in memory (vit.data.ImageDataset)."""

    def decode(self, raw: Raw, name: str) -> Tensor | np.ndarray: ...

    def keep(self, i: int, image: Tensor | np.ndarray) -> None: ...


def audit(
    source: Source,
    preprocessing: AnyPreprocessing,
    seconds: float | None = 10.0,
    progress: StageProgress | None = None,
    statistics: bool = True,
    caches: Mapping[str, Cache] | None = None,
) -> AuditReport:
    """Audits a source.

    Args:
        seconds: limits decoding and hashing (None: no limit); all headers are read in any case.
        statistics: whether mean and std are computed, for which training images are resized: for photos, this takes
            longer than everything else. Not with `caches`.
        caches: splits whose images, once decoded, are kept for training.
    """
    begun = time.monotonic()
    counts = {s: dict(zip(source.classes, source.counts(s).tolist(), strict=True)) for s in source.splits}
    report = AuditReport(source.name, source.classes, counts, left_out=list(source.left_out), range=preprocessing.range)
    report.total = sum(map(len, source.splits.values()))
    sizes, odd = Counter(), defaultdict(list)
    bad = _read_headers(source, preprocessing, report, sizes, odd, progress)
    histogram = Histogram(preprocessing.channels) if statistics and not caches else None
    hashes: dict[bytes, list[tuple[str, int]]] = defaultdict(list)
    headers = set(bad)
    _decode(source, preprocessing, report, bad, histogram, hashes, seconds, progress, caches or {})
    equal = [sorted(group) for group in hashes.values() if len(group) > 1]  # (split, index) of equal content
    report.unreadable = [
        BadSample(s, i, source.splits[s].names[i], reason, (s, i) not in headers)
        for (s, i), reason in sorted(bad.items())
    ]
    report.sizes = {f"{w}x{h}": n for (w, h), n in sizes.most_common()}
    report.odd = dict(sorted(odd.items()))
    report.duplicates = [sorted((s, source.splits[s].names[i]) for s, i in group) for group in equal
                         if len({s for s, _ in group}) > 1]
    labelled = [[(source.splits[s].names[i], source.label_text(s, i)) for s, i in group] for group in equal]
    report.contradictions = [group for group in labelled if len({label for _, label in group}) > 1]
    if histogram is not None and histogram.pixels:
        report.mean, report.std = histogram.mean_std()
    report.seconds = time.monotonic() - begun
    return report


def _read_headers(
    source: Source,
    preprocessing: AnyPreprocessing,
    report: AuditReport,
    sizes: Counter,
    odd: dict[str, list[str]],
    progress: StageProgress | None,
) -> dict[tuple[str, int], str]:
    bad: dict[tuple[str, int], str] = {}
    for key, split in source.splits.items():
        if split.pixels is not None:
            sizes[(split.pixels.shape[2], split.pixels.shape[1])] += len(split)
            report.headers += len(split)
            continue
        for i in range(len(split)):
            report.headers += 1
            if progress and report.headers % 100 == 0:
                progress("headers", report.headers, report.total)
            try:
                size, remarks = _header(split, i, preprocessing)
            except BadImage as error:
                bad[key, i] = error.reason
                continue
            sizes[size] += 1
            for remark in remarks:
                odd[remark].append(split.names[i])
    if progress:
        progress("headers", report.headers, report.total)
    return bad


def _header(split: Split, i: int, preprocessing: AnyPreprocessing) -> tuple[tuple[int, int], list[str]]:
    """(width, height) and unusual properties of one image, from its header."""
    name = split.names[i]
    try:
        location = split.location(i)
    except OSError as error:
        raise BadImage(name, f"cannot be read ({error.strerror or error})") from error
    if isinstance(location, np.ndarray):
        return (location.shape[1], location.shape[0]), []
    if isinstance(location, Path) and location.is_file() and location.stat().st_size == 0:
        raise BadImage(name, "the file is empty (0 bytes)")
    header = read_header(location, name, preprocessing.max_pixels)
    remarks = [] if header.mode in ("RGB", "L") else [f"{header.format} of mode {header.mode}"]
    remarks += [f"EXIF orientation {header.orientation}"] if header.orientation in range(2, 9) else []
    remarks += ["more than one frame, the first is used"] if header.frames > 1 else []
    suffix = Path(name).suffix.lower() if isinstance(location, Path) else ""  # rows of tables have no file name
    if suffix and header.format in _SUFFIXES and suffix not in _SUFFIXES[header.format]:
        remarks.append(f"{header.format} named {printable(suffix)}")
    height, width = _min_size(preprocessing)
    if min(header.size[0] / width, header.size[1] / height) < 0.25:
        remarks.append("a side below a quarter of the input size")
    return header.size, remarks


def _min_size(preprocessing: AnyPreprocessing) -> tuple[int, int]:
    """(height, width) of the smallest image that is not enlarged; the width of a line image has no such limit."""
    if isinstance(preprocessing, LinePreprocessing):
        return preprocessing.height, preprocessing.patch_size[1]
    return preprocessing.size


def _decode(
    source: Source,
    preprocessing: AnyPreprocessing,
    report: AuditReport,
    bad: dict[tuple[str, int], str],
    histogram: Histogram | None,
    hashes: dict[bytes, list[tuple[str, int]]],
    seconds: float | None,
    progress: StageProgress | None,
    caches: Mapping[str, Cache],
) -> None:
    """Decodes and hashes in a fixed random order over all splits; images with bad headers count as decoded. Training
    images are added to the histogram, if there is one, or kept in the cache of their split.
    """
    end = math.inf if seconds is None else time.monotonic() + seconds
    headers = set(bad)

    decoders = {key: cache.decode for key, cache in caches.items()}
    if histogram is not None:
        decoders["train"] = preprocessing.image

    def load(sample: tuple[str, int]) -> tuple[str, int, Content | BadImage | None] | None:
        """Split, row and content of a sample, without the content after a bad header; None after the time limit."""
        key, i = sample
        if time.monotonic() > end:
            return None
        decode = decoders.get(key, preprocessing.check)
        return key, i, None if sample in headers else _content(source.splits[key], i, decode)

    for key, i, content in takewhile(bool, map_in_threads(load, _shuffled(source))):
        report.decoded += 1
        if progress and report.decoded % 100 == 0:
            progress("decodes", report.decoded, report.total)
        if isinstance(content, BadImage):
            bad[key, i] = content.reason
        elif content is not None:
            digest, image = content
            hashes[digest].append((key, i))
            if key in caches:
                caches[key].keep(i, image)
            elif image is not None:
                histogram.add(image)
    if progress:
        progress("decodes", report.decoded, report.total)


def _content(split: Split, i: int, decode: Callable[[Raw, str], Tensor | np.ndarray | None]) -> Content | BadImage:
    """SHA-256 of the file or the pixels, and the decoded image; why it cannot be read, where it cannot."""
    name = split.names[i]
    try:
        raw = split.read(i)
        data = raw if isinstance(raw, bytes) else repr(raw.shape).encode() + np.ascontiguousarray(raw).tobytes()
        digest = hashlib.sha256(data).digest()
        return digest, decode(raw, name)
    except OSError as error:
        return BadImage(name, f"cannot be read ({error.strerror or error})")
    except BadImage as error:
        return error


def _shuffled(source: Source) -> Iterator[tuple[str, int]]:
    keys, sizes = list(source.splits), [len(split) for split in source.splits.values()]
    ends = np.cumsum(sizes)
    positions = permutation(0, 0, sum(sizes)).numpy()
    parts = np.searchsorted(ends, positions, side="right")
    for part, row in zip(parts.tolist(), (positions - (ends - sizes)[parts]).tolist(), strict=True):
        yield keys[part], row


def _class_table(classes: list[str], counts: dict[str, dict[str, int]], limit: int = 50) -> Iterator[str]:
    width = max([5, *(len(printable(c)) for c in classes[:limit])])
    yield " ".join(["class".ljust(width), *(s.rjust(7) for s in counts)])
    for name in classes[:limit]:
        yield " ".join([printable(name).ljust(width), *(str(counts[s][name]).rjust(7) for s in counts)])
    if len(classes) > limit:
        yield f"... and {len(classes) - limit} more classes"


def _join_names(names: list[str], limit: int, sign: str = ", ") -> str:
    return sign.join([*map(printable, names[:limit]), *(["..."] if len(names) > limit else [])])


def _first(found: list[Any], limit: int) -> str:
    return f", the first {limit}:" if len(found) > limit else ""


def _more(count: int, limit: int) -> str:
    return f" (and {count - limit} more)" if count > limit else ""


def _format_numbers(values: tuple[float, ...]) -> str:
    return " ".join(f"{v:.4f}" for v in values)
