"""Dropout, stochastic depth and patch dropout, LayerScale, and pooling."""

import pytest
import torch
from torch import nn

from vit.nn import Attention, AttentionPool, Block, ClassToken, Dropout, DropPath, LayerScale, Mean, Mlp, PatchDropout


def test_drop_path_drops_whole_samples_and_keeps_the_mean() -> None:
    torch.manual_seed(0)
    layer, x = DropPath(0.25), torch.ones(4000, 3, 2)
    y = layer(x)
    assert y.unique().tolist() == torch.tensor([0.0, 1 / 0.75]).tolist()
    assert ((y == y[:, :1, :1]).all()) and abs(y.mean() - 1) < 0.05
    assert layer.eval()(x) is x


def test_drop_path_follows_the_global_seed() -> None:
    layer, x = DropPath(0.5), torch.ones(50, 1, 1)
    results = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        results.append(layer(x))
    assert torch.equal(results[0], results[1]) and not torch.equal(results[0], results[2])


def test_dropout_zeroes_its_part_keeps_the_mean_and_follows_the_global_seed() -> None:
    torch.manual_seed(0)
    dropout, x = Dropout(0.3), torch.ones(7, 333, 101, requires_grad=True)
    assert dropout.eval()(x) is x
    out = dropout.train()(x)
    assert abs((out == 0).double().mean() - 0.3) < 0.005  # 5 deviations of 235,431 draws
    assert set(out.unique().tolist()) == {0.0, torch.tensor(1 / 0.7).item()}
    assert abs((out[..., 1:] * out[..., :-1] == 0).double().mean() - 0.51) < 0.01  # neighbours are independent
    (slope,) = torch.autograd.grad(out.sum(), x)
    assert torch.equal(slope, out)  # the same ones are zero in the gradient
    torch.manual_seed(0)
    assert torch.equal(dropout(x), out)
    assert dropout(x[0, 0, :3].bfloat16()).dtype == torch.bfloat16


@pytest.mark.parametrize("rates", [{}, {"dropout": 0.5}, {"drop_path": 0.5}], ids=str)
def test_a_block_drops_in_training_where_it_has_a_rate(rates: dict[str, float]) -> None:
    block, x = Block(8, Attention(8, 2), Mlp(8, 16), **rates), torch.randn(64, 3, 8)
    assert torch.equal(block(x), block(x)) is not bool(rates)
    assert any(isinstance(module, Dropout | DropPath) for module in block.modules()) is bool(rates)
    assert torch.equal(block.eval()(x), block(x))


@pytest.mark.parametrize("rates", [{"dropout": -0.1}, {"drop_path": 1.0}], ids=str)
def test_a_rate_outside_its_range_is_an_error(rates: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=r"must lie in \[0, 1\)"):
        Block(8, Attention(8, 2), Mlp(8, 16), **rates)


@pytest.mark.parametrize("rate", [-0.1, 1.0])
def test_a_patch_dropout_outside_its_range_is_an_error(rate: float) -> None:
    with pytest.raises(ValueError, match=rf"patch_dropout is {rate}, but must lie in \[0, 1\)"):
        PatchDropout(rate)


def test_patch_dropout_keeps_prefix_and_order() -> None:
    layer = PatchDropout(0.5, prefix=2)
    x = torch.arange(10.0).view(1, 10, 1).expand(3, -1, -1)
    remaining, positions = layer(x)
    assert remaining.shape == (3, 6, 1) and torch.equal(remaining[..., 0], positions.float())
    assert (positions[:, :2] == torch.tensor([0, 1])).all() and (positions.diff(dim=1) > 0).all()
    assert layer.eval()(x) == (x, None)


def test_layer_scale() -> None:
    layer = LayerScale(4, 0.1)
    torch.testing.assert_close(layer(torch.ones(1, 2, 4)), torch.full((1, 2, 4), 0.1))


def test_pools_exclude_the_prefix_and_masked_tokens() -> None:
    x = torch.randn(2, 6, 8)
    assert torch.equal(ClassToken()(x), x[:, 0])
    assert torch.equal(Mean(prefix=2)(x), x[:, 2:].mean(1))
    mask = torch.arange(6) < torch.tensor([[4], [6]])
    expected = torch.stack([x[0, 1:4].mean(0), x[1, 1:].mean(0)])
    torch.testing.assert_close(Mean(prefix=1)(x, mask), expected)
    pool = AttentionPool(8, Attention(8, 2, cross=True), Mlp(8, 16), nn.LayerNorm(8), prefix=1)
    nn.init.normal_(pool.latent)
    torch.testing.assert_close(pool(x[:1], mask[:1]), pool(x[:1, :4]))
    assert pool(x).shape == (2, 8)
