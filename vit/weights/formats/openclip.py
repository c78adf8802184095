"""OpenAI's CLIP (arXiv 2103.00020) and OpenCLIP (2212.07143): import of the vision tower from their own state dicts."""

from collections.abc import Mapping
from typing import Any

from vit.weights.export_checks import original_vit_config
from vit.weights.formats.timm import from_timm, timm_config_values, timm_declared_config
from vit.weights.renaming import RenamedState
from vit.weights.weight_format import State, WeightFormat

LAYER = r"transformer\.resblocks\.(\d+)\."
RULES = [
    (r"conv1\.", "embed.proj."),
    (r"class_embedding$", "embed.cls_token"),
    (r"positional_embedding$", "embed.pos_embed"),
    (r"ln_pre\.", "embed.norm."),
    (r"ln_post\.", "encoder.norm."),
    (r"proj$", "head.weight"),
    (LAYER + r"ln_([12])\.", r"encoder.blocks.\1.norm\2."),
    (LAYER + r"attn\.in_proj_", r"encoder.blocks.\1.attn.qkv."),
    (LAYER + r"attn\.out_proj\.", r"encoder.blocks.\1.attn.proj."),
    (LAYER + r"ls_([12])\.gamma$", r"encoder.blocks.\1.ls\2.gamma"),
    (LAYER + r"mlp\.c_fc\.", r"encoder.blocks.\1.mlp.fc1."),
    (LAYER + r"mlp\.c_proj\.", r"encoder.blocks.\1.mlp.fc2."),
]
POOLS = {"tok": "class", "avg": "mean"}  # pool_type of OpenCLIP -> pool of vit
VISION_KEYS = {"image_size": "image_size", "patch_size": "patch_size", "width": "dim", "layers": "depth"}
TOWER, TRUNK, PROJECTION = "visual.", "visual.trunk.", "visual.head.proj."
OPENAI_SIZES = ("input_resolution", "context_length", "vocab_size")  # only in OpenAI's own files
EXCLUDED = {
    r"transformer\.|token_embedding\.|positional_embedding$|ln_final\.|text_projection$|text\.|attn_mask$":
        "the text tower",
    r"logit_scale$|logit_bias$": "the comparison of images and texts",
    "|".join(f"{name}$" for name in OPENAI_SIZES): "a size of the model",
}


def from_openclip(state: State) -> RenamedState:
    """The vision tower. The projection (D,shared) into the space shared with texts becomes the head, with a bias of
    zero.
    """
    tower = TOWER if f"{TOWER}conv1.weight" in state else ""
    converted = RenamedState(state, [(tower.replace(".", r"\.") + pattern, name) for pattern, name in RULES])
    converted.make("embed.cls_token", ["embed.cls_token"], lambda token: token[None, None])  # (1,1,D)
    converted.make("embed.pos_embed", ["embed.pos_embed"], lambda table: table[None])  # (1,N,D)
    if "head.weight" in converted:
        converted.make("head.weight", ["head.weight"], lambda matrix: matrix.T)
        converted.add_zero_bias("head.bias", weight="head.weight")
    return converted


def from_trunk(state: State) -> RenamedState:
    """The vision tower of an OpenCLIP model that has timm's network (`visual.trunk`), and the linear projection after
    it, if any.
    """
    trunk = {name.removeprefix(TRUNK): tensor for name, tensor in state.items() if name.startswith(TRUNK)}
    converted = from_timm(trunk)
    converted.sources = {name: tuple(TRUNK + each for each in sources) for name, sources in converted.sources.items()}
    for name, tensor in state.items():
        if not name.startswith(TRUNK):
            own = name.replace(PROJECTION, "head.")
            converted[own], converted.sources[own] = tensor, (name,)
    converted.add_zero_bias("head.bias", weight="head.weight")
    return converted


def is_trunk(state: State) -> bool:
    return TRUNK + "patch_embed.proj.weight" in state


