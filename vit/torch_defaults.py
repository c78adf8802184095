"""torch's global defaults, set for this project's own computations and restored for the program that calls them."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch


@contextmanager
def torch_defaults() -> Iterator[None]:
    """A context with torch's defaults, whatever the calling program has set: float32, tensors on the CPU, no inference
    mode and no autocast.

    Weights in float64 do not fit the normalized images in float32, and under an autocast context of the caller each
    step would use the weights that the first one has cast.
    """
    dtype = torch.get_default_dtype()
    with ExitStack() as stack:
        if dtype != torch.float32:  # the setting is one of all threads
            stack.callback(torch.set_default_dtype, dtype)
            torch.set_default_dtype(torch.float32)
        if torch.get_default_device().type != "cpu":
            stack.enter_context(torch.device("cpu"))
        if torch.is_inference_mode_enabled():
            stack.enter_context(torch.inference_mode(False))
        for device in ("cpu", "cuda", "mps"):
            if torch.is_autocast_enabled(device):  # an autocast within it has no cache either
                stack.enter_context(torch.autocast(device, enabled=False, cache_enabled=False))
        yield
