"""Copies with cast and packed weights compute what the model computes, and cast and pack once."""

import sys
from collections import Counter
from types import SimpleNamespace

import pytest
import timm
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from tests.generation.test_generate import model, scores, sources, texts
from vit.generation import Generation, generate
from vit.models import VisionTransformer, VisionTransformerConfig
from vit.nn.cpu.linear import ANY_SIZE, LARGE_PACKED, PackedLinear
from vit.nn.cpu.onednn import load_onednn
from vit.nn.cpu.prepacked import autocast_dtype, prepacked

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
        if function in CASTS and made.dtype == torch.bfloat16 != args[0].dtype:
            self.shapes[tuple(made.shape)] += 1
        return made


def classifier(**options) -> VisionTransformer:
    torch.manual_seed(0)
    sizes = {"image_size": 16, "patch_size": 4, "dim": 32, "depth": 2, "num_heads": 2, "num_classes": 5}
    return VisionTransformer(VisionTransformerConfig(**sizes, **options)).eval()


@pytest.fixture
def packing(monkeypatch) -> list[tuple[int, ...]]:
    """Products of any size are for packed weights; the shapes of the weights that were packed."""
    if not LARGE_PACKED or load_onednn() is None:
        pytest.skip("packed products are used on x86-64 with AVX2 or AVX-512 only")
    monkeypatch.setattr("vit.nn.cpu.linear.LARGE_PACKED", dict.fromkeys(LARGE_PACKED, ANY_SIZE))
    onednn, shapes = load_onednn(), []

    def pack(weight, rows):
        shapes.append(tuple(weight.shape))
        return onednn.pack(weight, rows)

    monkeypatch.setattr("vit.nn.cpu.linear.load_onednn", lambda: SimpleNamespace(product=onednn.product, pack=pack))
    return shapes


@pytest.mark.parametrize("options", [{}, {"tied": "none"}, {"positions": "rotary", "mlp": "swiglu", "norm": "rms"}])
def test_a_copy_with_cast_weights_has_the_same_bits(options):
    made, (source, mask) = model(**options), sources()
    with torch.inference_mode(), BF16:
        copy = prepacked(made, autocast_dtype("cpu"))
        assert torch.equal(copy(source, TARGET, mask), made(source, TARGET, mask))
    linear = [part for part in copy.modules() if isinstance(part, nn.Linear)]
    assert linear and all(part.weight.dtype == torch.bfloat16 for part in linear)
    assert all(parameter.dtype == torch.float32 for parameter in made.parameters())
    assert copy.target_embed.token.weight is made.target_embed.token.weight
    assert (copy.embed.token is copy.target_embed.token) == (made.embed.token is made.target_embed.token)


def test_without_autocast_the_copy_shares_every_tensor():
    made = classifier()
    assert autocast_dtype("cpu") is None
    copy = prepacked(made, autocast_dtype("cpu"))
    assert copy is not made and type(copy) is type(made)
    assert all(a is b for a, b in zip(copy.parameters(), made.parameters(), strict=True))
    assert not any(isinstance(part, PackedLinear) for part in made.modules())
    assert copy.state_dict().keys() == made.state_dict().keys()


@pytest.mark.parametrize("options", [{}, {"mlp": "swiglu"}, {"stem": "conv"}, {"activation": "relu"}], ids=str)
@pytest.mark.parametrize("dtype", [None, torch.bfloat16])
def test_packed_products_are_those_of_the_model(packing, options, dtype):
    """Of all linear layers with several rows, packed in the first of two calls."""
    made, images = classifier(**options), torch.randn(3, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    if dtype is not None and dtype not in LARGE_PACKED:
        dtype = None  # bfloat16 is emulated on this processor
    copy = prepacked(made, dtype)
    with torch.inference_mode(), torch.autocast("cpu", dtype, enabled=dtype is not None):
        expected, tolerance = made(images).float(), 2e-6 if dtype is None else 2e-2
        for _ in range(2):
            torch.testing.assert_close(copy(images).float(), expected, rtol=0, atol=tolerance)
    linear = [tuple(part.weight.shape) for part in made.modules() if type(part) is nn.Linear]
    assert Counter(packing) == Counter(linear)


def test_models_of_timm_are_packed_too(packing):
    torch.manual_seed(0)
    made = timm.create_model("test_vit", num_classes=5).eval()
    images = torch.randn(2, 3, 160, 160)
    with torch.inference_mode():
        torch.testing.assert_close(prepacked(made)(images), made(images), rtol=0, atol=5e-6)
    assert len(packing) == sum(isinstance(part, nn.Linear) for part in made.modules())


def test_with_gradients_a_copy_computes_as_the_model(packing):
    made, images = classifier(), torch.randn(2, 3, 16, 16)
    copy = prepacked(made)
    copy(images).sum().backward()
    found = {name: each.grad.clone() for name, each in made.named_parameters()}
    made.zero_grad()
    made(images).sum().backward()
    assert not packing and all(torch.equal(found[name], each.grad) for name, each in made.named_parameters())


def test_hooks_of_the_model_run_in_its_copy(packing):
    """Also one that is registered later, and one of a linear layer, which is then called normally."""
    made, seen = classifier(), []
    copy = prepacked(made)
    made.encoder.blocks[0].attn.proj.register_forward_hook(lambda *_: seen.append("layer"))
    made.pool.register_forward_hook(lambda *_: seen.append("pool"))
    with torch.inference_mode():
        copy(torch.randn(2, 3, 16, 16))
    assert seen == ["layer", "pool"]


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


def test_texts_are_those_of_weights_that_are_cast_in_each_call(monkeypatch):
    made, settings = model(sharp=1.0), Generation(beam=3, n_best=2)
    with BF16:
        cast_once = generate(made, *sources(), settings)
        monkeypatch.setattr(sys.modules["vit.generation.generate"], "prepacked", lambda model, dtype: model)
        cast_in_each_call = generate(made, *sources(), settings)
    assert texts(cast_once) == texts(cast_in_each_call)
    torch.testing.assert_close(scores(cast_once), scores(cast_in_each_call), rtol=1e-5, atol=1e-6)
