"""Arguments of evaluations that leave nothing to compute, or mean nothing, are errors."""

import numpy as np
import pytest

import vit
from tests.inference.tiny_models import save_classifier, save_masked, save_translator
from vit.data import DataError, Preprocessing
from vit.data.splits.split import array_split
from vit.data.text.dataset import TextSplit
from vit.evaluation.masked_tokens import evaluate_masked_tokens
from vit.evaluation.robustness import accuracy_under_corruptions
from vit.evaluation.seq2seq import evaluate_seq2seq
from vit.evaluation.text_classification import evaluate_texts

BATCH = "batch_size=-1 must be a whole number of at least 1"


def test_a_severity_that_is_given_twice_counts_once():
    model = vit.create_model("vit_tiny", image_size=8, patch_size=4, num_classes=2, depth=1)
    split, pixels = array_split(np.full((4, 8, 8), 90, np.uint8), np.zeros(4, np.int64), "grey"), Preprocessing((8, 8))
    once, twice = (accuracy_under_corruptions(model, pixels, split, severities) for severities in ((1,), (1, 1)))
    assert {kind: [values[0], values[0]] for kind, values in once.items()} == twice
    with pytest.raises(DataError, match="0 images"):
        accuracy_under_corruptions(model, pixels, split.take(np.arange(0)), (1,))


def test_batches_and_pairs_are_at_least_one(tmp_path):
    split = TextSplit(np.array([0, 1]), ["a", "b"], (["no", "yes"],))
    with pytest.raises(DataError, match="the split has 0 texts"):
        evaluate_texts(vit.load(save_classifier(tmp_path / "empty")), split.take(np.arange(0)))
    with pytest.raises(ValueError, match=BATCH):
        evaluate_texts(vit.load(save_classifier(tmp_path / "texts")), split, batch_size=-1)
    predictor = vit.load(save_translator(tmp_path / "translator"))
    with pytest.raises(ValueError, match=BATCH):
        evaluate_seq2seq(predictor, split, batch_size=-1)
    with pytest.raises(ValueError, match="on_bad_sample='ignore' is not one of error, skip"):
        evaluate_seq2seq(predictor, split, on_bad_sample="ignore")
    masked = vit.load(save_masked(tmp_path / "masked"))
    with pytest.raises(ValueError, match="0 pairs to evaluate, of 2"):
        evaluate_masked_tokens(masked.model, split, limit=0)
