"""A sequence-to-sequence model measured on pairs: what it writes, and how likely it finds what it should have written.
"""

from dataclasses import dataclass

import torch

from vit.data import BadImage, DataError, PairSplit
from vit.data.text.tokenizers import BOS, EOS, PAD
from vit.evaluation.progress import Progress
from vit.evaluation.texts import text_metrics
from vit.inference import Writer, Written

WINDOW = 1024  # pairs whose sources are ordered by length together


@dataclass(frozen=True)
class PairEvaluation:
    """Numbers and single answers, in the order of the split.

    `metrics`: exact_match, cer, bleu, chrf of the written texts; loss and token_accuracy, each target token told from
    the true ones before it. `rows`: the pairs' places in the split, fewer than it has where unreadable images were left
    out.
    """

    metrics: dict[str, float]
    rows: list[int]
    answers: list[Written]
    references: list[str]
    unreadable: list[BadImage]


def evaluate_pairs(
    writer: Writer,
    split: PairSplit,
    batch_size: int = 64,
    on_bad_sample: str = "error",
    progress: Progress | None = None,
) -> PairEvaluation:
    """Let the model write for every source of a split, by its own settings.

    Args:
        on_bad_sample: "error" stops at the first unreadable image, "skip" leaves such images out and lists them.
        progress: called with the number of pairs of every finished batch.
    """
    answers: dict[int, Written] = {}
    unreadable: list[BadImage] = []
    loss = right = tokens = 0.0
    for start in range(0, len(split), WINDOW):
        ready = read(writer, split, range(start, min(start + WINDOW, len(split))), unreadable)
        if unreadable and on_bad_sample == "error":
            raise unreadable[0]
        places = list(ready)
        for found, source, mask in writer.together(list(ready.values()), batch_size):
            rows = [places[place] for place in found]
            for row, hypotheses in zip(rows, writer.generate(source, mask, rows=rows), strict=True):
                answers[row] = writer.written(split.names[row], hypotheses)
            target = padded_targets(writer, [split.targets[row] for row in rows])
            each, hit = writer.told(source, mask, target)  # (B,T-1)
            real = target[:, 1:] != PAD
            loss, right = loss + float(each[real].double().sum()), right + int(hit[real].sum())
            tokens += int(real.sum())
            if progress:
                progress(len(rows))
    if not answers:
        raise unreadable[0] if unreadable else DataError("the split has 0 pairs; choose another split")
    rows = sorted(answers)
    written, references = [answers[row] for row in rows], [split.targets[row] for row in rows]
    metrics = text_metrics([answer.text for answer in written], references)
    metrics |= {"loss": loss / tokens, "token_accuracy": right / tokens}
    return PairEvaluation(metrics, rows, written, references, unreadable)


def read(writer: Writer, split: PairSplit, rows: range, unreadable: list[BadImage]) -> dict[int, torch.Tensor]:
    """row -> what the model reads; rows whose image cannot be read are missing, and listed."""
    ready = {}
    for row in rows:
        try:
            source = split.image(row) if split.read else split.sources[row]
            ready[row] = writer.ready(source, split.names[row])
        except BadImage as error:
            unreadable.append(error)
    return ready


def padded_targets(writer: Writer, texts: list[str]) -> torch.Tensor:
    """bos, the text, eos, pad: (B,T); cut where the model has no more places."""
    most = writer.model.config.max_len
    rows = [torch.tensor([BOS, *writer.tokenizer.encode(text)[: most - 1], EOS]) for text in texts]
    return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=PAD).to(writer.device)
