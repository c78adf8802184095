"""Metrics of generated text against references, computed by sacreBLEU and rapidfuzz, and perplexity."""

import math
import re
from collections.abc import Sequence

from vit.messages import check_several, number_of

# Thai, Lao, Burmese, Khmer, kana, and Chinese characters
UNSPACED = re.compile("[\u0e01-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff"
                      "\U00020000-\U0003ffff]")
LONGEST_WORD = 8  # most letters of these scripts per word, on average, in a text that spaces divide into words


def text_metrics(predictions: Sequence[str], references: Sequence[str]) -> dict[str, float]:
    """exact_match, cer, wer, bleu and chrf over all texts, as fractions: BLEU 41.02 is 0.4102.

    `cer` is the character error rate: Levenshtein edits divided by the number of reference characters; it may exceed 1.
    `wer` is the same of words, which are what white space divides; case and punctuation count.
    `bleu` (Papineni et al. 2002) and `chrf` (Popović 2015) are sacreBLEU's corpus scores with its default settings
    (arXiv 1804.08771): `bleu_signature()` names those of BLEU; chrF is chrF2, of 1 to 6 characters and no words. BLEU
    is 0 if no prediction has four words, and says little about texts that no spaces divide (`has_words`).

    Raises:
        TypeError: one text instead of several.
        ValueError: the numbers of predictions and references differ, or are 0.
    """
    from sacrebleu.metrics import BLEU, CHRF

    check_several("predictions", predictions)
    check_several("references", references)
    if len(predictions) != len(references) or not predictions:
        raise ValueError(f"got {number_of(len(predictions), 'prediction')} and "
                         f"{number_of(len(references), 'reference')}; pass one reference per prediction, and at least "
                         "one")
    edits = sum(character_errors(text, reference) for text, reference in zip(predictions, references, strict=True))
    word_edits = sum(word_errors(text, reference) for text, reference in zip(predictions, references, strict=True))
    exact = sum(text == reference for text, reference in zip(predictions, references, strict=True))
    return {
        "exact_match": exact / len(predictions),
        "cer": edits / max(1, sum(map(len, references))),
        "wer": word_edits / max(1, sum(len(reference.split()) for reference in references)),
        "bleu": BLEU().corpus_score(list(predictions), [list(references)]).score / 100,
        "chrf": CHRF().corpus_score(list(predictions), [list(references)]).score / 100,
    }


def perplexity(loss: float) -> float:
    """exp of the mean loss in nats per token, or 2 to the power of that in bits; infinite beyond the largest float."""
    try:
        return math.exp(loss)
    except OverflowError:
        return math.inf


def has_words(texts: Sequence[str]) -> bool:
    """Whether spaces divide most texts into words, as sacreBLEU's default tokenizer expects; false for texts in scripts
    without spaces between words, such as Chinese, Japanese or Thai, unless they have been divided.
    """
    return 2 * sum(map(is_undivided, texts)) <= len(texts)


def is_undivided(text: str) -> bool:
    """Whether a text in a script without spaces between words may have several words that no space divides."""
    letters, words = len(UNSPACED.findall(text)), len(text.split())
    return letters > 2 and (words == 1 or letters > LONGEST_WORD * words)


def character_errors(prediction: str, reference: str) -> int:
    """Insertions, deletions and substitutions of characters (Levenshtein distance)."""
    from rapidfuzz.distance import Levenshtein

    return Levenshtein.distance(prediction, reference)


def word_errors(prediction: str, reference: str) -> int:
    """Insertions, deletions and substitutions of words, divided by white space (Levenshtein distance)."""
    from rapidfuzz.distance import Levenshtein

    return Levenshtein.distance(prediction.split(), reference.split())


def bleu_signature() -> str:
    """sacreBLEU's signature of the settings behind `bleu`."""
    from sacrebleu.metrics import BLEU

    metric = BLEU()
    metric.corpus_score(["a"], [["a"]])  # the number of references is part of the signature
    return str(metric.get_signature())
