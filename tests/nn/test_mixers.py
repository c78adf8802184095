"""Recurrence, convolution and the Fourier transform against torch's, and the properties of masks and caches."""

from functools import partial

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from vit.generation import Generation, Uncached, generate
from vit.models.seq2seq import EncoderDecoder
from vit.nn import (
    Attention,
    Block,
    Convolution,
    Decoder,
    Encoder,
    Fourier,
    LayerNorm,
    Mixer,
    Mlp,
    Recurrent,
    TokenEmbed,
    init_weights,
)

B, N, D = 3, 7, 12
CLOSE = {"rtol": 0, "atol": 1e-5}
LENGTHS = torch.tensor([7, 3, 5])
MASK = torch.arange(N) < LENGTHS[:, None]
KINDS = {  # (causal) -> a mixer
    "lstm": partial(Recurrent, D, nn.LSTM),
    "gru": partial(Recurrent, D, nn.GRU),
    "conv1d": partial(Convolution, D, 3),
    "conv1d of 4": partial(Convolution, D, 4),
    "conv1d of 1": partial(Convolution, D, 1),
    "fnet": Fourier,
}
BOTH_WAYS = ["lstm", "gru", "conv1d", "conv1d of 1", "fnet"]
CAUSAL = ["lstm", "gru", "conv1d", "conv1d of 4", "conv1d of 1"]


def made(name: str, causal: bool = False) -> Mixer:
    torch.manual_seed(0)
    return (KINDS[name](causal=True) if causal else KINDS[name]()).eval()


