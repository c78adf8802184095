"""Joint CTC/attention decoding for text images (arXiv 1609.06773): CTC rescoring of the beam, and CTC greedy decoding
as a further candidate.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from vit.generation.forced_decoding import token_log_probs
from vit.generation.hypotheses import Hypothesis
from vit.generation.settings import Generation
from vit.generation.suppressed_tokens import repeated_ngram_ends
from vit.generation.utf8 import Utf8

Text = tuple[int, ...]


def rescore_with_ctc(
    models: Sequence[nn.Module],
    sources: Sequence[Tensor],
    source_mask: Tensor | None,
    found: list[list[Hypothesis]],
    settings: Generation,
    longest: int,
    utf8: Utf8 | None = None,
) -> list[list[Hypothesis]]:
    """The `n_best` texts per row by the combined score, out of the beam's texts and the CTC greedy text of each model.

    Args:
        models, source_mask: as in `Ensemble`.
        sources: images (B,C,H,W) of each model, which are encoded again.
        found: the texts of the beam search.
        longest: maximum number of tokens to generate.
        utf8: the constraint of the texts to valid UTF-8; None for none.

    Raises:
        ValueError: the sources are not images.
    """
    if sources[0].ndim != 4:
        raise ValueError(f"ctc={settings.ctc} is for images, but this model reads texts; use ctc=0")
    inputs = zip(models, sources, strict=True)
    columns = [model.ctc_log_probs(source, source_mask) for model, source in inputs]  # (B,columns,V), (B,) of each
    greedy = zip(*(ctc_greedy(*each, settings.pad) for each in columns), strict=True)  # per row one text per model
    new = [{text for text in texts if is_allowed(text, settings, longest, utf8)} - {text.ids for text in row}
           for row, texts in zip(found, greedy, strict=True)]
    added = decoder_scores(models, sources, source_mask, [sorted(texts) for texts in new], settings)
    found = [row + new for row, new in zip(found, added, strict=True)]
    each = [ctc_scores(*both, found, settings) for both in columns]
    totals = iter((torch.stack(each).logsumexp(0) - math.log(len(each))).tolist())
    rows = [[combined(text, next(totals), settings) for text in texts] for texts in found]
    return [sorted(texts, key=lambda text: -text.score)[: settings.n_best] for texts in rows]


def ctc_greedy(columns: Tensor, widths: Tensor, pad: int) -> list[Text]:
    """columns (B,columns,V), widths (B,) -> the most probable id per column, with repeats merged and blanks removed"""
    rows = zip(columns.argmax(-1).tolist(), widths.tolist(), strict=True)
    return [tuple(token for token, _ in groupby(row[:width]) if token != pad) for row, width in rows]


def is_allowed(text: Text, settings: Generation, longest: int, utf8: Utf8 | None = None) -> bool:
    """Whether the text satisfies the constraints of the search."""
    forced, size = len(settings.prefix), settings.no_repeat_ngram
    if text[:forced] != settings.prefix or not settings.min_len <= len(text) - forced < longest:
        return False
    if {settings.bos, settings.eos, settings.pad} & set(text[forced:]) or utf8 and not utf8.is_valid(text):
        return False
    return not size or all(text[i] not in repeated_ngram_ends(text[:i], size) for i in range(forced, len(text)))


def decoder_scores(
    models: Sequence[nn.Module],
    sources: Sequence[Tensor],
    source_mask: Tensor | None,
    texts: list[list[Text]],
    settings: Generation,
) -> list[list[Hypothesis]]:
    """Hypotheses of the texts of each row, with the scores of beam search; sources (B,C,H,W), source_mask (B,S)."""
    rows, _, padded = flat(texts, sources[0].device, settings)
    if not len(rows):
        return [[] for _ in texts]
    mask = None if source_mask is None else source_mask[rows]
    chosen = token_log_probs(models, [source[rows] for source in sources], mask, padded, settings.pad)  # (texts,T)
    totals = iter(chosen[:, len(settings.prefix) :].sum(1).tolist())
    scored = [[(text, len(text) - len(settings.prefix) + 1) for text in row] for row in texts]
    return [[Hypothesis(text, settings.score(next(totals), length)) for text, length in row] for row in scored]


def ctc_scores(columns: Tensor, widths: Tensor, found: list[list[Hypothesis]], settings: Generation) -> Tensor:
    """columns (B,columns,V), widths (B,) -> CTC log-probability of every text, row by row (texts,)"""
    rows, lengths, padded = flat([[text.ids for text in row] for row in found], columns.device, settings)
    log_probs = columns[rows].transpose(0, 1)
    return -F.ctc_loss(log_probs, padded[:, 1:-1], widths[rows], lengths, blank=settings.pad, reduction="none")


def flat(texts: list[list[Text]], device: torch.device, settings: Generation) -> tuple[Tensor, Tensor, Tensor]:
    """Texts of all rows -> the row (texts,) and length (texts,) of each, and padded ids (texts,T) with bos and eos"""
    rows = torch.tensor([row for row, each in enumerate(texts) for _ in each], dtype=torch.long)
    ids = [torch.tensor([settings.bos, *text, settings.eos]) for each in texts for text in each]
    lengths = torch.tensor([len(each) - 2 for each in ids], dtype=torch.long)
    padded = pad_sequence(ids, True, settings.pad) if ids else torch.zeros(0, 2, dtype=torch.long)
    return rows.to(device), lengths.to(device), padded.to(device)


def combined(text: Hypothesis, ctc_score: float, settings: Generation) -> Hypothesis:
    """The hypothesis with the weighted mean of its score and the length-normalized CTC score."""
    length = len(text.ids) - len(settings.prefix) + text.ended  # generated tokens
    return replace(text, score=(1 - settings.ctc) * text.score + settings.ctc * settings.score(ctc_score, length))
