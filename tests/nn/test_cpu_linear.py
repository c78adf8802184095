"""Products by oneDNN are those of torch, which computes them itself where oneDNN is not available."""

from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from torch.autograd import forward_ad

from vit.models import create_model
from vit.nn import Mlp, quick_gelu
from vit.nn.cpu import ALL, PACKED_PRODUCTS
from vit.nn.cpu.linear import ANY_SIZE, LARGE, Large, Packed, apply_linear, linear
from vit.nn.cpu.onednn import FUSED, OneDNN, computes_bfloat16, load_onednn

ALWAYS = dict.fromkeys(LARGE, ANY_SIZE)


@pytest.fixture(autouse=True)
def onednn_loaded_again(monkeypatch):
    monkeypatch.setattr("vit.nn.cpu.ENABLED", ALL)
    load_onednn.cache_clear()
    yield
    load_onednn.cache_clear()
    computes_bfloat16.cache_clear()


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
    monkeypatch.setattr("vit.nn.cpu.linear.load_onednn", lambda: watched)
    return seen


@pytest.mark.parametrize(("dtype", "gradients"), LARGE, ids=str)
def test_only_large_products_are_for_onednn(monkeypatch, dtype, gradients) -> None:
    seen, weight, large = calls(monkeypatch), torch.randn(64, 128).to(dtype), LARGE[dtype, gradients].multiplications
    few, many = (torch.randn(rows, 128).to(dtype) for rows in (large // 64 // 128 - 1, large // 64 // 128))
    with torch.set_grad_enabled(gradients):
        linear(few, weight)
        traced = torch.jit.trace(lambda x: linear(x, weight), many, check_trace=False)
        exported = torch.export.export(Mlp(128, 64).to(dtype), (many,)).module()
        graphs = str(traced.graph) + str(exported.graph)
        assert not seen and not any(name in graphs for name in ("mkldnn", "vit::linear", "vit.linear"))
        linear(many, weight)
    assert bool(seen) is (dtype != torch.bfloat16 or computes_bfloat16())


def test_products_in_bfloat16_are_those_of_torch_where_onednn_has_none(monkeypatch) -> None:
    monkeypatch.setattr("vit.nn.cpu.linear.computes_bfloat16", lambda: False)
    seen, x, weight = calls(monkeypatch), torch.randn(2048, 128).bfloat16(), torch.randn(64, 128).bfloat16()
    with torch.no_grad():
        assert torch.equal(linear(x, weight), F.linear(x, weight)) and not seen
        linear(x.float(), weight.float())
    assert seen


@pytest.mark.parametrize("gradients", [False, True])
@pytest.mark.parametrize(("x", "weight", "bias"), [
    (torch.float32, torch.bfloat16, torch.bfloat16), (torch.float32, torch.bfloat16, torch.float32),
    (torch.bfloat16, torch.float32, torch.float32), (torch.float32, torch.float32, torch.bfloat16),
], ids=str)
def test_different_dtypes_are_an_error_without_autocast(monkeypatch, x, weight, bias, gradients) -> None:
    monkeypatch.setattr("vit.nn.cpu.linear.LARGE", ALWAYS)
    tensors = torch.randn(4, 8).to(x), torch.randn(6, 8).to(weight), torch.randn(6).to(bias)
    with torch.set_grad_enabled(gradients), pytest.raises(RuntimeError, match="dtype"):
        linear(*tensors)
    with torch.set_grad_enabled(gradients), torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(linear(*tensors), F.linear(*tensors))


class Subclass(torch.Tensor):
    """Stands for sharded and quantised weights."""


def test_weights_of_another_type_stay_with_torch(monkeypatch) -> None:
    seen, weight, x = calls(monkeypatch), torch.randn(64, 128).as_subclass(Subclass), torch.randn(1024, 128)
    with torch.no_grad():
        assert torch.equal(linear(x, weight), F.linear(x, weight)) and not seen


def products(x, weight, bias, upstream):
    """The output, the gradients of what needs them, and the gradients of the sum of their squares."""
    inputs = [each for each in (x, weight, bias) if each is not None and each.requires_grad]
    y = linear(x, weight, bias)
    first = torch.autograd.grad(y, inputs, upstream, create_graph=True)
    second = torch.autograd.grad(sum(each.square().sum() for each in first), [upstream, *inputs], allow_unused=True)
    return [y, *first, *(each for each in second if each is not None)]


@pytest.mark.parametrize("shape", [(1, 48), (7, 40, 48), (2, 3, 5, 48)], ids=str)
@pytest.mark.parametrize("width", [32, 131], ids=["narrower", "wider"])
@pytest.mark.parametrize("trained", ["x weight bias", "x weight", "weight bias", "x bias", "x", "weight", "bias"])
def test_gradients_and_their_gradients_are_those_of_torch(monkeypatch, trained, width, shape) -> None:
    monkeypatch.setattr("vit.nn.cpu.linear.LARGE", ALWAYS)
    seen = calls(monkeypatch)
    torch.manual_seed(0)
    x = torch.randn(*shape[:-1], 96)[..., ::2].requires_grad_("x" in trained)
    weight = torch.randn(width, 48).requires_grad_("weight" in trained)
    bias = torch.randn(width).requires_grad_("bias" in trained) if trained != "x weight" else None
    upstream = torch.randn(width, *shape[:-1]).movedim(0, -1).requires_grad_()  # not contiguous
    found = products(x, weight, bias, upstream)
    assert seen
    with monkeypatch.context() as patch:
        patch.setattr("vit.nn.cpu.ENABLED", frozenset())
        double = [each.detach().double().requires_grad_(each.requires_grad) if each is not None else None
                  for each in (x, weight, bias, upstream)]
        expected = products(*double)
    assert len(found) == len(expected)
    for ours, exact in zip(found, expected, strict=True):
        assert ours.shape == exact.shape and ours.dtype == torch.float32
        torch.testing.assert_close(ours.double(), exact, rtol=1e-4, atol=1e-4 * float(exact.detach().abs().max()))


def train_step(model, images):
    """The gradients of one step, by name."""
    model.zero_grad()
    model.train()(images).square().sum().backward()
    return {name: parameter.grad.clone() for name, parameter in model.named_parameters()}


@pytest.mark.parametrize("wrap", [
    lambda model: model,
    pytest.param(lambda model: torch.compile(model, backend="aot_eager", fullgraph=True), marks=pytest.mark.slow),
], ids=["eager", "compiled"])
def test_steps_of_a_model(monkeypatch, wrap) -> None:
    torch.manual_seed(0)
    model = create_model("vit_tiny", image_size=32, patch_size=8, depth=2, num_classes=10)
    images = torch.randn(8, 3, 32, 32)
    monkeypatch.setattr("vit.nn.cpu.ENABLED", frozenset())
    expected = train_step(model, images)
    monkeypatch.setattr("vit.nn.cpu.ENABLED", ALL)
    monkeypatch.setattr("vit.nn.cpu.linear.LARGE", ALWAYS)
    seen, step = calls(monkeypatch), wrap(model)
    found = [train_step(step, images) for _ in range(3)]
    assert len(seen) >= 3 * 3 * 8  # a forward and two backward products of 8 layers
    for name, gradient in found[0].items():
        assert torch.equal(gradient, found[1][name]) and torch.equal(gradient, found[2][name])
        original = expected[name.removeprefix("_orig_mod.")]
        torch.testing.assert_close(gradient, original, rtol=1e-4, atol=1e-5 * float(original.abs().max()) + 1e-6)


def test_transforms_of_torch_func(monkeypatch) -> None:
    monkeypatch.setattr("vit.nn.cpu.linear.LARGE", ALWAYS)
    torch.manual_seed(0)
    x, weight = torch.randn(5, 3, 48), torch.randn(32, 48)
    per_sample = torch.vmap(torch.func.grad(lambda w, x: linear(x, w).square().sum()), (None, 0))(weight, x)
    expected = torch.einsum("bne,bnd->bed", 2 * x @ weight.t(), x)
    torch.testing.assert_close(per_sample, expected, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("gradients", [True, False], ids=["gradients", "no gradients"])
@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
def test_tangents_of_forward_mode(monkeypatch, compiled: bool, gradients: bool) -> None:
    monkeypatch.setattr("vit.nn.cpu.linear.LARGE", ALWAYS)
    torch.manual_seed(0)
    x, layer = torch.randn(5, 3, 48), torch.nn.Linear(48, 32)

    def by_dual_level(x):
        with forward_ad.dual_level():
            return forward_ad.unpack_dual(apply_linear(layer, forward_ad.make_dual(x, x))).tangent

    def by_torch_func(x):
        return torch.func.jvp(lambda x: apply_linear(layer, x), (x,), (x,))[1]

    for function in (by_dual_level, by_torch_func):
        function = torch.compile(function, backend="aot_eager") if compiled else function
        with torch.set_grad_enabled(gradients):
            torch.testing.assert_close(function(x), x @ layer.weight.t(), rtol=1e-4, atol=1e-4)


@pytest.mark.skipif(load_onednn() is None, reason="this build of torch has no oneDNN")
def test_onednn_is_found_whatever_the_default_dtype_and_device_are() -> None:
    try:
        torch.set_default_dtype(torch.float64)
        with torch.device("meta"):
            assert load_onednn() is not None
    finally:
        torch.set_default_dtype(torch.float32)


def test_weights_are_packed_once_and_only_where_it_pays(monkeypatch) -> None:
    torch.manual_seed(0)
    seen, packed = calls(monkeypatch), Packed()
    weight = torch.randn(LARGE[torch.float32, False].multiplications // 64, 64) / 8
    row, rows, more = torch.randn(1, 64), torch.randn(2, 3, 64), torch.randn(40, 64)
    with torch.no_grad():
        found = [linear(x, weight, packed=packed) for x in (row, rows, more, row.expand(2, 64), row)]
    assert seen[0] is weight and seen[1] is not weight and all(each is seen[1] for each in seen[1:4])
    assert seen[4] is weight and packed.weight is seen[1]
    for x, y in zip((row, rows, more, row.expand(2, 64), row), found, strict=True):
        assert y.layout == torch.strided
        torch.testing.assert_close(y.double(), F.linear(x.double(), weight.double()), rtol=0, atol=1e-5)
    linear(rows, weight.requires_grad_(), packed=packed).sum().backward()
    assert all(each is not packed.weight for each in seen[5:]) and weight.grad is not None


@pytest.mark.parametrize(("shape", "large"), [
    ((1, 5, 128, 9_700), True), ((32, 5, 128, 9_700), True), ((1, 5, 512, 2_048), True),  # logits, MLP of a translator
    ((1, 5, 512, 512), False), ((8, 5, 512, 512), False), ((32, 5, 128, 256), False),
    ((1, 65, 192, 576), False), ((1, 197, 192, 768), False), ((64, 65, 192, 768), False), ((8, 197, 768, 3_072), False),
], ids=str)
def test_packed_products_with_few_rows_and_many_outputs_are_large(monkeypatch, shape, large) -> None:
    """The products that are faster on a processor with AVX2 alone, by benchmarks/linear_on_cpu.py."""
    monkeypatch.setattr("vit.nn.cpu.linear.LARGE_PACKED", {
        torch.float32: Large(2**20, weights=2**19, outputs_per_row=32)})
    monkeypatch.setattr("vit.nn.cpu.ENABLED", frozenset({PACKED_PRODUCTS}))
    batch, tokens, dim, width = shape
    seen, weight = calls(monkeypatch), torch.randn(width, dim)
    with torch.no_grad():
        linear(torch.randn(batch, tokens, dim), weight, packed=Packed())
    assert bool(seen) is large


@pytest.mark.parametrize("activation", [*FUSED, quick_gelu], ids=lambda function: function.__name__)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_activations_are_those_of_torch(monkeypatch, dtype, activation) -> None:
    monkeypatch.setattr("vit.nn.cpu.linear.LARGE", ALWAYS)
    seen = calls(monkeypatch)
    torch.manual_seed(0)
    x, layer = 3 * torch.randn(2, 70, 96).to(dtype), torch.nn.Linear(96, 131).to(dtype)
    tolerance = 2e-2 if dtype == torch.bfloat16 else 1e-5
    exact = activation(F.linear(x.double(), layer.weight.double(), layer.bias.double()))
    for gradients in (False, True):
        with torch.set_grad_enabled(gradients):
            found = apply_linear(layer, x, activation)
        assert found.dtype == dtype and found.requires_grad is gradients
        torch.testing.assert_close(found.double(), exact, rtol=tolerance, atol=tolerance)
    assert len(seen) == (int(computes_bfloat16()) if dtype == torch.bfloat16 else 2)


@pytest.mark.parametrize("operator", ["_linear_pointwise", "_reorder_linear_weight"])
@pytest.mark.parametrize("other", [None, lambda x: x, lambda *all: all[0] * 2], ids=["none", "less", "wrong"])
def test_a_missing_or_changed_operator_of_torch_is_not_used(monkeypatch, other, operator: str) -> None:
    known = {name: getattr(torch.ops.mkldnn, name) for name in ("_linear_pointwise", "_reorder_linear_weight")}
    known = known | {operator: other} if other else {name: each for name, each in known.items() if name != operator}
    monkeypatch.setattr(torch.ops, "mkldnn", SimpleNamespace(**known))
    x, weight = torch.randn(LARGE[torch.float32, False].multiplications // 128, 128), torch.randn(8, 128)
    with torch.no_grad():
        assert load_onednn() is None and torch.equal(linear(x, weight, packed=Packed()), F.linear(x, weight))
