"""What a classifier computes for a batch besides its logits: the input of its head."""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import Tensor, nn

from vit.models import Classifier


@contextmanager
def captured_features(model: nn.Module) -> Iterator[list[Tensor]]:
    """Within the context, each forward pass appends the input of the head, float32 (B,D), to the list.

    The logits are those of a forward pass without it. For a timm model whose head is not one linear layer the list
    stays empty.
    """
    features: list[Tensor] = []

    def append(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor | None = None) -> None:
        features.append((inputs[0] if output is None else output).detach().float().cpu())

    if isinstance(model, Classifier):
        handle = model.pool.register_forward_hook(append)
    elif isinstance(head := classifier_of(model), nn.Linear):
        handle = head.register_forward_pre_hook(append)
    else:
        yield features
        return
    try:
        yield features
    finally:
        handle.remove()


def classifier_of(model: nn.Module) -> nn.Module | None:
    return model.get_classifier() if hasattr(model, "get_classifier") else None
