"""Zip archives of image folders, read without extracting them to disk."""

import lzma
import os
import zipfile
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from vit.data.errors import DataError
from vit.files.untrusted import read_bytes, read_member

MAX_MEMBER = 2**28  # bytes to which one image file may decompress
GENERATED = {  # folders that macOS, Synology's storage, Windows and Linux create; some hold thumbnails of the photos
    "__MACOSX", "@eaDir", "#recycle", "$RECYCLE.BIN", "System Volume Information", "lost+found",
}
DAMAGED = (KeyError, zipfile.BadZipFile, NotImplementedError, EOFError, UnicodeError, zlib.error, lzma.LZMAError)


class Archive(zipfile.Path):
    """A folder in a zip archive, with the part of pathlib's interface that a folder of images needs."""

    def __lt__(self, other: "Archive") -> bool:
        return self.name < other.name

    def resolve(self) -> "Archive":
        return self


def open_archive(path: Path) -> Archive:
    """The data folder of an archive: its root, or the only folder in the root if that contains folders.

    Raises:
        DataError: the file is not a readable zip archive, or it is encrypted.
    """
    try:
        archive = Archive(_open(path))
        encrypted = any(member.flag_bits & 1 for member in archive.root.infolist())
    except (OSError, *DAMAGED) as error:
        raise DataError(f"{path}: cannot be read as a zip archive ({error})") from error
    if encrypted:
        raise DataError(f"{path}: is encrypted; save it without a password")
    inside = [entry for entry in archive.iterdir() if not is_hidden(entry.name)]
    if len(inside) == 1 and inside[0].is_dir() and any(entry.is_dir() for entry in inside[0].iterdir()):
        return inside[0]
    return archive


def is_archive(path: Path) -> bool:
    """Whether a path is a zip archive, judged by its suffix."""
    return path.suffix.lower() == ".zip" and path.is_file()


def is_hidden(name: str) -> bool:
    """Whether a name begins with a dot or is that of a folder of the operating system."""
    return name.startswith(".") or name in GENERATED


def is_safe(name: str) -> bool:
    """Whether a member's path stays inside the archive."""
    return not name.startswith(("/", "\\")) and ".." not in name.split("/") and "\\" not in name


@dataclass(frozen=True)
class ReadMember:
    """Reads members of an archive by their paths below a folder in it."""

    path: str
    folder: str
    names: Sequence[str]

    def __call__(self, i: int) -> bytes:
        return ArchivedFile(self.path, self.folder + self.names[i]).read_bytes()


@dataclass(frozen=True)
class ArchivedFile:
    """A file in a zip archive, with the part of pathlib's interface that reading an image needs."""

    archive: str
    name: str

    def __str__(self) -> str:
        return os.path.join(self.archive, self.name)

    def read_bytes(self) -> bytes:
        """Decompresses the file.

        Raises:
            OSError: it is damaged, missing, or larger than MAX_MEMBER bytes.
        """
        try:
            archive = _opened(self.archive, os.getpid(), os.stat(self.archive).st_mtime_ns)
            member = archive.getinfo(self.name)
            if member.file_size > MAX_MEMBER:
                raise OSError(f"{member.file_size} bytes are more than the limit of {MAX_MEMBER}")
            return read_member(archive, member)
        except DAMAGED as error:
            raise OSError(f"the archive member is damaged: {error}") from error


def read_entry(file: Path | Archive) -> bytes:
    """The content of a file in a folder or archive.

    Raises:
        OSError: it cannot be read, or is a member larger than MAX_MEMBER bytes.
    """
    if isinstance(file, Archive):
        return ArchivedFile(str(file.root.filename), file.at).read_bytes()
    return read_bytes(file)


@lru_cache(maxsize=8)
def _opened(path: str, process: int, changed: int) -> zipfile.ZipFile:
    """An open archive, cached per process, because a forked process would share its file position, and per modification
    time.
    """
    return _open(path)


def _open(path: str | Path) -> zipfile.ZipFile:
    """An opened archive. Names without a declared encoding are decoded as UTF-8, which macOS writes; if this fails, as
    code page 437, which Windows writes.
    """
    try:
        return zipfile.ZipFile(path, metadata_encoding="utf-8")
    except UnicodeDecodeError:
        return zipfile.ZipFile(path)
