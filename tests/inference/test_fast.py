"""Quantized layers against the rule of arXiv 1712.05877 in float64, and their use by a predictor."""

import copy
import pickle
import time

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import vit
from vit.data import Preprocessing
from vit.inference import fast
from vit.inference.fast import Mode, apply, candidates, choose_mode, timed
from vit.inference.images import forward
from vit.inference.int8 import Int8Layers, Int8Linear, Int8Mlp, has_int8, quantizable, quantize_layers

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
    layer.weight.data[3] = 0
    assert (Int8Linear(layer, -3.0, 4.0)(x)[..., 3] == layer.bias[3]).all()


@torch.inference_mode()
@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed"])
def test_a_layer_has_the_type_of_autocast_and_logits_are_float32(precision):
    model, images = transformer(), torch.zeros(2, 3, 32, 32, dtype=torch.uint8)
    types = []
    model.encoder.blocks[0].attn.qkv.register_forward_hook(lambda layer, inputs, output: types.append(output.dtype))
    preprocessing = Preprocessing(32)
    layers = quantize_layers(model, lambda: forward(model, preprocessing, images, "32-true"))
    assert types == [torch.float32] and model.encoder.blocks[0].attn.qkv not in layers.forwards  # it has a hook
    mlp = layers.forwards[model.encoder.blocks[0].mlp]
    mlp.fc2.product = lambda x, dtype, product=mlp.fc2.product: types.append(dtype) or product(x, dtype)
    layers.use(True)
    assert forward(model, preprocessing, images, precision).dtype == torch.float32
    assert types[1:] == [torch.float32 if precision == "32-true" else torch.bfloat16] * 2


@torch.inference_mode()
def test_ranges_are_those_of_all_batches():
    model, images = transformer(), torch.randn(6, 3, 32, 32) * torch.arange(1, 7).view(-1, 1, 1, 1)
    for order in (images, images.flip(0)):
        once, several = quantize_layers(model, lambda: model(images)), quantize_layers(
            model, lambda order=order: [model(image) for image in order.split(1)])
        for layer in quantizable(model):
            one, other = once.forwards[layer], several.forwards[layer]
            assert one.scale == pytest.approx(other.scale, rel=1e-4) and one.zero_point == other.zero_point


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


def test_copies_and_pickles_of_quantized_layers_compute_the_same():
    model, images = transformer(), torch.randn(8, 3, 32, 32)
    with torch.inference_mode():
        apply(model, Mode(int8=True), quantize_layers(model, lambda: model(images)))
        expected = model(images)
        for same in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
            assert isinstance(same.encoder.blocks[0].mlp.forward, Int8Mlp)
            assert torch.equal(same(images), expected)


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


FLOAT32, LAST, LOWER, INT8 = Mode(), Mode("32-true", True), Mode("bf16-mixed"), Mode("32-true", int8=True)


@pytest.mark.parametrize("wrong", [(LOWER,), (LOWER, LAST)])
def test_modes_are_timed_in_turns_and_the_fastest_with_the_same_predictions_is_used(monkeypatch, wrong):
    """Simulated times: a warm-up, then three; INT8 is 4 % faster than float32, which is not enough."""
    model, images, turns = transformer(), torch.zeros(64, 3, 32, 32, dtype=torch.uint8), []
    times = {FLOAT32: [9.0, 0.032, 0.032, 0.5], LAST: [9.0, 0.016, 0.1, 0.001], LOWER: [9.0, 0.008, 0.008, 0.008],
             INT8: [0.0, 0.0308, 0.0308, 0.0308]}

    def compute(batch, mode):
        weight, layer = model.embed.proj.weight, model.encoder.blocks[0].attn.qkv
        layout = torch.channels_last if mode.channels_last else torch.contiguous_format
        assert weight.is_contiguous(memory_format=layout) and ("forward" in layer.__dict__) is mode.int8
        forward(model, Preprocessing(32), batch[:1], "32-true")
        turns.append(mode)
        return mode, len(batch)

    def simulated(program, device):
        mode, count = program()
        assert count == 16
        return times[mode][turns.count(mode) - 1 - (mode == FLOAT32)]  # which also measured the ranges of int8

    monkeypatch.setattr(fast, "timed", simulated)
    monkeypatch.setattr(fast, "candidates", lambda model, device: list(times))
    chosen = choose_mode(model, compute, lambda found: [found[0] in wrong and i < 3 for i in range(found[1])], images)
    rounds = [turns[1:17][start:start + 4] for start in (0, 4, 8, 12)]
    assert rounds == [list(times)[::-1], list(times)] * 2
    assert turns[17:] == [FLOAT32, LOWER, LAST]  # compared from the fastest on
    assert chosen.milliseconds == {FLOAT32: 2.0, LAST: 1.0, LOWER: 0.5, INT8: pytest.approx(1.925)}
    assert chosen.rejected == tuple((mode, 3) for mode in wrong) and chosen.images == 64
    assert chosen.mode == (FLOAT32 if LAST in wrong else LAST)
    compute(images, chosen.mode)  # the model is left in the layout of the chosen mode
    fastest = "32-true" if LAST in wrong else "32-true, channels_last, 2.00 times as fast as 32-true"
    assert str(chosen).startswith(f"fast: {fastest}; the same predictions for 64 images; bf16-mixed predicts something "
                                  "else for 3")
    assert str(chosen).endswith("(per image: 32-true 2.0 ms, 32-true, channels_last 1.0 ms, bf16-mixed 0.5 ms, "
                                "32-true, int8 1.9 ms)")


@pytest.mark.parametrize(("count", "layouts"), [(3, [False]), (4, [False, True])])
def test_networks_with_convolutions_are_also_measured_with_channels_last(monkeypatch, count, layouts):
    monkeypatch.setattr("vit.inference.fast.is_slow", lambda precision, device: precision == "bf16-mixed")
    model = nn.Sequential(*(nn.Conv2d(3, 3, 1) for _ in range(count)))
    assert candidates(model, torch.device("cpu")) == [Mode("32-true", last) for last in layouts]


def test_the_time_is_that_of_one_call():
    calls, start = [], time.perf_counter()
    assert 0 <= timed(lambda: calls.append(1), torch.device("cpu")) <= time.perf_counter() - start
    assert calls == [1]
