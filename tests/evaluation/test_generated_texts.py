"""Evaluation of a translator and of a text classifier, against a forward pass of each sample alone."""

import re
import unicodedata

import numpy as np
import pytest
import torch
from rapidfuzz.distance import Levenshtein
from torch.nn import functional as F

import vit
from tests.inference.tiny_models import BYTES, save_classifier, save_translator
from vit.data import PairSplit, TextSplit
from vit.data.text.tokenizers import BOS, EOS, PAD
from vit.evaluation.seq2seq import evaluate_seq2seq, padded_targets
from vit.evaluation.text_classification import evaluate_texts


def test_the_loss_of_a_translator_is_the_mean_over_all_tokens_of_the_references(tmp_path, caplog):
    predictor = vit.load(save_translator(tmp_path / "model"))
    sources, targets = ["one", "three", "two", "a", "seven"], ["1", "333", "22", "far too long a text", ""]
    seen = []
    found = evaluate_seq2seq(predictor, PairSplit(targets, list("abcde"), sources), 2, progress=seen.append)
    assert "1 of 5 references is longer than the 9 tokens that the model can generate, such as 'far" in caplog.text
    losses, hits = [], []
    for source, target in zip(sources, targets, strict=True):
        ids = torch.tensor([[BOS, *BYTES.encode(target)[:8], EOS]])  # the model has 9 positions
        with torch.no_grad():
            logits = predictor.model(torch.tensor([[*BYTES.encode(source), EOS]]), ids[:, :-1], None)[0]
        losses.append(F.cross_entropy(logits, ids[0, 1:], reduction="none"))
        hits.append(logits.argmax(-1) == ids[0, 1:])
    assert found.metrics["loss"] == pytest.approx(float(torch.cat(losses).mean()), rel=1e-4)
    assert found.metrics["perplexity"] == pytest.approx(float(torch.cat(losses).mean().exp()), rel=1e-3)
    assert found.metrics["token_accuracy"] == pytest.approx(float(torch.cat(hits).double().mean()))
    assert found.rows == [0, 1, 2, 3, 4] and found.references == targets and sum(seen) == 5


def test_a_source_with_several_references_is_generated_once_and_compared_with_all(tmp_path):
    predictor = vit.load(save_translator(tmp_path / "model"))
    sources, targets = ["one", "two", "one", "three", "one"], ["1", "2", "11", "3", "111"]
    text = predictor.predict(["three"])[0].text
    targets[3] = text
    seen = []
    split = PairSplit(targets, list("abcde"), sources, groups=sources)
    found = evaluate_seq2seq(predictor, split, 2, progress=seen.append)
    assert found.rows == [0, 1, 3] and sum(seen) == 3 and [each.source for each in found.predictions] == ["a", "b", "d"]
    assert found.all_references == [["1", "11", "111"], ["2"], [text]] and found.has_several_references
    assert found.metrics["exact_match"] == 1 / 3 and "nrefs:var" in found.to_dict("test")["test/bleu_signature"]
    assert found.references[0] == min(targets[::2], key=lambda each: Levenshtein.distance(
        found.predictions[0].text, each) / len(each))
    alone = evaluate_seq2seq(predictor, PairSplit(targets, list("abcde"), sources), 2)
    assert alone.rows == [0, 1, 2, 3, 4]
    for name in ("loss", "token_accuracy"):  # of all pairs
        assert found.metrics[name] == pytest.approx(alone.metrics[name])


def test_groups_of_one_pair_change_nothing(tmp_path):
    predictor = vit.load(save_translator(tmp_path / "model"))
    sources, targets = ["one", "three", "two", "two"], ["1", "3", "2", "22"]
    with_groups, without = (evaluate_seq2seq(predictor, PairSplit(targets, list("abcd"), sources, groups=groups))
                            for groups in (list("abcd"), None))
    assert with_groups == without and without.references == targets and not without.has_several_references


def test_sources_that_are_truncated_are_named(tmp_path, caplog):
    predictor = vit.load(save_translator(tmp_path / "model"))
    predictor.truncate = True
    split = PairSplit(["1", "2"], ["a", "b"], ["one", "x" * 99])
    evaluate_seq2seq(predictor, split)
    assert re.search(r"1 of 2 sources is longer than the model's limit of \d+ tokens and was .* as b\n", caplog.text)


def test_generated_texts_that_are_cut_are_named(tmp_path, caplog):
    predictor = vit.load(save_translator(tmp_path / "model"))
    found = evaluate_seq2seq(predictor, PairSplit(["1", "2", "3"], ["a", "b", "c"], ["one", "two", "3"]))
    cut = [name for name, each in zip("abc", found.predictions, strict=True) if not each.ended[0]]
    assert cut and f"{len(cut)} of 3 generated texts did not end within the maximum length of 6 tokens" in caplog.text
    assert f"such as that of {cut[0]}" in caplog.text


@pytest.mark.parametrize(("references", "warned"), [(["猫在家里", "三只小狗"], True), (["a cat", "dogs"], False)])
def test_references_without_words_are_reported(tmp_path, caplog, references, warned):
    predictor = vit.load(save_translator(tmp_path / "model"))
    evaluate_seq2seq(predictor, PairSplit(references, ["a", "b"], ["one", "two"]))
    assert ("BLEU compares words between spaces, which most of these references lack, such as '猫在家里'" in
            caplog.text) == warned


@pytest.mark.parametrize(
    ("reference", "warned"), [("e\u0301", True), ("\u00e9", False), ("e", False), ("o\u0301", False)])
def test_errors_of_another_unicode_form_are_reported(tmp_path, caplog, reference, warned):
    generation = {"beam": 2, "max_len": 2, "prefix": BYTES.encode("\u00e9")}  # every text begins with it
    predictor = vit.load(save_translator(tmp_path / "model", extra={"generation": generation}))
    found = evaluate_seq2seq(predictor, PairSplit([reference], ["a"], ["one"]))
    text = found.predictions[0].text
    edits = [Levenshtein.distance(unicodedata.normalize("NFC", text), unicodedata.normalize("NFC", reference)),
             Levenshtein.distance(text, reference)]
    assert text[0] == "\u00e9" and (edits[0] < edits[1]) == warned
    assert found.metrics["cer"] == edits[1] / len(reference)
    assert ("1 of 1 generated text has a character in another Unicode form than its reference" in caplog.text) == warned


def test_references_are_padded_and_cut_to_the_limit_of_the_model(tmp_path):
    predictor = vit.load(save_translator(tmp_path / "model"))
    rows = padded_targets(predictor, ["ab", "far too long"]).tolist()
    assert rows == [[BOS, *BYTES.encode("ab"), EOS, *[PAD] * 6], [BOS, *BYTES.encode("far too "), EOS]]


def test_each_text_is_classified_once_in_any_batches(tmp_path):
    predictor = vit.load(save_classifier(tmp_path / "model"))
    texts, labels = ["a", "bb", "ccc", "d", "ee"], np.array([0, 1, 1, 0, 1])
    split = TextSplit(labels, texts, (texts,))
    whole, parts = (evaluate_texts(predictor, split, size) for size in (5, 2))
    assert parts.rows.tolist() == [0, 1, 2, 3, 4] and parts.labels.tolist() == labels.tolist()
    names = [prediction.names[0] for prediction in predictor.predict(texts)]
    assert [parts.classes[c] for c in parts.predictions[:, 0]] == names
    np.testing.assert_allclose(parts.losses, whole.losses, rtol=1e-5)
