"""Values of a config arrive in the layers that they belong to."""

import pytest
import torch
from torch import nn

from vit.models.seq2seq import EncoderDecoderConfig, Transformer
from vit.models.text import TextClassifier, TextClassifierConfig
from vit.nn import Interleaved, Rotary, RotateHalf, TextRelativePositions, sincos_1d

SIZES = {"vocab_size": 20, "max_len": 12, "dim": 16, "depth": 2, "num_heads": 2}


def classifier(**options) -> TextClassifier:
    return TextClassifier(TextClassifierConfig(**{**SIZES, "num_classes": 3, **options}))


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
