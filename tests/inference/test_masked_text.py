"""Masked words: probabilities against a plain forward pass, tokens of texts with masks, errors."""

import csv
import io

import pytest
import torch

import vit
from tests.inference.tiny_models import BYTES, save_masked
from vit.cli import main
from vit.data import BPETokenizer
from vit.data.formats.lines import BadText
from vit.data.text.tokenizers import BOS, EOS, MASK, SPECIALS


@pytest.fixture(scope="module")
def predictor(tmp_path_factory):
    return vit.load(save_masked(tmp_path_factory.mktemp("model")), device="cpu")


def test_probabilities_are_those_of_the_model(predictor):
    (found,) = predictor.predict("ab[MASK]d<mask>", top_k=3)
    ids = torch.tensor([[BOS, *BYTES.encode("ab"), MASK, *BYTES.encode("d"), MASK, EOS]])
    with torch.no_grad():
        tokens, _ = predictor.model(ids, segment=torch.zeros_like(ids))
    expected = tokens[0].softmax(-1)[[3, 5], 5:].topk(3)
    torch.testing.assert_close(torch.tensor([each.probabilities for each in found.masks]), expected.values)
    words = [BYTES.tokens([i])[0] for i in (expected.indices[:, 0] + 5).tolist()]
    assert [each.word for each in found.masks] == words and [each.mask for each in found.masks] == [1, 2]
    assert found.text == f"ab{words[0]}d{words[1]}" and found.masks[0].next is None


def test_a_pair_has_segments_and_a_batch_changes_nothing(predictor):
    texts = ["ab [MASK]\tcd", "[MASK]", "a longer [MASK] text\tand <mask>"]
    together, alone = predictor.predict(texts), [predictor.predict(text)[0] for text in texts]
    for one, other in zip(together, alone, strict=True):
        assert one.text == other.text
        for a, b in zip(one.masks, other.masks, strict=True):
            assert a.names == b.names and a.probabilities == pytest.approx(b.probabilities, abs=1e-6)
    assert [each.masks[0].next is None for each in together] == [False, True, False]
    assert predictor.batch([predictor.encode("a\tbc")])[2].tolist() == [[0, 0, 0, 1, 1, 1]]


def test_a_mask_is_a_word_with_the_space_before_it(tmp_path):
    bpe = BPETokenizer.train(["ann has two coins"] * 9, 300)
    predictor = vit.load(save_masked(tmp_path, bpe), device="cpu")
    names = bpe.tokens(predictor.encode("ann [MASK] two coins, [MASK]s").ids)
    assert names == ["<bos>", "ann", "<mask>", " two", " coins", ",", "<mask>", "s", "<eos>"]
    assert [predictor._name(*each) for each in ((" two", "ann"), ("two", "ann"), ("ann", ""), (",", "ann"))] == [
        "two", "##two", "ann", ","]


def test_errors_name_the_text(predictor, capsys):
    good, *bad = predictor.stream(["a[MASK]", "without", "x" * 40 + "[MASK]", " ", "a\tb\t[MASK]"])
    assert good.masks and [type(each) for each in bad] == [BadText] * 4
    assert "text 2: has no mask; write [MASK] for each word to predict" in str(bad[0])
    assert "text 3: has 43 tokens, but the model reads at most 32" in str(bad[1])
    assert "text 5: has 3 texts" in str(bad[3])
    folder = str(predictor.bundle.path)
    assert main(["predict", folder, "x" * 300 + "[MASK]"]) == 1
    assert "has 303 tokens" in capsys.readouterr().err  # and is no file name that is too long
    assert main(["predict", folder, "no mask here"]) == 1
    assert "no mask here" in capsys.readouterr().err
    assert main(["predict", folder, "a[MASK]", "--format", "text"]) == 2
    assert main(["predict", folder, "a[MASK]", "--beam", "2"]) == 2
    capsys.readouterr()
    assert main(["predict", folder, "[MASK][MASK]a[MASK]", "b" * 40 + "[MASK]", "--top-k", "9999"]) == 3
    printed = capsys.readouterr()
    assert "1 of 2 lines could not be read" in printed.err  # texts, not masks
    header, first = csv.reader(io.StringIO(printed.out).readlines()[:2])
    assert header[-3] == f"probability_{BYTES.vocab_size - len(SPECIALS)}" and first[-3]  # no empty columns
    assert main(["calibrate", folder, "--output", f"{folder}-calibrated"]) == 1
    assert "predicts masked words; calibration is for classifiers" in capsys.readouterr().err
