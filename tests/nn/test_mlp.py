"""The MLPs against timm's, with random weights."""

import pytest
import torch
from timm import layers

from vit.nn import LayerNorm, Mlp, SwiGLU, quick_gelu

X = torch.randn(2, 5, 8, generator=torch.Generator().manual_seed(0))


def random(model: torch.nn.Module) -> torch.nn.Module:
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0.2, 0.5)
    return model


def test_quick_gelu() -> None:
    torch.testing.assert_close(quick_gelu(X), layers.QuickGELU()(X))
    assert (quick_gelu(X) - torch.nn.functional.gelu(X)).abs().max() > 1e-3


@pytest.mark.parametrize("normed", [False, True])
def test_mlp(normed: bool) -> None:
    theirs = random(layers.Mlp(8, 12, norm_layer=layers.LayerNorm if normed else None))
    ours = Mlp(8, 12, norm=LayerNorm(12) if normed else None)
    ours.load_state_dict(theirs.state_dict())
    torch.testing.assert_close(ours(X), theirs(X))


@pytest.mark.parametrize("normed", [False, True])
def test_swiglu_has_gate_and_value_in_one(normed: bool) -> None:
    theirs = random(layers.SwiGLU(8, 12, norm_layer=layers.LayerNorm if normed else None))
    ours, state = SwiGLU(8, 12, norm=LayerNorm(12) if normed else None), theirs.state_dict()
    for leaf in ("weight", "bias"):
        state[f"fc1.{leaf}"] = torch.cat([state.pop(f"fc1_g.{leaf}"), state.pop(f"fc1_x.{leaf}")])
    ours.load_state_dict(state)
    torch.testing.assert_close(ours(X), theirs(X), rtol=0, atol=1e-5)
