"""Paths that do not exist: the check without heavy imports, and the hint of its error."""

import glob
import os
from pathlib import Path

from vit.messages import did_you_mean, nearest_names


def is_missing(path: str | os.PathLike[str]) -> bool:
    """Whether a path certainly does not exist. It may be there if its folder cannot be read, or if a process that was
    replacing it has been killed, after which `vit.bundle` restores it.
    """
    path = Path(path).expanduser()
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return not any(path.absolute().parent.glob(f".{glob.escape(path.name)}.*.old"))
    except (OSError, ValueError):
        return False
    return False


def hint_at_missing(path: str | os.PathLike[str]) -> str:
    """`; did you mean X?` with the most similar name that exists in place of the first missing part of a path;
    otherwise the folder that a relative path was searched in.
    """
    path = Path(path).expanduser()
    first = next(each for each in (*reversed(path.parents), path) if not each.exists())
    near = nearest_names(first.name, _names(first.parent), cutoff=0.7)
    candidates = [first.parent / near[0] / path.relative_to(first), first.parent / near[0]] if near else []
    found = next((each for each in candidates if each.exists()), None)
    if found is None and not path.is_absolute():
        return f" in {Path.cwd()}"
    return did_you_mean([] if found is None else [str(found)])


def _names(folder: Path) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []
