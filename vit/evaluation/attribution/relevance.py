"""Class-specific attention maps of an image classifier: gradient-weighted attention rollout (arXiv 2103.15679)."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from vit.nn import Attention, AttentionPool, ClassMean, ClassToken, Mean, NoResidualBlock

POOLS = (ClassToken, Mean, ClassMean, AttentionPool)  # Mean includes the sum


class RecordedScore(nn.Module):
    """A score that adds zeros to its attention weights. The gradient of the zeros equals the gradient of the weights,
    which is thus available even if a fused kernel computes the attention.
    """

    def __init__(self, score: nn.Module) -> None:
        super().__init__()
        self.score, self.recorded = score, []

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None, causal: bool = False,
               dropout: float = 0.0) -> Tensor:
        """The weighted values (B,H,N,V), without dropout; records weights and change (B,H,N,S)."""
        weights = self.score.weights(q, k, mask, causal).to(v.dtype)
        change = torch.zeros_like(weights, requires_grad=True)
        self.recorded.append((weights, change))
        return self.score.attend(q, k, v, mask, causal) + change @ v


@contextmanager
def recorded_scores(model: nn.Module) -> Iterator[dict[str, list[tuple[Tensor, Tensor]]]]:
    """The weights of each attention layer in this context, and their changes: name -> one entry per forward."""
    layers = {name: module for name, module in model.named_modules() if isinstance(module, Attention)}
    scores = {name: module.score for name, module in layers.items()}
    for module in layers.values():
        module.score = RecordedScore(module.score)
    try:
        yield {name: module.score.recorded for name, module in layers.items()}
    finally:
        for name, module in layers.items():
            module.score = scores[name]


def has_relevance(model: nn.Module) -> bool:
    """Whether a model has a grid of patches, attention between them, and a pooling of `POOLS`."""
    return hasattr(getattr(model, "embed", None), "grid") and isinstance(model.pool, POOLS) and any(
        isinstance(layer, Attention) for layer in model.encoder.modules())


def check_relevance(model: nn.Module) -> None:
    """Checks that the maps of a class are defined for the model.

    Raises:
        ValueError: they are not.
    """
    if not has_relevance(model):
        raise ValueError(f"maps of a class need an image classifier of patches with attention that pools by class "
                         f"token, mean, sum or attention, not {type(model).__name__}")


def class_relevance(model: nn.Module, inputs: Tensor, classes: Tensor) -> Tensor:
    """How much each patch contributes to the logit of a class: normalized inputs (B,C,H,W), classes (B,) -> float32
    (B,rows,columns), not negative.

    The relevance R of tokens starts as the identity; a block adds its attention, weighted by the positive part of its
    product with the gradient of the logit and averaged over heads, times R. Without residual connections that product
    replaces R.

    Raises:
        ValueError: the model has no grid of patches, no attention between them, or another pooling.
    """
    check_relevance(model)
    with torch.enable_grad(), recorded_scores(model) as recorded:
        logits = model(inputs)
        blocks = [calls[-1] for name, calls in recorded.items() if name.startswith("encoder.blocks.") and calls]
        layers = [*blocks, *recorded.get("pool.attn", [])]
        chosen = logits.gather(1, classes[:, None]).sum()
        gradients = torch.autograd.grad(chosen, [change for _, change in layers])
    weighted = [weight_by_gradient(weights, gradient) for (weights, _), gradient in zip(layers, gradients, strict=True)]
    relevance = torch.eye(blocks[0][0].shape[-1], device=inputs.device).expand(len(inputs), -1, -1)
    residual = not any(isinstance(block, NoResidualBlock) for block in model.encoder.blocks)
    for layer in weighted[: len(blocks)]:
        relevance = residual * relevance + layer @ relevance
    return patch_relevance(model, relevance, weighted[len(blocks):]).unflatten(1, model.embed.size(inputs))


def weight_by_gradient(weights: Tensor, gradient: Tensor) -> Tensor:
    """weights, gradient (B,H,N,S) -> the mean over heads of the positive part of their product (B,N,S)"""
    return (weights * gradient).clamp(min=0).mean(dim=1).float()


def patch_relevance(model: nn.Module, relevance: Tensor, pool: list[Tensor]) -> Tensor:
    """relevance of all tokens (B,N,N) -> that of the patches to the pooled output (B,patches)"""
    prefix, layer = model.embed.prefix, model.pool
    if pool:
        rows = (pool[0] @ relevance[:, layer.prefix :])[:, 0]  # (B,1,S) @ (B,S,N), S of the tokens that are pooled
    elif isinstance(layer, Mean):
        rows = relevance[:, layer.prefix :].mean(dim=1)
    elif isinstance(layer, ClassMean):
        rows = (relevance[:, 0] + relevance[:, layer.mean.prefix :].mean(dim=1)) / 2
    else:
        rows = relevance[:, 0]
    if getattr(model, "head_dist", None) is not None:  # its logits are averaged with those of the head
        rows = (rows + relevance[:, 1]) / 2
    return rows[:, prefix:]
