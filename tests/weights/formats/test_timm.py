"""Every family of timm's Vision Transformers as a small model: detected, imported with equal logits, and exported."""

import json

import pytest
import timm
import torch

from vit.exchange import import_weights
from vit.models import VisionTransformer, VisionTransformerConfig
from vit.weights import infer_config, timm_arguments, to_timm
from vit.weights.format_detection import detect_format
from vit.weights.formats.timm import from_timm, timm_config_values
from vit.weights.formats.timm.model_values import unsupported_part

SMALL = {"embed_dim": 64, "depth": 2, "num_heads": 4, "num_classes": 7}
FAMILIES = {
    # the first family with a feature -> an architecture of timm, and what makes it small
    "AugReg": ("vit_base_patch16_224", {"img_size": 32, "patch_size": 8}),
    "MAE": ("vit_base_patch16_224", {"img_size": 32, "global_pool": "avg"}),
    "not square": ("vit_base_patch16_224", {"img_size": (32, 48), "patch_size": (8, 16), "in_chans": 1}),
    "no head": ("vit_base_patch16_224", {"img_size": 32, "num_classes": 0}),
    "DeiT": ("deit_tiny_patch16_224", {"img_size": 32}),
    "DeiT distilled": ("deit_base_distilled_patch16_224", {"img_size": 32}),
    "DeiT III": ("deit3_small_patch16_224", {"img_size": 32}),
    "FlexiViT": ("flexivit_small", {"img_size": 48}),
    "gap": ("vit_medium_patch16_gap_240", {"img_size": 32}),
    "reg4 gap": ("vit_medium_patch16_reg4_gap_256", {"img_size": 32}),
    "reg4 map": ("vit_so150m_patch16_reg4_map_256", {"img_size": 32}),
    "pooled registers": ("test_vit3", {"img_size": 32}),
    "RMSNorm": ("test_vit4", {"img_size": 32}),
    "InternViT": ("vit_intern300m_patch14_448", {"img_size": 28}),
    "DINOv2": ("vit_small_patch14_dinov2", {"img_size": 42}),
    "DINOv2 reg4": ("vit_base_patch14_reg4_dinov2", {"img_size": 42}),
    "DINOv2 giant": ("vit_giant_patch14_reg4_dinov2", {"img_size": 28, "embed_dim": 96}),
    "CLIP": ("vit_base_patch16_clip_224", {"img_size": 32}),
    "CLIP quick": ("vit_large_patch14_clip_quickgelu_224", {"img_size": 28}),
    "CLIP mean": ("vit_base_patch32_clip_224", {"img_size": 64, "global_pool": "avg"}),
    "SigLIP": ("vit_base_patch16_siglip_224", {"img_size": 32}),
    "SigLIP so400m": ("vit_so400m_patch14_siglip_224", {"img_size": 28}),
    "SigLIP 2": ("vit_so400m_patch16_siglip_256", {"img_size": 32}),
    "SigLIP gap": ("vit_so400m_patch14_siglip_gap_224", {"img_size": 28}),
    "AIMv2": ("aimv2_large_patch14_224", {"img_size": 28}),
    "res-post-norm": ("vit_base_patch16_rpn_224", {"img_size": 32}),
    "parallel": ("vit_base_patch16_xp_224", {"img_size": 32}),
    "relative": ("vit_relpos_small_patch16_224", {"img_size": (32, 64)}),
    "relative cls": ("vit_relpos_base_patch16_cls_224", {"img_size": 32}),
    "relative clsgap": ("vit_relpos_base_patch16_clsgap_224", {"img_size": 32}),
    "relative rpn": ("vit_relpos_medium_patch16_rpn_224", {"img_size": (48, 32)}),
    "relative shared": ("vit_srelpos_small_patch16_224", {"img_size": 32}),
    "EVA-02 enormous": ("eva02_enormous_patch14_clip_224", {"img_size": 28}),
    "parallel reg gap": ("vit_pwee_patch16_reg1_gap_256", {"img_size": (32, 48)}),
    "BEiT-3": ("beit3_base_patch16_224", {"img_size": 32}),
    "EVA": ("eva_giant_patch14_224", {"img_size": 28}),
    "EVA-CLIP": ("eva_giant_patch14_clip_224", {"img_size": 28}),
    "EVA-02 tiny": ("eva02_tiny_patch14_224", {"img_size": (28, 56)}),
    "EVA-02": ("eva02_base_patch14_448", {"img_size": 56}),
    "EVA-02 CLIP": ("eva02_large_patch14_clip_336", {"img_size": 42}),
    "EVA-02 CLIP 16": ("eva02_base_patch16_clip_224", {"img_size": 32}),
    "rope reg gap": ("vit_medium_patch16_rope_reg1_gap_256", {"img_size": 64}),
    "rope reg gap d": ("vit_mediumd_patch16_rope_reg1_gap_256", {"img_size": (32, 64)}),
    "RoPE-ViT": ("vit_small_patch16_rope_224", {"img_size": (32, 64)}),
    "RoPE-ViT ape": ("vit_base_patch16_rope_ape_224", {"img_size": (32, 64)}),
    "RoPE-Mixed": ("vit_small_patch16_rope_mixed_224", {"img_size": (32, 64)}),
    "RoPE-Mixed ape": ("vit_base_patch16_rope_mixed_ape_224", {"img_size": (32, 64)}),
    "PE core": ("vit_pe_core_base_patch16_224", {"img_size": (32, 64)}),
    "PE core gigantic": ("vit_pe_core_gigantic_patch14_448", {"img_size": 28}),
    "PE lang": ("vit_pe_lang_large_patch14_448", {"img_size": 28}),
    "PE spatial": ("vit_pe_spatial_tiny_patch16_512", {"img_size": (64, 32)}),
    "DINOv3": ("vit_small_patch16_dinov3", {"img_size": (32, 64)}),
    "DINOv3 qkvb": ("vit_base_patch16_dinov3_qkvb", {"img_size": 48, "global_pool": "token"}),
    "DINOv3 plus": ("vit_huge_plus_patch16_dinov3", {"img_size": 48}),
}
# timm stores queries, keys and values, or gate and value, separately here, or one part for all blocks; vit and its
# exports do not
REFORMED = ("EVA-02", "EVA-02 CLIP", "EVA-02 CLIP 16", "DINOv3 plus", "relative shared")


