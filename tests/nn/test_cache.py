"""Decoding step by step gives the outputs of the whole text."""

import pytest
import torch

from vit.nn import Attention, Block, Decoder, Heads, LayerNorm, Mlp, RMSNorm, Rotary, attention_maps
from vit.nn.cache import KeyValues, TokenStates
from vit.nn.init import init_weights

B, T, S, D, H = 2, 6, 5, 16, 2
CLOSE = {"rtol": 0, "atol": 1e-5}


def decoder(pre_norm: bool = True, rotary: bool = False, values: int = D // H, **options) -> Decoder:
    torch.manual_seed(0)
    heads = Heads(H, D // H, values)
    blocks = [
        Block(D, Attention(D, heads, **options), Mlp(D, 2 * D), Attention(D, heads, cross=True, **options),
              pre_norm=pre_norm)
        for _ in range(2)
    ]
    made = Decoder(blocks, LayerNorm(D), rotary=Rotary((T,), D // H, theta=10_000) if rotary else None)
    init_weights(made)
    return made.eval()


def inputs() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    torch.manual_seed(1)
    return torch.randn(B, T, D), torch.randn(B, S, D), torch.arange(S) < torch.tensor([[3], [5]])


@pytest.mark.parametrize("capacity", [1, 4, 64], ids=lambda capacity: f"capacity {capacity}")
@pytest.mark.parametrize("pieces", [(1,) * 6, (3, 1, 2), (6,), (1, 5)], ids=str)
@pytest.mark.parametrize("options", [{}, {"pre_norm": False, "values": 5}, {"rotary": True, "qk_norm": RMSNorm}],
                         ids=["plain", "post-norm, narrow values", "rotary, QK-norm"])
def test_steps_of_any_length_equal_the_whole(options: dict, pieces: tuple, capacity: int) -> None:
    made, (x, memory, mask) = decoder(**options), inputs()
    cache = made.start(memory, mask, capacity)
    steps = [made.advance(piece, cache) for piece in x.split(pieces, dim=1)]
    torch.testing.assert_close(torch.cat(steps, dim=1), made(x, memory, memory_mask=mask), **CLOSE)
    assert cache.position == T


@pytest.mark.parametrize("rotary", [False, True])
def test_beams_in_one_batch_equal_beams_alone(rotary: bool) -> None:
    """Two beams share two tokens; the first continues, and the second branches off from it a step later."""
    made, (x, memory, mask) = decoder(rotary=rotary), inputs()
    extra = torch.randn(B, 2, D)
    cache = made.start(memory, mask)
    made.advance(x[:, :2], cache)
    now = torch.stack([x[:, 2], extra[:, 0]], dim=1)  # two alternatives for position 2
    made.advance(now, cache, torch.tensor([[1, 1, 1, 0], [1, 1, 0, 1]]).bool().expand(B, -1, -1))
    now = torch.stack([x[:, 3], extra[:, 1]], dim=1)  # both go on from the first of them
    got = made.advance(now, cache, torch.tensor([[1, 1, 1, 0, 1, 0], [1, 1, 1, 0, 0, 1]]).bool().expand(B, -1, -1))
    one = made(x[:, :4], memory, memory_mask=mask)[:, 3]
    two = made(torch.cat([x[:, :3], extra[:, 1:]], dim=1), memory, memory_mask=mask)[:, 3]
    torch.testing.assert_close(got, torch.stack([one, two], dim=1), **CLOSE)


def test_rows_are_dropped_and_repeated_by_index() -> None:
    made, (x, memory, mask) = decoder(), inputs()
    cache = made.start(memory, mask)
    made.advance(x[:, :3], cache)
    rows = torch.tensor([1, 1, 0])
    cache.select_rows(rows)
    expected = made(x[rows, :4], memory[rows], memory_mask=mask[rows])[:, 3:]
    torch.testing.assert_close(made.advance(x[rows, 3:4], cache), expected, **CLOSE)


def test_tokens_that_no_beam_needs_are_removed() -> None:
    """Different tokens are removed from the rows; the others keep their order, and positions continue.
    """
    made, (x, memory, mask) = decoder(rotary=True), inputs()
    cache = made.start(memory, mask, capacity=4)
    made.advance(x[:, :3], cache)
    extra = torch.randn(B, 1, D)  # two alternatives for position 3: one row goes on from the first, one from the second
    lines = torch.tensor([[1, 1, 1, 1, 0], [1, 1, 1, 0, 1]]).bool().expand(B, -1, -1)
    made.advance(torch.cat([x[:, 3:4], extra], dim=1), cache, lines)
    cache.select_tokens(torch.tensor([[0, 1, 2, 3], [0, 1, 2, 4]]))
    got = made.advance(x[:, 4:5], cache)
    own = torch.cat([x[:, :3], torch.stack([x[0, 3:4], extra[1]]), x[:, 4:5]], dim=1)
    torch.testing.assert_close(got, made(own, memory, memory_mask=mask)[:, 4:], **CLOSE)


def test_the_memory_is_projected_once() -> None:
    made, (x, memory, _) = decoder(), inputs()
    calls = []
    for block in made.blocks:
        block.cross_attn.kv.register_forward_hook(lambda *_: calls.append(1))
    cache = made.start(memory)
    for i in range(T):
        made.advance(x[:, i : i + 1], cache)
    assert len(calls) == len(made.blocks)


def test_maps_of_a_step_are_rows_of_the_maps_of_the_whole() -> None:
    made, (x, memory, mask) = decoder(), inputs()
    with attention_maps(made) as whole:
        made(x, memory, memory_mask=mask)
    cache = made.start(memory, mask)
    with attention_maps(made) as steps:
        made.advance(x[:, :2], cache)
        made.advance(x[:, 2:3], cache)
    for name, (maps,) in whole.items():
        expected = maps[:, :, 2:3] if "cross" in name else maps[:, :, 2:3, :3]
        torch.testing.assert_close(steps[name][1], expected, **CLOSE)


def test_a_text_longer_than_the_rotary_table_is_refused() -> None:
    made, (x, memory, _) = decoder(rotary=True), inputs()
    cache = made.start(memory)
    made.advance(x, cache)
    with pytest.raises(ValueError, match="the sequence has 7 tokens, but max_len is 6"):
        made.advance(x[:, :1], cache)
    with pytest.raises(ValueError, match="the sequence has 8 tokens, but max_len is 6"):
        made(torch.zeros(1, 8, D), memory[:1])


def test_a_cache_doubles_when_it_is_full_and_keeps_what_it_holds() -> None:
    parts = [(torch.randn(3, 2, n, 4), torch.randn(3, 2, n, 5)) for n in (2, 1, 1, 6)]
    cache, capacities = KeyValues(torch.zeros(3, 2, 3, 4), torch.zeros(3, 2, 3, 5)), []
    for i, part in enumerate(parts, start=1):
        keys, values = cache.append(*part)
        assert torch.equal(keys, torch.cat([k for k, _ in parts[:i]], dim=2))
        assert torch.equal(values, torch.cat([v for _, v in parts[:i]], dim=2))
        capacities.append(cache.keys.shape[2])
    assert capacities == [3, 3, 6, 12] and cache.values.shape[2] == 12


def test_tokens_of_a_row_are_selected_in_the_order_of_their_indices() -> None:
    keys, values = torch.randn(3, 2, 4, 4), torch.randn(3, 2, 4, 5)
    cache, tokens = KeyValues(torch.zeros(3, 2, 6, 4), torch.zeros(3, 2, 6, 5)), torch.tensor([[0, 2], [3, 1], [1, 1]])
    cache.append(keys, values)
    cache.select_tokens(tokens)
    for found, whole in zip(cache.all(), (keys, values), strict=True):
        assert torch.equal(found, torch.stack([x[:, each] for x, each in zip(whole, tokens, strict=True)]))


def test_states_of_rows_and_tokens_are_selected_by_index() -> None:
    states, cache = torch.randn(3, 4, 5), TokenStates(torch.zeros(3, 0, 5))
    cache.append(states)
    cache.select_rows(torch.tensor([2, 0, 2]))
    assert torch.equal(cache.states, states[[2, 0, 2]])
    cache.select_tokens(torch.tensor([[0, 3], [2, 1], [1, 1]]))
    expected = torch.stack([states[2, [0, 3]], states[0, [2, 1]], states[2, [1, 1]]])
    assert torch.equal(cache.states, expected)
    assert torch.equal(cache.last(1)[:, 0], expected[:, 1:])
