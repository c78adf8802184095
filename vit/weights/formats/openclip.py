"""OpenAI's CLIP and OpenCLIP: the image tower of their own state dicts to ours."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from vit.weights.exporting import fixed
from vit.weights.formats.timm import from_timm, timm_declared, timm_facts
from vit.weights.renaming import Renamed
from vit.weights.weight_format import Format, State

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
POOLS = {"tok": "class", "avg": "mean"}  # pool_type there
TOWER, TRUNK, PROJECTION = "visual.", "visual.trunk.", "visual.head.proj."
WORDS = ("input_resolution", "context_length", "vocab_size")  # sizes that only OpenAI's own files hold
APART = {
    r"transformer\.|token_embedding\.|positional_embedding$|ln_final\.|text_projection$|text\.|attn_mask$":
        "the tower that reads text",
    r"logit_scale$|logit_bias$": "how images and texts are compared",
    "|".join(f"{word}$" for word in WORDS): "a number about the model",
}


def from_openclip(state: State) -> dict[str, Tensor]:
    """The projection (D,shared) into the space shared with texts becomes the head, whose bias is zero."""
    tower = TOWER if f"{TOWER}conv1.weight" in state else ""
    ours = Renamed(state, [(tower.replace(".", r"\.") + pattern, name) for pattern, name in RULES])
    ours.make("embed.cls_token", ["embed.cls_token"], lambda token: token[None, None])  # (1,1,D)
    ours.make("embed.pos_embed", ["embed.pos_embed"], lambda table: table[None])  # (1,N,D)
    if "head.weight" in ours:
        ours.make("head.weight", ["head.weight"], lambda matrix: matrix.T)
        ours.zeros("head.bias", like="head.weight")
    return ours


def from_trunk(state: State) -> dict[str, Tensor]:
    """A tower of timm's inside OpenCLIP, with a linear projection after it or none."""
    ours = from_timm({name.removeprefix(TRUNK): tensor for name, tensor in state.items() if name.startswith(TRUNK)})
    ours.origins = {name: tuple(TRUNK + each for each in origins) for name, origins in ours.origins.items()}
    for name, tensor in state.items():
        if not name.startswith(TRUNK):
            own = name.replace(PROJECTION, "head.")
            ours[own], ours.origins[own] = tensor, (name,)
    ours.zeros("head.bias", like="head.weight")
    return ours


def is_trunk(state: State) -> bool:
    return TRUNK + "patch_embed.proj.weight" in state


def trunk_facts(state: State, source_config: Mapping[str, Any]) -> dict[str, Any]:
    """What timm knows of the tower that open_clip_config.json names."""
    vision = source_config.get("model_cfg", source_config).get("vision_cfg", {})
    tower = {name.removeprefix(TRUNK): tensor for name, tensor in state.items() if name.startswith(TRUNK)}
    return timm_facts(tower, trunk_config(vision))


def trunk_config(vision: Mapping[str, Any]) -> dict[str, Any]:
    """What a timm folder would say of the tower; {} where it is not named."""
    if "timm_model_name" not in vision:
        return {}
    pool = {"global_pool": vision["timm_pool"]} if vision.get("timm_pool") else {}
    return {"architecture": vision["timm_model_name"], "model_args": {"num_classes": 0, **pool}}


def is_openclip(state: State) -> bool:
    return any(f"{tower}conv1.weight" in state and f"{tower}class_embedding" in state for tower in ("", TOWER))


def facts(state: State, source_config: Mapping[str, Any]) -> dict[str, Any]:
    """The tensors of OpenAI's and LAION's models look alike, but their activations differ; open_clip_config.json or
    the sizes that OpenAI stored tell them apart.
    """
    model = source_config.get("model_cfg", source_config)
    vision = model.get("vision_cfg", {})
    stated = {ours: vision[theirs] for theirs, ours in (("image_size", "image_size"), ("patch_size", "patch_size"),
                                                        ("width", "dim"), ("layers", "depth")) if theirs in vision}
    if vision:
        activation = "quick_gelu" if model.get("quick_gelu") else "gelu"
        stated["num_heads"] = vision["width"] // vision.get("head_width", 64)
        if (pool := vision.get("pool_type", "tok")) not in POOLS or vision.get("final_ln_after_pool"):
            raise ValueError(f"vision_cfg of the source's config says pool_type={pool}, final_ln_after_pool="
                             f"{vision.get('final_ln_after_pool', False)}, which no model of ours does; known: "
                             f"{', '.join(POOLS)}, the norm before it")
        stated["pool"] = POOLS[pool]
    else:
        activation = "quick_gelu" if set(WORDS) <= set(state) else None
    return {"norm_eps": 1e-5, "activation": activation, "pool": "class", **stated}


def declared(state: State, source_config: Mapping[str, Any]) -> dict[str, Any]:
    """Every part of the tower for images that open_clip_config.json describes."""
    model = source_config.get("model_cfg", source_config)
    if not (vision := model.get("vision_cfg")):
        return {}
    scale = vision.get("ls_init_value")
    parts = fixed(embed_norm=not vision.get("no_ln_pre", False), patch_bias=False, qkv_bias=True, layer_scale=scale,
                  mlp_ratio=vision.get("mlp_ratio", 4.0), depth=vision.get("layers", 12), dim=vision.get("width", 768))
    return parts | projected(model)


def trunk_declared(state: State, source_config: Mapping[str, Any]) -> dict[str, Any]:
    """Every part of the tower of timm, and the projection after it."""
    model = source_config.get("model_cfg", source_config)
    if not (tower := trunk_config(model.get("vision_cfg", {}))):
        return {}
    linear = model["vision_cfg"].get("timm_proj") == "linear"
    return timm_declared(state, tower) | (projected(model) if linear else {})


def projected(model: Mapping[str, Any]) -> dict[str, int]:
    """The width of the space shared with texts, where it is said."""
    return {"num_classes": model["embed_dim"]} if "embed_dim" in model else {}


OPENCLIP = Format("OpenAI CLIP or OpenCLIP", is_openclip, from_openclip, facts, APART, declared)
OPENCLIP_TIMM = Format("OpenCLIP with a tower of timm", is_trunk, from_trunk, trunk_facts, APART, trunk_declared)
