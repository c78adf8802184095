"""The audit of a data set: its contents, and its faults before a long run starts.

The headers of all images are read; then images are decoded and hashed in a fixed random order until the time limit.
"""

import hashlib
import math
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import takewhile
from pathlib import Path
from typing import Protocol

import numpy as np
from torch import Tensor

from vit.counters import permutation
from vit.data.decoding.decode import BadImage
from vit.data.decoding.image_header import read_header
from vit.data.errors import printable
from vit.data.images.line_images import AnyPreprocessing, LinePreprocessing
from vit.data.quality.audit_report import AuditReport, BadSample
from vit.data.source import Source
from vit.data.splits.split import Raw, Split
from vit.data.statistics import Histogram
from vit.data.system_limits import check_files_left
from vit.data.threads import StageProgress, map_in_threads, reported

Content = tuple[bytes, Tensor | np.ndarray | None]  # hash of a sample, and its image where that is needed
_SUFFIXES = {
    "JPEG": (".jpg", ".jpeg", ".jpe", ".jfif"),
    "MPO": (".jpg", ".jpeg"),
    "PNG": (".png", ".apng"),
    "TIFF": (".tif", ".tiff"),
}


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
        statistics: whether mean and std are computed. This resizes the training images, which takes longer for photos
            than everything else. Ignored with `caches`.
        caches: the caches, by split, in which decoded images are stored for training.
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
    """Read the headers of all images, count their sizes in `sizes`, and list unusual properties in `odd`.

    Returns:
        (split, index) -> reason, of the unreadable images.
    """
    bad: dict[tuple[str, int], str] = {}
    for key, split in source.splits.items():
        if split.pixels is not None:
            sizes[(split.pixels.shape[2], split.pixels.shape[1])] += len(split)
            report.headers += len(split)
            continue
        # in threads, since reading many small parts mostly waits, above all for a network
        headers = map_in_threads(partial(_header_or_error, split, preprocessing=preprocessing), range(len(split)))
        for i, header in enumerate(reported(headers, "headers", report.total, progress, report.headers)):
            if isinstance(header, BadImage):
                bad[key, i] = header.reason
                continue
            size, remarks = header
            sizes[size] += 1
            for remark in remarks:
                odd[remark].append(split.names[i])
        report.headers += len(split)
    if progress:
        progress("headers", report.headers, report.total)
    return bad


def _header_or_error(
    split: Split, i: int, preprocessing: AnyPreprocessing
) -> tuple[tuple[int, int], list[str]] | BadImage:
    try:
        return _header(split, i, preprocessing)
    except BadImage as error:
        return error


def _header(split: Split, i: int, preprocessing: AnyPreprocessing) -> tuple[tuple[int, int], list[str]]:
    """(width, height) and unusual properties of one image, from its header."""
    name = split.names[i]
    try:
        location = split.location(i)
    except OSError as error:
        check_files_left(error)
        raise BadImage(name, f"cannot be read ({error.strerror or error})") from error
    if isinstance(location, np.ndarray):
        return (location.shape[1], location.shape[0]), []
    header = read_header(location, name, preprocessing.max_pixels)
    remarks = [] if header.mode in ("RGB", "L") else [f"{header.format} of mode {header.mode}"]
    remarks += [f"EXIF orientation {header.orientation}"] if header.orientation in range(2, 9) else []
    remarks += ["more than one frame, the first is used"] if header.frames > 1 else []
    suffix = location.suffix.lower() if isinstance(location, Path) else ""  # rows of tables have no file name
    if suffix and header.format in _SUFFIXES and suffix not in _SUFFIXES[header.format]:
        remarks.append(f"{header.format} named {printable(suffix)}")
    height, width = _min_size(preprocessing)
    turned = preprocessing.exif and header.orientation in range(5, 9)
    size = header.size[::-1] if turned else header.size  # as it is decoded
    if min(size[0] / width, size[1] / height) < 0.25:
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
    images are added to the histogram, if there is one, or stored in the cache of their split.
    """
    end = math.inf if seconds is None else time.monotonic() + seconds
    headers = set(bad)

    decoders = {key: cache.decode for key, cache in caches.items()}
    if histogram is not None:
        decoders["train"] = preprocessing.image

    def load(sample: tuple[str, int]) -> tuple[str, int, Content | BadImage | None] | None:
        """Split, row and content of a sample, without the content if its header is bad; None after the time limit."""
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
    """SHA-256 of the file or the pixels, and the decoded image; the error if the image cannot be read."""
    name = split.names[i]
    try:
        raw = split.read(i)
        data = raw if isinstance(raw, bytes) else repr(raw.shape).encode() + np.ascontiguousarray(raw).tobytes()
        digest = hashlib.sha256(data).digest()
        return digest, decode(raw, name)
    except OSError as error:
        check_files_left(error)
        return BadImage(name, f"cannot be read ({error.strerror or error})")
    except BadImage as error:
        return error


def _shuffled(source: Source) -> Iterator[tuple[str, int]]:
    """(split, row) of all samples, in a random order that depends on the sizes of the splits only."""
    keys, sizes = list(source.splits), [len(split) for split in source.splits.values()]
    ends = np.cumsum(sizes)
    positions = permutation(0, 0, sum(sizes)).numpy()
    parts = np.searchsorted(ends, positions, side="right")
    for part, row in zip(parts.tolist(), (positions - (ends - sizes)[parts]).tolist(), strict=True):
        yield keys[part], row
