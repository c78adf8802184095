"""The parts of models of every kind add up to the whole, and explaining leaves a model as it was."""

import math

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode, flop_registry

from vit.models import create_model, flops, model_from_config
from vit.models.explanation import explain
from vit.models.flops import FORMULAS

SEQ2SEQ = {"kind": "encoder_decoder", "vocab_size": 50, "dim": 32, "num_heads": 2, "depth": 2, "decoder_depth": 3,
           "max_len": 40}
MODELS = {
    "vit": lambda: create_model("vit_tiny", image_size=32, patch_size=8, depth=2, num_classes=10),
    "attention pooling": lambda: create_model("vit_tiny", image_size=32, patch_size=8, depth=2, num_classes=10,
                                              pool="attention", class_token=False),
    "fnet": lambda: create_model("vit_tiny", image_size=32, patch_size=8, depth=2, num_classes=10, mixer="fnet"),
    "timm": lambda: create_model("timm:vit_tiny_patch16_224", num_classes=10),
    "timm convolutions": lambda: create_model("timm:resnet18", num_classes=10),
    "text": lambda: create_model("text_tiny", vocab_size=100, num_classes=2),
    "bert": lambda: create_model("bert_tiny", vocab_size=100),
    "mae": lambda: create_model("mae_tiny", image_size=32, patch_size=8, depth=2, decoder_dim=64, decoder_depth=1,
                                decoder_num_heads=4),
    "seq2seq": lambda: model_from_config(SEQ2SEQ),
    "image to text": lambda: model_from_config(
        {**SEQ2SEQ, "source": "image", "image_size": 32, "patch_size": 8, "tied": "target"}),
}


@pytest.mark.parametrize("kind", MODELS)
def test_the_leaves_add_up_to_the_whole(kind):
    model = MODELS[kind]()
    found = explain(model, tokens=7)
    assert found.parameters == sum(p.numel() for p in model.parameters()) == sum(p.parameters for p in found.leaves)
    assert found.flops == sum(part.flops for part in found.leaves) > 0
    if "images" in found.inputs:
        assert found.flops == flops(model)
    else:
        inputs = [torch.zeros(shape, dtype=torch.long if len(shape) == 2 else torch.float32)
                  for shape in found.inputs.values()]
        missing = {operator: formula for operator, formula in FORMULAS.items() if operator not in flop_registry}
        with FlopCounterMode(display=False, custom_mapping=missing) as counter, torch.no_grad():
            model.eval()(*inputs)
        assert found.flops == counter.get_total_flops()


@pytest.mark.parametrize("kind", MODELS)
def test_parts_are_modules_with_their_own_numbers(kind):
    model = MODELS[kind]()
    modules = dict(model.named_modules())
    shared = 0  # of a matrix that two parts have, which counts for the first
    for part in explain(model).parts:
        if part.name in modules:
            counted = sum(parameter.numel() for parameter in modules[part.name].parameters())
            shared += counted != part.parameters
            assert part.kind == type(modules[part.name]).__name__
    assert shared == (kind == "seq2seq")


@pytest.mark.parametrize("kind", ["vit", "seq2seq"])
def test_the_model_is_left_as_it_was(kind):
    model = MODELS[kind]().train()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    model.encoder.norm.eval()
    explain(model)
    torch.testing.assert_close(model.state_dict(), before, rtol=0, atol=0)
    assert model.training and not model.encoder.norm.training
    assert all(not module._forward_hooks and not module._forward_pre_hooks for module in model.modules())


def test_shapes_are_those_of_the_outputs():
    shapes = {part.name: part.shape for part in explain(MODELS["vit"]()).parts}
    assert shapes["embed"] == shapes["encoder.blocks.1.attn"] == (1, 17, 192) and shapes["head"] == (1, 10)
    shapes = {part.name: part.shape for part in explain(MODELS["seq2seq"](), tokens=5).parts}
    assert shapes["decoder.blocks.2"] == (1, 5, 32)


def test_a_text_longer_than_the_model_has_positions():
    with pytest.raises(ValueError, match="tokens is 41, but must lie in 1..40"):
        explain(MODELS["seq2seq"](), tokens=41)


@pytest.mark.parametrize("kind", ["vit", "bert"])
def test_the_operations_of_matrices_are_two_per_weight_and_token(kind):
    model = MODELS[kind]()
    parts = [part for part in explain(model, tokens=7).parts if part.name.rpartition(".")[2] in ("mlp", "head")]
    assert len(parts) >= 2
    for part in parts:
        matrices = [layer.weight.numel() for layer in model.get_submodule(part.name).modules()
                    if isinstance(layer, torch.nn.Linear)]
        assert part.flops == 2 * math.prod(part.shape[:-1]) * sum(matrices)
