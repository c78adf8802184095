"""Learning-rate schedules: plain functions of the optimizer step, and the scheduler around one of them."""

import math
from collections.abc import Callable
from functools import partial

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from vit.messages import nearest_names

FORMER_NAMES = {"trapezoid": "wsd"}  # still accepted, in configs and in run folders


def warmup(step: int, warmup_steps: int) -> float:
    """Linear warm-up: 0 at the first step, 1 from `warmup_steps` on."""
    return min(1.0, step / warmup_steps) if warmup_steps else 1.0


def cosine(step: int, total_steps: int, warmup_steps: int = 0, final: float = 0.0) -> float:
    """Linear warm-up, then half a cosine from 1 to `final` (arXiv 1608.03983, without restarts)."""
    if step < warmup_steps:
        return warmup(step, warmup_steps)
    progress = min(1.0, (step - warmup_steps) / max(1, total_steps - warmup_steps))
    return final + (1 - final) * 0.5 * (1 + math.cos(math.pi * progress))


def inverse_sqrt(step: int, warmup_steps: int) -> float:
    """Linear warm-up, then decay with 1/sqrt(step): the shape of `noam` one step later, up to any peak rate."""
    return min(step / warmup_steps, math.sqrt(warmup_steps / max(1, step)))


def noam(step: int, warmup_steps: int) -> float:
    """The Noam schedule (arXiv 1706.03762, equation 3) over its peak: step_num^-0.5 and step_num * warmup_steps^-1.5,
    whichever is less, over warmup_steps^-0.5. The paper's step_num is 1 at the first update, whose rate is not 0.
    """
    step_num = step + 1
    return min(step_num / warmup_steps, math.sqrt(warmup_steps / step_num))


def noam_peak(dim: int, warmup_steps: int) -> float:
    """The highest rate of the Noam schedule, dim^-0.5 * warmup_steps^-0.5, which it has at step `warmup_steps`.

    Raises:
        ValueError: there is no warm-up.
    """
    if warmup_steps < 1:
        raise ValueError(f"the noam schedule computes the learning rate from its warm-up, which has {warmup_steps} "
                         "steps; set a warmup of 1 step or more, such as 4000 in the paper")
    return (dim * warmup_steps) ** -0.5


def wsd(step: int, total_steps: int, warmup_steps: int = 0, cooldown_steps: int = 0, final: float = 0.0) -> float:
    """Warmup-stable-decay: warm-up, constant, then linear decay to `final` over the last `cooldown_steps`
    (arXiv 2404.06395, with the linear decay of arXiv 2405.18392).
    """
    if cooldown_steps == 0 or step < total_steps - cooldown_steps:
        return warmup(step, warmup_steps)
    remaining = max(0, total_steps - step) / cooldown_steps
    return final + (1 - final) * remaining


def build_schedule(
    optimizer: Optimizer,
    name: str,
    total_steps: int,
    warmup_steps: int = 0,
    final: float = 0.0,
    cooldown_fraction: float = 0.2,
) -> LambdaLR:
    """A scheduler to step once per optimizer step; it scales the `lr` of every parameter group by the same factor.

    Args:
        name: cosine, wsd, constant, inverse_sqrt or noam, whose `lr` must be `noam_peak`; "trapezoid" is a former name
            of wsd.
        final: last rate of cosine and wsd, as a fraction of `lr`.
        cooldown_fraction: fraction of `total_steps` in which the rate of wsd decays.

    Raises:
        ValueError: an unknown name, or more warm-up and decay steps than `total_steps`.
    """
    name = FORMER_NAMES.get(name, name)
    cooldown_steps = round(cooldown_fraction * total_steps)
    if warmup_steps + cooldown_steps == total_steps + 1:  # both were rounded up
        cooldown_steps -= 1
    check_lengths(name, total_steps, warmup_steps, cooldown_steps if name == "wsd" else 0)
    shapes: dict[str, Callable[[int], float]] = {
        "cosine": partial(cosine, total_steps=total_steps, warmup_steps=warmup_steps, final=final),
        "wsd": partial(
            wsd, total_steps=total_steps, warmup_steps=warmup_steps, cooldown_steps=cooldown_steps, final=final
        ),
        "constant": partial(warmup, warmup_steps=warmup_steps),
        "inverse_sqrt": partial(inverse_sqrt, warmup_steps=max(1, warmup_steps)),
        "noam": partial(noam, warmup_steps=max(1, warmup_steps)),
    }
    if name not in shapes:
        near = nearest_names(name, shapes, cutoff=0.4) or shapes
        raise ValueError(f"unknown schedule {name!r}; nearest: {', '.join(near)}")
    shape = shapes[name]
    return LambdaLR(optimizer, lambda step: shape(step))  # LambdaLR does not save functions in its state dict


def check_lengths(name: str, total_steps: int, warmup_steps: int, cooldown_steps: int) -> None:
    """Check that warm-up and cool-down fit into the schedule.

    Raises:
        ValueError: they do not, or there is no step.
    """
    if total_steps < 1:
        raise ValueError(f"a schedule needs at least 1 optimizer step, got total_steps={total_steps}")
    if warmup_steps + cooldown_steps > total_steps:
        raise ValueError(
            f"{name} schedule: {warmup_steps} warm-up and {cooldown_steps} cool-down steps do not fit into "
            f"{total_steps} optimizer steps; shorten them or train longer"
        )
