"""The image files below a folder; training, audit and prediction share this module.

Images are files with an image suffix, regardless of case. Names that begin with a dot are hidden, and so are folders
that operating systems create, such as @eaDir and __MACOSX. Symbolic links to files and folders are followed. Every
folder is read once, even if several links lead to it, so that links can neither form a loop nor list a file twice; a
folder below the root is listed under its real path, not under that of a link. All other entries are left out, with the
reason.
"""

import os
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from vit.data.decoding.decode import EXTENSIONS
from vit.data.errors import DataError
from vit.data.formats.zip_archives import Archive, is_hidden, is_safe
from vit.data.threads import StageProgress, reported

DANGLING = "a link to a file or folder that does not exist"
LeftOut = tuple[str, str]  # (name, reason)
_Folder = tuple[str, tuple[str, ...]]  # path below the root, real paths of the folders above it


@dataclass(frozen=True)
class ImageFiles:
    """The entries below a folder, as paths relative to it.

    Attributes:
        images: sorted; the files of a folder come before those of its subfolders.
        folders: the folders that were read, "" for the root itself.
        left_out: all other entries, with the reason.
    """

    images: list[str] = field(default_factory=list)
    folders: list[str] = field(default_factory=list)
    left_out: list[LeftOut] = field(default_factory=list)

    def sort(self) -> None:
        self.images.sort(key=_folder_order)
        self.folders.sort(key=_folder_order)
        self.left_out.sort()

    def below(self, folder: str) -> list[str]:
        """The images below one of the folders."""
        return [name for name in self.images if name.startswith(os.path.join(folder, ""))]


def image_files(
    root: str | Path | Archive, tops: Sequence[str] = (), unused: bool = False, progress: StageProgress | None = None
) -> ImageFiles:
    """The image files below `root`, or only those below its folders `tops`.

    Args:
        unused: whether the files are only counted, so that an unreadable folder is left out instead of an error.
        progress: called with the number of folders that have been read.

    Raises:
        DataError: a folder cannot be read.
    """
    if isinstance(root, Archive):
        return _archived_files(root, tops)
    found, read, links = ImageFiles(), set[str](), deque[_Folder]((top, ()) for top in tops or [""])
    images = {}  # folder -> its images: sorting folders alone takes a fraction of the time that all their files do

    def folders() -> Iterator[tuple[str, list[str]]]:
        while links:
            yield from _read_folder(os.fspath(root), links.popleft(), found, read, links, unused)

    for folder, names in reported(folders(), "folders", None, progress):
        images[folder] = names
    for folder in sorted(images, key=lambda folder: folder.split(os.sep) if folder else []):
        found.images.extend(images[folder])
    found.folders.extend(sorted(images, key=_folder_order))
    found.left_out.sort()
    return found


def _archived_files(root: Archive, tops: Sequence[str]) -> ImageFiles:
    found, names = ImageFiles(), {name.rstrip("/"): name.endswith("/") for name in root.root.namelist()}
    inside = [(name.removeprefix(root.at), folder) for name, folder in names.items() if name.startswith(root.at)]
    for name, folder in inside:
        if tops and not any(name == top or name.startswith(f"{top}/") for top in tops):
            continue
        *above, last = name.split("/")
        if "\\" in name and is_safe(name.replace("\\", "/")):
            found.left_out.append((name, "a name with backslashes as separators (extract and pack the archive again)"))
        elif not is_safe(name):
            found.left_out.append((name, "a path outside the archive"))
        elif any(map(is_hidden, [*above, last])):
            found.left_out.append((name, "hidden"))
        elif folder:
            found.folders.append(name)
        elif not is_image_name(name):
            found.left_out.append((name, _not_an_image(name)))
        else:
            found.images.append(name)
    found.sort()
    return found


def is_image_name(name: str) -> bool:
    return os.path.splitext(name)[1].lower() in EXTENSIONS


def summary(left_out: Iterable[LeftOut], limit: int = 8) -> str:
    """The number of left-out files for each reason: `8 not an image (.txt), 2 hidden`."""
    counts = Counter(reason for _, reason in left_out).most_common()
    shown = [f"{count} {reason}" for reason, count in counts[:limit]]
    rest = sum(count for _, count in counts[limit:])
    return ", ".join([*shown, *([f"{rest} for {len(counts) - limit} other reasons"] if rest else [])])


def _read_folder(
    root: str, start: _Folder, found: ImageFiles, read: set[str], links: deque[_Folder], unused: bool
) -> Iterator[tuple[str, list[str]]]:
    """Reads a folder and its subfolders, each with its images by name; links to folders are queued in `links` until all
    real folders are read, and other entries are added to `left_out` of `found`.

    Raises:
        DataError: as `image_files`.
    """
    waiting = [start]
    while waiting:
        folder, above = waiting.pop()
        real = os.path.realpath(os.path.join(root, folder))
        if reason := _reason_to_skip(real, above, read):
            found.left_out.append((folder, reason))
            continue
        read.add(real)
        try:
            with os.scandir(real) as entries:
                listed = sorted(entries, key=lambda entry: entry.name)
        except OSError as error:
            if not unused:
                raise DataError(f"{Path(root, folder)}: the folder cannot be read ({error.strerror}); change "
                                "its permissions, or move it elsewhere") from None
            found.left_out.append((folder, f"a folder that cannot be read ({error.strerror})"))
            continue
        images = []
        for entry in listed:
            path = os.path.join(folder, entry.name)
            is_folder = _is(entry.is_dir)
            if reason := _reason(entry, is_folder):
                found.left_out.append((path, reason))
            elif is_folder:
                (links if entry.is_symlink() else waiting).append((path, (*above, real)))
            else:
                images.append(path)
        yield folder, images


def _reason_to_skip(real: str, above: tuple[str, ...], read: set[str]) -> str | None:
    """The reason why a folder is not read again, or None."""
    if real in read:
        return "a link to a folder that has already been read"
    inside = any(os.path.commonpath([real, folder]) == real for folder in above)
    return "a link to a folder that contains it" if inside else None


def _reason(entry: os.DirEntry, is_folder: bool) -> str | None:
    """Why an entry is left out, or None. A dangling link with an image suffix is listed, as an unreadable image."""
    if is_hidden(entry.name):
        return "hidden"
    if is_folder:
        return None
    if not is_image_name(entry.name):
        return _not_an_image(entry.name) if os.path.exists(entry.path) else DANGLING
    return None if _is(entry.is_file) or not os.path.exists(entry.path) else "not a regular file"


def _is(test: Callable[[], bool]) -> bool:
    """The result of `entry.is_dir` or `entry.is_file`; False for a link to itself, where they raise an error."""
    try:
        return test()
    except OSError:
        return False


def _not_an_image(name: str) -> str:
    return f"not an image ({os.path.splitext(name)[1].lower() or 'no extension'})"


def _folder_order(name: str) -> list[tuple[bool, str]]:
    *folders, file = name.split(os.sep)
    return [*((True, folder) for folder in folders), (False, file)]
