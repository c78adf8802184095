"""Helpers that create and check unusual layouts.

All images have 4x4 pixels. The colour encodes the true class, one corner the declared split and a number.
"""

import csv
import io
import logging
import unicodedata
from collections import Counter
from collections.abc import Callable, Sequence
from functools import cache
from hashlib import blake2b
from pathlib import Path

import numpy as np
from PIL import Image

from vit.data import DataError, Preprocessing, Source

CONTRACT = Preprocessing(size=4, resize="none")
PARTS = ("", "train", "val", "test")  # "" if the layout declares no split
ALL = {"fractions": (1, 0, 0)}
ANIMALS = ("cat", "dog", "elk")
ACCENT = "café"

Layout = Callable[[Path], None]
LAYOUTS: dict[str, Layout] = {}


def layout(name: str) -> Callable[[Layout], Layout]:
    def add(function: Layout) -> Layout:
        assert name not in LAYOUTS, name
        LAYOUTS[name] = function
        return function

    return add


# --- creating layouts


def colour(label: str) -> list[int]:
    return list(blake2b(unicodedata.normalize("NFC", label.strip()).encode(), digest_size=3).digest())


@cache
def picture(label: str, part: str = "", number: int = 0) -> np.ndarray:
    pixels = np.empty((4, 4, 3), np.uint8)
    pixels[:] = colour(label)
    pixels[3, 3] = (PARTS.index(part), number // 256, number % 256)
    return pixels


def png(label: str, part: str = "", number: int = 0) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(picture(label, part, number)).save(buffer, "PNG")
    return buffer.getvalue()


def fill(folder: Path, count: int = 4, label: str | None = None, part: str | None = None) -> None:
    """Creates images in a class folder, whose name is the label; a parent named like a split is the split."""
    label = folder.name if label is None else label
    part = folder.parent.name * (folder.parent.name in PARTS) if part is None else part
    folder.mkdir(parents=True, exist_ok=True)
    for i in range(count):
        number = 16 * blake2b(str(folder).encode(), digest_size=1).digest()[0] + i
        (folder / f"{number:05}.png").write_bytes(png(label, part, number))


def class_folders(root: Path, *folders: str, count: int = 4) -> Path:
    for folder in folders:
        fill(root / folder, count)
    return root


def listed(root: Path, labels: Sequence[str] = ANIMALS, parts: Sequence[str] = ("",)) -> list[tuple[str, str, str]]:
    """Creates images without class folders; returns the rows of a table: (path, label, split)."""
    found = []
    for number, (part, label) in enumerate((part, label) for part in parts for label in labels for _ in range(2)):
        (root / "images").mkdir(exist_ok=True)
        (root / "images" / f"{number}.png").write_bytes(png(label, part, number))
        found.append((f"images/{number}.png", label, part))
    return found


def csv_text(rows: Sequence[Sequence[str]], *header: str, sign: str = ",") -> str:
    buffer = io.StringIO()
    csv.writer(buffer, delimiter=sign).writerows([header, *rows] if header else rows)
    return buffer.getvalue()


def pairs_of(rows: Sequence[tuple[str, str, str]]) -> list[tuple[str, str]]:
    return [(path, label) for path, label, _ in rows]


# --- checks


def mapped(
    source: Source, classes: Sequence[str], sizes: dict[str, int], left_out: dict[str, int] | None = None
) -> None:
    """Checks every label by the pixels, every split as declared, and the number of left-out files by reason."""
    assert source.classes == list(classes), source.classes
    assert {key: len(split) for key, split in source.splits.items()} == sizes, source.split_lists()
    for key, split in source.splits.items():
        for i, label in enumerate(split.labels):
            pixels = CONTRACT.image(split.read(i))
            assert pixels[:, 0, 0].tolist() == colour(classes[label]), f"{split.names[i]} is not a {classes[label]}"
            declared = PARTS[int(pixels[0, 3, 3])]
            assert declared in ("", key), f"{split.names[i]} of {declared} is in {key}"
    assert Counter(reason for _, reason in source.left_out) == (left_out or {}), source.left_out


def refused(call: Callable[[], object], *parts: str) -> None:
    """Checks that the error is one sentence that contains all parts: the file or key, and the fault."""
    try:
        found = call()
    except (DataError, FileNotFoundError) as error:
        text = str(error)
        assert "\n" not in text and all(part in text for part in parts), text
    else:
        raise AssertionError(f"accepted: {found}"[:500])


class Logged(logging.Handler):
    """Collects the log of the package inside the block."""

    def __init__(self) -> None:
        super().__init__()
        self.text = ""

    def emit(self, record: logging.LogRecord) -> None:
        self.text += record.getMessage()

    def __enter__(self) -> "Logged":
        logging.getLogger("vit").addHandler(self)
        return self

    def __exit__(self, *_: object) -> None:
        logging.getLogger("vit").removeHandler(self)
