"""Attention against torch's own, and the properties of masks and positions."""

from functools import partial

import pytest
import torch
from torch import nn

from vit.nn import (
    Additive,
    Attention,
    Block,
    Cosine,
    Encoder,
    Heads,
    Interleaved,
    KeylessBias,
    LayerNorm,
    Local,
    Mlp,
    RMSNorm,
    Rotary,
    ScaledDotProduct,
    attention_maps,
    stacked,
)
from vit.nn.cpu.attention import scaled_dot_product_attention
from vit.nn.init import init_weights

B, N, S, D, H = 2, 5, 7, 24, 3
CLOSE = {"rtol": 0, "atol": 1e-5}


def attention(heads: Heads | int = H, **options) -> Attention:
    torch.manual_seed(0)
    return Attention(D, heads, **options).eval()


def copied(ours: Attention) -> nn.MultiheadAttention:
    reference = nn.MultiheadAttention(D, H, batch_first=True).eval()
    with torch.no_grad():
        weights, biases = (ours.q, ours.kv), ("weight", "bias")
        for part in biases:
            getattr(reference, f"in_proj_{part}").copy_(torch.cat([getattr(layer, part) for layer in weights]))
            getattr(reference.out_proj, part).copy_(getattr(ours.proj, part))
    return reference


@pytest.mark.parametrize("tokens", [10, 300, 1000])  # three ways of computing it on a CPU, see vit/nn/cpu/attention.py
@pytest.mark.parametrize("autocast", [False, True])
def test_training_in_bfloat16_follows_the_formula(tokens: int, autocast: bool) -> None:
    torch.manual_seed(0)
    shape, given = (2, 3, tokens, 16), torch.float32 if autocast else torch.bfloat16
    q, k, v = (torch.randn(shape).bfloat16().to(given).requires_grad_() for _ in range(3))
    added = torch.randn(2, 1, tokens, tokens).to(given)
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        heads = scaled_dot_product_attention(q, k, v, added)
    assert heads.dtype == torch.bfloat16
    exact = [x.detach().double().requires_grad_() for x in (q, k, v)]
    scores = exact[0] @ exact[1].mT / 4 + added.bfloat16().double()
    exact_heads = scores.softmax(-1) @ exact[2]
    weight = torch.randn(shape).bfloat16()
    slopes = torch.autograd.grad((heads * weight).sum(), (q, k, v))
    exact_slopes = torch.autograd.grad((exact_heads * weight).sum(), exact)
    for one, two in zip([heads, *slopes], [exact_heads, *exact_slopes], strict=True):
        assert (one - two).norm() / two.norm() < 0.01  # bfloat16 has 8 binary digits


def test_cross_attention_with_a_mask_equals_torch() -> None:
    ours = attention(cross=True)
    x, memory = torch.randn(B, N, D), torch.randn(B, S, D)
    mask = torch.arange(S) < torch.tensor([[4], [7]])  # (B,S), True = may be attended
    expected, weights = copied(ours)(x, memory, memory, key_padding_mask=~mask, average_attn_weights=False)
    with attention_maps(ours) as maps:
        result = ours(x, memory, mask)
    torch.testing.assert_close(result, expected, **CLOSE)
    torch.testing.assert_close(maps[""][0], weights, **CLOSE)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("rank", [0, 2, 3, 4])
def test_self_attention_equals_the_formula(rank: int, causal: bool) -> None:
    ours = attention(Heads(H, 10, 10), qk_norm=RMSNorm, projection=partial(stacked, bias=False))
    assert ours.qkv.bias is None and ours.qkv.out_features == 3 * H * 10
    x = torch.randn(B, N, D)
    shapes = {0: None, 2: (B, N), 3: (B, N, N), 4: (B, H, N, N)}
    mask = None if rank == 0 else torch.rand(shapes[rank]) < 0.6
    if mask is not None:
        mask[..., 0] = True  # each query may attend to at least one key
    q, k, v = (part.transpose(1, 2) for part in ours.qkv(x).view(B, N, 3, H, 10).unbind(2))
    scores = ours.q_norm(q) @ ours.k_norm(k).transpose(-2, -1) / 10**0.5
    allowed = torch.ones(B, H, N, N, dtype=torch.bool)
    if mask is not None:
        allowed = allowed & mask.view({2: (B, 1, 1, N), 3: (B, 1, N, N), 4: (B, H, N, N)}[rank])
    if causal:
        allowed = allowed.tril()
    weights = scores.masked_fill(~allowed, -torch.inf).softmax(-1)
    expected = ours.proj((weights @ v).transpose(1, 2).reshape(B, N, -1))
    with attention_maps(ours) as maps:
        result = ours(x, mask=mask, causal=causal)
    torch.testing.assert_close(result, expected, **CLOSE)
    torch.testing.assert_close(maps[""][0], weights, **CLOSE)


