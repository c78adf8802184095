"""Training checkpoint files: saved atomically, verified by SHA-256, two generations."""

import logging
import os
from pathlib import Path
from typing import Any

import torch

from vit.files.atomic import NO_LINKS, CheckpointError, Manifest, link_atomically, write_atomically
from vit.files.checkpoints import BEST, IS_BEST, LAST, PREVIOUS, record, verify
from vit.weights import training_checkpoint

log = logging.getLogger("vit")


def save_checkpoint(checkpoint: dict[str, Any], path: str | Path) -> None:
    """Save a checkpoint atomically. The old `last.ckpt` becomes `previous.ckpt`; if the process is killed at any
    moment, one of the two is complete.
    """
    path = Path(path)
    entry = {"step": checkpoint.get("global_step"), IS_BEST: checkpoint.get(IS_BEST, False)}
    write_atomically(
        path,
        lambda file: torch.save(checkpoint, file),
        lambda temporary, sha256: put_in_place(temporary, path, {"sha256": sha256, **entry}),
    )


def load_checkpoint(path: str | Path, map_location: Any = "cpu") -> dict[str, Any]:
    """The tensors and plain values of a checkpoint; no code from the file runs.

    Raises:
        CheckpointError: the file is missing or damaged.
    """
    if reason := verify(path):
        raise CheckpointError(f"checkpoint {path} cannot be used: {reason}")
    return torch.load(path, map_location=map_location, weights_only=True)


def put_in_place(temporary: Path, path: Path, entry: dict) -> None:
    """Rename a complete temporary file to `path`, so that the manifest describes every state that a crash can leave.

    The manifest announces the file, then the files are renamed one by one, then the manifest confirms it. `settle`
    completes an interrupted save.
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
    """Link `last.ckpt` as `previous.ckpt`, so that there is always a `last.ckpt`; rename it if the file system has no
    links.
    """
    previous = path.with_name(PREVIOUS)
    try:
        previous.unlink(missing_ok=True)  # also a link to nothing
        os.link(path, previous)
    except OSError as error:
        if error.errno not in NO_LINKS:
            raise
        os.replace(path, previous)


def complete(manifest: Manifest) -> None:
    """The last part of a save, after the rename of the announced file: its link `best.ckpt` and its manifest entry."""
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
    """Complete a save that a crash interrupted, and rename unusable checkpoints, before a run continues in `folder`."""
    manifest = Manifest.read(folder)
    names = [name for name in (LAST, PREVIOUS, BEST) if (manifest.folder / name).exists()]
    records = {name: record(manifest, name) for name in names}
    saving = manifest.saving
    manifest.files = {}
    for name, (entry, reason) in records.items():
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


def saved_step(folder: str | Path, name: str) -> int | None:
    """The optimizer step of a checkpoint according to the manifest of its folder; None if it is unknown."""
    return Manifest.read(folder).files.get(name, {}).get("step")


def trained_weights(path: str | Path) -> dict[str, torch.Tensor]:
    """The weights of the model without wrappers, for inference: the averaged ones if the run averages, otherwise the
    last.

    LoRA updates and the normalization before a head are merged.

    Raises:
        CheckpointError: the file is missing or damaged.
    """
    return training_checkpoint.trained_weights(load_checkpoint(path))
