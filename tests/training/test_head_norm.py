"""Batch normalization before a head on frozen features: its statistics, its gradients, and the merged head."""

import pytest
import timm
import torch
import torch.nn.functional as F

from tests.training.test_finetune import ours, seq2seq, timms
from vit.training.finetuning.finetune import Finetune
from vit.weights.training_checkpoint import merge_head_norm

PROBE = {"trainable": "head", "head_norm": "batch", "batch_norm": "frozen"}
IMAGES = 5 * torch.randn(6, 3, 8, 8, generator=torch.Generator().manual_seed(0))


def features(model, images):
    """(B,D)"""
    model.eval()
    x = model.forward_head(model.forward_features(images), pre_logits=True) if hasattr(model, "forward_head") else (
        model.pool(model.encode(images), None))
    return x.detach()


@pytest.mark.parametrize("make", [ours, lambda: ours(pool="mean", final_norm="pooled"), timms,
                                  lambda: timms("test_resnet")])
def test_the_head_is_trained_on_normalized_features_and_merged_with_their_statistics(make):
    torch.manual_seed(0)
    plain = make()
    state, x = {name: tensor.clone() for name, tensor in plain.state_dict().items()}, features(plain, IMAGES)
    model = make()
    model.load_state_dict(state)
    begins = Finetune(**PROBE).start(model, 4)
    head = model.get_classifier() if hasattr(model, "get_classifier") else model.head
    assert len(begins) == 2 and head.weight.std().item() == pytest.approx(0.01, rel=0.3) and not head.bias.any()
    with torch.no_grad():
        head.weight.normal_()
        head.bias.normal_()
    normalized = (x - x.mean(0)) / (x.var(0, unbiased=False) + 1e-6).sqrt()
    logits = model(IMAGES)
    torch.testing.assert_close(logits, F.linear(normalized, head.weight, head.bias), rtol=1e-4, atol=1e-4)
    logits.sum().backward()
    assert {name for name, p in model.named_parameters() if p.grad is not None} == set(begins)
    torch.testing.assert_close(head.input_norm.running_mean, 0.1 * x.mean(0), rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(head.input_norm.running_var, 0.9 + 0.1 * x.var(0), rtol=1e-4, atol=1e-6)
    merged = merge_head_norm(model.state_dict())
    assert merged.keys() == state.keys()
    changed = {name for name in state if not torch.equal(merged[name], state[name])}
    assert changed == set(begins)  # other batch norms are frozen
    plain.load_state_dict(merged)
    torch.testing.assert_close(plain.eval()(IMAGES), model.eval()(IMAGES), rtol=1e-4, atol=1e-5)
    assert (plain(IMAGES) - logits).abs().max() > 0.1


@pytest.mark.parametrize("options", [{"trainable": "all"}, {"trainable": "attention"}, {"head_init": "fit"},
                                     {"head_norm": "layer"}])
def test_a_head_norm_is_for_a_new_head_on_frozen_features(options):
    with pytest.raises(ValueError, match="set trainable=head with it|set head_init=random|must be one of none, batch"):
        Finetune(**{**PROBE, **options})


@pytest.mark.parametrize("make", [seq2seq, lambda: ours(dist_token=True), lambda: timm.create_model(
    "test_byobnet", num_classes=5).get_submodule("stages")])
def test_models_without_a_single_linear_head_have_no_head_norm(make):
    with pytest.raises(ValueError, match="single linear head with a bias, which this .* has not; use head_norm=none"):
        Finetune(**PROBE).start(make(), 4)
