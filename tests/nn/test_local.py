"""Local attention against full attention with a mask of the same band."""

from functools import partial

import pytest
import torch
from torch import Tensor

from vit.generation import Generation, Uncached, generate
from vit.models.seq2seq import EncoderDecoder
from vit.nn import (
    Additive,
    Attention,
    Bilinear,
    Block,
    Cosine,
    Decoder,
    DotProduct,
    Encoder,
    Heads,
    LayerNorm,
    Local,
    Mlp,
    TextRelativePositions,
    TokenEmbed,
    attention_maps,
    sincos_1d,
)
from vit.nn.local import BLOCK

B, D, H = 2, 12, 3
CLOSE = {"rtol": 0, "atol": 1e-6}


def both(window: int, heads: Heads | int = H, **pattern) -> tuple[Attention, Attention]:
    torch.manual_seed(0)
    local = Attention(D, heads, score=partial(Local, window=window, **pattern))
    full = Attention(D, heads)
    full.load_state_dict(local.state_dict())
    return local, full


def band(n: int, window: int, causal: bool, dilation: int = 1, global_tokens: int = 0) -> Tensor:
    def may(i: int, j: int) -> bool:
        near = any(j == i + dilation * step for step in range(-window, window + 1))
        return (near or i < global_tokens or j < global_tokens) and (j <= i or not causal)

    return torch.tensor([[may(i, j) for j in range(n)] for i in range(n)])


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("n", "window"), [(1, 2), (7, 0), (BLOCK, 3), (BLOCK + 1, 3), (100, 0), (101, 1), (96, 7),
                                           (130, 40), (50, 60)])
@pytest.mark.parametrize("rank", [0, 2, 3, 4])
def test_equals_full_attention_with_a_band(n: int, window: int, causal: bool, rank: int) -> None:
    check_against_band(n, window, causal, rank)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("n", "window", "dilation", "global_tokens"), [
    (9, 1, 2, 1), (100, 3, 1, 1), (100, 3, 1, 5), (101, 3, 2, 0), (130, 2, 3, 0), (131, 2, 3, 4), (140, 40, 2, 2),
    (50, 2, 1, 50), (50, 2, 1, 60)])
@pytest.mark.parametrize("rank", [0, 2, 3, 4])
def test_dilation_and_global_tokens_equal_full_attention_with_their_mask(
    n: int, window: int, dilation: int, global_tokens: int, causal: bool, rank: int
) -> None:
    check_against_band(n, window, causal, rank, dilation=dilation, global_tokens=global_tokens)


def check_against_band(n: int, window: int, causal: bool, rank: int, **pattern) -> None:
    local, full = both(window, Heads(H, 6, 5), **pattern)
    x, y = (torch.randn(B, n, D, generator=torch.Generator().manual_seed(1)).requires_grad_() for _ in range(2))
    shapes = {0: None, 2: (B, n), 3: (B, n, n), 4: (B, H, n, n)}
    mask, allowed = None, band(n, window, causal, **pattern).expand(B, H, n, n)
    if rank:
        mask = torch.rand(shapes[rank]) < 0.7
        allowed = allowed & mask.view({2: (B, 1, 1, n), 3: (B, 1, n, n), 4: (B, H, n, n)}[rank])
    with attention_maps(local) as ours, attention_maps(full) as theirs:
        result, expected = local(x, mask=mask, causal=causal), full(y, mask=allowed)
    torch.testing.assert_close(result, expected, **CLOSE)
    torch.testing.assert_close(ours[""][0], theirs[""][0], **CLOSE)
    weight = torch.randn(B, n, D)
    (result * weight).sum().backward()
    (expected * weight).sum().backward()
    assert x.grad.isfinite().all()
    torch.testing.assert_close(x.grad, y.grad, rtol=1e-5, atol=1e-5)
    for mine, other in zip(local.parameters(), full.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, other.grad, rtol=1e-5, atol=1e-5)


def test_what_is_far_away_or_padding_has_no_influence() -> None:
    local, _ = both(window=4)
    x = torch.randn(1, 90, D)
    mask = torch.arange(90)[None] < 80
    other = x.clone()
    other[:, 45:56] = torch.nan  # neighbours of 50 up to 4 away from 41 ... 60
    other[:, 80:] = 1e6
    plain, changed = local(x, mask=mask), local(torch.where(other.isnan(), -7.0, other), mask=mask)
    near = torch.arange(90)
    far = ((near < 41) | (near > 59)) & (near < 80)
    assert torch.equal(plain[:, far], changed[:, far])
    assert not torch.allclose(plain[:, 41], changed[:, 41], atol=1e-4)


def test_a_text_does_not_depend_on_the_batch() -> None:
    local, _ = both(window=5)
    x = torch.randn(3, 77, D)
    torch.testing.assert_close(local(x)[1:2], local(x[1:2]), **CLOSE)


