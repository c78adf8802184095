"""The keys of transformers' config.json that its models share, as values of vit's config and back."""

from collections.abc import Mapping, Sequence
from typing import Any

# hidden_act of transformers -> activation of vit
ACTIVATIONS = {
    "gelu": "gelu", "gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh", "gelu_fast": "gelu_tanh",
    "quick_gelu": "quick_gelu", "relu": "relu", "silu": "silu", "swish": "silu",
}
KEYS = {
    "hidden_size": "dim", "num_hidden_layers": "depth", "num_attention_heads": "num_heads",
    "layer_norm_eps": "norm_eps", "image_size": "image_size", "patch_size": "patch_size", "num_channels": "in_chans",
}


def parse_config(source_config: Mapping[str, Any]) -> dict[str, Any]:
    """The values of vit's config that the common keys determine.

    Raises:
        ValueError: the activation has no counterpart.
    """
    stated = {own: source_config[key] for key, own in KEYS.items() if source_config.get(key) is not None}
    if (act := source_config.get("hidden_act")) is not None:
        if act not in ACTIVATIONS:
            raise ValueError(f"hidden_act={act} in the source's config.json is not supported; supported are "
                             f"{', '.join(ACTIVATIONS)}")
        stated["activation"] = ACTIVATIONS[act]
    return stated


def check_model_type(source_config: Mapping[str, Any], supported: Sequence[str]) -> None:
    """Checks that the config is of one of these model types, because several models of transformers share parameter
    names.

    Raises:
        ValueError: it is of another type.
    """
    kind = source_config.get("model_type", supported[0])
    if kind not in supported:
        raise ValueError(f"the source's config has model_type={kind}, a different network whose tensors have the names "
                         f"of {supported[0]}; supported are {', '.join(supported)}")


def saved_class(source_config: Mapping[str, Any]) -> str:
    """The class of transformers that was saved; empty if the config does not state it."""
    return str((source_config.get("architectures") or [""])[0])


def declared_num_classes(source_config: Mapping[str, Any], otherwise: int = 0) -> dict[str, int]:
    """`num_classes` of the head; empty if the config does not state which class was saved.

    Args:
        otherwise: the number of outputs for classes that are not classifiers.
    """
    if not (name := saved_class(source_config)):
        return {}
    names = source_config.get("id2label")  # empty for a classifier without a head
    labels = source_config.get("num_labels", 2) if names is None else len(names)
    return {"num_classes": labels if "Classification" in name else otherwise}


def common_config(config: Any) -> dict[str, Any]:
    """The keys of config.json that every family has."""
    names = {own: act for act, own in reversed(ACTIVATIONS.items())} | {"gelu_tanh": "gelu_pytorch_tanh"}
    return {
        "hidden_size": config.dim, "num_hidden_layers": config.depth, "num_attention_heads": config.num_heads,
        "intermediate_size": config.hidden, "hidden_act": names[config.activation], "layer_norm_eps": config.norm_eps,
        "dtype": "float32",
    }


def image_config(config: Any) -> dict[str, Any]:
    """The further keys of config.json that every image model has."""
    sizes = {key: getattr(config, key) for key in ("image_size", "patch_size")}
    return {**{key: size[0] if size[0] == size[1] else list(size) for key, size in sizes.items()},
            "num_channels": config.in_chans}


def dropout_config(config: Any) -> dict[str, Any]:
    return {"hidden_dropout_prob": config.dropout, "attention_probs_dropout_prob": config.attention_dropout}
