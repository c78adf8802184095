"""The config inferred from tensors against the config that the model was built from."""

import dataclasses

import pytest
import torch

from vit.models import VisionTransformerConfig, model_from_config
from vit.models.masked import MaskedTextConfig
from vit.models.text import TextClassifierConfig
from vit.weights import infer_config, published_num_heads
from vit.weights.config_inference import ConfigMismatch, check_declared

TINY = {"image_size": 32, "patch_size": 8, "dim": 48, "depth": 2, "num_heads": 3, "num_classes": 5}
CASES = {
    "plain": {},
    "not square": {"image_size": (32, 48), "patch_size": (8, 16), "in_chans": 1},
    "no head": {"num_classes": 0},
    "mean": {"pool": "mean", "class_token": False, "final_norm": "pooled"},
    "registers": {"registers": 3, "prefix_positions": False, "layer_scale": 1e-5},
    "registers with rows": {"registers": 3},
    "attention pooling": {"pool": "attention", "class_token": False},
    "other parts": {"norm": "rms", "qk_norm": True, "qkv_bias": False, "mlp": "swiglu", "mlp_ratio": 2.75},
    "head_dim": {"head_dim": 32},
    "no last norm": {"final_norm": "none"},
    "AIMv2": {"patch_norm": True, "proj_bias": False},
    "CLIP": {"embed_norm": True, "patch_bias": False},
    "EVA-02": {"mlp_norm": True, "attn_norm": True, "key_bias": False, "mlp": "swiglu"},
}


@pytest.mark.parametrize("case", CASES)
def test_the_config_is_inferred_from_tensors_of_vit(case: str) -> None:
    config = VisionTransformerConfig(**{**TINY, **CASES[case]})
    stated = {"num_heads": 3, "activation": "gelu", "image_size": config.image_size}
    inferred = infer_config(model_from_config(config.to_dict()).state_dict(), stated)
    assert VisionTransformerConfig.from_dict(inferred) == config


@pytest.mark.parametrize("ratio", [4.0, 2.7])  # that of the blocks, and one that is not a whole width
def test_the_ratio_of_attention_pooling_may_be_stated(ratio: float) -> None:
    config = VisionTransformerConfig(**{**TINY, "pool": "attention", "class_token": False, "pool_mlp_ratio": ratio})
    state = model_from_config(config.to_dict()).state_dict()
    stated = {"num_heads": 3, "activation": "gelu", "image_size": 32}
    inferred = infer_config(state, {**stated, "pool_mlp_ratio": ratio})
    assert VisionTransformerConfig.from_dict(inferred) == config
    check_declared(inferred, {"pool_mlp_ratio": ratio + 1e-3})
    with pytest.raises(ConfigMismatch, match=r"pool_mlp_ratio is 3\.0 in the source's config or the argument"):
        infer_config(state, {**stated, "pool_mlp_ratio": 3.0})


@pytest.mark.parametrize("positions", ["sincos", "rotary"])
def test_positions_without_a_table_must_be_stated(positions: str) -> None:
    config = VisionTransformerConfig(**{**TINY, "positions": positions})
    state = model_from_config(config.to_dict()).state_dict()
    stated = {"num_heads": 3, "activation": "gelu", "image_size": 32, "positions": positions}
    assert VisionTransformerConfig.from_dict(infer_config(state, stated)) == config
    with pytest.raises(ValueError, match="so that positions cannot be inferred"):
        infer_config(state, {"num_heads": 3, "activation": "gelu"})


@pytest.mark.parametrize("pool", ["class", "pooler"])
def test_text_models(pool: str) -> None:
    config = TextClassifierConfig(vocab_size=11, max_len=9, dim=32, depth=2, num_heads=2, num_classes=3, pool=pool)
    state = model_from_config(config.to_dict()).state_dict()
    assert TextClassifierConfig.from_dict(infer_config(state, {"num_heads": 2, "activation": "gelu"})) == config
    masked = MaskedTextConfig(vocab_size=11, max_len=9, dim=32, depth=2, num_heads=2, dropout=0.0,
                              attention_dropout=0.0)
    state = model_from_config(masked.to_dict()).state_dict()
    stated = {"num_heads": 2, "activation": "gelu", "norm_eps": 1e-12, "dropout": 0.0, "attention_dropout": 0.0}
    assert MaskedTextConfig.from_dict(infer_config(state, stated)) == masked


