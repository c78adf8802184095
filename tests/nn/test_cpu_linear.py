"""Products by another library are those of torch, or its own where that may not be."""

from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F

from vit.nn import Mlp
from vit.nn.cpu import ALL, LARGE, OneDNN, Packed, apply_linear, linear, load_onednn


@pytest.fixture(autouse=True)
def asked_anew(monkeypatch):
    monkeypatch.setattr("vit.nn.cpu.ENABLED", ALL)
    load_onednn.cache_clear()
    yield
    load_onednn.cache_clear()


@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no bias"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize("shape", [(0, 2), (3,), (1, 1), (5, 1), (3, 70), (2, 8, 20)], ids=str)
def test_equal_to_torch(shape: tuple, dtype: torch.dtype, bias: bool) -> None:
    torch.manual_seed(0)
    layer = torch.nn.Linear(96, 131, bias).to(dtype)
    x = torch.randn(*shape, 192).to(dtype)[..., ::2].requires_grad_()
    found = apply_linear(layer, x)
    assert found.requires_grad and torch.equal(found, F.linear(x, layer.weight, layer.bias))
    exact = F.linear(x.double(), layer.weight.double(), None if layer.bias is None else layer.bias.double())
    for silence in (torch.no_grad, torch.inference_mode):
        with silence():
            found = apply_linear(layer, x)
        assert found.layout == torch.strided and found.dtype == dtype and found.shape == (*shape, 131)
        torch.testing.assert_close(found.double(), exact, rtol=0, atol=0.1 if dtype == torch.bfloat16 else 1e-5)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(apply_linear(layer, x), F.linear(x, layer.weight, layer.bias))


def calls(monkeypatch) -> list:
    """The weights of all products by oneDNN from now on."""
    seen, onednn = [], load_onednn()
    watched = OneDNN(lambda x, weight, *others: seen.append(weight) or onednn.product(x, weight, *others), onednn.pack)
    monkeypatch.setattr("vit.nn.cpu.load_onednn", lambda: watched)
    return seen


def test_only_large_products_without_gradients_go_elsewhere(monkeypatch) -> None:
    seen, weight = calls(monkeypatch), torch.randn(64, 128)
    few, many = torch.randn(LARGE // 64 // 128 - 1, 128), torch.randn(LARGE // 64 // 128, 128)
    linear(many, weight)
    with torch.no_grad():
        linear(few, weight)
        traced = torch.jit.trace(lambda x: linear(x, weight), many, check_trace=False)
        exported = torch.export.export(Mlp(128, 64), (many,)).module()
    assert not seen and "mkldnn" not in str(traced.graph) + str(exported.graph)
    with torch.no_grad():
        linear(many, weight)
    assert seen


def test_weights_are_packed_once_and_only_where_it_pays(monkeypatch) -> None:
    torch.manual_seed(0)
    seen, weight, packed = calls(monkeypatch), torch.randn(LARGE // 64, 64) / 8, Packed()
    row, rows, more = torch.randn(1, 64), torch.randn(2, 3, 64), torch.randn(40, 64)
    with torch.no_grad():
        found = [linear(x, weight, packed=packed) for x in (row, rows, more, row.expand(2, 64), row)]
    assert seen[0] is weight and seen[1] is not weight and all(each is seen[1] for each in seen[1:4])
    assert seen[4] is weight and packed.weight is seen[1]
    for x, y in zip((row, rows, more, row.expand(2, 64), row), found, strict=True):
        assert y.layout == torch.strided
        torch.testing.assert_close(y.double(), F.linear(x.double(), weight.double()), rtol=0, atol=1e-5)
    linear(rows, weight.requires_grad_(), packed=packed).sum().backward()
    assert len(seen) == 5 and weight.grad is not None


@pytest.mark.parametrize("operator", ["_linear_pointwise", "_reorder_linear_weight"])
@pytest.mark.parametrize("other", [None, lambda x: x, lambda *all: all[0] * 2], ids=["none", "less", "wrong"])
def test_it_needs_no_operator_of_torch_that_may_go(monkeypatch, other, operator: str) -> None:
    known = {name: getattr(torch.ops.mkldnn, name) for name in ("_linear_pointwise", "_reorder_linear_weight")}
    known = known | {operator: other} if other else {name: each for name, each in known.items() if name != operator}
    monkeypatch.setattr(torch.ops, "mkldnn", SimpleNamespace(**known))
    x, weight = torch.randn(LARGE // 128, 128), torch.randn(8, 128)
    with torch.no_grad():
        assert load_onednn() is None and torch.equal(linear(x, weight, packed=Packed()), F.linear(x, weight))