@pytest.mark.parametrize("cross", [False, True])
def test_values_of_another_width_than_keys(cross: bool) -> None:
    ours, x, memory = attention(Heads(H, D // H, 11), cross=cross), torch.randn(B, N, D), torch.randn(B, S, D)
    widths = (H * 8, H * 8, H * 11)
    if cross:
        q, (k, v) = ours.q(x), ours.kv(memory).split(widths[1:], dim=-1)
    else:
        q, k, v = ours.qkv(x).split(widths, dim=-1)
    q, k, v = (part.unflatten(-1, (H, -1)).transpose(1, 2) for part in (q, k, v))
    weights = (q @ k.transpose(-2, -1) / 8**0.5).softmax(-1)
    expected = ours.proj((weights @ v).transpose(1, 2).reshape(B, N, H * 11))
    torch.testing.assert_close(ours(x, memory if cross else None), expected, **CLOSE)


def test_each_of_the_stacked_matrices_is_initialized_by_itself() -> None:
    """Xavier's bound follows from the widths of one matrix, not of the three in one."""
    ours = attention(Heads(H, D // H, 2))
    init_weights(ours)
    for part, width in zip(ours.qkv.weight.split([24, 24, 6]), (24, 24, 6), strict=True):
        bound = (6 / (D + width)) ** 0.5
        assert 0.9 * bound < part.abs().max() <= bound


def test_another_attention_has_a_score_with_its_own_attend() -> None:
    class Uniform(ScaledDotProduct):
        def attend(self, q, k, v, mask=None, causal=False, dropout=0.0):
            return v.mean(dim=2, keepdim=True).expand_as(q)

    torch.manual_seed(0)
    ours, x = Attention(D, H, score=Uniform), torch.randn(B, N, D)
    mean = ours.qkv(x)[..., 2 * D :].mean(dim=1, keepdim=True).expand(-1, N, -1)
    torch.testing.assert_close(ours(x), ours.proj(mean), **CLOSE)


def encoder(**options) -> Encoder:
    torch.manual_seed(0)
    blocks = [Block(D, Attention(D, H), Mlp(D, 2 * D)) for _ in range(2)]
    stack = Encoder(blocks, LayerNorm(D), **options)
    init_weights(stack)
    return stack.eval()


def test_maps_do_not_change_the_result() -> None:
    stack, x = encoder(), torch.randn(B, N, D)
    plain = stack(x)
    with attention_maps(stack) as maps:
        recorded = stack(x)
    assert torch.equal(plain, recorded)
    assert list(maps) == ["blocks.0.attn", "blocks.1.attn"]
    assert maps["blocks.1.attn"][0].shape == (B, H, N, N)
    torch.testing.assert_close(maps["blocks.1.attn"][0].sum(-1), torch.ones(B, H, N))
    assert stack.blocks[0].attn.recorder is None


def test_without_positions_the_order_of_tokens_does_not_matter() -> None:
    stack, x, order = encoder(), torch.randn(B, N, D), torch.randperm(N)
    torch.testing.assert_close(stack(x[:, order]), stack(x)[:, order], **CLOSE)
    turned = encoder(rotary=Rotary((N,), D // H))
    assert not torch.allclose(turned(x[:, order]), turned(x)[:, order], atol=1e-4)


def test_padding_has_no_influence() -> None:
    stack, x = encoder(), torch.randn(B, N, D)
    padded = torch.cat([x, torch.randn(B, 4, D) * 100], dim=1)
    mask = torch.arange(N + 4) < N
    torch.testing.assert_close(stack(padded, mask.expand(B, -1))[:, :N], stack(x), **CLOSE)


def test_neighbours_in_the_batch_have_no_influence() -> None:
    stack, x = encoder(), torch.randn(8, N, D)
    torch.testing.assert_close(stack(x)[3:4], stack(x[3:4]), **CLOSE)


def test_a_token_that_may_attend_to_nothing_gives_no_nan() -> None:
    ours, x = attention(), torch.randn(B, N, D)
    mask = torch.ones(B, N, dtype=torch.bool)
    mask[1] = False
    with attention_maps(ours) as maps:
        assert ours(x, mask=mask).isfinite().all() and maps[""][0].isfinite().all()


def test_fewer_queries_than_keys_are_aligned_at_the_end() -> None:
    """The last query attends to all keys, as in a decoder with a cache."""
    from vit.nn.masks import attention_mask

    mask, causal = attention_mask(None, True, torch.zeros(1, 1, 2, 4), torch.zeros(1, 1, 5, 4))
    assert not causal
    assert mask.tolist() == [[True, True, True, True, False], [True] * 5]


def test_rotated_products_depend_on_the_offset_alone() -> None:
    rows, columns, width = 6, 7, 16
    rotary = Rotary((rows, columns), width, prefix=1)
    q, k = torch.randn(1, 1, 1, width), torch.randn(1, 1, 1, width)
    tokens = 1 + rows * columns
    turned_q, turned_k = (rotary()(x.expand(1, 1, tokens, width)) for x in (q, k))
    assert torch.equal(turned_q[:, :, 0], q[:, :, 0])  # the class token has no position
    products = (turned_q @ turned_k.transpose(-2, -1))[0, 0, 1:, 1:].view(rows, columns, rows, columns)
    torch.testing.assert_close(products[1, 2, 3, 1], products[2, 5, 4, 4], **CLOSE)
    assert abs(products[1, 2, 3, 1] - products[1, 2, 1, 3]) > 1e-3


def test_rotary_of_some_tokens_is_part_of_all() -> None:
    rotary, positions = Rotary((2, 3), 8, prefix=1), torch.tensor([[0, 3, 6], [0, 1, 2]])
    x = torch.randn(7, 8)
    some, every = rotary(positions)(x[positions][:, None]), rotary()(x)  # (B,1,N',K), (N,K)
    assert torch.equal(some[:, 0], every[positions])
    assert torch.equal(rotary(positions[0])(x[positions[0]]), every[positions[0]])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: Attention(10, 3), "dim 10 is not divisible by num_heads 3"),
        (lambda: Rotary((2, 2), 10), "head_dim 10 is not divisible by 4.*nearest: 8, 12"),
        (lambda: Attention(D, H, cross=True)(torch.zeros(1, N, D)), "needs a memory"),
        (lambda: Attention(D, H)(torch.zeros(1, N, D), mask=torch.ones(N, dtype=torch.bool)), r"mask has shape \(5,\)"),
    ],
)
def test_errors_name_the_numbers(call, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()


def test_a_mask_of_numbers_is_refused() -> None:
    with pytest.raises(TypeError, match=r"\(1, 5\) has dtype torch.float32, but must be bool"):
        attention()(torch.zeros(1, N, D), mask=torch.ones(1, N))
    with pytest.raises(TypeError, match="int64, but must be bool"):
        attention()(torch.zeros(1, N, D), mask=torch.ones(1, N, N).long())


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("kind", [ScaledDotProduct, Additive, Cosine, partial(Local, window=2)])
def test_an_additive_mask_is_added_to_the_scores(kind, causal: bool) -> None:
    torch.manual_seed(0)
    length = 80  # more than a block of local attention
    ours, x = Attention(D, H, score=kind).eval(), torch.randn(B, length, D)
    allowed = torch.rand(B, length, length) < 0.6
    allowed |= torch.eye(length, dtype=torch.bool)
    with attention_maps(ours) as maps:
        masked = ours(x, mask=allowed, causal=causal)
        added = ours(x, mask=torch.zeros(B, length, length).masked_fill(~allowed, -torch.inf), causal=causal)
    torch.testing.assert_close(added, masked, **CLOSE)
    torch.testing.assert_close(maps[""][1], maps[""][0], **CLOSE)
    bias = torch.randn(1, H, length, length)
    with attention_maps(ours) as maps:
        biased, plain = ours(x, mask=bias, causal=causal), ours(x, causal=causal)
    weights = (maps[""][1].log() + bias).softmax(-1)  # a factor on each weight, normalized again
    torch.testing.assert_close(maps[""][0], weights, **CLOSE)
    values = ours.qkv(x).view(B, length, 3, H, D // H)[:, :, 2].transpose(1, 2)
    torch.testing.assert_close(biased, ours.proj((weights @ values).transpose(1, 2).flatten(2)), **CLOSE)
    assert not torch.allclose(biased, plain, atol=1e-3)


def test_norm_on_the_joined_heads_and_keys_without_bias_equal_timms_eva() -> None:
    from timm import layers
    from timm.models.eva import EvaAttention

    theirs = EvaAttention(D, H, norm_layer=layers.LayerNorm, scale_norm=True, num_prefix_tokens=0)
    ours = Attention(D, H, projection=KeylessBias, norm=LayerNorm)
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.normal_(0.3, 0.5)
    state = theirs.state_dict()
    state["qkv.q_bias"], state["qkv.v_bias"] = state.pop("q_bias"), state.pop("v_bias")
    ours.load_state_dict(state)
    x = torch.randn(2, N, D)
    torch.testing.assert_close(ours(x), theirs(x), **CLOSE)


def test_interleaved_is_rotate_half_in_another_order() -> None:
    x, order = torch.randn(1, 2, 15, 16), torch.arange(16).view(8, 2).T.flatten()  # even channels, then odd ones
    halves, neighbours = Rotary((3, 5), 16)(), Rotary((3, 5), 16, pairs=Interleaved)()
    torch.testing.assert_close(neighbours(x)[..., order], halves(x[..., order]))


@pytest.mark.parametrize("value_dim", [D // H, 5])
def test_only_keys_have_no_bias(value_dim: int) -> None:
    K, width = D // H, H * value_dim
    ours, x = Attention(D, Heads(H, K, value_dim), projection=KeylessBias), torch.randn(B, N, D)
    nn.init.normal_(ours.qkv.q_bias), nn.init.normal_(ours.qkv.v_bias)
    q, k, v = (x @ part.T for part in ours.qkv.weight.split([D, D, width]))
    torch.testing.assert_close(ours.qkv(x), torch.cat([q + ours.qkv.q_bias, k, v + ours.qkv.v_bias], -1), **CLOSE)
