"""Damaged data files: each is read, or an error names it, within bounded memory and time.

Files of every kind are flipped, truncated and zeroed at many positions, and state wrong types and sizes. A fork reads
all damaged copies of one kind, so that crashes, hangs and high memory usage are detected.
"""

import io
import json
import random
import resource
import signal
import struct
import traceback
import warnings
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from tests.faults.promise import Case, Promise
from tests.forking import forks

HERE = "tests.faults.damaged_data"
SECONDS, MEMORY = 10, 1 << 30  # per file, and of one fork
ROWS, TIMES = 12, 120
LABELS = ["cat", "dog"] * (ROWS // 2)


def png(seed: int) -> bytes:
    pixels = np.random.default_rng(seed).integers(0, 256, (5, 6, 3), np.uint8)
    Image.fromarray(pixels).save(out := io.BytesIO(), "PNG")
    return out.getvalue()


# --- whole files


def parquet_of(columns: dict[str, Any], **options: Any) -> Callable[[Path], None]:
    def write(path: Path) -> None:
        import pyarrow
        import pyarrow.parquet

        pyarrow.parquet.write_table(pyarrow.table(columns), path, **options)

    return write


def wrong_row_count(path: Path, rows: int = 2**61) -> None:
    """A Parquet file of a dozen rows whose footer states `rows`."""

    parquet_of({"image": [png(i) for i in range(ROWS)], "label": LABELS})(path)
    data = path.read_bytes()
    length = struct.unpack("<I", data[-8:-4])[0]
    footer = data[-8 - length : -8]
    old = bytes([ROWS * 2])  # zigzag varint of the thrift protocol
    at = footer.index(b"\x16" + old + b"\x19")  # field num_rows, before the list of row groups
    number, varint = rows * 2, b""
    while number:
        varint += bytes([number & 127 | (128 if number > 127 else 0)])
        number >>= 7
    footer = footer[: at + 1] + varint + footer[at + 2 :]
    path.write_bytes(data[: -8 - length] + footer + struct.pack("<I", len(footer)) + b"PAR1")


def xlsx(path: Path) -> None:
    import openpyxl

    book = openpyxl.Workbook()
    for row in [["text", "label"], *([f"words {i}", label] for i, label in enumerate(LABELS))]:
        book.active.append(row)
    book.save(path)


def archive(path: Path) -> None:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as to:
        for i, label in enumerate(LABELS):
            to.writestr(f"photos/{label}/{i}.png", png(i))


def lines(path: Path) -> None:
    path.write_text("".join(json.dumps({"text": f"words {i}", "label": label}) + "\n" for i, label in
                            enumerate(LABELS)))


def csv(path: Path) -> None:
    path.write_text("text,label\n" + "".join(f'"words, {i}",{label}\n' for i, label in enumerate(LABELS)))


def npz(path: Path) -> None:
    images = np.random.default_rng(0).integers(0, 256, (ROWS, 5, 6, 3), np.uint8)
    np.savez_compressed(path, images=images, labels=np.arange(ROWS) % 2)


IMAGES = {"image": [png(i) for i in range(ROWS)], "label": LABELS}
TEXTS = {"text": [f"words {i}" for i in range(ROWS)], "label": LABELS}
FILES: dict[str, tuple[str, Callable[[Path], None]]] = {  # name → key in READERS, and what creates it
    "images.parquet": ("images", parquet_of(IMAGES)),
    "plain.parquet": ("images", parquet_of(IMAGES, compression="none", use_dictionary=False)),
    "zstd.parquet": ("images", parquet_of(IMAGES, compression="zstd", write_page_checksum=True)),
    "texts.parquet": ("texts", parquet_of(TEXTS, compression="gzip")),
    "texts.xlsx": ("texts", xlsx),
    "images.npz": ("images", npz),
    "texts.jsonl": ("texts", lines),
    "texts.csv": ("texts", csv),
    "photos.zip": ("folder", archive),
}

# --- intact files with unexpected types and sizes

ODD_COLUMNS: dict[str, dict[str, Any]] = {
    "images are numbers": {"image": [1.5] * ROWS, "label": LABELS},
    "images are lists": {"image": [[1, 2]] * ROWS, "label": LABELS},
    "images are missing": {"image": [None] * ROWS, "label": LABELS},
    "images are structs": {"image": [{"path": "x"}] * ROWS, "label": LABELS},
    "images are times": {"image": np.arange(ROWS).astype("datetime64[s]"), "label": LABELS},
    "labels are floats": {"image": IMAGES["image"], "label": [0.5] * ROWS},
    "labels are bytes": {"image": IMAGES["image"], "label": [b"\xff\xfe"] * ROWS},
    "labels are structs": {"image": IMAGES["image"], "label": [{"a": 1}] * ROWS},
    "labels are missing": {"image": IMAGES["image"], "label": [None] * ROWS},
    "labels are lists of lists": {"image": IMAGES["image"], "label": [[["cat"]]] * ROWS},
    "no rows": {"image": [], "label": []},
    "no columns": {},
    "texts are bytes": {"text": [b"\xff\x00"] * ROWS, "label": LABELS},
    "texts are lists": {"text": [["a"]] * ROWS, "label": LABELS},
}


def with_metadata(text: bytes) -> Callable[[Path], None]:
    def write(path: Path) -> None:
        import pyarrow
        import pyarrow.parquet

        table = pyarrow.table(IMAGES).replace_schema_metadata({b"huggingface": text})
        pyarrow.parquet.write_table(table, path)

    return write


def xlsx_bomb(path: Path) -> None:
    """A sheet of 10^6 rows in a small file."""
    xlsx(path)
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    row = b"<row>" + b"<c><v>1</v></c>" * 30 + b"</row>"
    members["xl/worksheets/sheet1.xml"] = (
        b'<worksheet xmlns="http://schemas.openxmlformats.org/spreadsheetml/2006/main"><sheetData>' + row * 1_000_000
        + b"</sheetData></worksheet>")
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as to:
        for name, data in members.items():
            to.writestr(name, data)


def zip_bomb(path: Path) -> None:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as to:
        for i, label in enumerate(LABELS):
            to.writestr(f"photos/{label}/{i}.png", bytes(200 << 20) if i == 0 else png(i))


def many_members(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as to:
        for i in range(300_000):
            to.writestr(f"{path.stem}/{LABELS[i % 2]}/{i}.txt", b"")


def paths_outside(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as to:
        for i, label in enumerate(LABELS):
            to.writestr(f"../{label}/{i}.png", png(i))


def duplicate_names(path: Path) -> None:
    with warnings.catch_warnings(), zipfile.ZipFile(path, "w") as to:
        warnings.simplefilter("ignore")
        for i, label in enumerate(LABELS):
            to.writestr(f"{label}/{i // 4}.png", png(i))


WHOLE: dict[str, tuple[str, Callable[[Path], None]]] = {
    **{f"{name}.parquet": ("texts" if "text" in columns else "images", parquet_of(columns))
       for name, columns in ODD_COLUMNS.items()},
    "2^61 rows stated.parquet": ("images", wrong_row_count),
    **{f"metadata {i}.parquet": ("images", with_metadata(text)) for i, text in enumerate((
        b"{", b"[]", b'{"info": null}', b'{"info": {"features": []}}', b"\xff", b"[" * 100_000,
        b'{"info": {"features": {"label": {"_type": "ClassLabel", "names": 7}}}}',
        b'{"info": {"features": {"label": {"_type": "ClassLabel", "names": ["a", "a"]}}}}'))},
    "sheet of 10^6 rows.xlsx": ("texts", xlsx_bomb),
    "bomb.zip": ("folder", zip_bomb),
    "300,000 members.zip": ("folder", many_members),
    "paths outside.zip": ("folder", paths_outside),
    "duplicate names.zip": ("folder", duplicate_names),
}

# --- damage


def damaged(data: bytes, times: int) -> Iterator[tuple[str, bytes]]:
    """Copies with a flipped byte, zeroed bytes, a truncated end, or bytes removed or repeated."""
    rng = random.Random(len(data))
    for at in sorted({0, *(rng.randrange(len(data)) for _ in range(times)), *range(len(data) - 12, len(data))}):
        yield f"flipped at {at}", data[:at] + bytes([data[at] ^ rng.choice((1, 128, 255))]) + data[at + 1 :]
    for _ in range(times // 4):
        at, count = rng.randrange(len(data)), rng.choice((4, 16, 64))
        yield f"{count} zeros at {at}", data[:at] + bytes(len(data[at : at + count])) + data[at + count :]
        yield f"truncated at {at}", data[:at]
        yield f"{count} bytes removed at {at}", data[:at] + data[at + count :]
        yield f"{count} bytes repeated at {at}", data[: at + count] + data[at:]


# --- readers


def images(path: Path) -> None:
    from vit.data.image_sources.tables import table

    read_all(table(path))


def texts(path: Path) -> None:
    from vit.data.text.tables import text_table

    source = text_table(path)
    for split in source.splits.values():
        for column in split.texts:
            assert all(isinstance(column[i], str) for i in range(len(split)))


def folder(path: Path) -> None:
    from vit.data.image_sources.folders import folder

    read_all(folder(path))


def read_all(source: Any) -> None:
    """Reads every sample; `on_bad_sample` handles unreadable files (OSError) and images (BadImage)."""
    from vit.data import BadImage, Preprocessing

    for split in source.splits.values():
        for i in range(len(split)):
            try:
                raw = split.read(i)
            except OSError:
                continue
            try:
                Preprocessing(4).image(raw, split.names[i])
            except BadImage as error:
                assert split.names[i] in str(error), error


READERS = {"images": images, "texts": texts, "folder": folder}


def check(kind: str, path: Path) -> str | None:
    """The fault in the outcome of reading a file; None if it is correct."""
    from vit.data import DataError

    signal.setitimer(signal.ITIMER_REAL, SECONDS)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            READERS[kind](path)
    except DataError as error:
        named = path.stem in str(error) and "\n" not in str(error)
        return None if named else f"an error that does not name the file: {error}"
    except BaseException:
        return traceback.format_exc(limit=-4)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    return None


class Slow(BaseException):
    """A timeout, which no reader catches."""


def slow(*_: object) -> None:
    raise Slow(f"more than {SECONDS} s")


def read_damaged(kind: str, name: str, times: int) -> int:
    """In a fork: reads damaged copies of an intact file, prints failures and returns their number."""
    signal.signal(signal.SIGALRM, slow)
    path, wrong = Path(name), 0
    data = path.read_bytes()
    for what, changed in [("intact", data), *(damaged(data, times) if times else ())]:
        print(f"{what} ...", end="\r")
        path.write_bytes(changed)
        if found := check(kind, path):
            print(f"{what}: {found}")
            wrong += 1
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    if memory > MEMORY:
        print(f"{memory / 2**20:.0f} MB of memory used")
    return min(wrong + (memory > MEMORY), 99)


def attempt(folder: Path, name: str, times: int) -> None:
    kind, write = (FILES | WHOLE)[name]
    write(folder / name)
    done = forks().run(f"{HERE}:read_damaged", kind, name, times, folder=folder, seconds=300)
    assert done.code == 0, f"{done.code}: {done.output[-3000:]}"


# --- tokenizers, which are part of a bundle's config.json

ODD_VALUES = (None, 7, -1, 2**70, 1.5, "", "x", [], [[]], [None], {}, {"a": 1}, True, ["a", "b"], [["a", "b", "c"]])


def value_paths(value: Any, at: tuple = ()) -> Iterator[tuple]:
    """The paths of nested values: keys and indices; of lists only the first, the middle and the last."""
    yield at
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from value_paths(inner, (*at, key))
    elif isinstance(value, list):
        for i in sorted({0, len(value) // 2, len(value) - 1} & set(range(len(value)))):
            yield from value_paths(value[i], (*at, i))


def replace_value(value: Any, at: tuple, odd: Any) -> Any:
    if not at:
        return odd
    inner = {at[0]: replace_value(value[at[0]], at[1:], odd)}
    return {**value, **inner} if isinstance(value, dict) else [*value[: at[0]], inner[at[0]], *value[at[0] + 1 :]]


def damaged_tokenizers(folder: Path) -> None:
    import vit
    from vit.bundle import CONFIG, BundleError, save_bundle
    from vit.bundle.record import text_with_checksum
    from vit.data.text.tokenizers import train_tokenizer
    from vit.models import model_from_config

    tokenizer = train_tokenizer("bpe", ["the cat and the other cat", "a dog"] * 5, 280)
    shape = {"vocab_size": len(tokenizer.pieces), "max_len": 9, "dim": 16, "depth": 1, "num_heads": 2}
    model = model_from_config({"kind": "text_classifier", "num_classes": 2, **shape})
    save_bundle(folder / "model", model, ("cat", "dog"), None, tokenizers={"source": tokenizer})
    config = json.loads((folder / "model" / CONFIG).read_text())
    stored = config["vit"]["tokenizers"]
    for at in value_paths(stored):
        for odd in ODD_VALUES:
            config["vit"]["tokenizers"] = replace_value(stored, at, odd)
            (folder / "model" / CONFIG).write_text(text_with_checksum(config))
            try:
                vit.load(folder / "model").predict(["the cat"])
            except BundleError as error:
                assert str(folder) in str(error) and "\n" not in str(error), (at, odd, error)
            except Exception as error:
                raise AssertionError(f"{at} = {odd!r}: {type(error).__name__}: {error}") from error


QUICK = ("images.parquet", "texts.xlsx", "photos.zip", "2^61 rows stated.parquet", "metadata 0.parquet")


def cases() -> Iterator[Case]:
    for name in FILES:
        yield Case(name, lambda folder, n=name: attempt(folder, n, TIMES))
    for name in QUICK[:3]:
        yield Case(f"{name}, 8 positions", lambda folder, n=name: attempt(folder, n, 8), quick=True)
    for name in WHOLE:
        yield Case(name, lambda folder, n=name: attempt(folder, n, 0), quick=name in QUICK)
    yield Case("tokenizers", damaged_tokenizers)


PROMISE = Promise("a damaged data file is read, or an error names it, within 1 GB and 10 s", cases)
