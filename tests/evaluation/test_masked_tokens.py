"""The metrics of a masked language model, against a forward pass written out."""

import numpy as np
import pytest
import torch
from torch.nn import functional as F

import vit
from tests.inference.tiny_models import BYTES, save_masked
from vit.data import CharTokenizer, CorpusSplit, MaskedDataset
from vit.evaluation.masked_tokens import evaluate_masked_tokens


def test_the_loss_of_masked_tokens_is_weighted_and_of_the_masks_of_epoch_0(tmp_path):
    model = vit.load(save_masked(tmp_path / "masked", max_len=24)).model
    texts = [f"{'ab' * i} {i}" for i in range(7)]
    split = MaskedDataset(CorpusSplit(texts, texts, np.arange(7) // 4), BYTES, 24, seed=1)
    batch = split.__getitems__([(0, i) for i in range(3)])
    positions = (batch["masked"].flatten() >= 0).nonzero()[:, 0]
    with torch.no_grad():
        tokens, pairs = model(batch["source"], batch["source_mask"], batch["segment"], positions)
    losses = [float(F.cross_entropy(tokens, batch["masked"].flatten()[positions])),
              float(F.cross_entropy(pairs, batch["next"]))]
    seen = []
    found = evaluate_masked_tokens(model, split, 2, limit=3, progress=seen.append, weights=(0.5, 2.0))
    assert [found["token_loss"], found["pair_loss"]] == pytest.approx(losses, rel=1e-5) and seen == [2, 1]
    assert found["perplexity"] == pytest.approx(np.exp(losses[0]), rel=1e-4)
    assert found["loss"] == pytest.approx(0.5 * losses[0] + 2 * losses[1], rel=1e-5)
    right = tokens.argmax(-1) == batch["masked"].flatten()[positions], pairs.argmax(-1) == batch["next"]
    assert [found["token_accuracy"], found["pair_accuracy"]] == pytest.approx([float(r.double().mean()) for r in right])


def test_texts_without_a_token_that_can_be_masked_are_an_error_before_the_evaluation(tmp_path):
    model = vit.load(save_masked(tmp_path / "masked", max_len=24)).model
    texts = ["☃☃", "☃", "☃☃☃"]
    split = MaskedDataset(CorpusSplit(texts, texts, np.zeros(3, dtype=int)), CharTokenizer("ab"), 24)
    with pytest.raises(ValueError, match="no token of the 2 pairs to evaluate can be masked: all are special"):
        evaluate_masked_tokens(model, split, progress=lambda count: pytest.fail("evaluated"))
