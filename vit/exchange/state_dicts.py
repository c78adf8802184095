"""Finds the state dict in the content of a checkpoint of any program."""

import re
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from vit.bundle.files import SourceError
from vit.exchange.sources import ACCEPTED_SOURCES

# keys under which programs save weights; averaged weights before raw ones
AVERAGES = ("state_dict_ema", "model_ema", "ema_state_dict", "model_ema_state_dict", "ema_model_state_dict",
            "model_state_dict_ema", "ema_model", "ema_weights", "ema_params", "params_ema", "ema", "swa_state_dict",
            "swa_model_state_dict", "swa_model", "averaged_model", "shadow")
WRAPPERS = (*AVERAGES, "state_dict", "model_state_dict", "model", "teacher", "student", "target_encoder", "encoder",
            "module", "network", "net", "weights", "params")
# how often weights were averaged, in a state dict of torch's AveragedModel and of ema-pytorch
COUNTER = re.compile(r"(^|\.)(n_averaged|initted|step)$")


def find_state_dict(content: Any, name: str) -> tuple[dict[str, Tensor], list[str]]:
    """The state dict in the content of a checkpoint, and notes on what was left out around it.

    Raises:
        SourceError: there is none.
    """
    notes, depth, beside = [], 0, {}
    while isinstance(content, Mapping) and depth < len(WRAPPERS):  # a pickle can contain itself
        keys = [key for key in WRAPPERS if isinstance(content.get(key), Mapping) and content[key]]
        if not keys:
            break
        depth += 1
        if len(keys) > 1:
            notes.append(f"of {', '.join(keys)} the weights of {keys[0]} are used")
        beside |= {key: value for key, value in content.items() if key not in keys and isinstance(value, Mapping)}
        content = content[keys[0]]
    if not isinstance(content, Mapping):
        raise SourceError(f"it holds {type(content).__name__} and no tensors by name; accepted: {ACCEPTED_SOURCES}",
                          name)
    state = {key: value for key, value in content.items() if isinstance(key, str) and isinstance(value, Tensor)}
    state = {key: tensor for key, tensor in state.items() if tensor.numel() != 1 or not COUNTER.search(key)}
    check_plain_tensors(state, name)
    if not state:
        some = ", ".join(map(str, list(content)[:5])) or "nothing"
        raise SourceError(f"it holds no tensors by name, but {some}; accepted: a state dict, alone or under one of "
                          f"{', '.join(WRAPPERS)}", name)
    if len(state) < len(content):
        others = [str(key) for key in content if key not in state]
        notes.append(f"left out, because they are not weights: {', '.join(others[:5])}")
    if copies := [str(key) for key, value in beside.items() if has_names(value, state)]:
        notes.append(f"other weights of the same names are not used: {', '.join(copies[:5])}")
    return state, notes


def has_names(content: Mapping[Any, Any], state: Mapping[str, Tensor]) -> bool:
    """Whether a part of a checkpoint holds tensors of most of the names of a state dict, possibly two levels deeper, as
    in the callbacks of Lightning, or under the prefix of a wrapper.
    """
    names = {name.removeprefix("module.") for name in state}
    inside = below = [content]
    for _ in range(2):
        below = [each for part in below for each in part.values() if isinstance(each, Mapping)]
        inside = [*inside, *below]
    return any(2 * sum(isinstance(value, Tensor) and str(key).removeprefix("module.") in names
                       for key, value in each.items()) > len(names) for each in inside)


def check_plain_tensors(state: Mapping[str, Tensor], name: str) -> None:
    """Raises SourceError for a tensor without data or with a sparse layout."""
    for key, tensor in state.items():
        if tensor.is_meta or tensor.layout != torch.strided:
            what = "is on the meta device, without data" if tensor.is_meta else f"has the layout {tensor.layout}"
            raise SourceError(f"{key} {what}; give weights that are plain tensors", name)
