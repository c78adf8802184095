"""Lightning's plugin that saves and loads the checkpoint files of `checkpoint.py`, which do not need Lightning."""

from pathlib import Path
from typing import Any

from lightning_fabric.plugins.io.checkpoint_io import CheckpointIO

from vit.training.checkpointing.checkpoint import load_checkpoint, save_checkpoint


class AtomicCheckpointIO(CheckpointIO):
    """Saves atomically, and loads tensors and plain values only."""

    def save_checkpoint(self, checkpoint: dict[str, Any], path: str | Path, storage_options: Any = None) -> None:
        """As `checkpoint.save_checkpoint`."""
        save_checkpoint(checkpoint, path)

    def load_checkpoint(self, path: str | Path, map_location: Any = "cpu", weights_only: bool | None = True) -> dict:
        """As `checkpoint.load_checkpoint`, whatever `weights_only` is.

        Raises:
            CheckpointError: the file is missing or damaged.
        """
        return load_checkpoint(path, map_location)

    def remove_checkpoint(self, path: str | Path) -> None:
        Path(path).unlink(missing_ok=True)
