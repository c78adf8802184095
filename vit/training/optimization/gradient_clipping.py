"""Gradient norms over many tensors, sharded or not, and clipping to a maximum norm."""

from collections.abc import Iterable, Sequence

import torch


def gradient_norm(gradients: Sequence[torch.Tensor]) -> torch.Tensor:
    """The joint L2 norm of all gradients, a scalar, over all processes if they are sharded."""
    if any(hasattr(gradient, "full_tensor") for gradient in gradients):
        return torch.nn.utils.get_total_norm(gradients).full_tensor()
    return torch.linalg.vector_norm(norms(gradients))


@torch.no_grad()
def norms(tensors: Sequence[torch.Tensor], device: torch.device | None = None) -> torch.Tensor:
    """L2 norms (number of tensors,) in float32, from one call for all tensors; without tensors (1,) zero on `device`.
    """
    return torch.stack(torch._foreach_norm(tensors, dtype=torch.float32)) if tensors else torch.zeros(1, device=device)


def clip_gradients(
    parameters: Iterable[torch.Tensor],
    max_norm: float,
    norm: torch.Tensor | None = None,
    loss_scale: torch.Tensor | float = 1.0,
) -> torch.Tensor:
    """Scale all gradients to a joint norm of at most `max_norm` and return the norm before scaling, a scalar.

    Used in `configure_gradient_clipping`, because Lightning's clipping does not support fused optimizers in mixed
    precision.

    Args:
        norm: the joint norm of the gradients, if it has been computed already.
        loss_scale: factor that the gradients still contain, from `remaining_loss_scale`; both norms are those without
            it.
    """
    parameters = list(parameters)
    norm = gradient_norm(gradients_of(parameters)) / loss_scale if norm is None else norm
    if norm.device.type == "cpu" and norm.item() < 0.999 * max_norm:  # far enough from 1 for any rounding of the scale
        return norm
    scale = (max_norm / (norm + 1e-6)).clamp(max=1.0)
    if scale.device.type != "cpu" or scale.item() != 1:  # on other devices the host would have to wait for the scale
        torch._foreach_mul_([local(gradient) for gradient in gradients_of(parameters)], scale)
    return norm


def remaining_loss_scale(
    scaler: torch.amp.GradScaler | None, optimizer: torch.optim.Optimizer
) -> torch.Tensor | float:
    """The loss scale of float16 training that gradients still contain before a step of a fused optimizer, which divides
    them in its step; 1 for other optimizers, whose gradients are divided earlier, and without a scaler.
    """
    unscales_itself = getattr(optimizer, "_step_supports_amp_scaling", False)
    return scaler._scale if scaler is not None and unscales_itself else 1.0


def gradients_of(parameters: Iterable[torch.Tensor]) -> list[torch.Tensor]:
    """The gradients of the parameters that have one."""
    return [parameter.grad for parameter in parameters if parameter.grad is not None]


def local(tensor: torch.Tensor) -> torch.Tensor:
    """The local shard of a sharded tensor, of any shape; any other tensor unchanged."""
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor
