"""Checkpoint files of a run: their names, and whether a file is byte for byte what the run saved."""

import zipfile
from pathlib import Path

from vit.files.atomic import Manifest
from vit.files.pickles import check_pickles
from vit.files.untrusted import damaged_member, file_sha256, open_zip
from vit.messages import first_line

LAST, PREVIOUS, BEST = "last.ckpt", "previous.ckpt", "best.ckpt"
IS_BEST = "is_best"  # in a checkpoint: it also becomes best.ckpt


def record(manifest: Manifest, name: str) -> tuple[dict | None, str | None]:
    """(the manifest's entry for the current content of a file, the reason why the file cannot be used); either may be
    None.

    A file that the manifest does not list, as in folders of earlier versions, is checked by its own checksums.
    """
    path = manifest.folder / name
    saving = {key: value for key, value in (manifest.saving or {}).items() if key != "name"}
    expected = [manifest.files.get(name), manifest.files.get(LAST) if name == PREVIOUS else None]
    if saving and (manifest.saving["name"] == name or name == BEST and saving.get(IS_BEST)):
        expected.append(saving)
    expected = [entry for entry in expected if entry]
    sha256 = file_sha256(path) if expected else None
    for entry in expected:
        if entry["sha256"] == sha256:
            return entry, oversized(path)
    if name not in manifest.files:
        return None, damage(path)
    for entry in manifest.files.values():
        if entry["sha256"] == sha256:
            return None, f"it is another checkpoint of this run, of optimizer step {entry.get('step')}"
    return None, damage(path) or "it is not the file that this run saved (its SHA-256 is not the one in manifest.json)"


def verify(path: str | Path) -> str | None:
    """Why a checkpoint cannot be used, or None if it is byte for byte the file that was saved."""
    path = Path(path)
    if not path.is_file():
        return "there is no such file"
    return record(Manifest.read(path.parent), path.name)[1]


def newest_valid(folder: str | Path) -> tuple[Path | None, list[str]]:
    """The newest undamaged checkpoint to resume from, and one message for every newer one that is skipped."""
    skipped = []
    for name in (LAST, PREVIOUS, BEST):
        path = Path(folder) / name
        if path.exists():
            if (reason := verify(path)) is None:
                return path, skipped
            skipped.append(f"skipped {path}: {reason}")
    return None, skipped


def oversized(path: Path) -> str | None:
    """Why reading an untrusted file would fill the memory, or why it is not a readable archive; None if it is fine."""
    try:
        with open_zip(path) as archive:
            check_pickles(archive)
    except Exception as error:  # a broken archive can raise nearly anything
        return f"it is damaged or incomplete ({first_line(error)})"
    return None


def without_weights(path: Path) -> dict:
    """The content of a checkpoint, with tensors on the meta device: only their shapes are read."""
    import torch

    return torch.load(path, map_location="meta", mmap=True, weights_only=True)


def damage(path: Path) -> str | None:
    """Why a file is damaged, judged by its own checksums; None if it is intact.

    The checksums of the zip archive cover its members; loading the structure without the tensors also checks its
    table of contents.
    """
    if reason := oversized(path):
        return reason
    try:
        with zipfile.ZipFile(path) as archive:
            if damaged := damaged_member(archive):
                return f"it is damaged (record {damaged})"
    except Exception as error:  # a broken archive can raise nearly anything
        return f"it is damaged or incomplete ({first_line(error)})"
    try:
        without_weights(path)
    except Exception as error:
        return f"its weights cannot be read without running code or it is not a checkpoint ({first_line(error)})"
    return None
