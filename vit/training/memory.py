"""Out of memory, in words that say what to lower."""

import torch

SIGNS = ("out of memory", "can't allocate memory", "cannot allocate memory", "cublas_status_alloc_failed")


def explain_out_of_memory(
    error: BaseException,
    size: int,
    model_name: str,
    image_size: tuple[int, int] | int | None = None,
    batch: str = "batch_size",
) -> str | None:
    """One line naming the batch, model and resolution that did not fit; None for any other error.

    Args:
        size: of the batch, as the word of the recipe that is called `batch` counts it.
        image_size: None where no images of one size are read.
    """
    ours = isinstance(error, (MemoryError, torch.OutOfMemoryError))
    if not ours and not (isinstance(error, RuntimeError) and any(sign in str(error).lower() for sign in SIGNS)):
        return None
    height, width = (image_size, image_size) if isinstance(image_size, int) else image_size or (0, 0)
    images = f", images of {height}x{width}" if image_size else ""
    return (
        f"out of memory with recipe.{batch}={size}, model {model_name}{images}: lower recipe.{batch} "
        f"(try {max(1, size // 2)}), accumulate gradients (recipe.accumulate=2 keeps the recipe), "
        f"or take a smaller model{' or image size' if image_size else ' or shorter texts'}"
    )
