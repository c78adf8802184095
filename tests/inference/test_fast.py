"""Quantized layers against the rule of arXiv 1712.05877 in float64, and their use by a predictor."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import vit
from vit.inference.fast import Mode, apply, candidates
from vit.inference.int8 import Int8Layers, Int8Linear, has_int8, quantizable, quantize_layers

pytestmark = pytest.mark.skipif(not has_int8(), reason="needs oneDNN and VNNI instructions")


def quantized_product(x, layer, low, high):
    """The paper's equations, written out in float64."""
    x, weight = x.double(), layer.weight.detach().double()
    scale = (high - low) / 255
    zero = round(-low / scale)
    levels = ((x / scale).round() + zero).clamp(0, 255)
    scales = weight.abs().amax(1, keepdim=True) / 127
    return ((levels - zero) * scale) @ ((weight / scales).round() * scales).T + layer.bias.detach().double()


def transformer(**options):
    torch.manual_seed(0)
    return vit.create_model("vit_tiny", image_size=32, patch_size=8, depth=2, num_classes=5, **options).eval()


@torch.inference_mode()
def test_a_product_follows_the_equations_and_clips():
    torch.manual_seed(0)
    layer, x = nn.Linear(48, 20), 2 * torch.randn(3, 7, 48)  # some values lie outside the range
    found = Int8Linear(layer, -3.0, 4.0)(x)
    assert found.dtype == torch.float32 and found.shape == (3, 7, 20)
    torch.testing.assert_close(found.double(), quantized_product(x, layer, -3.0, 4.0), atol=1e-3, rtol=1e-3)
    assert torch.isfinite(Int8Linear(layer, 0.0, 0.0)(torch.zeros(2, 48))).all()


@torch.inference_mode()
def test_hidden_units_are_rounded_once():
    torch.manual_seed(0)
    fc1, fc2, x = nn.Linear(48, 96), nn.Linear(96, 48), torch.randn(3, 7, 48)
    first, second = Int8Linear(fc1, -4.0, 4.0), Int8Linear(fc2, -0.2, 3.0)
    found = second.product(first.gelu_for(first.quantize(x), second), torch.float32)
    expected = quantized_product(F.gelu(quantized_product(x, fc1, -4.0, 4.0)), fc2, -0.2, 3.0)
    assert (found - expected).abs().max() < 0.01  # a hidden unit at the border between two levels may differ by one


@pytest.mark.parametrize("options", [{}, {"mlp": "swiglu"}, {"activation": "relu"}])
def test_a_model_computes_nearly_the_same_and_then_the_same_again(options):
    model, images = transformer(**options), torch.randn(8, 3, 32, 32)

    @torch.inference_mode()
    def compute(precision=torch.float32):
        with torch.autocast("cpu", torch.bfloat16, enabled=precision == torch.bfloat16):
            return model(images).float()

    names, expected = list(model.state_dict()), compute()
    layers = quantize_layers(model, compute)
    assert torch.equal(compute(), expected)  # measuring the ranges changes nothing
    for precision in (torch.float32, torch.bfloat16):
        apply(model, Mode(int8=True), layers)
        found = compute(precision)
        assert 0 < (found - expected).abs().max() < 0.1 * expected.abs().max()
        apply(model, Mode(), layers)
        assert torch.equal(compute(), expected) and list(model.state_dict()) == names


def test_an_image_does_not_depend_on_its_batch():
    model, images = transformer(), torch.randn(6, 3, 32, 32)
    with torch.inference_mode():
        layers = quantize_layers(model, lambda: model(images))
        layers.use(True)
        together, alone = model(images), torch.cat([model(image) for image in images.split(1)])
    assert (together - alone).abs().max() < 1e-3 * together.abs().max()


def test_only_linear_layers_of_blocks_are_candidates(monkeypatch):
    monkeypatch.setattr("vit.inference.fast.is_slow", lambda precision, device: False)
    model = transformer()
    assert model.head not in quantizable(model) and len(quantizable(model)) == 8
    assert Mode("bf16-mixed", int8=True) in candidates(model, torch.device("cpu"))
    assert not any(mode.int8 for mode in candidates(model, torch.device("cuda")))
    assert not any(mode.int8 for mode in candidates(nn.Linear(4, 4), torch.device("cpu")))
    assert isinstance(Int8Layers(model, {}), Int8Layers) and not Int8Layers(model, {}).forwards
