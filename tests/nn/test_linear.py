"""Products by another library are those of torch, or its own where that may not be."""

from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F

from vit.nn import Linear
from vit.nn.linear import LARGE, by_onednn, linear


@pytest.fixture(autouse=True)
def asked_anew():
    by_onednn.cache_clear()
    yield
    by_onednn.cache_clear()


@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no bias"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize("shape", [(0, 2), (3,), (1, 1), (5, 1), (3, 70), (2, 8, 20)], ids=str)
def test_equal_to_torch(shape: tuple, dtype: torch.dtype, bias: bool) -> None:
    torch.manual_seed(0)
    layer = Linear(96, 131, bias).to(dtype)
    x = torch.randn(*shape, 192).to(dtype)[..., ::2].requires_grad_()
    found = layer(x)
    assert found.requires_grad and torch.equal(found, F.linear(x, layer.weight, layer.bias))
    exact = F.linear(x.double(), layer.weight.double(), None if layer.bias is None else layer.bias.double())
    for silence in (torch.no_grad, torch.inference_mode):
        with silence():
            found = layer(x)
        assert found.layout == torch.strided and found.dtype == dtype and found.shape == (*shape, 131)
        torch.testing.assert_close(found.double(), exact, rtol=0, atol=0.1 if dtype == torch.bfloat16 else 1e-5)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(layer(x), F.linear(x, layer.weight, layer.bias))


def calls(monkeypatch) -> list:
    seen, operator = [], torch.ops.mkldnn._linear_pointwise
    monkeypatch.setattr("vit.nn.linear.by_onednn", lambda: lambda *all: seen.append(1) or operator(*all))
    return seen


def test_only_large_products_without_gradients_go_elsewhere(monkeypatch) -> None:
    seen, weight = calls(monkeypatch), torch.randn(64, 128)
    few, many = torch.randn(LARGE // 64 // 128 - 1, 128), torch.randn(LARGE // 64 // 128, 128)
    linear(many, weight)
    with torch.no_grad():
        linear(few, weight)
        traced = torch.jit.trace(lambda x: linear(x, weight), many, check_trace=False)
        exported = torch.export.export(Linear(128, 64), (many,)).module()
    assert not seen and "mkldnn" not in str(traced.graph) + str(exported.graph)
    with torch.no_grad():
        linear(many, weight)
    assert seen


@pytest.mark.parametrize("other", [None, lambda x: x, lambda *all: all[0] * 2], ids=["none", "less", "wrong"])
def test_it_needs_no_operator_of_torch_that_may_go(monkeypatch, other) -> None:
    monkeypatch.setattr(torch.ops, "mkldnn", SimpleNamespace(**({"_linear_pointwise": other} if other else {})))
    x, weight = torch.randn(LARGE // 128, 128), torch.randn(8, 128)
    with torch.no_grad():
        assert by_onednn() is None and torch.equal(linear(x, weight), F.linear(x, weight))
