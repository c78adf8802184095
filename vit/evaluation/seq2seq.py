"""Evaluation of a sequence-to-sequence model: metrics of the generated texts, and the loss of the references."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from vit.data import BadImage, DataError, PairSplit
from vit.data.identity import to_nfc
from vit.data.text.tokenizers import BOS, EOS, PAD
from vit.evaluation.progress import Progress
from vit.evaluation.text_metrics import bleu_signature, has_words, nearest_reference, perplexity, text_metrics
from vit.inference import GeneratedText, Seq2SeqPredictor
from vit.inference.generated_text import cut_texts_message
from vit.inference.image_inputs import check_batch_size
from vit.messages import agree, check_choice, number_of, quoted

log = logging.getLogger("vit")

WINDOW = 1024  # pairs whose sources are sorted by length together


@dataclass(frozen=True)
class Seq2SeqEvaluation:
    """Metrics and per-sample results, in the order of the split; a sample is a source with one or several references.

    `metrics`: exact_match, cer, wer, bleu, chrf of the generated texts; loss (nats per token, without label smoothing),
    its exponential perplexity, and token_accuracy of all references under teacher forcing. `rows`: indices of the pairs
    in the split, of several pairs of a source the first; unreadable images are missing. `references`: the reference of
    each sample, of several the nearest one (`nearest_reference`); `all_references`: all of them.
    """

    metrics: dict[str, float]
    rows: list[int]
    predictions: list[GeneratedText]
    references: list[str]
    unreadable: list[BadImage]
    all_references: list[list[str]]

    @property
    def has_several_references(self) -> bool:
        return any(len(each) > 1 for each in self.all_references)

    def to_dict(self, split: str) -> dict:
        """All metrics as values for JSON."""
        metrics = {f"{split}/{name}": value for name, value in self.metrics.items()}
        unreadable = [str(error) for error in self.unreadable]
        return {**metrics, f"{split}/bleu_signature": bleu_signature(self.all_references), "pairs": len(self.rows),
                "unreadable": unreadable}


def evaluate_seq2seq(
    predictor: Seq2SeqPredictor,
    split: PairSplit,
    batch_size: int = 64,
    on_bad_sample: str = "error",
    progress: Progress | None = None,
) -> Seq2SeqEvaluation:
    """Generate a text for each source of a split (`PairSplit.by_source`), with the predictor's settings.

    Args:
        on_bad_sample: "error" stops at the first unreadable image, "skip" lists such images in `.unreadable`.

    Raises:
        BadImage: an image cannot be read and `on_bad_sample` is "error", or no image can be read.
        BadText: a text is longer than the model's limit.
        DataError: the split is empty.
        ValueError: `on_bad_sample` is neither "error" nor "skip", or `batch_size` is below 1.
    """
    check_batch_size(batch_size)
    check_choice("on_bad_sample", on_bad_sample, ("error", "skip"))
    predictions: dict[int, GeneratedText] = {}
    unreadable: list[BadImage] = []
    truncated: list[str] = []
    long_references: list[str] = []
    loss = correct = tokens = 0.0
    pairs = {rows[0]: rows for rows in split.by_source()}  # first row of a source -> all of them
    firsts = list(pairs)
    for start in range(0, len(firsts), WINDOW):
        encoded = encode_sources(predictor, split, firsts[start : start + WINDOW], unreadable, truncated)
        if unreadable and on_bad_sample == "error":
            raise unreadable[0]
        for rows, source, mask in predictor.batches_by_length(encoded, batch_size):
            for row, hypotheses in zip(rows, predictor.generate(source, mask, rows=rows), strict=True):
                predictions[row] = predictor.decode(split.names[row], hypotheses)
            for k in range(max(len(pairs[row]) for row in rows)):
                chosen = [i for i, row in enumerate(rows) if len(pairs[row]) > k]  # sources with a reference k
                texts = [split.targets[pairs[rows[i]][k]] for i in chosen]
                target = padded_targets(predictor, texts, long_references)  # (chosen,T)
                losses, hits = predictor.score_targets(selected(source, chosen), selected(mask, chosen), target)
                real = target[:, 1:] != PAD
                loss, correct = loss + float(losses[real].cpu().double().sum()), correct + int(hits[real].sum())
                tokens += int(real.sum())
            if progress:
                progress(len(rows))
    if not predictions:
        raise unreadable[0] if unreadable else DataError("the split has 0 pairs; choose another split")
    rows = sorted(predictions)
    generated = [predictions[row] for row in rows]
    all_references = [[split.targets[i] for i in pairs[row]] for row in rows]
    references = [nearest_reference(each.text, texts) for each, texts in zip(generated, all_references, strict=True)]
    log_truncated(predictor, (len(rows), sum(map(len, all_references))), truncated, long_references)
    if cut := [each.source for each in generated if each.is_cut]:
        log.warning("%s", cut_texts_message(cut, len(rows), predictor.longest_text()))
    warn_without_words(references)
    warn_about_other_forms([each.text for each in generated], references)
    metrics = text_metrics([each.text for each in generated], all_references)
    loss /= tokens
    metrics |= {"loss": loss, "perplexity": perplexity(loss), "token_accuracy": correct / tokens}
    return Seq2SeqEvaluation(metrics, rows, generated, references, unreadable, all_references)


def selected(x: torch.Tensor, rows: Sequence[int]) -> torch.Tensor:
    """Some rows of x (B,...), in order; x itself if they are all."""
    return x if len(rows) == len(x) else x[torch.tensor(rows).to(x.device)]


def encode_sources(
    predictor: Seq2SeqPredictor, split: PairSplit, rows: Sequence[int], unreadable: list[BadImage], truncated: list[str]
) -> dict[int, torch.Tensor]:
    """row -> token ids (S,) or pixels (C,H,W). `unreadable` is extended by the images that cannot be read, `truncated`
    by the names of truncated texts.

    Raises:
        BadText: a text is longer than the model's limit.
    """
    encoded = {}
    for row in rows:
        try:
            source = split.image(row) if split.read else split.sources[row]
            encoded[row] = predictor.encode(source, split.names[row], truncated)
        except BadImage as error:
            unreadable.append(error)
    return encoded


def padded_targets(
    predictor: Seq2SeqPredictor, texts: list[str], truncated: list[str] | None = None
) -> torch.Tensor:
    """B texts -> BOS, tokens, EOS, padding (B,T), truncated to the model's maximum length.

    `truncated` is extended by the texts that are.
    """
    longest = predictor.model.config.max_len - 1
    ids = predictor.tokenizer.encode_batch(texts)
    if truncated is not None:
        truncated += [text for text, each in zip(texts, ids, strict=True) if len(each) > longest]
    rows = [torch.tensor([BOS, *each[:longest], EOS]) for each in ids]
    return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=PAD).to(predictor.device)


def warn_without_words(references: list[str]) -> None:
    """Warns that BLEU is low for references without spaces between words."""
    if not has_words(references):
        log.warning("BLEU compares words between spaces, which most of these references lack, such as %s: it is low "
                    "even if the texts are good; the character error rate and chrF do not depend on words",
                    quoted(references[0]))


def warn_about_other_forms(texts: list[str], references: list[str]) -> None:
    """Warns about texts with a character that their reference has in another Unicode form, such as é as one character
    and as a letter with a combining accent: both look the same, but count as errors.
    """
    pairs = list(zip(texts, references, strict=True))
    if other := [(text, reference) for text, reference in pairs
                 if has_in_parts(text, reference) or has_in_parts(reference, text)]:
        log.warning("%d of %s %s a character in another Unicode form than its reference, such as %s for %s; both look "
                    "the same, but count as errors: convert the references to the form of the training texts with "
                    "unicodedata.normalize", len(other), number_of(len(pairs), "generated text"),
                    agree(len(other), "has", "have"), *(quoted(each, format=ascii) for each in other[0]))


def has_in_parts(text: str, other: str) -> bool:
    """Whether the text has several code points for a character that is one code point in the other text (NFC)."""
    return not (set(to_nfc(text)) - set(text)).isdisjoint(other)


def log_truncated(
    predictor: Seq2SeqPredictor, counts: tuple[int, int], sources: list[str], references: list[str]
) -> None:
    """Logs the truncated texts: names of sources, and references; `counts` are those of all sources and references."""
    if sources:
        log.warning("%d of %s %s longer than the model's limit of %d tokens and %s truncated, such as %s",
                    len(sources), number_of(counts[0], "source"), agree(len(sources), "is", "are"),
                    predictor.max_source_len, agree(len(sources), "was", "were"), sources[0])
    if references:
        log.warning("%d of %s %s longer than the %d tokens that the model can generate, such as %s: loss, "
                    "perplexity and token_accuracy are those of the first ones", len(references),
                    number_of(counts[1], "reference"), agree(len(references), "is", "are"),
                    predictor.model.config.max_len, quoted(references[0]))
