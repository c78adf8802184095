"""Generation under autocast casts the weights once, with the bits of weights that are cast in each call."""

from collections import Counter

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from tests.generation.test_generate import model, scores, sources, texts
from vit.generation import Generation, generate
from vit.generation.cast_weights import with_cast_weights

CASTS = (torch.ops.aten._to_copy.default, torch.ops.aten.to.dtype)
BF16 = torch.autocast("cpu", torch.bfloat16)
TARGET = torch.tensor([[1, 7, 9, 4]]).repeat(5, 1)


class Casts(TorchDispatchMode):
    """Counts the casts to bfloat16 by shape."""

    def __init__(self) -> None:
        super().__init__()
        self.shapes: Counter[tuple[int, ...]] = Counter()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        made = function(*args, **(kwargs or {}))
        if function in CASTS and made.dtype == torch.bfloat16:
            self.shapes[tuple(made.shape)] += 1
        return made


@pytest.mark.parametrize("options", [{}, {"tied": "none"}, {"positions": "rotary", "mlp": "swiglu", "norm": "rms"}])
def test_a_copy_with_cast_weights_has_the_same_bits(options):
    made, (source, mask) = model(**options), sources()
    with torch.inference_mode(), BF16:
        copy = with_cast_weights(made, "cpu")
        assert torch.equal(copy(source, TARGET, mask), made(source, TARGET, mask))
    linear = [part for part in copy.modules() if isinstance(part, nn.Linear)]
    assert linear and all(part.weight.dtype == torch.bfloat16 for part in linear)
    assert all(parameter.dtype == torch.float32 for parameter in made.parameters())
    assert copy.target_embed.token.weight is made.target_embed.token.weight
    assert (copy.embed.token is copy.target_embed.token) == (made.embed.token is made.target_embed.token)


def test_without_autocast_or_with_hooks_there_is_no_copy():
    made = model()
    assert with_cast_weights(made, "cpu") is made
    made.decoder.blocks[0].attn.register_forward_hook(lambda *_: None)
    with BF16:
        assert with_cast_weights(made, "cpu") is made


@pytest.mark.parametrize("settings", [Generation(max_len=3), Generation(beam=3, max_len=3, min_len=3)])
def test_weights_are_cast_once_for_all_steps(settings):
    def casts(length: int) -> Counter[tuple[int, ...]]:
        with Casts() as seen, BF16:
            generate(made, *sources(), Generation(beam=settings.beam, max_len=length, min_len=length))
        return Counter({shape: count for shape, count in seen.shapes.items() if shape in shapes})

    made = model(num_heads=4, dim=24)  # no batch of tokens has the shape of a weight
    shapes = {tuple(parameter.shape) for name, parameter in made.named_parameters() if parameter.ndim == 2}
    short, long = casts(3), casts(12)
    assert short == long and short.total() == sum(isinstance(part, nn.Linear) for part in made.modules()) + 1


def test_texts_are_those_of_weights_that_are_cast_in_each_call():
    made, settings = model(sharp=1.0), Generation(beam=3, n_best=2)
    with BF16:
        cast_once = generate(made, *sources(), settings)
        made.decoder.blocks[0].attn.proj.register_forward_hook(lambda *_: None)
        cast_in_each_call = generate(made, *sources(), settings)
    assert texts(cast_once) == texts(cast_in_each_call)
    assert scores(cast_once).tolist() == scores(cast_in_each_call).tolist()
