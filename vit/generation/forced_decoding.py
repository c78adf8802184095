"""Forced decoding: the log-probabilities of the tokens of given texts."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from vit.generation.text_image_tta import augmented_images
from vit.nn.init import evaluating


def score_targets(
    models: Sequence[nn.Module], source: Tensor, source_mask: Tensor | None, target: Tensor, pad: int = 0, tta: int = 1
) -> Tensor:
    """target (B,T), with bos, eos and padding -> log-probability of each of its tokens after bos (B,T-1), 0 for padding

    The probabilities of several models and of `tta` versions of an image are averaged, as in `generate`, which
    describes source and source_mask.

    Raises:
        ValueError: `tta` is above 1 and the source is not an image.
    """
    with torch.inference_mode(), evaluating(*models):
        sources = augmented_images(source, source_mask, tta)
        return token_log_probs([model for model in models for _ in sources], sources * len(models), source_mask, target,
                               pad)


def token_log_probs(
    models: Sequence[nn.Module], sources: Sequence[Tensor], source_mask: Tensor | None, target: Tensor, pad: int
) -> Tensor:
    """target (B,T) -> log-probabilities (B,T-1) as in `score_targets`, for the source of each model"""
    inputs = zip(models, sources, strict=True)
    each = [model(source, target[:, :-1], source_mask).float().log_softmax(-1) for model, source in inputs]
    log_probs = torch.stack(each).logsumexp(0) - math.log(len(each))  # (B,T-1,V)
    return log_probs.gather(2, target[:, 1:, None])[..., 0].masked_fill(target[:, 1:] == pad, 0)
