"""Every kind of attention, head, mixer, norm and position in every model: training, padding, bundles, generation."""

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from vit.generation import Generation, Uncached, generate
from vit.models import model_from_config
from vit.weights.formats.timm import timm_arguments

SIZES = {"dim": 12, "depth": 2, "num_heads": 3, "mlp_ratio": 2.0}
TEXT = {**SIZES, "vocab_size": 11, "max_len": 40}
MODELS = {
    "images": {"kind": "vit", **SIZES, "image_size": 16, "patch_size": 4, "num_classes": 3},
    "masked images": {"kind": "mae", **SIZES, "image_size": 16, "patch_size": 4, "decoder_dim": 12, "decoder_depth": 1,
                      "decoder_num_heads": 3},
    "texts": {"kind": "text_classifier", **TEXT, "num_classes": 3, "pool": "mean"},
    "masked texts": {"kind": "masked_text", **TEXT},
    "translation": {"kind": "encoder_decoder", **TEXT, "decoder_depth": 2, "dropout": 0.0},
    "images to texts": {"kind": "encoder_decoder", "source": "image", **TEXT, "decoder_depth": 2, "image_size": (8, 32),
                        "patch_size": 4, "tied": "target", "dropout": 0.0},
}
LOCAL = {"attention": "local", "window": 1, "dilation": 2, "global_tokens": 1}
OPTIONS = {
    **{name: {"attention": name} for name in ("scaled", "dot", "cosine", "bilinear", "additive")},
    "local": LOCAL,
    "full heads, narrow values": {"heads": "full", "value_dim": 5},
    "sliced input": {"projection": "sliced", "value_dim": 6},
    "raw": {"projection": "none", "attention": "dot"},
    "batch norm": {"norm": "batch"},
    "no residuals": {"residual": False},
    "interleaved": {"positions": "sincos", "sincos_channels": "interleaved"},
    "relative": {"positions": "relative"},
    "relative, local": {"positions": "relative", **LOCAL},
    **{name: {"mixer": name, "positions": "none"} for name in ("lstm", "gru", "conv1d")},
    "fnet": {"mixer": "fnet", "positions": "learned"},
}
NO_RELATIVE = ("masked images", "images to texts")
GENERATING = ("translation", "images to texts")
CASES = [(model, name) for model in MODELS for name in OPTIONS if not (model in NO_RELATIVE and "relative" in name)]


def values(model: str, name: str) -> dict:
    more = {"decoder_mixer": "attention"} if name == "fnet" and model in GENERATING else {}
    return {**MODELS[model], **OPTIONS[name], **more}


def made(model: str, name: str) -> nn.Module:
    torch.manual_seed(0)
    return model_from_config(values(model, name))


def forward(model: nn.Module, name: str) -> list[Tensor]:
    """The outputs, with padded texts and images."""
    torch.manual_seed(1)
    ids, mask = torch.randint(3, 11, (3, 12)), torch.arange(12) < torch.tensor([[12], [5], [8]])
    columns = (torch.arange(8) < torch.tensor([[8], [4], [6]]))[:, None].expand(-1, 2, -1).flatten(1)
    images, lines = torch.randn(3, 3, 16, 16), torch.randn(3, 3, 8, 32)
    found = {
        "images": lambda: model(images),
        "masked images": lambda: model(images)[0],
        "texts": lambda: model(ids, mask),
        "masked texts": lambda: model(ids, mask),
        "translation": lambda: model(ids, ids[:, :7], mask),
        "images to texts": lambda: model(lines, ids[:, :7], columns),
    }[name]()
    return list(found) if isinstance(found, tuple) else [found]


@pytest.mark.parametrize(("model", "name"), CASES)
def test_every_parameter_learns_and_a_saved_config_builds_the_same_model(model: str, name: str) -> None:
    ours = made(model, name).train()
    sum(each.square().mean() for each in forward(ours, model)).backward()
    for key, parameter in ours.named_parameters():
        assert parameter.grad is not None and parameter.grad.isfinite().all(), key
    again = model_from_config(ours.config.to_dict())
    assert again.config == ours.config
    again.load_state_dict(ours.state_dict())
    for one, other in zip(forward(ours.eval(), model), forward(again.eval(), model), strict=True):
        assert torch.equal(one, other) and one.isfinite().all()


@pytest.mark.parametrize("name", OPTIONS)
def test_padding_has_no_influence_on_texts(name: str) -> None:
    classifier, translator = made("texts", name).eval(), made("translation", name).eval()
    ids, target = torch.randint(3, 11, (1, 9)), torch.randint(3, 11, (1, 6))
    padded, mask = torch.cat([ids, torch.zeros(1, 4, dtype=torch.long)], 1), torch.arange(13)[None] < 9
    torch.testing.assert_close(classifier(padded, mask), classifier(ids), rtol=0, atol=1e-4)
    torch.testing.assert_close(translator(padded, target, mask), translator(ids, target), rtol=0, atol=1e-4)
    later = target.clone()
    later[:, 4:] = 3
    torch.testing.assert_close(translator(ids, later)[:, :4], translator(ids, target)[:, :4], rtol=0, atol=1e-5)


@pytest.mark.parametrize("settings", [{}, {"beam": 3, "n_best": 3}], ids=["greedy", "beams"])
@pytest.mark.parametrize("name", OPTIONS)
def test_translators_generate_the_same_with_and_without_their_cache(name: str, settings: dict) -> None:
    model = made("translation", name).eval()
    source, mask = torch.randint(3, 11, (3, 5)), torch.arange(5) < torch.tensor([[5], [2], [4]])
    generation = Generation(max_len=24, min_len=18, **settings)
    with torch.inference_mode():
        fast, slow = (generate(each, source, mask, generation) for each in (model, Uncached(model)))
    for row, other in zip(fast, slow, strict=True):
        assert [each.ids for each in row] == [each.ids for each in other]
        assert [each.score for each in row] == pytest.approx([each.score for each in other], abs=1e-4)


