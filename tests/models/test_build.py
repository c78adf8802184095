"""Values of a config arrive in the layers that they belong to."""

import pytest
import torch
from torch import nn

from tests.models.test_overrides import MODELS
from vit.models import model_from_config
from vit.models.seq2seq import EncoderDecoderConfig, Transformer
from vit.models.text import TextClassifier, TextClassifierConfig
from vit.nn import DropPath, Interleaved, Rotary, RotateHalf, TextRelativePositions, sincos_1d

SIZES = {"vocab_size": 20, "max_len": 12, "dim": 16, "depth": 2, "num_heads": 2}


def classifier(**options) -> TextClassifier:
    return TextClassifier(TextClassifierConfig(**{**SIZES, "num_classes": 3, **options}))


def test_the_rate_of_stochastic_depth_grows_linearly_with_the_block() -> None:
    for depth, rates in ((4, [0.3 / 3, 0.6 / 3, 0.3]), (1, [])):
        model = classifier(depth=depth, drop_path=0.3)
        assert [module.rate for module in model.modules() if isinstance(module, DropPath) and module.rate] == rates


def test_the_rate_of_stochastic_depth_may_be_the_same_in_all_blocks() -> None:
    for depth in (1, 4):
        model = classifier(depth=depth, drop_path=0.3, drop_path_schedule="constant")
        assert [module.rate for module in model.modules() if isinstance(module, DropPath)] == [0.3] * depth


@pytest.mark.parametrize(("channels", "pairs"), [("halves", RotateHalf), ("interleaved", Interleaved)])
def test_positions_of_texts_are_those_of_the_paper(channels: str, pairs: type) -> None:
    fixed = classifier(positions="sincos", sincos_channels=channels)
    assert torch.equal(fixed.embed.pos_embed, sincos_1d(12, 16, 10_000.0, channels == "interleaved"))
    rotary = classifier(positions="rotary", rotary_pairs=channels).encoder.rotary
    expected, x = Rotary((12,), 8, theta=10_000.0, pairs=pairs), torch.randn(12, 8)
    assert torch.equal(rotary()(x), expected()(x))


def test_relative_positions_look_back_in_the_decoder_and_both_ways_in_the_encoder() -> None:
    model = Transformer(EncoderDecoderConfig(**SIZES, decoder_depth=2, positions="relative"))
    for stack, causal in ((model.encoder, False), (model.decoder, True)):
        found = [module.causal for module in stack.modules() if isinstance(module, TextRelativePositions)]
        assert found == [causal] * 2


@pytest.mark.parametrize("options", [{}, {"embed_norm": True}, {"mlp_norm": True}, {"qk_norm": True}], ids=str)
def test_norms_are_where_the_config_says_and_have_its_eps(options: dict) -> None:
    norms = {name: module for name, module in classifier(norm_eps=3e-4, **options).named_modules()
             if isinstance(module, nn.LayerNorm)}
    assert {norm.eps for norm in norms.values()} == {3e-4}
    assert ("embed.norm" in norms) is ("embed_norm" in options)
    assert ("encoder.blocks.0.mlp.norm" in norms) is ("mlp_norm" in options)
    assert ("encoder.blocks.1.attn.k_norm" in norms) is ("qk_norm" in options)


@pytest.mark.parametrize(("scaled", "factor"), [(True, 4.0), (False, 1.0)])
def test_embeddings_are_multiplied_by_the_root_of_the_width_where_the_config_says(scaled: bool, factor: float) -> None:
    assert classifier(scale_embed=scaled).embed.scale == factor


@pytest.mark.parametrize("kind", MODELS)
def test_the_matrices_of_every_model_have_the_stated_deviation(kind: str) -> None:
    torch.manual_seed(0)
    model = model_from_config({**MODELS[kind], "dim": 48, "init_std": 0.3})
    linear = {name: module for name, module in model.named_modules() if isinstance(module, nn.Linear)}
    large = [layer.weight.std().item() for layer in linear.values() if layer.weight.numel() > 2000]
    assert len(large) >= 8 and large == pytest.approx([0.3] * len(large), rel=0.1)
    assert not any(layer.bias.any() for layer in linear.values() if layer.bias is not None)


@pytest.mark.parametrize("kind", MODELS)
def test_the_tokens_and_learned_positions_of_every_model_have_the_stated_deviations(kind: str) -> None:
    torch.manual_seed(0)
    model = model_from_config({**MODELS[kind], "positions": "learned", "dim": 480, "token_std": 0.3, "position_std": 3})
    found = {"tokens": 0, "positions": 0}
    for name, parameter in model.named_parameters():
        leaf = name.split(".", 1)[-1]
        if leaf in ("cls_token", "dist_token", "reg_token", "token.weight", "segment.weight"):
            found["tokens"] += 1
            assert parameter.std().item() == pytest.approx(0.3, rel=0.15), name
        elif leaf == "pos_embed":
            found["positions"] += 1
            assert parameter.std().item() == pytest.approx(3, rel=0.1), name
    assert all(found.values())


def test_the_mlp_of_attention_pooling_may_have_its_own_width() -> None:
    values = {**MODELS["images"], "pool": "attention", "class_token": False}
    assert model_from_config(values).pool.mlp.fc1.weight.shape == (24, 12)
    assert model_from_config({**values, "pool_mlp_ratio": 3.5}).pool.mlp.fc1.weight.shape == (42, 12)
