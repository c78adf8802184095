"""Texts of different lengths to one vector each, against loops over their tokens."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vit.nn import Attention, AttentionPool, ClassMean, ClassToken, Mean, Mlp, Pooler, ScorePool, Sum

B, N, D = 3, 7, 8
LENGTHS = (7, 4, 1)


def pools() -> dict[str, nn.Module]:
    torch.manual_seed(0)
    found = {
        "class": ClassToken(),
        "pooler": Pooler(D),
        "mean": Mean(),
        "sum": Sum(),
        "sum, normed": Sum(norm=nn.LayerNorm(D)),
        "scores of two layers": ScorePool(D, hidden=5),
        "scores of a vector": ScorePool(D),
        "query": AttentionPool(D, Attention(D, 2, cross=True), Mlp(D, 16), nn.LayerNorm(D)),
    }
    for pool in found.values():
        for parameter in pool.parameters():
            nn.init.normal_(parameter)
    return found


def tokens() -> tuple[Tensor, Tensor]:
    x = torch.randn(B, N, D, generator=torch.Generator().manual_seed(1))
    return x, torch.arange(N) < torch.tensor(LENGTHS)[:, None]


@pytest.mark.parametrize("name", pools())
def test_padding_never_changes_the_result(name: str) -> None:
    pool, (x, mask) = pools()[name], tokens()
    pooled = pool(x, mask)
    assert pooled.shape == (B, D)
    other = torch.where(mask[..., None], x, 1e4 * torch.randn(B, N, D))
    torch.testing.assert_close(pool(other, mask), pooled, rtol=0, atol=1e-5)
    for row, length in enumerate(LENGTHS):
        torch.testing.assert_close(pool(x[row : row + 1, :length])[0], pooled[row], rtol=0, atol=1e-5)


def weight_by_hand(pool: ScorePool, texts: Tensor) -> list[float]:
    """The softmax of w2 tanh(w1 x), or of w x, over the tokens of one text (N,D)."""
    scores = []
    for token in texts:
        x = token if pool.hidden is None else torch.tanh(pool.hidden.weight @ token + pool.hidden.bias)
        scores.append(math.exp(float(pool.score.weight[0] @ x)))
    return [score / sum(scores) for score in scores]


@pytest.mark.parametrize("hidden", [0, 5])
@pytest.mark.parametrize("prefix", [0, 2])
@torch.no_grad()
def test_scores_by_hand(hidden: int, prefix: int) -> None:
    torch.manual_seed(0)
    pool, (x, _) = ScorePool(D, hidden, prefix), tokens()
    lengths = (7, 4, 3)
    mask = torch.arange(N) < torch.tensor(lengths)[:, None]
    weights, pooled = pool.weights(x, mask), pool(x, mask)
    for row, length in enumerate(lengths):
        text = x[row, prefix:length]
        expected = torch.tensor(weight_by_hand(pool, text))
        torch.testing.assert_close(weights[row, prefix:length], expected)
        assert weights[row, :prefix].eq(0).all() and weights[row, length:].eq(0).all()
        torch.testing.assert_close(pooled[row], sum(w * token for w, token in zip(expected, text, strict=True)))


@pytest.mark.parametrize("prefix", [0, 2])
def test_sum_by_hand(prefix: int) -> None:
    x, mask = tokens()
    pooled = Sum(prefix)(x, mask)
    for row, length in enumerate(LENGTHS):
        torch.testing.assert_close(pooled[row], sum(x[row, prefix:length], torch.zeros(D)))
    torch.testing.assert_close(Sum(prefix)(x), Mean(prefix)(x) * (N - prefix))


def test_equal_scores_are_the_mean() -> None:
    x, mask = tokens()
    pool = ScorePool(D)
    nn.init.zeros_(pool.score.weight)
    torch.testing.assert_close(pool(x, mask), Mean()(x, mask))


def test_a_text_without_tokens_gives_zeros_and_finite_gradients() -> None:
    x, _ = tokens()
    x.requires_grad_()
    mask = torch.tensor([[True] * N, [False] * N, [True] + [False] * (N - 1)])
    for pool in (ScorePool(D, hidden=5), Mean(), Sum()):
        pooled = pool(x, mask)
        assert pooled[1].eq(0).all()
        pooled.square().sum().backward()
        assert x.grad.isfinite().all()


def test_weights_in_half_precision_still_sum_to_one() -> None:
    pool = ScorePool(64, hidden=16).bfloat16()
    weights = pool.weights(torch.randn(2, 300, 64).bfloat16())
    assert weights.dtype == torch.float32
    torch.testing.assert_close(weights.sum(1), torch.ones(2))
    assert pool(torch.randn(2, 300, 64).bfloat16()).dtype == torch.bfloat16


def test_pooler_is_a_dense_layer_and_tanh() -> None:
    pool, (x, mask) = pools()["pooler"], tokens()
    expected = torch.stack([torch.tanh(pool.dense.weight @ row[0] + pool.dense.bias) for row in x])
    torch.testing.assert_close(pool(x, mask), expected)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_the_mean_of_many_large_values_fits_half_precision(dtype: torch.dtype) -> None:
    x, mask = torch.full((1, 301, 2), 300.0, dtype=dtype), torch.ones(1, 301, dtype=torch.bool)
    assert torch.equal(Mean()(x, mask), Mean()(x)) and Mean()(x, mask).dtype == dtype


def test_attention_pooling_adds_the_mlp_to_what_each_learned_query_attends_to() -> None:
    pool, (x, _) = pools()["query"], tokens()
    attended = torch.cat([pool.attn(pool.latent, row[None]) for row in x])
    assert pool.latent.shape == (1, 1, D)
    expected = attended + pool.mlp(F.layer_norm(attended, (D,), pool.mlp_norm.weight, pool.mlp_norm.bias))
    torch.testing.assert_close(pool(x), expected[:, 0])


def test_class_token_and_mean_are_concatenated() -> None:
    x, mask = tokens()
    pooled = ClassMean(prefix=1)(x, mask)
    for row, length in enumerate(LENGTHS):
        torch.testing.assert_close(pooled[row, :D], x[row, 0])
        torch.testing.assert_close(pooled[row, D:], x[row, 1:length].sum(0) / max(length - 1, 1))
