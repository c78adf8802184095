"""What the columns of an image spell by themselves: a text beside those that were written, and an opinion on all."""

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from vit.generation.models import repeating
from vit.generation.settings import Generation, Hypothesis

Text = tuple[int, ...]


def spelled(
    models: Sequence[nn.Module],
    sources: Sequence[Tensor],
    source_mask: Tensor | None,
    found: list[list[Hypothesis]],
    settings: Generation,
    longest: int,
) -> list[list[Hypothesis]]:
    """The `n_best` by both scores together of each row's texts and of those that each model's columns spell most
    plainly, if they are allowed; the images are read again.

    Args:
        longest: most tokens that may be chosen.

    Raises:
        ValueError: a model does not read images.
    """
    if sources[0].ndim != 4:
        raise ValueError("ctc is for images, whose columns spell the text from left to right; take ctc=0")
    read = zip(models, sources, strict=True)
    columns = [model.ctc_log_probs(source, source_mask) for model, source in read]  # (B,columns,V), (B,) of each
    plainest = zip(*(read_off(*each, settings.pad) for each in columns), strict=True)  # of each row one per model
    more = [{text for text in texts if allowed(text, settings, longest)} - {text.ids for text in row}
            for row, texts in zip(found, plainest, strict=True)]
    added = written(models, sources, source_mask, [sorted(texts) for texts in more], settings)
    found = [row + new for row, new in zip(found, added, strict=True)]
    each = [likelihoods(*both, found, settings) for both in columns]
    totals = iter((torch.stack(each).logsumexp(0) - math.log(len(each))).tolist())
    rows = [[rescored(text, next(totals), settings) for text in texts] for texts in found]
    return [sorted(texts, key=lambda text: -text.score)[: settings.n_best] for texts in rows]


def read_off(columns: Tensor, widths: Tensor, pad: int) -> list[Text]:
    """The likeliest sign of each column (B,columns,V), repeats joined, `pad` left out."""
    rows = zip(columns.argmax(-1).tolist(), widths.tolist(), strict=True)
    return [tuple(sign for sign, _ in groupby(row[:width]) if sign != pad) for row, width in rows]


def allowed(text: Text, settings: Generation, longest: int) -> bool:
    """Whether a search could have found it."""
    forced, size = len(settings.prefix), settings.no_repeat_ngram
    if text[:forced] != settings.prefix or not settings.min_len <= len(text) - forced < longest:
        return False
    if {settings.bos, settings.eos, settings.pad} & set(text[forced:]):
        return False
    return not size or all(text[i] not in repeating(text[:i], size) for i in range(forced, len(text)))


def written(
    models: Sequence[nn.Module],
    sources: Sequence[Tensor],
    source_mask: Tensor | None,
    texts: list[list[Text]],
    settings: Generation,
) -> list[list[Hypothesis]]:
    """Texts of each row with the score that a search would have given them."""
    rows, _, padded = flat(texts, sources[0].device, settings)
    if not len(rows):
        return [[] for _ in texts]
    mask = None if source_mask is None else source_mask[rows]
    read = zip(models, sources, strict=True)
    each = [model(source[rows], padded[:, :-1], mask).float().log_softmax(-1) for model, source in read]
    likely = torch.stack(each).logsumexp(0) - math.log(len(each))  # (texts,T,V)
    chosen = likely.gather(2, padded[:, 1:, None])[..., 0].masked_fill(padded[:, 1:] == settings.pad, 0)
    totals = iter(chosen[:, len(settings.prefix) :].sum(1).tolist())
    scored = [[(text, len(text) - len(settings.prefix) + 1) for text in row] for row in texts]
    return [[Hypothesis(text, settings.score(next(totals), length)) for text, length in row] for row in scored]


def likelihoods(columns: Tensor, widths: Tensor, found: list[list[Hypothesis]], settings: Generation) -> Tensor:
    """The log-probability of every text, over all ways to write it along the columns (B,columns,V) of its image; row by
    row, (texts,)"""
    rows, lengths, padded = flat([[text.ids for text in row] for row in found], columns.device, settings)
    likely = columns[rows].transpose(0, 1)
    return -F.ctc_loss(likely, padded[:, 1:-1], widths[rows], lengths, blank=settings.pad, reduction="none")


def flat(texts: list[list[Text]], device: torch.device, settings: Generation) -> tuple[Tensor, Tensor, Tensor]:
    """Texts of all rows -> the row of each (texts,), how long it is (texts,), and ids (texts,T) with bos and eos"""
    rows = torch.tensor([row for row, each in enumerate(texts) for _ in each], dtype=torch.long)
    ids = [torch.tensor([settings.bos, *text, settings.eos]) for each in texts for text in each]
    lengths = torch.tensor([len(each) - 2 for each in ids], dtype=torch.long)
    padded = pad_sequence(ids, True, settings.pad) if ids else torch.zeros(0, 2, dtype=torch.long)
    return rows.to(device), lengths.to(device), padded.to(device)


def rescored(text: Hypothesis, spelled: float, settings: Generation) -> Hypothesis:
    length = len(text.ids) - len(settings.prefix) + text.ended  # chosen tokens
    return replace(text, score=(1 - settings.ctc) * text.score + settings.ctc * settings.score(spelled, length))
