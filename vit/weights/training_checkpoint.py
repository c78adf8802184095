"""Weights for use from a training checkpoint of this project: averaged or raw, under the model's names, with what
fine-tuning adds merged: LoRA, and the normalization before a head.
"""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

WRAPPERS = ("_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module")  # torch.compile, FSDP, checkpointing
LORA = ".lora."  # part of the names of LoRA parameters; a saved model has none of them
HEAD_NORM = ".input_norm."  # part of the names of the statistics of a `HeadNorm`, neither
HEAD_NORM_EPS = 1e-6


def trained_weights(checkpoint: Mapping[str, Any]) -> dict[str, Tensor]:
    """The averaged weights if the run has an average, otherwise the weights of the last step, with LoRA and
    the normalization before a head merged.

    Args:
        checkpoint: what Lightning saved: `state_dict` of the task and the states of its callbacks.
    """
    average = checkpoint.get("callbacks", {}).get("AverageWeights", {}).get("average")
    raw = {
        clean_name(name).removeprefix("model."): tensor
        for name, tensor in checkpoint["state_dict"].items()
        if name.startswith("model.")
    }
    return merge_head_norm(merge_lora(average or raw))


def clean_name(name: str) -> str:
    """`module._orig_mod.encoder.norm.weight` -> `encoder.norm.weight`; DDP's `module.` is a prefix only."""
    cleaned = ".".join(part for part in name.split(".") if part not in WRAPPERS)
    return cleaned.removeprefix("module.")


def is_added(name: str) -> bool:
    """Whether a parameter belongs to LoRA and not to the model itself."""
    return LORA in name


def merge_lora(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """A state dict with every low-rank update added to its matrix, under the names of a model without LoRA.

    Summed in float64, so that each weight is rounded once.
    """
    merged = {name: tensor for name, tensor in state.items() if not is_added(name)}
    for name in state:
        layer, separator, leaf = name.rpartition(LORA)
        if not separator or leaf != "down":
            continue
        down, up, parts, scale = (state[f"{layer}{LORA}{each}"] for each in ("down", "up", "parts", "scale"))
        weight = merged[f"{layer}.weight"]
        delta = (up.double() @ down.double() * scale.double()).to(weight.device)  # (P,O,D)
        split = weight.double().unflatten(0, (-1, up.shape[1]))  # (parts,O,D)
        merged[f"{layer}.weight"] = split.index_add(0, parts, delta).flatten(0, 1).to(weight.dtype)
    return merged


def merge_head_norm(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """A state dict with the normalization before a head merged into the head, under the names of a model without it.

    The products of (x - mean) / sqrt(var + eps) with the weights are those of x with other weights and another bias.
    """
    merged = {name: tensor for name, tensor in state.items() if HEAD_NORM not in name}
    for name in state:
        layer, separator, leaf = name.rpartition(HEAD_NORM)
        if not separator or leaf != "running_mean":
            continue
        mean, variance = state[name].double(), state[f"{layer}{HEAD_NORM}running_var"].double()  # (D,)
        weight, bias = merged[f"{layer}.weight"], merged[f"{layer}.bias"]  # (classes,D), (classes,)
        scaled = weight.double() * (variance + HEAD_NORM_EPS).rsqrt()
        merged[f"{layer}.weight"] = scaled.to(weight.dtype)
        merged[f"{layer}.bias"] = (bias.double() - scaled @ mean).to(bias.dtype)
    return merged
