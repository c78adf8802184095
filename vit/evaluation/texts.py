"""How near written texts are to what should have been written. sacreBLEU and rapidfuzz count; nothing is counted here.
"""

from collections.abc import Sequence


def text_metrics(answers: Sequence[str], references: Sequence[str]) -> dict[str, float]:
    """exact_match, cer, bleu, chrf over all texts; all are shares, so BLEU 41.02 is 0.4102.

    `cer` is the character error rate: edits (Levenshtein) over the references' characters, so it may exceed 1. `bleu`
    and
    `chrf` are sacreBLEU's corpus scores with its default settings (arXiv 1804.08771); `bleu_signature()` says which.

    Raises:
        ValueError: not as many answers as references, or none.
    """
    from sacrebleu.metrics import BLEU, CHRF

    if len(answers) != len(references) or not answers:
        raise ValueError(f"{len(answers)} answers for {len(references)} references; both must be as many, and some")
    edits = sum(character_errors(answer, reference) for answer, reference in zip(answers, references, strict=True))
    return {
        "exact_match": sum(a == r for a, r in zip(answers, references, strict=True)) / len(answers),
        "cer": edits / max(1, sum(map(len, references))),
        "bleu": BLEU().corpus_score(list(answers), [list(references)]).score / 100,
        "chrf": CHRF().corpus_score(list(answers), [list(references)]).score / 100,
    }


def character_errors(answer: str, reference: str) -> int:
    """Characters to put in, take out or change (Levenshtein)."""
    from rapidfuzz.distance import Levenshtein

    return Levenshtein.distance(answer, reference)


def bleu_signature() -> str:
    """What sacreBLEU calls the settings behind `bleu`."""
    from sacrebleu.metrics import BLEU

    metric = BLEU()
    metric.corpus_score(["a"], [["a"]])  # the number of references is part of the signature
    return str(metric.get_signature())
