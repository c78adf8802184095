"""A sequence-to-sequence model measured on pairs: what it writes, and how likely it finds what it should have written.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from vit.data import PairSplit
from vit.data.text import BOS, EOS, PAD
from vit.evaluation.texts import text_metrics
from vit.inference import Writer, Written

WINDOW = 1024  # pairs whose sources are ordered by length together


@dataclass(frozen=True)
class PairEvaluation:
    """Numbers and single answers, in the order of the split.

    `metrics`: exact_match, cer, bleu, chrf of the written texts; loss and token_accuracy, each target token told from
    the true ones before it.
    """

    metrics: dict[str, float]
    answers: list[Written]
    references: list[str]


def evaluate_pairs(
    writer: Writer, split: PairSplit, batch_size: int = 64, progress: Callable[[int], None] | None = None
) -> PairEvaluation:
    """Let the model write for every source of a split, by its own settings.

    Args:
        progress: called with the number of pairs of every finished batch.
    """
    answers: list[Written] = []
    loss = right = tokens = 0.0
    for start in range(0, len(split), WINDOW):
        places = range(start, min(start + WINDOW, len(split)))
        items = [split.read(i) if split.read else split.sources[i] for i in places]
        window: dict[int, Written] = {}
        for rows, source, mask in writer.batches(items, batch_size):
            found = writer.generate(source, mask, rows=[start + row for row in rows])
            for row, hypotheses in zip(rows, found, strict=True):
                window[row] = writer.written(split.names[start + row], hypotheses)
            target = padded_targets(writer, [split.targets[start + row] for row in rows])
            each, hit = writer.told(source, mask, target)  # (B,T-1)
            real = target[:, 1:] != PAD
            loss, right = loss + float(each[real].double().sum()), right + int(hit[real].sum())
            tokens += int(real.sum())
            if progress:
                progress(len(rows))
        answers += [window[row] for row in range(len(items))]
    references = [split.targets[i] for i in range(len(split))]
    told = {"loss": loss / tokens, "token_accuracy": right / tokens}
    written = text_metrics([answer.text for answer in answers], references)
    return PairEvaluation(written | told, answers, references)


def padded_targets(writer: Writer, texts: list[str]) -> torch.Tensor:
    """bos, the text, eos, pad: (B,T); cut where the model has no more places."""
    most = writer.model.config.max_len
    rows = [torch.tensor([BOS, *writer.tokenizer.encode(text)[: most - 1], EOS]) for text in texts]
    return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=PAD).to(writer.device)
