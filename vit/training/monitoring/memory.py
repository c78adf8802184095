"""Peak memory of training, and the message for a run that needs more memory than there is."""

import sys

import pytorch_lightning as pl
import torch

SIGNS = ("out of memory", "can't allocate memory", "cannot allocate memory", "cublas_status_alloc_failed")


def explain_out_of_memory(
    error: BaseException,
    size: int,
    model_name: str,
    image_size: tuple[int, int] | int | None = None,
    batch: str = "batch_size",
) -> str | None:
    """A message with the batch size, model and resolution that did not fit into memory; None for another error.

    Args:
        size: value of the recipe's key for the batch size, whose name is `batch`.
        image_size: (height, width) or edge; None without images of one size.
    """
    typed = isinstance(error, (MemoryError, torch.OutOfMemoryError))
    if not typed and not (isinstance(error, RuntimeError) and any(sign in str(error).lower() for sign in SIGNS)):
        return None
    height, width = (image_size, image_size) if isinstance(image_size, int) else image_size or (0, 0)
    images = f", images of {height}x{width}" if image_size else ""
    return (
        f"out of memory with recipe.{batch}={size}, model {model_name}{images}: lower recipe.{batch} "
        f"(try {max(1, size // 2)}), accumulate gradients (recipe.accumulate=2 keeps the recipe), "
        f"or take a smaller model{' or image size' if image_size else ' or shorter texts'}"
    )


def peak_memory() -> int:
    """Peak memory in bytes: of the first GPU in use, or without a GPU of this process."""
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        return torch.cuda.max_memory_allocated()
    try:
        with open("/proc/self/status", encoding="ascii", errors="replace") as file:  # getrusage includes the parent's
            line = next(line for line in file if line.startswith("VmHWM:"))
        return int(line.split()[1]) * 1024
    except (OSError, StopIteration):
        try:
            import resource
        except ModuleNotFoundError:  # Windows
            return 0
        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return most if sys.platform == "darwin" else most * 1024


class PeakMemory(pl.Callback):
    """Peak memory of training in this process, over all sessions of a resumed run."""

    bytes = 0

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.bytes = max(self.bytes, peak_memory())

    def state_dict(self) -> dict[str, int]:
        return {"bytes": self.bytes}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.bytes = state["bytes"]