def foreign(case: str) -> torch.nn.Module:
    """A small model of the architecture; all parameters are random, including those that are initially 0 or 1."""
    name, options = FAMILIES[case]
    model = timm.create_model(name, **{**SMALL, **options}).eval()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.copy_(1 + 0.3 * noise if parameter.ndim == 1 and parameter.mean() > 0.5 else 0.08 * noise)
    return model


def imported(state, source_config) -> VisionTransformer:
    found = detect_format(state).format
    ours = found.convert(state)
    config = infer_config(ours, found.config_values(state, source_config))
    model = VisionTransformer(VisionTransformerConfig.from_dict(config)).eval()
    model.load_state_dict(ours)
    return model


def source_config(case: str) -> dict:
    """The config.json of a timm folder."""
    name, options = FAMILIES[case]
    arguments = {key: value for key, value in {**SMALL, **options}.items() if key != "num_classes"}
    return json.loads(json.dumps({"architecture": name, "model_args": arguments,
                                  "num_classes": options.get("num_classes", 7)}))


@pytest.mark.parametrize("case", FAMILIES)
def test_logits_equal_timm_after_import_and_export(case: str) -> None:
    reference = foreign(case)
    state = reference.state_dict()
    model = imported(state, source_config(case))
    x = torch.randn(2, model.config.in_chans, *model.config.image_size, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        expected = reference(x)
        torch.testing.assert_close(model(x), expected, rtol=0, atol=1e-5)
    assert expected.std() > 0.1  # something to compare
    arguments = timm_arguments(model.config)
    assert isinstance(arguments, dict), arguments
    classes = model.config.num_classes
    back = timm.create_model(arguments["architecture"], num_classes=classes, **arguments["model_args"]).eval()
    written = to_timm(model.state_dict(), model.config)
    back.load_state_dict(written)
    with torch.no_grad():
        torch.testing.assert_close(back(x), expected, rtol=0, atol=1e-5)
    if case not in REFORMED:
        assert set(written) == set(state) and all(torch.equal(written[name], state[name]) for name in state)
    again = imported(written, {"module": back})
    assert again.config == model.config
    assert all(torch.equal(again.state_dict()[name], tensor) for name, tensor in model.state_dict().items())


BARE = ("AugReg", "gap", "reg4 gap", "reg4 map", "DeiT III", "DINOv2 reg4", "DINOv2 giant", "CLIP quick", "SigLIP 2",
        "SigLIP gap", "RMSNorm", "EVA", "EVA-02 tiny", "EVA-02 CLIP 16", "AIMv2")


@pytest.mark.parametrize("case", BARE)
def test_tensors_without_a_config_have_the_published_values(case: str) -> None:
    reference = foreign(case)
    reference.set_input_size(img_size=[4 * edge for edge in reference.patch_embed.patch_size])  # no config, no aspect
    state = reference.state_dict()
    found = detect_format(state)
    stated = {**found.format.config_values(state, {}), "num_heads": 4}
    if case in ("CLIP quick", "SigLIP 2", "reg4 map"):
        assert stated["activation"] is None
        stated["activation"] = {"CLIP quick": "quick_gelu", "SigLIP 2": "gelu_tanh", "reg4 map": "gelu"}[case]
    model = VisionTransformer(VisionTransformerConfig.from_dict(infer_config(found.converted, stated))).eval()
    model.load_state_dict(found.converted)
    x = torch.randn(2, 3, *model.config.image_size)
    with torch.no_grad():
        torch.testing.assert_close(model(x), reference(x), rtol=0, atol=1e-5)


def test_dinov3_without_a_config_has_the_default_grid() -> None:
    reference = foreign("DINOv3 plus")
    state = reference.state_dict()
    found = detect_format(state)
    stated = {**found.format.config_values(state, {}), "num_heads": 4}
    model = VisionTransformer(VisionTransformerConfig.from_dict(infer_config(found.converted, stated))).eval()
    model.load_state_dict(found.converted)
    reference.set_input_size(img_size=model.config.image_size)
    x = torch.randn(1, 3, *model.config.image_size)
    assert model.config.grid == (16, 16)
    with torch.no_grad():
        torch.testing.assert_close(model(x), reference(x), rtol=0, atol=1e-5)


@pytest.mark.parametrize("case", ["PE core", "PE lang", "PE spatial", "rope reg gap", "RoPE-ViT"])
def test_rotary_positions_are_not_guessed(case: str) -> None:
    state = foreign(case).state_dict()
    with pytest.raises(ValueError, match="the tensors do not determine these rotary positions"):
        detect_format(state).format.config_values(state, {})


@pytest.mark.parametrize("case", ["res-post-norm", "relative rpn"])
def test_the_position_of_the_norms_is_not_guessed(case: str) -> None:
    state = foreign(case).state_dict()
    message = "do not determine whether the norms of these blocks come before attention and MLP or after"
    with pytest.raises(ValueError, match=message):
        detect_format(state).format.config_values(state, {})


def test_positions_that_blocks_share_are_their_own_after_the_import() -> None:
    converted = from_timm(foreign("relative shared").state_dict())
    tables = [tensor for name, tensor in converted.items() if ".attn.relative.mlp.fc1.weight" in name]
    assert len(tables) > 1 and torch.equal(tables[0], tables[1]) and tables[0].data_ptr() != tables[1].data_ptr()


@pytest.mark.parametrize(("name", "value"), [("grid_offset", 0.5), ("normalize_coords", "max")])
def test_rotary_positions_of_another_scale_are_unsupported(name: str, value: object) -> None:
    with torch.device("meta"):
        model = timm.create_model("vit_small_patch16_dinov3", depth=1)
    assert unsupported_part(model) is None
    setattr(model.rope, name, value)
    assert unsupported_part(model) == "rotary positions with an offset from the centre"


def test_assumptions_between_two_families_are_listed() -> None:
    reference = foreign("RoPE-ViT ape")
    reference.set_input_size(img_size=64)
    alone, report = import_weights(reference.state_dict(), num_heads=4)
    assert alone.config.positions == "learned" and any("RoPE-ViT with a table" in note for note in report.notes)
    model, report = import_weights(reference)
    assert model.config.positions == "learned_rotary" and not any("RoPE-ViT" in note for note in report.notes)


@pytest.mark.parametrize("case", ["RoPE-Mixed", "RoPE-Mixed ape"])
def test_mixed_rotary_positions_have_their_frequencies(case: str) -> None:
    reference = foreign(case)
    reference.set_input_size(img_size=224 if case == "RoPE-Mixed" else 64)
    model = imported(reference.state_dict(), {})
    x = torch.randn(1, 3, *model.config.image_size)
    with torch.no_grad():
        torch.testing.assert_close(model(x), reference(x), rtol=0, atol=1e-5)


REFUSED = {
    "vit_small_patch16_18x2_224": "blocks of the class ParallelThingsBlock",
    "vit_dwee_patch16_reg1_gap_256": "attention of the class DiffAttention",
    "vit_tiny_r_s16_p8_224": "a stem of the class HybridEmbed",
    "vit_base_patch16_sapiens2": "LayerScale in the attention branch only",
    "beit_base_patch16_224": "the class Beit",
}


@pytest.mark.parametrize("name", REFUSED)
def test_unsupported_parts_are_named_in_one_sentence(name: str) -> None:
    with pytest.raises(ValueError, match=f"this timm model has {REFUSED[name]}, which vit does not support"):
        timm_config_values({}, {"architecture": name})


@pytest.mark.parametrize(("options", "message"), [
    ({"global_pool": "max"}, "the pooling 'max'"),
    ({"global_pool": "prr"}, "the pooling 'prr'"),
    ({"act_layer": "hard_swish"}, "the activation Hardswish"),
])
def test_unsupported_options(options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        timm_config_values({}, {"architecture": "vit_tiny_patch16_224", "model_args": options})


@pytest.mark.parametrize("values", [{"architecture": 5}, {"model_args": [1]}, {"pretrained_cfg": "no"}])
def test_an_invalid_config(values: dict) -> None:
    with pytest.raises(ValueError, match="architecture must be a string"):
        timm_config_values({}, {"architecture": "vit_tiny_patch16_224", **values})


def test_unsupported_blocks_without_a_config() -> None:
    with torch.device("meta"):
        state = timm.create_model("vit_small_patch16_18x2_224", depth=1).state_dict()
    found = detect_format(state)
    with pytest.raises(ValueError, match="not the names of a Vision Transformer or text encoder"):
        infer_config(found.converted, found.format.config_values(state, {}))


def test_parallel_blocks_without_a_config() -> None:
    theirs = foreign("parallel")
    state = theirs.state_dict()
    ours = imported(state, {})
    images = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        torch.testing.assert_close(ours(images), theirs(images), rtol=0, atol=1e-5)
    del state["blocks.1.attn_out_proj.weight"]
    with pytest.raises(ValueError, match="has blocks.1.in_proj.weight, but no attn_out_proj of a matching"):
        imported(state, {})


def test_an_architecture_that_timm_does_not_have() -> None:
    with pytest.raises(ValueError, match="the architecture 'vit_of_tomorrow', which timm .* does not have"):
        timm_config_values({}, {"architecture": "vit_of_tomorrow"})


@pytest.mark.parametrize(("arguments", "message"), [
    ({"checkpoint_path": "evil.pth"}, "model_args have checkpoint_path, which would load another file"),
    ({"pretrained": True}, "model_args have pretrained"),
    ({"num_heads": 5}, "timm cannot build vit_tiny_patch16_224 with the config's model_args: dim should be divisible"),
    ({"wings": 2}, "timm cannot build .*wings"),
    ({"block": {"depths": [2, 10**9]}}, r"have depths=\[2, 1000000000\], but the largest supported value is 1,000"),
    ({"embed_dim": 10**9}, "have embed_dim=1000000000, but the largest supported value is 10,000,000"),
])
def test_refused_arguments_of_a_config(arguments: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        timm_config_values({}, {"architecture": "vit_tiny_patch16_224", "model_args": arguments})


def test_pixels_beyond_the_last_patch_are_ignored() -> None:
    source = {"architecture": "vit_so400m_patch14_siglip_384", "model_args": {"depth": 1}}
    assert timm_config_values({}, source)["image_size"] == [378, 378]
