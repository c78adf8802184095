"""What the columns of an image spell by themselves, as a second opinion on the texts that were written."""

import math
from collections.abc import Sequence
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from vit.generation.settings import Generation, Hypothesis


def spelled(
    models: Sequence[nn.Module],
    source: Tensor,
    source_mask: Tensor | None,
    found: list[list[Hypothesis]],
    settings: Generation,
) -> list[list[Hypothesis]]:
    """The `n_best` of each row's texts by both scores together; the images are read once more.

    Raises:
        ValueError: a model does not read images.
    """
    each = [likelihoods(model, source, source_mask, found, settings.pad) for model in models]
    totals = iter((torch.stack(each).logsumexp(0) - math.log(len(each))).tolist())
    rows = [[rescored(text, next(totals), settings) for text in texts] for texts in found]
    return [sorted(texts, key=lambda text: -text.score)[: settings.n_best] for texts in rows]


def likelihoods(
    model: nn.Module, source: Tensor, source_mask: Tensor | None, found: list[list[Hypothesis]], pad: int
) -> Tensor:
    """The log-probability of every text, over all ways to write it along the columns of its image; row by row, (texts,)
    """
    if source.ndim != 4:
        raise ValueError("ctc is for images, whose columns spell the text from left to right; take ctc=0")
    columns, widths = model.spell(source, source_mask)  # (B,columns,V), (B,)
    rows = torch.tensor([row for row, texts in enumerate(found) for _ in texts], device=source.device)
    texts = [text.ids for each in found for text in each]
    lengths = torch.tensor([len(ids) for ids in texts], device=source.device)
    signs = pad_sequence([torch.tensor(ids, dtype=torch.long) for ids in texts], True, pad).to(source.device)
    likely = columns[rows].transpose(0, 1)
    return -F.ctc_loss(likely, signs, widths[rows], lengths, blank=pad, reduction="none")


def rescored(text: Hypothesis, spelled: float, settings: Generation) -> Hypothesis:
    length = len(text.ids) - len(settings.prefix) + text.ended  # chosen tokens
    return replace(text, score=(1 - settings.ctc) * text.score + settings.ctc * settings.score(spelled, length))
