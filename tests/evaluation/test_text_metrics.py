"""Text metrics against numbers worked out by hand and a plain edit distance."""

import math
import random
from collections.abc import Sequence

import pytest
from sacrebleu.metrics import BLEU, CHRF

from vit.evaluation import bleu_signature, text_metrics
from vit.evaluation.text_metrics import has_words, perplexity


def distance(a: Sequence, b: Sequence) -> int:
    """Levenshtein's recursion, filled row by row."""
    row = list(range(len(b) + 1))
    for i, x in enumerate(a, 1):
        row, above = [i], row
        for j, y in enumerate(b, 1):
            row.append(min(row[-1] + 1, above[j] + 1, above[j - 1] + (x != y)))
    return row[-1]


def test_character_errors_and_exact_matches():
    draw = random.Random(0)
    generated = ["".join(draw.choices("ab1", k=draw.randrange(9))) for _ in range(50)]
    references = ["".join(draw.choices("ab1", k=draw.randrange(1, 9))) for _ in range(50)]
    metrics = text_metrics(generated, references)
    edits = sum(distance(a, r) for a, r in zip(generated, references, strict=True))
    assert metrics["cer"] == pytest.approx(edits / sum(map(len, references)))
    assert metrics["exact_match"] == sum(a == r for a, r in zip(generated, references, strict=True)) / 50


def test_word_errors():
    draw = random.Random(1)
    generated, references = ([" ".join(draw.choices(["a", "bc", "A", "d."], k=draw.randrange(7))) for _ in range(60)]
                             for _ in range(2))
    edits = sum(distance(a.split(), r.split()) for a, r in zip(generated, references, strict=True))
    assert text_metrics(generated, references)["wer"] == pytest.approx(edits / sum(len(r.split()) for r in references))
    assert text_metrics(["the cat  sat", "a\tb c"], ["the cat sat down", "a b"])["wer"] == pytest.approx(2 / 6)
    assert text_metrics(["a b"], [""])["wer"] == 2


def drawn_texts(seed, count):
    """Sentences of words that occur in all of them, so that n-grams of several references match."""
    draw = random.Random(seed)
    return [" ".join(draw.choices(["a", "dog", "runs", "on", "the", "grass"], k=draw.randrange(4, 9)))
            for _ in range(count)]


def test_several_references_are_those_of_sacrebleu_and_of_the_lowest_error_rate():
    generated, streams = drawn_texts(0, 40), [drawn_texts(seed, 40) for seed in (1, 2, 3)]
    streams[1][7] = generated[7]  # only the second reference is equal
    references = [list(each) for each in zip(*streams, strict=True)]
    found = text_metrics(generated, references)
    assert found["bleu"] == BLEU().corpus_score(generated, streams).score / 100
    assert found["chrf"] == CHRF().corpus_score(generated, streams).score / 100
    assert found["exact_match"] == sum(text in each for text, each in zip(generated, references, strict=True)) / 40 > 0
    for name, divided in (("cer", list), ("wer", str.split)):
        edits = length = 0
        for text, each in zip(generated, references, strict=True):
            rates = [(distance(divided(text), divided(r)) / len(divided(r)), len(divided(r))) for r in each]
            edits, length = edits + min(rates)[0] * min(rates)[1], length + min(rates)[1]
        assert found[name] == pytest.approx(edits / length)
    assert found["cer"] < min(text_metrics(generated, each)["cer"] for each in streams)


def test_the_number_of_references_may_vary():
    generated, (first, second) = drawn_texts(0, 9), (drawn_texts(seed, 9) for seed in (1, 2))
    references = [[a, b] if i % 2 else [a] for i, (a, b) in enumerate(zip(first, second, strict=True))]
    streams = [first, [b if i % 2 else None for i, b in enumerate(second)]]
    found = text_metrics(generated, references)
    assert found["bleu"] == BLEU().corpus_score(generated, streams).score / 100
    assert "nrefs:var" in bleu_signature(references) and "nrefs:2" in bleu_signature(references[1::2])
    assert bleu_signature(first) == bleu_signature() and "nrefs:1" in bleu_signature()
    with pytest.raises(ValueError, match="prediction 1 has 0 references"):
        text_metrics(["a", "b"], ["a", []])


def test_a_list_of_one_reference_is_that_reference():
    generated, references = drawn_texts(0, 30), drawn_texts(1, 30)
    assert text_metrics(generated, [[each] for each in references]) == text_metrics(generated, references)


def test_bleu_of_one_changed_word():
    """4 of 5 words, 3 of 4 pairs, 2 of 3 triples, 1 of 2 quadruples: the geometric mean, and no brevity penalty."""
    metrics = text_metrics(["a b c d x"], ["a b c d e"])
    assert metrics["bleu"] == pytest.approx((4 / 5 * 3 / 4 * 2 / 3 * 1 / 2) ** 0.25)


def test_the_same_text_is_perfect_and_another_is_not():
    assert text_metrics(["ein Hund läuft schnell"], ["ein Hund läuft schnell"]) == pytest.approx(
        {"exact_match": 1, "cer": 0, "wer": 0, "bleu": 1, "chrf": 1}
    )
    other = text_metrics(["zwei Katzen sitzen dort"], ["ein Hund läuft schnell"])
    assert other["exact_match"] == 0 and other["bleu"] < 0.1 and other["chrf"] < 0.3


def test_the_signature_names_tokenizer_and_version():
    assert "tok:13a" in bleu_signature() and "version:" in bleu_signature()


def test_one_reference_per_prediction():
    with pytest.raises(ValueError, match="2 predictions and 1 reference"):
        text_metrics(["a", "b"], ["a"])


@pytest.mark.parametrize(("texts", "expected"), [
    (["ein Hund läuft", "Hund"], True),
    (["猫在房子里。", "我今天去学校", "一"], False),
    (["猫 在 房子 里 。", "我 今天 去 学校", "一"], True),  # divided by a segmenter
    (["ねこがいえにいる", "今日は学校へ行く"], False),
    (["แมวอยู่ในบ้าน วันนี้ฉันไปโรงเรียน"], False),  # spaces in Thai divide clauses
    (["แมว อยู่ ใน บ้าน วันนี้ ฉัน ไป โรงเรียน"], True),
    (["고양이는 집에 있다"], True),
    (["the word 日本語 means Japanese", "猫"], True),
    (["a1b2", ""], True),
])
def test_scripts_without_spaces_have_no_words_for_bleu(texts, expected):
    assert has_words(texts) is expected
    assert expected or text_metrics(texts, texts)["bleu"] == 0  # although all texts are right


def test_perplexity_is_the_vocabulary_of_a_uniform_guess_in_either_base():
    nats = -math.log(1 / 261)
    assert perplexity(nats) == pytest.approx(261) == pytest.approx(2 ** (nats / math.log(2)))
    assert perplexity(0.0) == 1 and perplexity(710.0) == math.inf and math.isnan(perplexity(math.nan))
