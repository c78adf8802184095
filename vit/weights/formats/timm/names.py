"""Parameter names of timm's VisionTransformer and Eva, both ways, and the format record."""

import re
from collections.abc import Iterable, Mapping
from typing import Any

from torch import Tensor

from vit.nn.position import SINCOS_TABLES, fixed_table
from vit.weights.config_inference import infer_config
from vit.weights.formats.timm.default_values import default_assumptions, default_config_values
from vit.weights.formats.timm.eva import EVA_RULES, fuse_eva_matrices, to_timm_leaves
from vit.weights.formats.timm.meta_model import build_meta_model
from vit.weights.formats.timm.model_values import model_values
from vit.weights.formats.timm.parallel import PARALLEL_RULES, join_in_proj, split_in_proj
from vit.weights.formats.timm.relative import RELATIVE, RELATIVE_RULES, SHARED, TIMM_RELATIVE, copy_shared_positions
from vit.weights.renaming import RenamedState
from vit.weights.weight_format import State, WeightFormat

# vit -> timm; the first match is applied
PREFIXES = {
    "embed.proj.norm.": "patch_embed.norm.",
    "embed.proj.": "patch_embed.proj.",
    "embed.cls_token": "cls_token",
    "embed.dist_token": "dist_token",
    "embed.reg_token": "reg_token",
    "embed.pos_embed": "pos_embed",
    "embed.norm.": "norm_pre.",
    "encoder.blocks.": "blocks.",
    "encoder.norm.": "norm.",
    "encoder.rotary.freqs": "rope.freqs",
    "pool.norm.": "fc_norm.",
    "pool.latent": "attn_pool.latent",
    "pool.mlp_norm.": "attn_pool.norm.",
    "pool.mlp.": "attn_pool.mlp.",
    "pool.attn.": "attn_pool.",
    "head.": "head.",
    "head_dist.": "head_dist.",
}
SPECIAL = (  # part of names that only some models have -> the function that converts these models
    (r"\.attn\.[qkv]\.|\.mlp\.fc1_[gx]\.", fuse_eva_matrices),
    (r"\.in_proj\.", split_in_proj),
    (f"^{re.escape(SHARED)}", copy_shared_positions),
)
TIMM_RULES = [
    *EVA_RULES,
    *PARALLEL_RULES,
    *RELATIVE_RULES,
    *((re.escape(foreign) + ("" if foreign.endswith(".") else "$"), own) for own, foreign in PREFIXES.items()),
]


def to_timm(state: State, config: Any = None) -> dict[str, Tensor]:
    """The state under timm's names.

    Args:
        config: config of the model; with it, parts that timm stores differently are converted as well: fixed sin-cos
            positions become a table (1,N,D), and parallel blocks and Eva's blocks get timm's matrices.
    """
    renamed = {replace_prefix(name, PREFIXES.items()): tensor for name, tensor in state.items()}
    renamed = {name.replace(RELATIVE, TIMM_RELATIVE): tensor for name, tensor in renamed.items()}
    if config is not None and config.positions in SINCOS_TABLES:
        renamed["pos_embed"] = fixed_table(config.positions, config.grid, config.dim, config.sincos_channels)
    if config is not None and config.block == "parallel":
        return join_in_proj(renamed)
    return renamed if config is None else to_timm_leaves(renamed, config)


def from_timm(state: State, config: Any = None) -> RenamedState:
    """The state under vit's names.

    Args:
        config: config of the model; with it, a table of fixed positions that `to_timm` added is removed.

    Raises:
        ValueError: tensors that belong together are incomplete.
    """
    converted = RenamedState(state, TIMM_RULES)
    if config is not None and config.positions in SINCOS_TABLES:
        converted.pop("embed.pos_embed", None)
    for part, convert in SPECIAL:
        if any(re.search(part, name) for name in converted):
            convert(converted)
    return converted


def replace_prefix(name: str, prefixes: Iterable[tuple[str, str]]) -> str:
    """The name with the first matching prefix replaced; unchanged if none matches."""
    for old, new in prefixes:
        if name.startswith(old):
            return new + name.removeprefix(old)
    return name


def is_timm(state: State) -> bool:
    return all(any(re.match(part, name) for name in state) for part in (r"patch_embed\.", r"blocks\.\d+\."))


def timm_config_values(state: State, source_config: Mapping[str, Any]) -> dict[str, Any]:
    """Config values that the tensors do not determine: those of the model if there is one, otherwise those of the
    published models.

    Args:
        source_config: the `config.json` of a timm folder, `{"module": model}` for a model in memory, or {}.

    Raises:
        ValueError: the model has a part that vit does not support, or the config is invalid.
    """
    if "module" in source_config:
        return model_values(source_config["module"])
    if "architecture" in source_config:
        return model_values(build_meta_model(source_config))
    return default_config_values(state)


def timm_declared_config(state: State, source_config: Mapping[str, Any]) -> dict[str, Any]:
    """The declared config of the model that the `config.json` of a timm folder describes.

    Raises:
        ValueError: the model has a part that vit does not support, or the config is invalid.
    """
    if "architecture" not in source_config:
        return {}
    model = build_meta_model(source_config)
    declared = infer_config(from_timm(model.state_dict()), model_values(model))
    if "num_classes" not in {**(source_config.get("pretrained_cfg") or {}), **source_config}:
        del declared["num_classes"]
    return declared


TIMM = WeightFormat("timm", is_timm, from_timm, timm_config_values, declared_config=timm_declared_config,
                    assumptions=default_assumptions)
