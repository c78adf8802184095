"""Out of memory, in words that say what to lower."""

import torch

SIGNS = ("out of memory", "can't allocate memory", "cannot allocate memory", "cublas_status_alloc_failed")


def explain_out_of_memory(
    error: BaseException, batch_size: int, model_name: str, image_size: tuple[int, int] | int
) -> str | None:
    """One line naming the batch size, model and resolution that did not fit; None for any other error."""
    ours = isinstance(error, (MemoryError, torch.OutOfMemoryError))
    if not ours and not (isinstance(error, RuntimeError) and any(sign in str(error).lower() for sign in SIGNS)):
        return None
    height, width = (image_size, image_size) if isinstance(image_size, int) else image_size
    return (
        f"out of memory with recipe.batch_size={batch_size}, model {model_name}, images of {height}x{width}: lower recipe.batch_size "
        f"(try {max(1, batch_size // 2)}), accumulate gradients (recipe.accumulate=2 keeps the recipe), "
        f"or take a smaller model or image size"
    )