@pytest.mark.parametrize(("model", "size", "window"), [
    ("images", {"image_size": 24}, 36), ("texts", {"max_len": 50}, 49), ("texts", {"max_len": 50}, 70)])
def test_local_attention_that_covers_all_tokens_is_full_attention(model: str, size: dict, window: int) -> None:
    """Over 37 or 50 tokens windows of 36 and 49 are computed in blocks; a window of 70 is one mask."""
    config = {**MODELS[model], **size}
    full, local = (model_from_config({**config, **options}) for options in
                   ({}, {"attention": "local", "window": window}))
    local.load_state_dict(full.state_dict())
    ids, mask = torch.randint(3, 11, (2, 50)), torch.arange(50) < torch.tensor([[50], [41]])
    inputs = (torch.randn(2, 3, 24, 24),) if model == "images" else (ids, mask)
    one, other = full(*inputs), local(*inputs)
    torch.testing.assert_close(other, one, rtol=0, atol=1e-5)
    for result in (one, other):
        result.square().sum().backward()
    gradients = [{key: each.grad for key, each in made.named_parameters()} for made in (full, local)]
    torch.testing.assert_close(*gradients, rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", [name for name in OPTIONS if name not in ("scaled", "interleaved", "relative")])
def test_timm_and_marian_exports_name_the_unsupported_part(name: str) -> None:
    from vit.weights.formats.marian import marian_arguments

    parts = {"full heads, narrow values": "value_dim=", "sliced input": "projection=", "batch norm": "norm=",
             "no residuals": "residual="}
    reason = timm_arguments(made("images", name).config)
    assert isinstance(reason, str)
    assert parts.get(name, "attention=" if "attention" in OPTIONS[name] else "mixer=") in reason
    original = {"norm_eps": 1e-5, "positions": "sincos"} if "relative" not in name else {"norm_eps": 1e-5}
    config = model_from_config({**values("translation", name), **original}).config
    with pytest.raises(ValueError, match="Marian's network has"):
        marian_arguments(config, bos=1, eos=2, pad=0)


@pytest.mark.parametrize(("model", "options", "message"), [
    ("images", {"attention": "cosin"}, "attention=cosin is unknown; nearest: cosine, of scaled, dot"),
    ("images", {"mixer": "rnn"}, "mixer=rnn is unknown"),
    ("images", {"heads": "full", "head_dim": 4}, "heads=full are as wide as the model, 12, but head_dim is 4"),
    ("images", {"dilation": 2}, "^dilation=2 needs attention=local, not attention=scaled"),
    ("images", {"global_tokens": 1}, "^global_tokens=1 needs attention=local, not attention=scaled"),
    ("images", {"attention": "local", "window": -1}, "window is -1, but must be a whole number of at least 0"),
    ("images", {"projection": "sliced", "heads": "full"}, "projection=sliced gives each head its own slice"),
    ("images", {"projection": "none", "value_dim": 2}, "projection=none has values of dim / num_heads"),
    ("images", {"mixer": "lstm", "attention": "dot"}, "attention=dot is an option of attention, but mixer=lstm"),
    ("images", {"mixer": "lstm", "positions": "rotary"}, "positions=rotary act on the scores of self-attention"),
    ("images", {"mixer": "conv1d", "kernel": 4}, "kernel is 4, but must be odd"),
    ("images", {"residual": False, "block": "parallel", "pre_norm": True}, "residual=false needs block=serial"),
    ("images", {"qkv_bias": "off"}, "qkv_bias is 'off', but must be true or false"),
    ("texts", {"residual": "no"}, "residual is 'no', but must be true or false"),
    ("translation", {"qk_norm": 2}, "qk_norm is 2, but must be true or false"),
    ("images", {"value_dim": 0}, "value_dim is 0, but must be a whole number above 0, or null"),
    ("translation", {"mixer": "fnet"}, "mixer=fnet has no causal form.*set decoder_mixer=attention, lstm"),
    ("translation", {"decoder_mixer": "fnet"}, "decoder_mixer=fnet is unknown"),
    ("images to texts", {"positions": "relative"}, "positions=relative is unknown"),
])
def test_what_does_not_fit_is_named(model: str, options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        model_from_config({**MODELS[model], **options})


def test_configs_without_these_keys_build_the_same_models() -> None:
    """The stored values of an old bundle have no such key."""
    new = {"mixer", "kernel", "attention", "window", "dilation", "global_tokens", "heads", "value_dim", "projection",
           "residual", "sincos_channels", "decoder_mixer"}
    for name, config in MODELS.items():
        stored = {**model_from_config({**config, "positions": "sincos"}).config.to_dict()}
        old = {key: value for key, value in stored.items() if key not in new}
        torch.manual_seed(0)
        ours = model_from_config(stored)
        torch.manual_seed(0)
        theirs = model_from_config(old)
        assert ours.config == theirs.config and ours.config.sincos_channels == "halves", name
        torch.testing.assert_close(ours.state_dict(), theirs.state_dict(), rtol=0, atol=0)


@pytest.mark.parametrize("name", ["local", "relative", "lstm", "conv1d", "fnet", "batch norm", "sliced input"])
def test_an_export_computes_the_same(name: str, tmp_path: Path) -> None:
    model = made("images", name).eval()
    images = torch.randn(2, 3, 16, 16)
    exported = torch.export.export(model, (images,), strict=False)
    torch.testing.assert_close(exported.module()(images), model(images), rtol=0, atol=1e-4)