def test_num_heads_from_the_queries_norm_a_stated_value_or_published_sizes() -> None:
    published = {**TINY, "dim": 192, "depth": 12}
    gelu = {"activation": "gelu"}
    state = model_from_config({"kind": "vit", **published}).state_dict()
    assert infer_config(state, gelu)["num_heads"] == published_num_heads(192, 12) == 3
    assert infer_config(state, {**gelu, "num_heads": 12})["num_heads"] == 12
    state = model_from_config({"kind": "vit", **TINY, "qk_norm": True}).state_dict()
    assert infer_config(state, gelu)["num_heads"] == 3
    with pytest.raises(ValueError, match="num_heads is 4 in the source's config or the argument, but 3 in the"):
        infer_config(state, {**gelu, "num_heads": 4})
    with pytest.raises(ValueError, match="dim 48 and depth 2; give num_heads="):
        infer_config(model_from_config({"kind": "vit", **TINY}).state_dict(), gelu)
    with pytest.raises(ValueError, match="num_heads 5 does not divide the 48 channels"):
        infer_config(model_from_config({"kind": "vit", **TINY}).state_dict(), {**gelu, "num_heads": 5})


def broken(change) -> dict[str, torch.Tensor]:
    state = dict(model_from_config({"kind": "vit", **TINY}).state_dict())
    change(state)
    return state


@pytest.mark.parametrize(
    ("change", "stated", "message"),
    [
        (lambda s: s.update({"encoder.blocks.1.mlp.fc1.weight": torch.zeros(9, 48)}), {}, r"\(192, 48\).*\(9, 48\)"),
        (lambda s: s.pop("encoder.blocks.1.attn.proj.bias"), {}, "attn.proj.bias is .* but absent in block 1"),
        (lambda s: [s.pop(name) for name in list(s) if ".blocks.0." in name], {}, "names"),
        (lambda s: s.update({"encoder.blocks.3.norm1.bias": torch.zeros(48)}), {}, "block 2 is missing"),
        (lambda s: s.update({"embed.pos_embed": torch.zeros(1, 12, 48)}), {}, "12 rows"),
        (lambda s: s.update({"embed.reg_token": torch.zeros(1, 4, 48), "embed.pos_embed": torch.zeros(1, 9, 48)}), {},
         "9 rows could have two square grids"),
        (lambda s: None, {"image_size": 64}, "17 rows does not fit image_size .*64 patches"),
        (lambda s: None, {"in_chans": 1}, "in_chans is 1 .* 3 in the tensors"),
        (lambda s: None, {"num_classes": 7}, "num_classes is 7 .* 5 in the tensors"),
        (lambda s: s.pop("encoder.blocks.0.mlp.fc1.weight"), {}, "mlp.fc1.weight of block 0 is missing"),
        (lambda s: s.update({"encoder.blocks.0.attn.proj.weight": torch.zeros(48)}), {}, r"proj.weight .* is \(48,\)"),
        (lambda s: s.update({"encoder.blocks.0.attn.proj.weight": torch.zeros(48, 32)}), {},
         r"\(144, 48\).*\(48, 32\)"),
        (lambda s: s.update({"embed.pos_embed": torch.zeros(17, 48)}), {}, r"pos_embed is \(17, 48\), but must be"),
        (lambda s: s.update({"pool.latent": torch.zeros(1, 1, 48)}), {}, "pooling has an MLP"),
        (lambda s: s.update({"pool.norm.weight": torch.zeros(48)}), {}, "one last norm"),
    ],
)
def test_contradictions_are_errors_with_both_numbers(change, stated: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        infer_config(broken(change), {"num_heads": 3, "activation": "gelu", **stated})


def test_a_declared_config_agrees_with_the_inferred_one() -> None:
    config = {"dim": 48, "image_size": (32, 32), "layer_scale": 1e-5, "mlp_ratio": 2.6667, "registers": 0}
    check_declared(config, {"dim": 48, "image_size": 32, "layer_scale": 0.1, "mlp_ratio": 8 / 3, "no_such_part": 1})
    for key, value in {"dim": 49, "image_size": (32, 48), "layer_scale": None, "mlp_ratio": 2.69}.items():
        with pytest.raises(ConfigMismatch, match=f"^{key} is .* in the source's config, but .* in its tensors"):
            check_declared(config, {"registers": 0, key: value})


def test_an_activation_is_never_guessed() -> None:
    with pytest.raises(ValueError, match="activation cannot be inferred from tensors; give activation=gelu"):
        infer_config(broken(lambda state: None), {"num_heads": 3, "activation": None})


def test_another_network_is_refused() -> None:
    with pytest.raises(ValueError, match="not the names of a Vision Transformer or text encoder: conv1.weight"):
        infer_config({"conv1.weight": torch.zeros(3)}, {})


def test_the_config_holds_plain_values() -> None:
    config = VisionTransformerConfig(**TINY)
    values = infer_config(model_from_config(config.to_dict()).state_dict(), {"num_heads": 3, "activation": "gelu"})
    assert {**config.to_dict(), **values} == config.to_dict()
    assert set(values) - {"kind"} <= {field.name for field in dataclasses.fields(config)}
