"""The state dict in the content of a checkpoint, whatever program saved it."""

import pytest
import torch

from vit.exchange import SourceError
from vit.exchange.state_dicts import WRAPPERS, find_state_dict

RAW, AVERAGE = {"head.weight": torch.zeros(2)}, {"head.weight": torch.ones(2)}


@pytest.mark.parametrize(("content", "found", "notes"), [
    (RAW, RAW, []),
    ({"module": RAW}, RAW, []),
    ({"ema": {}, "model": RAW}, RAW, []),
    ({"state_dict": {"model": AVERAGE}, "epoch": 3}, AVERAGE, []),
    ({"epoch": 3, **RAW, "optimizer": {}}, RAW, ["left out, because they are not weights: epoch, optimizer"]),
    ({**RAW, **{f"k{i}": i for i in range(9)}}, RAW,
     ["left out, because they are not weights: k0, k1, k2, k3, k4"]),
    ({**RAW, 7: torch.zeros(1)}, RAW, ["left out, because they are not weights: 7"]),
    *(({raw: RAW, average: AVERAGE}, AVERAGE, [f"of {average}, {raw} the weights of {average} are used"])
      for average, raw in (("state_dict_ema", "state_dict"), ("model_ema", "model"), ("ema", "model"),
                           ("ema_model", "model"), ("model_ema_state_dict", "model_state_dict"),
                           ("swa_state_dict", "state_dict"), ("params_ema", "params"),
                           ("teacher", "student"), ("target_encoder", "encoder"))),
    ({"model": RAW, "ema": {"decay": 0.9, "shadow": AVERAGE}}, AVERAGE, ["of ema, model the weights of ema are used"]),
    ({"model": RAW, "mine": {"module.head.weight": RAW["head.weight"]}, "optimizer": {"state": {"head.weight": {}}}},
     RAW, ["other weights of the same names are not used: mine"]),
    ({"state_dict": RAW, "callbacks": {"EMA": {"ema_state_dict": AVERAGE, "decay": 0.9}}}, RAW,
     ["other weights of the same names are not used: callbacks"]),
    ({"n_averaged": torch.tensor(3), **AVERAGE}, AVERAGE, ["left out, because they are not weights: n_averaged"]),
])
def test_averages_precede_the_weights_that_they_are_averages_of(content, found, notes):
    state, remarks = find_state_dict(content, "x.pth")
    assert (state.keys(), remarks) == (found.keys(), notes)
    assert all(state[name] is found[name] for name in found)


def nested_in_itself():
    content = {}
    content["model"] = content
    return content


@pytest.mark.parametrize(("content", "message"), [
    ([RAW], "x.pth: it holds list and no tensors by name"),
    (torch.zeros(2), "it holds Tensor and no tensors by name"),
    ({}, "it holds no tensors by name, but nothing"),
    ({i: torch.zeros(1) for i in range(9)}, "but 0, 1, 2, 3, 4; accepted"),
    (nested_in_itself(), "it holds no tensors by name, but model; accepted"),
    ({"w": torch.zeros(2, device="meta")}, "w is on the meta device, without data; give weights"),
    ({"w": torch.eye(2).to_sparse()}, r"w has the layout torch.sparse_coo; give weights"),
])
def test_content_without_weights_is_an_error(content, message):
    with pytest.raises(SourceError, match=message):
        find_state_dict(content, "x.pth")


def test_wrappers_of_any_depth_that_they_can_have_are_opened():
    content = RAW
    for wrapper in reversed(WRAPPERS):
        content = {wrapper: content}
    assert find_state_dict(content, "x.pth") == (RAW, [])