@pytest.mark.parametrize("pattern", [{}, {"dilation": 2}, {"dilation": 3, "global_tokens": 2}], ids=str)
@pytest.mark.parametrize("window", [0, 3, 100])
def test_the_last_tokens_of_a_text_have_the_same_windows_as_all_together(window: int, pattern: dict) -> None:
    local, _ = both(window, **pattern)
    x = torch.randn(B, 40, D)
    q, k, v = local.project(x)
    expected = local.score.attend(q, k, v, None, True)
    one = local.score.attend(q[:, :, -1:], k, v, None, False)  # a step of generation: one token, and all before it
    three = local.score.attend(q[:, :, -3:], k, v, None, True)
    torch.testing.assert_close(one, expected[:, :, -1:], **CLOSE)
    torch.testing.assert_close(three, expected[:, :, -3:], **CLOSE)


def test_beams_interleaved_in_the_cache_count_their_own_tokens() -> None:
    """Two texts generated together: their keys alternate, and a mask selects those of each."""
    local, _ = both(window=2)
    x = torch.randn(2, 6, D)
    expected = local(x, causal=True)[:, -1]
    q, k, v = local.project(x.transpose(0, 1).reshape(1, 12, D))
    lines = torch.arange(12)[None] % 2 == torch.arange(2)[:, None]  # (2,12)
    result = local.proj(local.score.attend(q[:, :, -2:], k, v, lines[None], False).transpose(1, 2).flatten(2))
    torch.testing.assert_close(result[0], expected, **CLOSE)


LAYERS = {
    "local": {"score": partial(Local, window=2)},
    "local, dilated, a global token": {"score": partial(Local, window=1, dilation=2, global_tokens=1)},
    **{kind.__name__: {"score": kind} for kind in (Additive, Bilinear, Cosine, DotProduct)},
    "relative": {"relative": TextRelativePositions(H, causal=True, buckets=6, longest=8)},
}


@pytest.mark.parametrize("kind", LAYERS)
@pytest.mark.parametrize("settings", [{}, {"beam": 3, "n_best": 3}], ids=["greedy", "beams"])
def test_a_decoder_of_every_kind_generates_the_same_with_and_without_its_cache(kind, settings) -> None:
    torch.manual_seed(0)
    blocks = [Block(D, Attention(D, H, **LAYERS[kind]), Mlp(D, D), Attention(D, H, cross=True)) for _ in range(2)]
    reading = Encoder([Block(D, Attention(D, H), Mlp(D, D))], LayerNorm(D))
    embeds = [TokenEmbed(9, D, pos_embed=sincos_1d(20, D)) for _ in range(2)]
    model = EncoderDecoder(embeds[0], reading, embeds[1], Decoder(blocks, LayerNorm(D))).eval()
    source, mask = torch.randint(3, 9, (4, 5)), torch.arange(5) < torch.tensor([[5], [2], [4], [3]])
    generation = Generation(max_len=12, min_len=8, **settings)
    with torch.inference_mode():
        fast, slow = (generate(each, source, mask, generation) for each in (model, Uncached(model)))
    for row, other in zip(fast, slow, strict=True):
        assert [each.ids for each in row] == [each.ids for each in other]
        assert [each.score for each in row] == pytest.approx([each.score for each in other], abs=1e-5)


def test_memory_grows_with_the_length_and_not_with_its_square() -> None:
    """Bytes of everything that autograd saves, which with a matrix of scores or masks would grow 16-fold."""
    local, _ = both(window=8)

    def saved_bytes(n: int, mask: Tensor | None) -> int:
        sizes = {}
        pack = lambda x: sizes.__setitem__(x.untyped_storage().data_ptr(), x.untyped_storage().nbytes())  # noqa: E731
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
            local(torch.randn(1, n, D, requires_grad=True), mask=mask)
        return sum(sizes.values())

    for padded in (False, True):
        short, long = (saved_bytes(n, torch.ones(1, n, dtype=torch.bool) if padded else None) for n in (256, 1024))
        assert long < 4.5 * short


@pytest.mark.parametrize(("pattern", "message"), [({"window": -1}, "window is -1"), (
    {"window": 1, "dilation": 0}, "dilation is 0"), ({"window": 1, "global_tokens": -2}, "global_tokens is -2")])
def test_values_out_of_range_are_refused(pattern: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Local(Heads.split(D, H), **pattern)


def test_weights_of_the_last_queries_are_the_last_rows_of_all() -> None:
    q, k = torch.randn(2, B, H, 9, 4)
    score = Local(Heads(H, 4, 4), window=2, global_tokens=1)
    whole = score.weights(q, k, causal=True)
    torch.testing.assert_close(score.weights(q[:, :, -3:], k, causal=True), whole[:, :, -3:])