def tokens(seed: int = 1) -> Tensor:
    return torch.randn(B, N, D, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("name", ["lstm", "gru"])
def test_a_recurrent_layer_equals_torchs_with_packed_sequences(name: str) -> None:
    ours, x = made(name), tokens()
    cell = {"lstm": nn.LSTM, "gru": nn.GRU}[name]
    reference = cell(D, D // 2, batch_first=True, bidirectional=True)
    state = dict(ours.forwards.state_dict())
    state |= {f"{key}_reverse": value for key, value in ours.backwards.state_dict().items()}
    reference.load_state_dict(state)
    torch.testing.assert_close(ours(x), reference(x)[0], **CLOSE)
    packed = pack_padded_sequence(x, LENGTHS, batch_first=True, enforce_sorted=False)
    expected = pad_packed_sequence(reference(packed)[0], batch_first=True)[0]
    torch.testing.assert_close(ours(x, MASK)[MASK], expected[MASK], **CLOSE)


def test_a_convolution_equals_a_sum_over_neighbours() -> None:
    for causal in (False, True):
        ours, x = made("conv1d", causal), tokens()
        offsets = (-2, -1, 0) if causal else (-1, 0, 1)
        expected = torch.zeros(B, N, D)
        for i in range(N):
            for weight, offset in zip(ours.conv.weight.unbind(2), offsets, strict=True):
                if 0 <= i + offset < N:
                    expected[:, i] += x[:, i + offset] @ weight.T
        torch.testing.assert_close(ours(x, causal=causal), expected + ours.conv.bias, **CLOSE)


def test_fnet_is_the_real_part_of_two_transforms_for_each_length() -> None:
    ours, x = made("fnet"), tokens()
    torch.testing.assert_close(ours(x), torch.fft.fft(torch.fft.fft(x, dim=-1), dim=1).real, rtol=0, atol=1e-4)
    masked = ours(x, MASK)
    for row, length in enumerate(LENGTHS):
        alone = torch.fft.fft(torch.fft.fft(x[row, :length], dim=-1), dim=0).real
        torch.testing.assert_close(masked[row, :length], alone, rtol=0, atol=1e-4)


@pytest.mark.parametrize("holes", [False, True])
@pytest.mark.parametrize("name", BOTH_WAYS)
def test_padding_has_no_influence_wherever_it_is(name: str, holes: bool) -> None:
    ours, x = made(name), tokens()
    mask = torch.rand(B, N, generator=torch.Generator().manual_seed(3)) < 0.6 if holes else MASK
    other = torch.where(mask[..., None], x, tokens(2))
    torch.testing.assert_close(ours(x, mask)[mask], ours(other, mask)[mask], **CLOSE)
    assert ours(x, torch.zeros(B, N, dtype=torch.bool)).isfinite().all()
    if holes and "conv1d" not in name:  # the tokens that are left form a text
        for row in range(B):
            alone = ours(x[row : row + 1, mask[row]])[0]
            torch.testing.assert_close(ours(x, mask)[row, mask[row]], alone, rtol=0, atol=1e-4)


@pytest.mark.parametrize("name", CAUSAL)
def test_a_causal_layer_does_not_depend_on_later_tokens(name: str) -> None:
    ours, x, later = made(name, causal=True), tokens(), tokens()
    later[:, 4:] += 1
    plain, changed = ours(x, causal=True), ours(later, causal=True)
    assert torch.equal(plain[:, :4], changed[:, :4]) and not torch.allclose(plain[:, 4:], changed[:, 4:])


@pytest.mark.parametrize("pieces", [(1,) * 7, (3, 1, 3), (7,)], ids=str)
@pytest.mark.parametrize("name", CAUSAL)
def test_steps_of_any_length_equal_the_whole(name: str, pieces: tuple) -> None:
    ours, x = made(name, causal=True), tokens()
    cache = ours.new_cache(x, 4)
    steps = [ours(piece, cache=cache) for piece in x.split(pieces, dim=1)]
    torch.testing.assert_close(torch.cat(steps, dim=1), ours(x, causal=True), **CLOSE)


@pytest.mark.parametrize("name", CAUSAL)
def test_steps_in_bfloat16_equal_the_whole(name: str) -> None:
    ours, x = made(name, causal=True), tokens()
    cache = ours.new_cache(x, 4)
    with torch.autocast("cpu", torch.bfloat16):
        steps = [ours(piece, cache=cache) for piece in x.split(1, dim=1)]
    torch.testing.assert_close(torch.cat(steps, dim=1).float(), ours(x, causal=True), rtol=0, atol=0.1)


@pytest.mark.parametrize("settings", [{}, {"beam": 3, "n_best": 3}], ids=["greedy", "beams"])
@pytest.mark.parametrize("name", CAUSAL)
def test_a_decoder_generates_the_same_with_and_without_its_cache(name: str, settings: dict) -> None:
    torch.manual_seed(0)
    blocks = [Block(D, made(name, causal=True), Mlp(D, D), Attention(D, 3, cross=True)) for _ in range(2)]
    encoder = Encoder([Block(D, made("fnet"), Mlp(D, D))], LayerNorm(D))
    model = EncoderDecoder(TokenEmbed(9, D), encoder, TokenEmbed(9, D), Decoder(blocks, LayerNorm(D))).eval()
    init_weights(model)
    source, mask = torch.randint(3, 9, (4, 5)), torch.arange(5) < torch.tensor([[5], [2], [4], [3]])
    generation = Generation(max_len=24, min_len=20, **settings)  # long enough that unused tokens are dropped
    with torch.inference_mode():
        fast, slow = (generate(each, source, mask, generation) for each in (model, Uncached(model)))
    for row, other in zip(fast, slow, strict=True):
        assert [each.ids for each in row] == [each.ids for each in other]
        assert [each.score for each in row] == pytest.approx([each.score for each in other], abs=1e-4)


@pytest.mark.parametrize("name", BOTH_WAYS)
def test_every_parameter_learns_also_in_bfloat16(name: str) -> None:
    stack, x = Encoder([Block(D, made(name), Mlp(D, D))], LayerNorm(D)), tokens()
    with torch.autocast("cpu", torch.bfloat16):
        y = stack(x, MASK)
    y[MASK].float().square().sum().backward()
    for parameter in stack.parameters():
        assert parameter.grad.isfinite().all() and parameter.grad.abs().sum() > 0
    torch.testing.assert_close(y[MASK].float(), stack(x, MASK)[MASK], rtol=0, atol=0.1)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: Recurrent(13, nn.GRU), "dim 13 is not divisible by 2"),
        (lambda: Convolution(D, 4), "kernel is 4, but must be odd"),
        (lambda: made("lstm")(tokens(), causal=True), "Recurrent was built with causal=False"),
        (lambda: made("gru")(tokens(), MASK[:, None].expand(-1, N, -1)), "takes a bool mask .B,N."),
        (lambda: made("conv1d")(tokens(), rotary=object()), "Convolution has no queries and keys"),
        (lambda: made("fnet")(tokens(), cache=made("fnet").new_cache(tokens(), 1)), "cannot generate a text"),
    ],
)
def test_errors_name_the_layer_and_the_numbers(call, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()
