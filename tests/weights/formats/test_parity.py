"""Logits equal to those of timm, torchvision and transformers with the same random weights."""

import json

import pytest
import timm
import torch

from vit.models import VisionTransformer, VisionTransformerConfig, create_model
from vit.weights import from_timm, from_torchvision, from_transformers, timm_arguments, to_timm

CLOSE = {"rtol": 0, "atol": 1e-5}


def scramble(model: torch.nn.Module, seed: int = 0) -> torch.nn.Module:
    """Every parameter random and large enough to have an effect: new models have zero biases and nearly zero tokens."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.02)
    return model.eval()


def images(config: VisionTransformerConfig, batch: int = 2) -> torch.Tensor:
    return torch.randn(batch, config.in_chans, *config.image_size, generator=torch.Generator().manual_seed(1))


CASES = {
    # size, depth where the whole would be slow, our options, timm's name and options
    "tiny-16": ("vit_tiny_patch16_224", {}, "vit_tiny_patch16_224", {}),
    "small-8": (
        "vit_small_patch8_224", {"image_size": 32, "depth": 3}, "vit_small_patch8_224", {"img_size": 32, "depth": 3}),
    "small-32": ("vit_small_patch32_224", {"depth": 2}, "vit_small_patch32_224", {"depth": 2}),
    "base-16": (
        "vit_base_patch16_224", {"image_size": 48, "depth": 2}, "vit_base_patch16_224", {"img_size": 48, "depth": 2}),
    "large-14": (
        "vit_large_patch14_224", {"image_size": 28, "depth": 2}, "vit_large_patch14_224", {"img_size": 28, "depth": 2}),
    "mean": (
        "vit_tiny_patch16_224",
        {"image_size": 64, "pool": "mean", "final_norm": "pooled"},
        "vit_tiny_patch16_224",
        {"img_size": 64, "global_pool": "avg"},
    ),
    "registers, LayerScale, mean": (
        "vit_medium_patch16_224",
        {"image_size": 64, "depth": 2, "registers": 4, "class_token": False, "layer_scale": 1e-5,
         "prefix_positions": False, "pool": "mean", "final_norm": "pooled"},
        "vit_medium_patch16_reg4_gap_256",
        {"img_size": 64, "depth": 2},
    ),
    "registers, LayerScale, class token": (
        "vit_small_patch14_224",
        {"image_size": 42, "depth": 3, "registers": 4, "layer_scale": 1e-5, "prefix_positions": False},
        "vit_small_patch14_reg4_dinov2",
        {"img_size": 42, "depth": 3},
    ),
    "attention pooling": (
        "vit_so400m_patch14_224",
        {"image_size": 28, "depth": 1, "class_token": False, "pool": "attention", "activation": "gelu_tanh"},
        "vit_so400m_patch14_siglip_gap_224",
        {"img_size": 28, "depth": 1, "global_pool": "map", "fc_norm": False, "act_layer": "gelu_tanh"},
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_logits_equal_timm(case: str) -> None:
    name, ours, timm_name, theirs = CASES[case]
    reference = scramble(timm.create_model(timm_name, num_classes=1000, **theirs))
    model = create_model(name, **ours).eval()
    model.load_state_dict(from_timm(reference.state_dict()))
    x = images(model.config)
    with torch.no_grad():
        torch.testing.assert_close(model(x), reference(x), **CLOSE)


EXPRESSIBLE = {
    "plain": {},
    "not square": {"image_size": (32, 48), "patch_size": (8, 16), "in_chans": 1},
    "mean over tokens that are normed": {"pool": "mean"},
    "no class token": {"pool": "mean", "class_token": False, "final_norm": "pooled"},
    "registers": {"registers": 3, "prefix_positions": False},
    "sin-cos": {"positions": "sincos", "registers": 2},
    "no positions": {"positions": "none"},
    "attention": {"pool": "attention", "final_norm": "pooled"},
    "rms, QK-norm, no bias": {"norm": "rms", "qk_norm": True, "qkv_bias": False},
    "SwiGLU": {"mlp": "swiglu", "activation": "silu", "mlp_ratio": 2.7, "layer_scale": None},
    "SwiGLU, GELU, LayerScale": {"mlp": "swiglu", "layer_scale": 0.1},
    "tanh GELU, no last norm": {"activation": "gelu_tanh", "final_norm": "none"},
    "odd ratio": {"mlp_ratio": 1.03},
    "SimpleViT": {"positions": "sincos_simple", "class_token": False, "pool": "mean"},
    "CLIP": {"embed_norm": True, "patch_bias": False, "norm_eps": 1e-5, "activation": "quick_gelu"},
    "AIMv2": {"patch_norm": True, "proj_bias": False, "norm": "rms", "norm_eps": 1e-5, "mlp": "swiglu"},
    "no biases": {"proj_bias": False, "qkv_bias": False},
    "norms inside": {"attn_norm": True, "mlp_norm": True, "norm_eps": 1e-5},
    "rotary": {"positions": "rotary"},
    "rotary, table, SwiGLU": {"positions": "learned_rotary", "mlp": "swiglu", "activation": "silu", "mlp_norm": True,
                              "rotary_span": (3, 5), "key_bias": False, "layer_scale": 0.1, "attn_norm": True},
    "rotary, eps 1e-5": {"positions": "rotary", "norm_eps": 1e-5, "rotary_offset": 1.0, "registers": 2},
    "rotary, eps 1e-5, LayerScale": {"positions": "rotary", "norm_eps": 1e-5, "rotary_coordinates": "centred",
                                     "layer_scale": 0.1, "pool": "mean", "final_norm": "pooled"},
    "mixed rotary": {"positions": "rotary", "rotary_mixed": True, "rotary_pairs": "interleaved", "rotary_theta": 10.0},
    "mixed rotary, table, eps 1e-5": {
        "positions": "learned_rotary", "rotary_mixed": True, "rotary_pairs": "interleaved", "norm_eps": 1e-5,
        "registers": 2, "rotary_columns_first": True, "rotary_theta": 10.0},
    "SwiGLU, attention": {"mlp": "swiglu", "pool": "attention", "mlp_ratio": 2.0, "pool_mlp_ratio": 4.0},
    "keys without bias": {"key_bias": False, "pool": "attention", "pool_prefix": True, "pool_heads": 6},
}


@pytest.mark.parametrize("case", EXPRESSIBLE)
def test_timm_builds_the_same_model_from_the_arguments(case: str) -> None:
    options = {"image_size": 32, "patch_size": 8, "dim": 48, "depth": 2, "num_heads": 3, "num_classes": 5}
    config = VisionTransformerConfig(**{**options, **EXPRESSIBLE[case]})
    model = scramble(VisionTransformer(config))
    arguments = json.loads(json.dumps(timm_arguments(config)))
    assert "num_classes" not in arguments["model_args"]
    reference = timm.create_model(arguments["architecture"], num_classes=5, **arguments["model_args"]).eval()
    written = to_timm(model.state_dict(), config)
    reference.load_state_dict(written)
    x = images(config)
    with torch.no_grad():
        torch.testing.assert_close(reference(x), model(x), **CLOSE)
    model.load_state_dict(from_timm(written, config))  # and back, with no missing and no unused tensor


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"positions": "rotary", "norm": "rms"}, "rotary positions with LayerNorm only"),
        ({"positions": "rotary", "activation": "relu"}, "activation=gelu only, not relu"),
        ({"positions": "rotary", "rotary_mixed": True}, "mixed rotary positions with interleaved channels"),
        ({"mlp": "swiglu", "pool": "attention"}, "attention pooling with the width of the first MLP layer"),
        ({"positions": "rotary", "mlp": "swiglu", "activation": "silu", "pool": "attention", "pool_prefix": True},
         "no attention pooling with rotary SwiGLU blocks"),
        ({"patch_norm": True, "norm_eps": 1e-5}, "a norm of the patches only with RMSNorm and SwiGLU"),
        ({"proj_bias": False, "positions": "rotary"}, "biases in the blocks of its rotary models"),
        ({"patch_bias": False}, "a bias of the patches exactly if no norm follows them"),
        ({"norm": "rms", "norm_eps": 1e-5}, "norm_eps of 1e-06 only"),
        ({"stem": "conv"}, "stem"),
        ({"pre_norm": False}, "post-norm"),
        ({"head_dim": 32}, "head_dim 32"),
        ({"norm_eps": 1e-12}, "1e-12"),
        ({"pool": "sum"}, "no pooling by the sum of the tokens (pool=sum)"),
        ({"pool": "sum", "positions": "rotary"}, "no pooling by the sum of the tokens (pool=sum)"),
    ],
)
def test_what_timm_cannot_build_has_a_reason(options: dict, reason: str) -> None:
    reason = timm_arguments(VisionTransformerConfig(**options))
    assert isinstance(reason, str) and reason in reason


def test_logits_equal_torchvision() -> None:
    from torchvision.models import vit_b_16

    reference = scramble(vit_b_16(image_size=32))
    model = create_model("vit_base_patch16_224", image_size=32).eval()
    model.load_state_dict(from_torchvision(reference.state_dict()))
    x = images(model.config)
    with torch.no_grad():
        torch.testing.assert_close(model(x), reference(x), **CLOSE)


def transformers_model() -> torch.nn.Module:
    from transformers import ViTConfig, ViTForImageClassification

    config = ViTConfig(hidden_size=64, num_hidden_layers=2, num_attention_heads=4, intermediate_size=96, image_size=48,
                       patch_size=8, num_labels=7)
    return scramble(ViTForImageClassification(config))


@pytest.mark.parametrize("saved", [False, True], ids=["in memory", "file"])
def test_logits_equal_transformers(saved: bool, tmp_path) -> None:
    from safetensors.torch import load_file

    reference = transformers_model()
    state = reference.state_dict()
    if saved:
        reference.save_pretrained(tmp_path)
        state = load_file(tmp_path / "model.safetensors")
    model = VisionTransformer(VisionTransformerConfig(
        image_size=48, patch_size=8, dim=64, depth=2, num_heads=4, mlp_ratio=1.5, num_classes=7, norm_eps=1e-12)).eval()
    model.load_state_dict(from_transformers(state))
    x = images(model.config)
    with torch.no_grad():
        torch.testing.assert_close(model(x), reference(x).logits, **CLOSE)
