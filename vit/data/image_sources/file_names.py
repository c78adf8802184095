"""The file names in a table, and the search for the files that they denote."""

import logging
import os
import re
from collections import defaultdict
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import unquote_to_bytes

from vit.data.errors import printable
from vit.data.formats.zip_archives import is_hidden
from vit.data.identity import to_nfc
from vit.data.image_sources.files import is_image_name
from vit.data.threads import StageProgress, reported
from vit.messages import agree, number_of, quoted

log = logging.getLogger("vit")

TRIED = 100  # number of names in a table that are looked up to find the folder of its files
LEVELS = 3  # depth of the folders that are searched for names without a folder
SERVED = "/data/local-files/?d="
UPLOADED = re.compile(r"/data/upload/\d+/(?P<stored>[0-9a-f]{8}-(?P<name>[^/]+))")


def resolve_files(
    table: Path, root: Path, names: Sequence[str], progress: StageProgress | None = None
) -> tuple[list[str], list[int]]:
    """The files that the names of a table denote, as paths below `root`, and the rows of missing files.

    - A name denotes the file with exactly this name; otherwise the file of the name with slashes instead of
      backslashes; otherwise, for an address of Label Studio, the file that Label Studio serves there.
    - If there is no such file, a name denotes the file with a similar name, if there is exactly one: a name is similar
      if it differs only in case, in the Unicode form of accents, in surrounding white space, or in an image extension
      that the table omits. The number of such files is logged.
    - If no name of the table has a file, leading folders that all names share are removed, such as the folders of
      another computer.
    - If still no name has a file, names without a folder are searched in the folders below `root`: each name must have
      exactly one file there, or exactly one folder must contain files of all names.
    """
    search = _SimilarNames(root)
    found, missing, similar = _resolve(root, names, search, progress)
    if len(missing) == len(names) and (stale := _stale_folders(root, names, search)):
        log.warning("%s: the names begin with %s, which is not there; the files are read from %s without it",
                    printable(str(table)), quoted("/".join(stale) + "/"), printable(str(root)))
        names = ["/".join(_parts(name)[len(stale):]) for name in names]
        found, missing, similar = _resolve(root, names, search, progress)
    if len(missing) == len(names) and names and (deeper := _in_folders(root, names)):
        found, missing, similar = deeper, [], []
        log.warning("%s: the files are in folders below %s, such as %s", printable(str(table)), printable(str(root)),
                    quoted(found[0]))
    if similar:
        log.warning("%s: %d of %s %s from the names in the table by case, Unicode form, white space or "
                    "extension, such as %r, which is %r", printable(str(table)), len(similar),
                    number_of(len(names), "file"), agree(len(similar), "differs", "differ"),
                    printable(names[similar[0]]), printable(found[similar[0]]))
    return found, missing


def has_files(root: Path, names: Sequence[str], all_of_them: bool = False) -> bool:
    """Whether any or all of these names in a table have a file below `root`, possibly under a similar name."""
    _, missing, _ = _resolve(root, names, _SimilarNames(root))
    return not missing if all_of_them else len(missing) < len(names)


