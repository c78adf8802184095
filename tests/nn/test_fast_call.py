"""The copy of `fast_call` computes the same bits as its module, and calls the hooks of its parts."""

import pytest
import torch
from torch import nn
from torch.nn.utils.parametrizations import weight_norm

from vit.models.seq2seq import EncoderDecoderConfig, Transformer
from vit.nn import attention_maps
from vit.nn.cpu import ALL
from vit.nn.cpu.prepacked import fast_call


@pytest.fixture(autouse=True)
def enabled(monkeypatch):
    monkeypatch.setattr("vit.nn.cpu.ENABLED", ALL)


def model(**options) -> Transformer:
    torch.manual_seed(0)
    sizes = {"vocab_size": 11, "max_len": 9, "dim": 16, "depth": 1, "decoder_depth": 2, "num_heads": 2}
    return Transformer(EncoderDecoderConfig(**{**sizes, "dropout": 0.5, **options})).eval()


def ids() -> torch.Tensor:
    return torch.arange(1, 7).view(2, 3)


@pytest.mark.parametrize("options", [{}, {"pre_norm": True, "norm": "rms", "mlp": "swiglu", "positions": "rotary"}])
def test_a_copy_computes_the_same_with_the_same_tensors(options):
    made = model(**options)
    copy = fast_call(made)
    assert copy is not made and isinstance(copy, Transformer)
    with torch.no_grad():
        assert torch.equal(copy(ids(), ids()), made(ids(), ids()))
        made.decoder.blocks[0].mlp.fc1.weight.mul_(2)
        assert torch.equal(copy(ids(), ids()), made(ids(), ids()))
    assert all(a is b for a, b in zip(copy.parameters(), made.parameters(), strict=True))


def test_a_copy_keeps_the_mode_that_its_module_had():
    made = model().train()
    copy = fast_call(made)
    made.eval()
    assert copy.training and not torch.equal(copy(ids(), ids()), copy(ids(), ids()))


def test_gradients_reach_the_modules_parameters():
    made = model()
    fast_call(made)(ids(), ids()).sum().backward()
    assert all(parameter.grad is not None for parameter in made.parameters())


@pytest.mark.parametrize("register", ["register_forward_hook", "register_forward_pre_hook",
                                      "register_full_backward_hook", "register_full_backward_pre_hook"])
def test_hooks_are_still_called(register):
    made, called = model(), []
    getattr(made.decoder.blocks[1], register)(lambda *seen: called.append(1))
    fast_call(made)(ids(), ids()).sum().backward()
    assert called


def test_hooks_on_every_module_are_still_called():
    made, called = model(), []
    handle = nn.modules.module.register_module_forward_hook(lambda *seen: called.append(1))
    try:
        fast_call(made)(ids(), ids())
    finally:
        handle.remove()
    assert called


def test_what_is_compiled_stays_compiled():
    made = nn.Sequential(nn.Linear(2, 2))
    whole = torch.compile(made, backend="eager")
    assert fast_call(whole) is whole
    made[0].compile(backend="eager")
    assert fast_call(made) is made


def test_weights_that_are_computed_are_computed():
    made = nn.Sequential(weight_norm(nn.Linear(3, 4)))
    copy, x = fast_call(made), torch.randn(2, 3)
    with torch.no_grad():
        made[0].parametrizations.weight.original0.mul_(3)
    assert torch.equal(copy(x), made(x))


def test_attention_is_recorded_through_a_copy():
    made = model()
    with attention_maps(made) as maps:
        fast_call(made)(ids(), ids())
    assert all(len(found) == 1 for found in maps.values())


def test_a_module_without_parts_and_one_with_two_names():
    shared = nn.Linear(3, 3)
    made, x = nn.Sequential(shared, nn.Sequential(), nn.Identity(), shared), torch.randn(2, 3)
    assert torch.equal(fast_call(made)(x), made(x))
