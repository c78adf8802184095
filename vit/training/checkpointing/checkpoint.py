"""Checkpoints that are whole or not there, and recorded with their SHA-256."""

import logging
import os
from pathlib import Path
from typing import Any

import torch
from lightning_fabric.plugins.io.checkpoint_io import CheckpointIO

from vit.files.atomic import NO_LINKS, CheckpointError, link_atomically, write_atomically
from vit.files.checkpoints import BEST, IS_BEST, LAST, PREVIOUS, record, verify
from vit.files.manifest import Manifest
from vit.weights import trained

log = logging.getLogger("vit")


class AtomicCheckpointIO(CheckpointIO):
    """Lightning's place for files. A new `last.ckpt` leaves the one before it as `previous.ckpt`.

    Whatever kills the process, and when: one of the two is whole. Loading never runs code from the file.
    """

    def save_checkpoint(self, checkpoint: dict[str, Any], path: str | Path, storage_options: Any = None) -> None:
        path = Path(path)
        entry = {"step": checkpoint.get("global_step"), IS_BEST: checkpoint.get(IS_BEST, False)}
        write_atomically(
            path,
            lambda file: torch.save(checkpoint, file),
            lambda temporary, sha256: put_in_place(temporary, path, {"sha256": sha256, **entry}),
        )

    def load_checkpoint(self, path: str | Path, map_location: Any = "cpu", weights_only: bool | None = True) -> dict:
        """Reads plain tensors and values only, whatever `weights_only` is; a damaged file is an error."""
        if reason := verify(path):
            raise CheckpointError(f"checkpoint {path} cannot be used: {reason}")
        return torch.load(path, map_location=map_location, weights_only=True)

    def remove_checkpoint(self, path: str | Path) -> None:
        Path(path).unlink(missing_ok=True)


def put_in_place(temporary: Path, path: Path, entry: dict) -> None:
    """Renames a written checkpoint to `path`; the manifest describes every state that a crash can leave behind.

    The manifest announces the file, then the names change one by one, then the manifest confirms it. `settle` ends
    what a crash interrupted.
    """
    manifest = Manifest.read(path.parent)
    manifest.saving = {"name": path.name, **entry}
    manifest.write()
    if path.name == LAST and path.exists():
        keep_previous(path)
        replace_entry(manifest, PREVIOUS, manifest.files.get(LAST))
    os.replace(temporary, path)
    complete(manifest)


def keep_previous(path: Path) -> None:
    """The file stays under its own name too, so that there is always a `last.ckpt`, unless links are unknown here."""
    previous = path.with_name(PREVIOUS)
    try:
        if previous.exists():
            previous.unlink()
        os.link(path, previous)
    except OSError as error:
        if error.errno not in NO_LINKS:
            raise
        os.replace(path, previous)


def complete(manifest: Manifest) -> None:
    """The last part of a save: the announced checkpoint is in place, its other name and its record follow."""
    entry = dict(manifest.saving)
    name = entry.pop("name")
    if entry[IS_BEST] and name == LAST:
        link_atomically(manifest.folder / LAST, manifest.folder / BEST)
        manifest.files[BEST] = entry
    manifest.files[name], manifest.saving = entry, None
    manifest.write()


def replace_entry(manifest: Manifest, name: str, entry: dict | None) -> None:
    manifest.files.pop(name, None)
    if entry:
        manifest.files[name] = entry


def settle(folder: str | Path) -> None:
    """Ends a save that a crash interrupted and moves unusable checkpoints aside, before a run goes on in `folder`."""
    manifest = Manifest.read(folder)
    names = [name for name in (LAST, PREVIOUS, BEST) if (manifest.folder / name).exists()]
    found = {name: record(manifest, name) for name in names}
    saving = manifest.saving
    manifest.files = {}
    for name, (entry, reason) in found.items():
        path = manifest.folder / name
        if reason:
            aside = path.with_name(f"{name}.unusable")
            os.replace(path, aside)
            log.warning("%s: %s; moved to %s", path, reason, aside.name)
        elif entry:
            manifest.files[name] = entry
    manifest.saving = None
    last = manifest.files.get(LAST)
    if saving and last and last["sha256"] == saving["sha256"] and saving["name"] == LAST:
        manifest.saving = saving
        complete(manifest)
    elif names:
        manifest.write()


def newest_valid(folder: str | Path) -> tuple[Path | None, list[str]]:
    """The newest whole checkpoint to resume from, and one line for every newer one that had to be skipped."""
    skipped = []
    for name in (LAST, PREVIOUS, BEST):
        path = Path(folder) / name
        if path.exists():
            if (reason := verify(path)) is None:
                return path, skipped
            skipped.append(f"skipped {path}: {reason}")
    return None, skipped


def saved_step(folder: str | Path, name: str) -> int | None:
    """The optimizer step of a checkpoint as the manifest of its folder has it."""
    return Manifest.read(folder).files.get(name, {}).get("step")


def trained_weights(path: str | Path) -> dict[str, torch.Tensor]:
    """The bare model's weights for use: the averaged ones where the run has an average, else the last ones.

    What `lora` learnt beside the weights is added to them.
    """
    return trained.trained_weights(AtomicCheckpointIO().load_checkpoint(path))
