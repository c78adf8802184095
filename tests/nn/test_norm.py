"""Batch normalization over tokens, and blocks with it and without residual connections."""

import copy
from functools import partial

import pytest
import torch
from torch import nn

from vit.nn import Attention, BatchNorm, Block, Encoder, LayerNorm, Mlp, NoResidualBlock, RMSNorm

B, N, D = 3, 5, 8
MASK = torch.arange(N) < torch.tensor([[5], [2], [3]])


def test_batch_norm_equals_torchs_on_the_tokens_that_are_not_masked() -> None:
    ours, theirs, x = BatchNorm(D), nn.BatchNorm1d(D, eps=1e-6), torch.randn(B, N, D) * 3 + 1
    for _ in range(2):
        torch.testing.assert_close(ours(x, MASK)[MASK], theirs(x[MASK]))
    torch.testing.assert_close(ours.state_dict(), theirs.state_dict())
    torch.testing.assert_close(ours(x), theirs(x.flatten(0, 1)).view_as(x))
    ours.eval(), theirs.eval()
    torch.testing.assert_close(ours(x, MASK), theirs(x.flatten(0, 1)).view_as(x))


def test_padding_has_no_influence_on_an_encoder_with_batch_norm_in_training() -> None:
    torch.manual_seed(0)
    blocks = [Block(D, Attention(D, 2), Mlp(D, D), norm=BatchNorm) for _ in range(2)]
    stack, x = Encoder(blocks, BatchNorm(D)), torch.randn(B, N, D)
    other = torch.where(MASK[..., None], x, torch.randn(B, N, D))
    torch.testing.assert_close(stack(x, MASK)[MASK], stack(other, MASK)[MASK])
    assert not torch.allclose(stack(x)[MASK], stack(other)[MASK], atol=1e-3)


@pytest.mark.parametrize("mask", [None, MASK])
def test_recomputed_activations_update_the_running_averages_once(mask: torch.Tensor | None) -> None:
    torch.manual_seed(0)
    blocks = [Block(D, Attention(D, 2, qk_norm=BatchNorm), Mlp(D, D, norm=BatchNorm(D)), norm=BatchNorm)]
    stored = Encoder([*blocks, Block(D, Attention(D, 2), Mlp(D, D), norm=BatchNorm)], BatchNorm(D))
    recomputed = copy.deepcopy(stored)
    recomputed.checkpointing = True
    for _ in range(2):
        x = torch.randn(B, N, D)
        for stack in (stored, recomputed):
            stack(x, mask).square().sum().backward()
    torch.testing.assert_close(recomputed.state_dict(), stored.state_dict(), rtol=0, atol=0)
    gradients = [[parameter.grad for parameter in stack.parameters()] for stack in (recomputed, stored)]
    torch.testing.assert_close(*gradients, rtol=0, atol=0)


def test_a_block_without_residual_connections_replaces_its_input() -> None:
    for pre_norm in (True, False):
        torch.manual_seed(0)
        block = NoResidualBlock(D, Attention(D, 2), Mlp(D, D), Attention(D, 2, cross=True), pre_norm=pre_norm)
        x, memory = torch.randn(B, N, D), torch.randn(B, 4, D)
        layers = [(block.norm1, block.attn), (block.cross_norm, partial(block.cross_attn, memory=memory)),
                  (block.norm2, block.mlp)]
        y = x
        for norm, layer in layers:
            y = layer(norm(y)) if pre_norm else norm(layer(y))
        torch.testing.assert_close(block(x, memory=memory), y)


def test_layer_norm_and_rms_norm_equal_their_formulas() -> None:
    x, gamma, beta = torch.randn(B, N, D) * 3 + 1, torch.randn(D), torch.randn(D)
    layer, rms = LayerNorm(D), RMSNorm(D)
    layer.weight.data, layer.bias.data, rms.weight.data = gamma, beta, gamma
    centred = x - x.mean(-1, keepdim=True)
    deviation = (centred.square().mean(-1, keepdim=True) + 1e-6).sqrt()
    torch.testing.assert_close(layer(x), gamma * centred / deviation + beta)
    torch.testing.assert_close(rms(x), gamma * x / (x.square().mean(-1, keepdim=True) + 1e-6).sqrt())
