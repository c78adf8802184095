"""A computed pass has the operations that one on the meta device counts, whatever operators a CPU uses for it."""

import pytest
import torch

from vit.models import create_model, flops

SMALL = {"image_size": 32, "patch_size": 8, "depth": 2, "num_classes": 10}
MODELS = {
    "vit": SMALL,
    "convolutional stem": {**SMALL, "stem": "conv"},
    "attention pooling": {**SMALL, "pool": "attention", "class_token": False},
    "relative positions": {**SMALL, "positions": "relative"},
    "products large enough for oneDNN": {**SMALL, "image_size": 256},
    **{mixer: {**SMALL, "mixer": mixer} for mixer in ("fnet", "lstm", "gru", "conv1d")},
}


@pytest.mark.parametrize("name", MODELS)
def test_computed_and_on_the_meta_device(name):
    model = create_model("vit_tiny", **MODELS[name])
    assert flops(model, compute=True) == flops(model) > 0


@pytest.mark.parametrize("name", ["timm:resnet18", "timm:swin_tiny_patch4_window7_224"])
def test_models_of_timm(name):
    model = create_model(name, num_classes=10)
    assert flops(model, compute=True) == flops(model) > 0


def test_model_and_random_state_are_left_as_they_were():
    mae = {"decoder_dim": 64, "decoder_depth": 1, "decoder_num_heads": 4}  # draws the masked patches
    model = create_model("mae_tiny", image_size=32, patch_size=8, depth=2, **mae).train()
    before, state = torch.get_rng_state(), {name: value.clone() for name, value in model.state_dict().items()}
    assert flops(model, compute=True) == flops(model)
    assert torch.equal(torch.get_rng_state(), before) and model.training and torch.is_grad_enabled()
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())
