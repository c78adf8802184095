"""Faster equivalents of torch's operations on some kinds of processors; `ENABLED` names those that are used.

The rest of `vit.nn` reads as if this package were absent. What `ENABLED` does not name is computed as torch does by
default. Speed and results are measured on x86-64 with AVX-512 (of AMD and of Intel) and with AVX2, so nothing is
enabled elsewhere. On GPUs one kernel of attention is avoided where its gradients may be NaN.
"""

from pathlib import Path

import torch
from torch import Tensor
from torch.autograd import forward_ad

DROPOUT, CALLS, PACKED_PRODUCTS = "dropout", "calls", "packed products"
PRODUCTS, TRAINING_PRODUCTS = "products", "products with gradients"
ATTENTION, TRAINING_ATTENTION = "attention", "attention with gradients"
ALL = frozenset({DROPOUT, CALLS, PACKED_PRODUCTS, PRODUCTS, TRAINING_PRODUCTS, ATTENTION, TRAINING_ATTENTION})
FASTER = {  # by the instructions of the processor
    "AVX512": ALL,
    "AVX512 of Intel": frozenset({DROPOUT, TRAINING_ATTENTION, CALLS}),  # MKL and the fused kernel use all of them
    "AVX2": frozenset({DROPOUT, PACKED_PRODUCTS, CALLS}),
}


def instructions() -> str:
    """A key of `FASTER`, or else torch's name of the instruction set."""
    capability = torch.backends.cpu.get_cpu_capability()
    return f"{capability} of Intel" if capability == "AVX512" and is_intel() else capability


def is_intel(path: str = "/proc/cpuinfo") -> bool:
    """Whether this is a processor of Intel, according to Linux."""
    try:
        return "GenuineIntel" in Path(path).read_text(encoding="ascii", errors="replace")
    except OSError:
        return False


ENABLED = FASTER.get(instructions(), frozenset())


def is_transformed() -> bool:
    """Whether torch.func or forward-mode AD transforms the operations; those of oneDNN lose tangents without an error.
    """
    return torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0


def product_dtype(x: Tensor) -> torch.dtype:
    """The dtype in which a CPU computes a product with x."""
    return torch.get_autocast_dtype("cpu") if x.dtype == torch.float32 and torch.is_autocast_enabled("cpu") else x.dtype