def spread(names: Any) -> Any:
    """Up to `TRIED` names of a column, evenly spaced, because the files of the first ones may be missing."""
    return names[:: len(names) // TRIED + 1]


def _resolve(
    root: Path, names: Sequence[str], search: "_SimilarNames", progress: StageProgress | None = None
) -> tuple[list[str], list[int], list[int]]:
    """The files, the rows of missing files, and the rows whose file has only a similar name."""
    found, missing, similar, folder = [], [], [], os.fspath(root)
    for row, name in enumerate(reported(names, "files", len(names), progress)):
        slashes = name.replace("\\", "/")
        file = _denoted(folder, name)
        if file is None and (file := search.find(slashes)) is not None:
            similar.append(row)
        if file is None:
            missing.append(row)
        found.append(slashes if file is None else file)
    return found, missing, similar


def _denoted(root: str, name: str) -> str | None:
    """The file that a name denotes without a search, as a path below the root; most names are that of their file."""
    if os.path.isfile(os.path.join(root, name)):
        return name
    others = dict.fromkeys((name.replace("\\", "/"), *served_files(name)))
    return next((each for each in others if os.path.isfile(os.path.join(root, each))), None)


def _stale_folders(root: Path, names: Sequence[str], search: "_SimilarNames") -> list[str]:
    """The fewest leading folders, shared by all names, without which one of `spread(names)` is a file; [] if there are
    none.
    """
    shared = os.path.commonprefix([_parts(name)[:-1] for name in names])
    for count in range(1, len(shared) + 1):
        for name in spread(names):
            rest = "/".join(_parts(name)[count:])
            if os.path.isfile(root / rest) or search.find(rest) is not None:
                return shared[:count]
    return []


def _in_folders(root: Path, names: Sequence[str]) -> list[str]:
    """The file of each name in the folders down to `LEVELS` below `root`: its only file, or its file in the only folder
    that has files of all names. [] if there are no such files, or if a name has a folder.
    """
    if any(len(_parts(name)) > 1 for name in names):
        return []
    found = defaultdict(list)
    for folder, folders, files in os.walk(root):
        inside = os.path.relpath(folder, root)
        folders[:] = [] if inside.count(os.sep) == LEVELS - 1 else [each for each in folders if not is_hidden(each)]
        for file in filter(is_image_name, files):
            path = file if inside == "." else os.path.join(inside, file)
            found[_folded(file)].append(path)
            found["/" + _folded(os.path.splitext(file)[0])].append(path)
    keys = list(map(_folded, names))
    files = [found.get(key) or found.get("/" + key, []) for key in keys]
    if all(len(each) == 1 for each in files):
        return [each[0] for each in files]
    common = set.intersection(*(set(map(os.path.dirname, each)) for each in files))
    in_it = [[file for file in each if {os.path.dirname(file)} == common] for each in files]
    return [each[0] for each in in_it] if all(len(each) == 1 for each in in_it) else []


def _parts(name: str) -> list[str]:
    return name.replace("\\", "/").split("/")


def served_files(address: str) -> list[str]:
    """The files that Label Studio may serve at an address: a file below its document root, or an uploaded file, with or
    without the eight digits that Label Studio puts before its name.
    """
    if address.startswith(SERVED):
        return [_unquoted(address.removeprefix(SERVED))]
    if uploaded := UPLOADED.fullmatch(_unquoted(address)):
        return [uploaded["stored"], uploaded["name"]]
    return []


def _unquoted(address: str) -> str:
    return os.fsdecode(unquote_to_bytes(address))


class _SimilarNames:
    """Searches for files by similar names below `root`; the entries of each folder are listed once."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.entries = cache(self._list_entries)

    def find(self, name: str) -> str | None:
        """The only file with a similar name, as a path below the root; None if there is none, or several."""
        parts = Path(name.strip()).parts
        folder = ""
        for i, part in enumerate(parts):
            if part == ".." or os.path.isabs(part):
                folder = os.path.join(folder, part)
                continue
            last = i == len(parts) - 1
            entries = self.entries(folder)
            similar = entries[_folded(part)] or (entries["/" + _folded(part)] if last else [])
            if len(similar) != 1:
                return None
            folder = os.path.join(folder, similar[0])
        return folder if os.path.isfile(self.root / folder) else None

    def _list_entries(self, folder: str) -> defaultdict[str, list[str]]:
        """The entries of a folder by folded name; image files also by "/" followed by the name without its extension.
        """
        entries: defaultdict[str, list[str]] = defaultdict(list)
        try:
            names = os.listdir(self.root / folder)
        except OSError:
            return entries
        for name in names:
            entries[_folded(name)].append(name)
            if is_image_name(name):
                entries["/" + _folded(os.path.splitext(name)[0])].append(name)
        return entries


def _folded(name: str) -> str:
    return to_nfc(name.strip()).casefold()
