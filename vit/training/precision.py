"""The numerical precision of training on this machine."""

import logging
from functools import cache
from pathlib import Path

import torch

from vit.low_precision import CLEARLY_SLOWER, relative_speed
from vit.messages import ArgumentError

log = logging.getLogger(__name__)

BF16_RESIDUAL = "bf16-residual"  # bf16-mixed with the residual connections in bf16 as well
CHOICES = ("auto", "32-true", "bf16-mixed", "16-mixed", "bf16-true", "16-true", "64-true")
FAST_FLAGS = {"avx512_bf16", "amx_bf16"}  # Intel since Cooper Lake, AMD since Zen 4


def resolve_precision(precision: str = "auto", accelerator: str = "cpu") -> str:
    """A Lightning precision. `auto` is bf16 on GPUs and processors with bf16 instructions, otherwise float32.

    The choice depends on the processor's flags, so that it is the same in all runs; a measurement only rejects bf16 if
    it is clearly slower. The choice and its reason are logged.

    Raises:
        ValueError: an unknown precision.
    """
    if str(precision) != "auto":
        return check_precision(str(precision))
    if accelerator in ("cuda", "gpu"):
        chosen, reason = (
            ("bf16-mixed", "the GPU has bf16 units") if has_bfloat16("cuda") else
            ("32-true", "the GPU has no bf16 units")
        )
    elif accelerator != "cpu":
        chosen, reason = "32-true", f"not measured on {accelerator}"
    else:
        chosen, reason = cpu_precision(processor_flags())
    log.info("precision: %s (auto: %s)", chosen, reason)
    return chosen


@cache
def has_bfloat16(device_type: str) -> bool:
    """Whether GPUs (`cuda`) or this processor (`cpu`) compute in bf16 without emulating it; False for other devices."""
    if device_type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    return device_type == "cpu" and bool(FAST_FLAGS & processor_flags())


def check_precision(precision: str) -> str:
    """Lightning's name of a precision, which may be given by an alias such as "bf16".

    Raises:
        ValueError: an unknown precision.
    """
    aliases = {"32": "32-true", "16": "16-mixed", "bf16": "bf16-mixed", "64": "64-true", "fp32": "32-true"}
    chosen = aliases.get(precision, precision)
    if chosen not in CHOICES:
        raise ArgumentError(f"precision is {precision!r}, but must be one of {', '.join(CHOICES)}")
    return chosen


def cpu_precision(flags: set[str]) -> tuple[str, str]:
    """(precision, reason) on a processor with these flags."""
    fast = sorted(FAST_FLAGS & flags)
    if not fast:
        return "32-true", "this processor has no bf16 arithmetic"
    ratio = relative_speed(torch.bfloat16)
    if ratio < CLEARLY_SLOWER:
        return "32-true", f"this processor has {fast[0]}, but bf16 ran at {ratio:.1f} times the speed of float32"
    return "bf16-mixed", f"this processor has {fast[0]}"


def processor_flags(path: str = "/proc/cpuinfo") -> set[str]:
    """The processor's feature flags on Linux; empty on other systems."""
    try:
        lines = Path(path).read_text().splitlines()
    except OSError:
        return set()
    return set(next((line.split(":", 1)[1] for line in lines if line.startswith("flags")), "").split())
