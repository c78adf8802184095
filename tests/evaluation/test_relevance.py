"""Class-specific maps: gradient-weighted rollout and Grad-CAM against plain autograd, and the deletion curve."""

import importlib.util
import math
import sys
from functools import partial

import pytest
import torch

import vit
from vit.evaluation.attribution.deletion import deletion_curve
from vit.evaluation.attribution.grad_cam import check_captum, grad_cam
from vit.evaluation.attribution.integrated_gradients import integrated_gradients
from vit.evaluation.attribution.relevance import class_relevance, has_relevance


def network(**options):
    torch.manual_seed(0)
    model = vit.create_model("vit_tiny", image_size=16, patch_size=4, in_chans=1, num_classes=3, depth=2, dim=16,
                             num_heads=2, **options).eval()
    for parameter in model.parameters():
        parameter.data.add_(torch.randn_like(parameter) * 0.3)
    return model


def reference(model, image, c, pre_norm):
    """Chefer et al. for one image of a model with a class token, each block written out."""
    x = model.embed(image[None])
    weights = []
    for block in model.encoder.blocks:
        attn = block.attn
        q, k, v = attn.qkv(block.norm1(x) if pre_norm else x).unflatten(-1, (3, 2, -1)).permute(2, 0, 3, 1, 4)
        weights.append((q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])).softmax(-1))
        mixed = attn.proj((weights[-1] @ v).transpose(1, 2).flatten(2))
        x = x + mixed if pre_norm else block.norm1(x + mixed)
        x = x + block.mlp(block.norm2(x)) if pre_norm else block.norm2(x + block.mlp(x))
    logits = model.head(model.encoder.norm(x)[:, 0])
    assert torch.allclose(logits, model(image[None]), atol=1e-4)
    gradients = torch.autograd.grad(logits[0, c], weights)
    relevance = torch.eye(x.shape[1])
    for each, gradient in zip(weights, gradients, strict=True):
        relevance = relevance + (each * gradient)[0].clamp(min=0).mean(0) @ relevance
    return relevance[0, 1:].reshape(4, 4)


@pytest.mark.parametrize("pre_norm", [True, False])
def test_the_map_of_a_class_is_that_of_the_paper_written_out(pre_norm):
    model, images = network(pool="class", pre_norm=pre_norm), torch.randn(2, 1, 16, 16)
    before = model(images)
    found = class_relevance(model, images, torch.tensor([0, 2]))
    for each, image, c in zip(found, images, (0, 2), strict=True):
        assert torch.allclose(each, reference(model, image, c, pre_norm), rtol=1e-3, atol=1e-5)
    assert torch.equal(model(images), before) and not torch.allclose(found[0], found[1])


OTHERS = [{"pool": "mean"}, {"pool": "attention"}, {"positions": "rotary"}, {"pool": "sum", "pre_norm": False},
          {"pool": "class_mean"}, {"pool": "attention", "pool_prefix": True, "class_token": True, "registers": 2},
          {"pool": "mean", "pool_prefix": True, "class_token": True}, {"block": "res_post_norm"},
          {"block": "parallel", "pool": "class"}, {"residual": False, "pre_norm": False, "pool": "mean"}]


@pytest.mark.parametrize("options", OTHERS, ids=str)
def test_other_models_have_maps(options):
    model = network(**options)
    found = class_relevance(model, torch.randn(2, 1, 16, 16), torch.tensor([1, 1]))
    assert has_relevance(model) and found.shape == (2, 4, 4) and (found >= 0).all() and found.std() > 0


def test_the_map_includes_what_the_distillation_token_reads():
    model = network(pool="class", dist_token=True)
    model.head.weight.data.zero_()  # all logits are those of the distillation token
    assert class_relevance(model, torch.randn(1, 1, 16, 16), torch.tensor([1])).max() > 0


@pytest.mark.parametrize("options", [
    {"pool": "class"}, {"pool": "class", "pre_norm": False}, {"pool": "class", "block": "res_post_norm"},
    {"pool": "attention", "class_token": False, "pre_norm": False}, {"pool": "mean", "class_token": False},
], ids=str)
def test_grad_cam_weights_the_tokens_by_their_mean_gradient(options):
    """Also where norms follow the attention: there the tokens that enter the last block are weighted."""
    pytest.importorskip("captum")
    model, image, seen = network(**options), torch.randn(1, 1, 16, 16), []

    def keep(module, inputs, output):
        output.retain_grad()
        seen.append(output)

    norm_first = model.config.pre_norm and model.config.block != "res_post_norm"
    layer = model.encoder.blocks[-1].norm1 if norm_first else model.encoder.blocks[-2]
    hook, prefix = layer.register_forward_hook(keep), model.embed.prefix
    before = model(image)
    before[0, 1].backward()
    hook.remove()
    tokens, gradient = seen[0][0, prefix:], seen[0].grad[0, prefix:]  # (patches,D)
    expected = (tokens * gradient.mean(dim=0)).sum(dim=1).clamp(min=0).reshape(4, 4)
    found = grad_cam(model, image, torch.tensor([1]))[0]
    assert found.max() > 0 and torch.allclose(found, expected, atol=1e-5) and torch.equal(model(image), before)


def test_grad_cam_without_captum_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "captum", None)  # not installed
    monkeypatch.setitem(sys.modules, "captum.attr", None)
    with pytest.raises(ValueError, match=r"captum.*pip install 'vitwright\[report\]', or leave --grad-cam out"):
        check_captum()


def test_models_without_maps_are_named():
    model = network(mixer="fnet")
    assert not has_relevance(model)
    for function in (class_relevance, *([grad_cam] if importlib.util.find_spec("captum") else [])):
        with pytest.raises(ValueError, match="need an image classifier of patches with attention"):
            function(model, torch.randn(1, 1, 16, 16), torch.tensor([0]))


@pytest.mark.parametrize("multi_label", [False, True])
def test_integrated_gradients_sum_to_the_change_of_the_log_probability(multi_label):
    model, images, classes = network(pool="mean"), torch.randn(2, 1, 16, 16), torch.tensor([0, 2])
    found = integrated_gradients(model, images, classes, steps=200, multi_label=multi_label)
    log_probabilities = torch.nn.functional.logsigmoid if multi_label else partial(torch.log_softmax, dim=-1)
    mean = images.mean(dim=(2, 3), keepdim=True).expand_as(images)
    with torch.inference_mode():
        after, before = (log_probabilities(model(each)).gather(1, classes[:, None])[:, 0]
                         for each in (images, mean))
    assert found.shape == (2, 4, 4) and torch.allclose(found.sum(dim=(1, 2)), after - before, atol=0.02)


def test_the_deletion_curve_falls_first_where_the_map_is_right():
    class Corner(torch.nn.Module):
        def forward(self, images):
            bright = images[:, 0, :4, :4].mean(dim=(1, 2))
            return torch.stack([bright, -bright], dim=1) * 3

    images = torch.zeros(1, 1, 8, 8)
    images[..., :4, :4] = 1
    right, wrong = torch.zeros(1, 2, 2), torch.ones(1, 2, 2)
    right[0, 0, 0], wrong[0, 0, 0] = 1, 0
    first, last = (deletion_curve(Corner(), images, torch.tensor([0]), each, steps=4) for each in (right, wrong))
    assert first.shape == (1, 5) and first[0, 0] == last[0, 0] and first[0, -1] == last[0, -1]
    assert first.mean() < last.mean() and torch.allclose(last[0, :4], last[0, :1].expand(4))
    assert deletion_curve(Corner(), images[:0], torch.tensor([0])[:0], right[:0], steps=4).shape == (0, 5)
