"""The images passed to a predictor: listing folders and archives, names, and decoding ahead of the computation."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from numbers import Integral
from os import PathLike, fsencode, fspath
from pathlib import Path
from typing import IO, TypeVar

import numpy as np
from PIL import Image
from torch import Tensor

from vit.data.decoding.decode import EXTENSIONS
from vit.data.formats.zip_archives import ArchivedFile, is_archive, open_archive
from vit.data.image_sources.files import LeftOut, image_files, summary
from vit.files.machine import available_cores
from vit.messages import ArgumentError

Pixels = bytes | Image.Image | np.ndarray | Tensor
File = Path | ArchivedFile
Images = str | PathLike[str] | Pixels | bytearray | memoryview | IO[bytes] | Iterable["Images"]

URLS = ("http://", "https://", "ftp://", "s3://", "gs://")
LONGEST_PATH, LONGEST_NAME = 4095, 255  # bytes; of a path and of each name in it, on Linux
SHOWN = 40  # characters of a text that is no path in a message
PREFETCH = 2  # batches decoded while another is computed
T = TypeVar("T")


def named_images(images: Images, left_out: list[LeftOut] | None = None) -> Iterator[tuple[str, File | Pixels]]:
    """(name, image) of each image in the argument, read lazily: folders and archives are listed, batches are split.

    `left_out` is extended by (name, reason) of each file in the folders that is not an image.

    Raises:
        DataError: a folder cannot be read.
        FileNotFoundError: a folder or archive has no image, or a path is empty, a URL, or longer than a path can be.
        TypeError: an item is not an image.
    """
    for count, image in enumerate(_flatten(images, [] if left_out is None else left_out)):
        name = str(image) if isinstance(image, File) else ""
        if isinstance(image, Image.Image):
            name = getattr(image, "filename", "")  # set if the image was opened from a file
        yield name or f"image {count}", image


def check_batch_size(batch_size: int) -> None:
    """Check the number of images in a batch.

    Raises:
        ValueError: `batch_size` is not a whole number of at least 1.
    """
    if not isinstance(batch_size, Integral) or batch_size < 1:
        raise ArgumentError(f"batch_size={batch_size} must be a whole number of at least 1")


def decode_ahead(items: Iterable[T], decode: Callable, batch_size: int) -> Iterator[list]:
    """Batches of `decode(item)` in order; threads decode the next `PREFETCH` batches while the caller computes.

    Raises:
        ValueError: `batch_size` is below 1.
    """
    check_batch_size(batch_size)
    items, pending = iter(items), deque[list[Future]]()
    workers = min(available_cores(), 8)
    share = -(-batch_size // workers)  # images per task: for small images, starting a task takes longer than decoding
    pool = ThreadPoolExecutor(workers)

    def decoded(part: list[T]) -> list:
        return [decode(item) for item in part]

    try:
        while batch := list(islice(items, batch_size)):
            pending.append([pool.submit(decoded, batch[i : i + share]) for i in range(0, len(batch), share)])
            if len(pending) > PREFETCH:
                yield [item for part in pending.popleft() for item in part.result()]
        while pending:
            yield [item for part in pending.popleft() for item in part.result()]
    finally:
        pool.shutdown(cancel_futures=True)


def is_path(name: str | bytes) -> bool:
    """Whether a file can have this name, which is not so of the base64 text of an image or of a data URL."""
    name = fsencode(name)
    return (len(name) <= LONGEST_PATH and max(map(len, name.split(b"/"))) <= LONGEST_NAME
            and not name.startswith(b"data:image/"))


def _flatten(images: Images, left_out: list[LeftOut]) -> Iterator[File | Pixels]:
    """The single images of any input of `predict`; files in folders that are not images are added to `left_out`."""
    if isinstance(images, str | PathLike):
        if not fspath(images):
            raise FileNotFoundError('the path of the images is empty (""); the current folder is "."')
        if str(images).startswith(URLS):
            raise FileNotFoundError(f"{images} is a URL, and nothing is downloaded; pass the bytes of the image, "
                                    "such as urllib.request.urlopen(URL).read()")
        if not is_path(fspath(images)):
            raise FileNotFoundError(f"{str(images)[:SHOWN]}... ({len(str(images)):,} characters) is not a path; of an "
                                    "image as base64 text, pass base64.b64decode(TEXT), where TEXT of a data URL is "
                                    "what follows its comma")
        path = Path(images).expanduser()
        yield from _list_images(path, left_out) if path.is_dir() or is_archive(path) else (path,)
    elif isinstance(images, np.ndarray) and images.dtype.kind in "OSTU":  # paths, such as a column of pandas
        for image in images.ravel():
            yield from _flatten(image, left_out)
    elif isinstance(images, np.ndarray | Tensor):
        yield from images if images.ndim == 4 else (images,)
    elif isinstance(images, bytes | Image.Image | ArchivedFile):
        yield images
    elif isinstance(images, bytearray | memoryview):
        yield bytes(images)
    elif hasattr(images, "read"):
        yield _contents(images)
    elif isinstance(images, Iterable) and not isinstance(images, dict):
        for image in images:
            yield from _flatten(image, left_out)
    else:
        raise TypeError(f"{type(images).__name__} is not an image; pass paths, PIL images, arrays, tensors or bytes")


def _contents(file: IO[bytes]) -> bytes:
    """The bytes of an open file from its start, where Pillow reads too.

    Raises:
        TypeError: the file is open as text.
    """
    if hasattr(file, "seekable") and file.seekable():
        file.seek(0)
    content = file.read()
    if not isinstance(content, bytes):
        raise TypeError(f"the {type(file).__name__} contains text; open the image as bytes: open(FILE, 'rb')")
    return content


def _list_images(folder: Path, left_out: list[LeftOut]) -> Iterator[File]:
    """The image files of a folder or a zip archive and its subfolders, sorted by name."""
    archive = None if folder.is_dir() else open_archive(folder)
    files = image_files(folder if archive is None else archive)
    if not files.images:
        listed = f"; left out: {summary(files.left_out)}" if files.left_out else ""
        raise FileNotFoundError(f"{folder} has no image (extensions {' '.join(sorted(EXTENSIONS))}){listed}")
    top = folder if archive is None else folder / archive.at
    left_out += [(str(top / name), reason) for name, reason in files.left_out]
    if archive is None:
        yield from (folder / name for name in files.images)
    else:
        yield from (ArchivedFile(str(folder), archive.at + name) for name in files.images)