def trunk_config_values(state: State, source_config: Mapping[str, Any]) -> dict[str, Any]:
    """Config values of the timm model that open_clip_config.json names."""
    vision = source_config.get("model_cfg", source_config).get("vision_cfg", {})
    tower = {name.removeprefix(TRUNK): tensor for name, tensor in state.items() if name.startswith(TRUNK)}
    return timm_config_values(tower, trunk_config(vision))


def trunk_config(vision: Mapping[str, Any]) -> dict[str, Any]:
    """The `config.json` that a timm folder of the tower would have; {} if `vision_cfg` names no timm model."""
    if "timm_model_name" not in vision:
        return {}
    pool = {"global_pool": vision["timm_pool"]} if vision.get("timm_pool") else {}
    return {"architecture": vision["timm_model_name"], "model_args": {"num_classes": 0, **pool}}


def is_openclip(state: State) -> bool:
    return any(f"{tower}conv1.weight" in state and f"{tower}class_embedding" in state for tower in ("", TOWER))


def config_values(state: State, source_config: Mapping[str, Any]) -> dict[str, Any]:
    """Config values, from open_clip_config.json.

    Without this file the activation is known for OpenAI's files only, which are recognized by the sizes they store and
    have quick_gelu.

    Raises:
        ValueError: the pooling is not supported.
    """
    model = source_config.get("model_cfg", source_config)
    vision = model.get("vision_cfg", {})
    stated = {own: vision[key] for key, own in VISION_KEYS.items() if key in vision}
    if vision:
        activation = "gelu"
        if model.get("quick_gelu"):
            activation = "quick_gelu"
        elif (vision.get("act_kwargs") or {}).get("approximate") == "tanh":
            activation = "gelu_tanh"
        stated["norm_eps"] = (vision.get("norm_kwargs") or {}).get("eps", 1e-5)
        stated["num_heads"] = vision.get("width", 768) // vision.get("head_width", 64)
        if (pool := vision.get("pool_type", "tok")) not in POOLS or vision.get("final_ln_after_pool"):
            raise ValueError(f"vision_cfg of the source's config has pool_type={pool} and final_ln_after_pool="
                             f"{vision.get('final_ln_after_pool', False)}, which vit does not support; supported: "
                             f"{', '.join(POOLS)}, with the norm before the pooling")
        stated["pool"] = POOLS[pool]
    else:
        activation = "quick_gelu" if set(OPENAI_SIZES) <= set(state) else None
    return {"norm_eps": 1e-5, "activation": activation, "pool": "class", **stated}


def declared_config(state: State, source_config: Mapping[str, Any]) -> dict[str, Any]:
    """The declared config of the vision tower that open_clip_config.json describes."""
    model = source_config.get("model_cfg", source_config)
    if not (vision := model.get("vision_cfg")):
        return {}
    declared = original_vit_config(
        embed_norm=not vision.get("no_ln_pre", False), patch_bias=False, qkv_bias=True,
        layer_scale=vision.get("ls_init_value"), mlp_ratio=vision.get("mlp_ratio", 4.0),
        depth=vision.get("layers", 12), dim=vision.get("width", 768))
    return declared | declared_projection(model)


def trunk_declared_config(state: State, source_config: Mapping[str, Any]) -> dict[str, Any]:
    """The declared config of timm's network with the projection after it."""
    model = source_config.get("model_cfg", source_config)
    if not (tower := trunk_config(model.get("vision_cfg", {}))):
        return {}
    linear = model["vision_cfg"].get("timm_proj") == "linear"
    return timm_declared_config(state, tower) | (declared_projection(model) if linear else {})


def declared_projection(model: Mapping[str, Any]) -> dict[str, int]:
    """The width of the space shared with texts as the number of outputs; {} if it is not stated."""
    return {"num_classes": model["embed_dim"]} if "embed_dim" in model else {}


OPENCLIP = WeightFormat("OpenAI CLIP or OpenCLIP", is_openclip, from_openclip, config_values, EXCLUDED, declared_config)
OPENCLIP_TIMM = WeightFormat("OpenCLIP with a tower of timm", is_trunk, from_trunk, trunk_config_values, EXCLUDED,
                             trunk_declared_config)
