"""Every choice of score against its formula, written with a loop over batch, heads, queries and keys."""

import math
from functools import partial

import pytest
import torch
from torch import Tensor

from vit.nn import (
    Attention,
    Block,
    Encoder,
    Heads,
    LayerNorm,
    Local,
    Mlp,
    RelativePositions,
    Sliced,
    Unprojected,
    attention_maps,
    init_weights,
)
from vit.nn.scores import Additive, Bilinear, Cosine, DotProduct, ScaledDotProduct

B, N, S, D, H = 2, 5, 7, 12, 3
CLOSE = {"rtol": 0, "atol": 1e-5}
# the score of one query and one key (K,) in head h, from the paper's formula
FORMULAS = {
    DotProduct: lambda layer, h, q, k: sum(a * b for a, b in zip(q, k, strict=True)),
    Cosine: lambda layer, h, q, k: layer.log_scale[h].exp().squeeze() * (q @ k) / math.sqrt((q @ q) * (k @ k)),
    Bilinear: lambda layer, h, q, k: torch.einsum("i,ij,j->", q, layer.matrix[h], k),
    Additive: lambda layer, h, q, k: (layer.vector[h] * torch.tanh(q + k)).sum(),
    ScaledDotProduct: lambda layer, h, q, k: q @ k / math.sqrt(len(q)),
}
HEADS = {"split": Heads.split(D, H), "full": Heads.full(D, H), "other values": Heads(H, 6, 10)}


def layer(score: type[ScaledDotProduct], heads: Heads | int = H, **options) -> Attention:
    """With parameters of the score that differ from their initial values."""
    torch.manual_seed(0)
    made = Attention(D, heads, score=score, **options).eval()
    for parameter in made.score.parameters():
        torch.nn.init.normal_(parameter, std=0.7)
    return made


