"""Metrics of generated text against references, computed by sacreBLEU and rapidfuzz, and perplexity."""

import math
import re
from collections.abc import Callable, Sequence
from itertools import zip_longest

from vit.messages import check_several, number_of

# Thai, Lao, Burmese, Khmer, kana, and Chinese characters
UNSPACED = re.compile("[\u0e01-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff"
                      "\U00020000-\U0003ffff]")
References = str | Sequence[str]  # of one generated text
LONGEST_WORD = 8  # most letters of these scripts per word, on average, in a text that spaces divide into words


def text_metrics(predictions: Sequence[str], references: Sequence[References]) -> dict[str, float]:
    """exact_match, cer, wer, bleu and chrf over all texts, as fractions: BLEU 41.02 is 0.4102.

    `cer` is the character error rate: Levenshtein edits divided by the number of reference characters; it may exceed 1.
    `wer` is the same of words, which are what white space divides; case and punctuation count.
    `bleu` (Papineni et al. 2002) and `chrf` (Popović 2015) are sacreBLEU's corpus scores with its default settings
    (arXiv 1804.08771): `bleu_signature()` names those of BLEU; chrF is chrF2, of 1 to 6 characters and no words. BLEU
    is 0 if no prediction has four words, and says little about texts that no spaces divide (`has_words`).

    A prediction may have several references, in any number: `exact_match` counts the predictions that are equal to one
    of them, `bleu` and `chrf` are those of sacreBLEU with all of them, and the edits and lengths of `cer` and `wer` are
    those of the reference with the lowest error rate.

    Raises:
        TypeError: one text instead of several.
        ValueError: the numbers of predictions and references differ, or are 0, or a prediction has no reference.
    """
    from sacrebleu.metrics import BLEU, CHRF

    check_several("predictions", predictions)
    check_several("references", references)
    if len(predictions) != len(references) or not predictions:
        raise ValueError(f"got {number_of(len(predictions), 'prediction')} and "
                         f"{number_of(len(references), 'reference')}; pass one reference per prediction, and at least "
                         "one")
    pairs = [(text, references_of(each)) for text, each in zip(predictions, references, strict=True)]
    if none := [i for i, (_, each) in enumerate(pairs) if not each]:
        raise ValueError(f"prediction {none[0]} has 0 references; pass at least one for each prediction")
    characters = [nearest_errors(text, each, character_errors, len) for text, each in pairs]
    words = [nearest_errors(text, each, word_errors, word_count) for text, each in pairs]
    streams = list(zip_longest(*(each for _, each in pairs)))  # None where a prediction has fewer references
    return {
        "exact_match": sum(text in each for text, each in pairs) / len(predictions),
        "cer": sum(edits for edits, _ in characters) / max(1, sum(length for _, length in characters)),
        "wer": sum(edits for edits, _ in words) / max(1, sum(length for _, length in words)),
        "bleu": BLEU().corpus_score(list(predictions), streams).score / 100,
        "chrf": CHRF().corpus_score(list(predictions), streams).score / 100,
    }


def references_of(references: References) -> Sequence[str]:
    """The references of one text as a sequence."""
    return (references,) if isinstance(references, str) else references


def nearest_errors(
    text: str, references: Sequence[str], errors: Callable[[str, str], int], length: Callable[[str], int]
) -> tuple[int, int]:
    """The edits to the reference with the lowest error rate, and the length of that reference."""
    found = [(errors(text, reference), length(reference)) for reference in references]
    return min(found, key=lambda each: each[0] / max(1, each[1]))


def nearest_reference(text: str, references: References) -> str:
    """The reference with the lowest character error rate; the first of equal ones."""
    return min(references_of(references), key=lambda each: character_errors(text, each) / max(1, len(each)))


def word_count(text: str) -> int:
    """The number of words, divided by white space."""
    return len(text.split())


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


def bleu_signature(references: Sequence[References] = ("",)) -> str:
    """sacreBLEU's signature of the settings behind `bleu`, with the number of references of each text."""
    from sacrebleu.metrics import BLEU

    metric, counts = BLEU(), {len(references_of(each)) for each in references}
    texts = ["a"] * len(counts)  # the number of references, or "var", is part of the signature
    metric.corpus_score(texts, list(zip_longest(*(["a"] * count for count in counts))))
    return str(metric.get_signature())
