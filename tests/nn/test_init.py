"""The deviations of initial weights; modes of modules are restored, whatever happens in between."""

import math

import pytest
import torch
from torch import Tensor, nn

from vit.nn import Attention, AttentionPool, LayerNorm, LinearPatches, Mlp, PatchEmbed, Prefix, TokenEmbed, learned
from vit.nn.init import evaluating, init_weights, restored_modes

D = 256


class Parts(nn.Module):
    """One of each kind of module that is initialized."""

    def __init__(self) -> None:
        super().__init__()
        prefix = Prefix(dist_token=True, registers=4)
        self.image = PatchEmbed(LinearPatches(3, D, (4, 4)), (32, 32), prefix=prefix, pos_embed=learned(64, D))
        self.text = TokenEmbed(90, D, pos_embed=learned(50, D), segments=20)
        self.pool = AttentionPool(D, Attention(D, 4, cross=True), Mlp(D, 2 * D), LayerNorm(D))
        self.head, self.head_dist = nn.Linear(D, 40), nn.Linear(D, 40)
        for parameter in self.parameters():
            nn.init.constant_(parameter, 7.0)  # nothing that is not initialized looks like it


def is_normal(x: Tensor, std: float) -> bool:
    """Whether mean and deviation are those of `std` up to five deviations of their estimates."""
    return abs(x.mean()) < 5 * std / x.numel() ** 0.5 and abs(x.std() / std - 1) < 5 / (2 * x.numel()) ** 0.5


@pytest.mark.parametrize("std", [None, 0.05])
def test_initial_weights_have_the_stated_deviations(std: float | None) -> None:
    torch.manual_seed(0)
    made = Parts()
    init_weights(made, std)
    uniform = {"image.proj": 3 * 4 * 4, "pool.attn.q": D, "pool.attn.proj": D, "pool.mlp.fc1": D, "pool.mlp.fc2": 2 * D}
    for name, fan_in in uniform.items():
        layer = made.get_submodule(name)
        bound = math.sqrt(6 / (fan_in + len(layer.weight)))  # Xavier's, for a matrix
        if std is None or name == "image.proj":
            assert 0.95 * bound < layer.weight.abs().max() <= bound and is_normal(layer.weight, bound / math.sqrt(3))
        else:
            assert is_normal(layer.weight, std)
    for layer in (made.head, made.head_dist):
        assert is_normal(layer.weight, 0.02)
    for token in (made.image.cls_token, made.image.dist_token, made.image.reg_token):
        assert is_normal(token, 1e-6)
    text, image = made.text, made.image
    for table in (text.token.weight, text.segment.weight, text.pos_embed, image.pos_embed, made.pool.latent):
        assert is_normal(table, D**-0.5)
    for module in made.modules():
        if isinstance(module, nn.Linear | nn.Conv2d):
            assert module.bias.eq(0).all()


def test_tokens_and_positions_may_have_deviations_of_their_own() -> None:
    made = Parts()
    init_weights(made, token_std=0.03, position_std=0.07)
    text, image = made.text, made.image
    for token in (image.cls_token, image.dist_token, image.reg_token, text.token.weight, text.segment.weight):
        assert is_normal(token, 0.03)
    for table in (text.pos_embed, image.pos_embed):
        assert is_normal(table, 0.07)
    assert is_normal(made.pool.latent, D**-0.5) and is_normal(made.head.weight, 0.02)


def frozen_part() -> nn.Sequential:
    """A module in training mode with a part in evaluation mode."""
    model = nn.Sequential(nn.Dropout(), nn.Sequential(nn.BatchNorm1d(2), nn.Dropout()))
    model[1].eval()
    return model


def modes(model: nn.Module) -> list[bool]:
    return [module.training for module in model.modules()]


def test_evaluation_mode_lasts_as_long_as_the_context() -> None:
    one, other = frozen_part(), nn.Dropout().eval()
    before = modes(one)
    with evaluating(one, other):
        assert not any(modes(one)) and not other.training
    assert modes(one) == before and not other.training and any(before) and not all(before)


def test_modes_are_restored_after_an_error() -> None:
    model = frozen_part()
    before = modes(model)
    with pytest.raises(RuntimeError), restored_modes(model):
        model.train()
        raise RuntimeError
    assert modes(model) == before