def by_hand(made: Attention, x: Tensor, memory: Tensor | None, allowed: Tensor) -> tuple[Tensor, Tensor]:
    """The result and the weights, one query after another; allowed (B,N,S)."""
    K, V = made.heads.head_dim, made.heads.value_dim
    if memory is None:
        q, k, v = made.qkv(x).split([H * K, H * K, H * V], dim=-1)
    else:
        q, (k, v) = made.q(x), made.kv(memory).split([H * K, H * V], dim=-1)
    q, k, v = (part.view(B, -1, H, part.shape[-1] // H) for part in (q, k, v))
    weights, heads = torch.zeros(B, H, *allowed.shape[1:]), torch.zeros(B, x.shape[1], H, V)
    for b in range(B):
        for h in range(H):
            for i in range(x.shape[1]):
                seen = [j for j in range(k.shape[1]) if allowed[b, i, j]]
                scores = torch.stack([FORMULAS[type(made.score)](made.score, h, q[b, i, h], k[b, j, h]) for j in seen])
                shares = scores.exp() / scores.exp().sum()
                weights[b, h, i, seen] = shares
                heads[b, i, h] = sum(share * v[b, j, h] for share, j in zip(shares, seen, strict=True))
    return made.proj(heads.flatten(2)), weights


@pytest.mark.parametrize("heads", HEADS.values(), ids=HEADS)
@pytest.mark.parametrize("kind", FORMULAS)
@torch.no_grad()
def test_self_attention_with_a_mask_and_causal_equals_the_formula(kind, heads) -> None:
    made, x = layer(kind, heads), torch.randn(B, N, D)
    keys = torch.tensor([[True] * 5, [True, True, False, True, False]])  # (B,N)
    past = torch.ones(N, N, dtype=torch.bool).tril()
    for mask, causal in ((None, False), (None, True), (keys, False), (keys, True)):
        allowed = torch.ones(B, N, N, dtype=torch.bool) if mask is None else mask[:, None].expand(-1, N, -1)
        expected, weights = by_hand(made, x, None, allowed & past if causal else allowed)
        with attention_maps(made) as maps:
            result = made(x, mask=mask, causal=causal)
        torch.testing.assert_close(result, expected, **CLOSE)
        torch.testing.assert_close(maps[""][0], weights, **CLOSE)


@pytest.mark.parametrize("kind", FORMULAS)
@torch.no_grad()
def test_cross_attention_with_a_mask_for_each_query_equals_the_formula(kind) -> None:
    made, x, memory = layer(kind, Heads(H, 4, 6), cross=True), torch.randn(B, N, D), torch.randn(B, S, D)
    mask = torch.rand(B, N, S) < 0.6
    mask[..., 0] = True
    expected, weights = by_hand(made, x, memory, mask)
    with attention_maps(made) as maps:
        result = made(x, memory, mask)
    torch.testing.assert_close(result, expected, **CLOSE)
    torch.testing.assert_close(maps[""][0], weights, **CLOSE)


def test_bilinear_is_initialized_as_the_scaled_dot_product() -> None:
    torch.manual_seed(0)
    made, plain, x = Attention(D, H, score=Bilinear), Attention(D, H), torch.randn(B, N, D)
    plain.load_state_dict({name: value for name, value in made.state_dict().items() if name != "score.matrix"})
    torch.testing.assert_close(made(x), plain(x), **CLOSE)


def test_cosine_ignores_lengths_and_bounds_its_scale() -> None:
    made = Cosine(Heads.split(D, H))
    assert made.log_scale.exp().flatten().tolist() == pytest.approx([10.0] * H)
    q, k, v = torch.randn(3, B, H, N, D // H)
    torch.testing.assert_close(made.attend(7 * q, 0.1 * k, v), made.attend(q, k, v), **CLOSE)
    torch.nn.init.constant_(made.log_scale, 50.0)
    q, k = made.transform(q, k)
    assert (q @ k.transpose(-2, -1)).abs().max() <= 100 * (D // H) ** 0.5 * 1.0001


@pytest.mark.parametrize("kind", FORMULAS)
def test_in_a_stack_every_parameter_has_a_gradient(kind) -> None:
    torch.manual_seed(0)
    stack = Encoder([Block(D, Attention(D, H, score=kind), Mlp(D, D)) for _ in range(2)], LayerNorm(D))
    init_weights(stack)
    x, mask = torch.randn(B, N, D), torch.tensor([[True] * 5, [True, True, False, False, False]])
    other = torch.where(mask[..., None], x, torch.randn(B, N, D))
    torch.testing.assert_close(stack(x, mask)[mask], stack(other, mask)[mask], **CLOSE)  # padding has no influence
    stack(x, mask)[mask].square().sum().backward()
    for name, parameter in stack.named_parameters():
        assert parameter.grad.isfinite().all() and (parameter.grad.abs().sum() > 1e-9 or "qkv.bias" in name), name


@pytest.mark.parametrize("kind", FORMULAS)
def test_a_token_that_may_attend_to_nothing_gives_no_nan(kind) -> None:
    made, x = layer(kind), torch.randn(B, N, D, requires_grad=True)
    mask = torch.ones(B, N, dtype=torch.bool)
    mask[1] = False
    result = made(x, mask=mask)
    result.sum().backward()
    assert result.isfinite().all() and x.grad.isfinite().all()
    assert all(parameter.grad.isfinite().all() for parameter in made.parameters())


MASKS = {  # of (B,N) keys that may be attended
    "keys": lambda allowed: allowed,
    "queries": lambda allowed: allowed[:, None].expand(-1, N, -1),
    "heads": lambda allowed: allowed[:, None, None].expand(-1, H, N, -1),
    "additive": lambda allowed: torch.zeros(()).where(allowed[:, None].expand(-1, N, -1), -torch.inf),
}
LAYERS = {
    **{kind.__name__: partial(layer, kind) for kind in FORMULAS},
    "local": lambda: layer(partial(Local, window=1)),
    "relative": lambda: layer(ScaledDotProduct, relative=RelativePositions((1, N), H)),
    "cross": lambda: layer(Additive, cross=True),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("name", LAYERS)
def test_a_row_with_nothing_to_attend_to_has_finite_gradients_and_maps(name, mask, dtype) -> None:
    made = LAYERS[name]().to(dtype)
    x = torch.randn(B, N, D, dtype=dtype, requires_grad=True)
    allowed = MASKS[mask](torch.tensor([[True] * N, [False] * N]))
    allowed = allowed.to(dtype) if mask == "additive" else allowed
    with attention_maps(made) as maps:
        y = made(x, *([x] if name == "cross" else []), mask=allowed)
    y.float().square().sum().backward()
    gradients = [x.grad, *(each.grad for each in made.parameters() if each.grad is not None)]
    assert all(torch.isfinite(each).all() for each in (y, *maps[""], *gradients))


@pytest.mark.parametrize("kind", FORMULAS)
def test_dropout_acts_in_training_only(kind) -> None:
    made, x = layer(kind, dropout=0.5), torch.randn(B, N, D)
    assert torch.equal(made(x), made(x))
    assert not torch.equal(made.train()(x), made(x))


def test_sliced_heads_are_heads_with_block_diagonal_matrices() -> None:
    """Each head projects its own slice, so it equals a usual projection whose other weights are zero."""
    sliced, usual, x = layer(ScaledDotProduct, projection=Sliced), layer(ScaledDotProduct), torch.randn(B, N, D)
    torch.nn.init.normal_(sliced.qkv.bias)
    K = D // H
    with torch.no_grad():
        matrix = torch.zeros(3, H, K, D)
        for h in range(H):
            matrix[:, h, :, h * K : (h + 1) * K] = sliced.qkv.weight[h].view(3, K, K)
        usual.qkv.weight.copy_(matrix.view(3 * D, D))
        usual.qkv.bias.copy_(sliced.qkv.bias.view(H, 3, K).transpose(0, 1).flatten())
        usual.proj.load_state_dict(sliced.proj.state_dict())
    torch.testing.assert_close(sliced(x), usual(x), **CLOSE)
    assert sliced.qkv.weight.numel() * H == usual.qkv.weight.numel()


def test_without_projections_the_result_is_the_weighted_sum_of_the_tokens() -> None:
    """y_i = sum_j softmax_j(x_i . x_j) x_j, with one head, no matrices and no scaling."""
    made, x = Attention(D, 1, score=DotProduct, projection=Unprojected, output=None), torch.randn(B, N, D) / 2
    assert not list(made.parameters())
    for b in range(B):
        for i in range(N):
            weights = [math.exp(float(x[b, i] @ x[b, j])) for j in range(N)]
            expected = sum(weight * x[b, j] for j, weight in enumerate(weights)) / sum(weights)
            torch.testing.assert_close(made(x)[b, i], expected, **CLOSE)
    with pytest.raises(ValueError, match="heads are slices of the 12 channels, so 3 heads are 4 wide, not 6"):
        Attention(D, Heads(3, 6, 6), projection=Unprojected)
    with pytest.raises(ValueError, match="so 3 heads are 4 wide, not 4 and 5"):
        Attention(D, Heads(3, 4, 5), projection=Unprojected)


def test_cross_attention_without_projections_compares_tokens_with_the_memory() -> None:
    made = Attention(D, H, cross=True, projection=Unprojected, output=None)
    x, memory = torch.randn(B, N, D), torch.randn(B, S, D)
    q, k = x.view(B, N, H, -1).transpose(1, 2), memory.view(B, S, H, -1).transpose(1, 2)
    expected = (q @ k.mT / math.sqrt(D // H)).softmax(-1) @ k
    torch.testing.assert_close(made(x, memory), expected.transpose(1, 2).flatten(2), **CLOSE)


@pytest.mark.parametrize("score", [ScaledDotProduct, Bilinear, Cosine, Additive])
def test_attention_weights_are_float32_under_autocast(score) -> None:
    torch.manual_seed(0)
    made, (q, k) = score(Heads(2, 8, 8)), torch.randn(2, 1, 2, 5, 8)
    expected = made.weights(q, k)
    with torch.autocast("cpu", torch.bfloat16):
        found = made.weights(q, k)
    assert found.dtype == torch.float32 and torch.equal(found, expected)
    half = q.bfloat16(), k.bfloat16()
    torch.testing.assert_close(made.weights(*half), made.weights(*(x.float() for x in half)), rtol=0, atol=0)


def test_the_initial_vectors_of_additive_attention_have_length_one() -> None:
    torch.manual_seed(0)
    vector = Additive(Heads(200, 64, 64)).vector.detach()
    assert vector.square().sum(-1).mean() == pytest.approx(1, abs=0.05)
