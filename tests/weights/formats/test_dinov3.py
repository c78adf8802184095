"""DINOv3 and EVA-02 under the names of transformers and of their own repositories, with random weights."""

import pytest
import timm
import torch
from timm.models.eva import checkpoint_filter_fn

from tests.weights.formats.test_timm import SMALL, foreign
from vit.models import VisionTransformer, VisionTransformerConfig
from vit.weights import detect_format, infer_config, load_weights

CLOSE = {"rtol": 0, "atol": 1e-5}


def built(state, source_config, **stated) -> VisionTransformer:
    found = detect_format(state)
    facts = {**found.format.config_values(found.state, source_config), **stated}
    model = VisionTransformer(VisionTransformerConfig.from_dict(infer_config(found.converted, facts))).eval()
    report = load_weights(model, state)
    assert not report.named("unused") and not report.named("new")
    return model


def images(model: VisionTransformer) -> torch.Tensor:
    return torch.randn(2, 3, *model.config.image_size, generator=torch.Generator().manual_seed(1))


TRANSFORMERS = {
    "small": {},
    "huge plus": {"use_gated_mlp": True, "hidden_act": "silu"},
    "no biases, no registers": {"query_bias": False, "value_bias": False, "num_register_tokens": 0},
    "all biases": {"key_bias": True, "rope_theta": 50.0, "layer_norm_eps": 1e-3},
}


@pytest.mark.parametrize("saved", [False, True], ids=["in memory", "file"])
@pytest.mark.parametrize("case", TRANSFORMERS)
def test_tokens_equal_transformers(case: str, saved: bool, tmp_path) -> None:
    from safetensors.torch import load_file
    from transformers import DINOv3ViTConfig, DINOv3ViTModel

    config = DINOv3ViTConfig(**{
        "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4, "image_size": 48,
        "patch_size": 8, "num_register_tokens": 4, **TRANSFORMERS[case]})
    reference = DINOv3ViTModel(config).eval()
    with torch.no_grad():
        for parameter in reference.parameters():
            parameter.normal_(std=0.1)
    state = reference.state_dict()
    if saved:
        reference.save_pretrained(tmp_path)
        state = load_file(tmp_path / "model.safetensors")
    model = built(state, config.to_dict())
    with torch.no_grad():
        expected = reference(images(model))
        torch.testing.assert_close(model.encode(images(model)), expected.last_hidden_state, **CLOSE)
        torch.testing.assert_close(model(images(model)), expected.pooler_output, **CLOSE)


def own_names(state, renamed: dict[str, str]) -> dict[str, torch.Tensor]:
    """timm's names as a repository has them."""
    theirs = {}
    for name, tensor in state.items():
        for old, new in renamed.items():
            name = name.replace(old, new)
        theirs[name] = tensor
    return theirs


@pytest.mark.parametrize("name", ["vit_base_patch16_dinov3_qkvb", "vit_huge_plus_patch16_dinov3_qkvb"])
def test_original_files_of_dinov3_as_timm_loads_them(name: str) -> None:
    reference = timm.create_model(name, **SMALL, img_size=(256, 256), global_pool="token").eval()
    torch.manual_seed(0)
    state = own_names(reference.state_dict(), {
        "reg_token": "storage_tokens", "gamma_1": "ls1.gamma", "gamma_2": "ls2.gamma", "mlp.fc1_g": "mlp.w1",
        "mlp.fc1_x": "mlp.w2", **({"mlp.fc2": "mlp.w3"} if "plus" in name else {})})
    for i in range(2):
        state[f"blocks.{i}.attn.qkv.bias"] = torch.zeros(3 * 64)
        state[f"blocks.{i}.attn.qkv.bias_mask"] = torch.ones(3 * 64).index_fill(0, torch.arange(64, 128), 0)
        del state[f"blocks.{i}.attn.q_bias"], state[f"blocks.{i}.attn.v_bias"]
    state = {key: torch.randn_like(tensor) * 0.1 if "mask" not in key else tensor for key, tensor in state.items()}
    state["mask_token"] = torch.zeros(1, 64)
    state["rope_embed.periods"] = 100 ** (torch.arange(4) / 4)
    reference.load_state_dict(checkpoint_filter_fn(dict(state), reference))
    model = built(state, {})
    assert model.config.num_heads == 4
    with torch.no_grad():
        torch.testing.assert_close(model(images(model)), reference(images(model)), **CLOSE)


@pytest.mark.parametrize("case", ["EVA-02", "EVA-02 CLIP 16"])
def test_original_files_of_eva02_as_timm_loads_them(case: str) -> None:
    reference = foreign(case)
    state = own_names(reference.state_dict(), {
        "q_proj.bias": "q_bias", "v_proj.bias": "v_bias", "attn.norm": "attn.inner_attn_ln",
        "mlp.norm": "mlp.ffn_ln", "mlp.fc1_g": "mlp.w1", "mlp.fc1_x": "mlp.w2", "mlp.fc2": "mlp.w3"})
    state["rope.freqs_cos"] = state["rope.freqs_sin"] = torch.zeros(16, 16)  # computed, both there and here
    read = checkpoint_filter_fn(dict(state), reference)
    assert {name: read[name].shape for name in read} == {
        name: tensor.shape for name, tensor in reference.state_dict().items()}
    reference.load_state_dict(read)
    model = built(state, {})
    assert model.config.num_heads == 4
    with torch.no_grad():
        torch.testing.assert_close(model(images(model)), reference(images(model)), **CLOSE)


def test_the_widest_models_have_another_number_of_heads() -> None:
    with torch.device("meta"):
        state = timm.create_model("vit_huge_plus_patch16_dinov3", depth=1).state_dict()
    found = detect_format(state)
    assert infer_config(found.converted, found.format.config_values(state, {}))["num_heads"] == 20
