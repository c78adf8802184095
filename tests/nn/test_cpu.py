"""One switch disables all code for particular processors."""

import math
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.autograd import forward_ad
from torch.nn.attention import sdpa_kernel

from vit.nn import Dropout, apply_linear
from vit.nn.cpu import ALL, FASTER, PACKED_PRODUCTS, instructions, is_intel
from vit.nn.cpu.attention import LARGE_SOFTMAX, OTHER_THAN_CUDNN, cudnn_may_fail, scaled_dot_product_attention, softmax
from vit.nn.cpu.linear import ANY_SIZE, LARGE, Packed, linear
from vit.nn.cpu.onednn import computes_bfloat16
from vit.nn.cpu.prepacked import fast_call


@pytest.fixture(params=[True, False], ids=["enabled", "disabled"])
def enabled(request, monkeypatch) -> bool:
    monkeypatch.setattr("vit.nn.cpu.ENABLED", ALL if request.param else frozenset())
    monkeypatch.setattr("vit.nn.cpu.linear.LARGE", dict.fromkeys(LARGE, ANY_SIZE))
    monkeypatch.setattr("vit.nn.cpu.linear.LARGE_PACKED", {torch.float32: ANY_SIZE})
    return request.param


def test_dropout_draws_as_torch_only_when_disabled(enabled):
    x = torch.ones(1000)
    torch.manual_seed(0)
    found = Dropout(0.25)(x)
    torch.manual_seed(0)
    assert torch.equal(found, F.dropout(x, 0.25)) is not enabled


def test_products_and_calls_are_those_of_torch_when_disabled(enabled, monkeypatch):
    loads = []
    monkeypatch.setattr("vit.nn.cpu.linear.load_onednn", lambda: loads.append(1))
    layer, x = nn.Linear(8, 8), torch.randn(4, 8)
    with torch.no_grad():
        assert torch.equal(apply_linear(layer, x), layer(x))
        assert torch.equal(linear(x, layer.weight, layer.bias, Packed()), layer(x))
    assert bool(loads) is enabled
    assert (fast_call(layer) is layer) is not enabled


def test_only_packed_weights_are_for_onednn_where_others_are_slower(monkeypatch):
    loads = []
    monkeypatch.setattr("vit.nn.cpu.ENABLED", frozenset({PACKED_PRODUCTS}))
    monkeypatch.setattr("vit.nn.cpu.linear.LARGE", dict.fromkeys(LARGE, ANY_SIZE))
    monkeypatch.setattr("vit.nn.cpu.linear.LARGE_PACKED", {torch.float32: ANY_SIZE})
    monkeypatch.setattr("vit.nn.cpu.linear.load_onednn", lambda: loads.append(1))
    layer, x = nn.Linear(8, 8), torch.randn(4, 8)
    with torch.no_grad():
        apply_linear(layer, x)
        linear(x, layer.weight, layer.bias)
        linear(x[:1], layer.weight, layer.bias, Packed())  # a single row
        assert not loads
        linear(x, layer.weight, layer.bias, Packed())
        assert loads


@pytest.mark.parametrize("tokens", [5, 40])  # computed in float32, and by products
def test_attention_in_bfloat16_is_that_of_torch_when_disabled(enabled, tokens):
    q, k, v = (torch.randn(2, 3, tokens, 8).bfloat16().requires_grad_() for _ in range(3))
    found, expected = scaled_dot_product_attention(q, k, v), F.scaled_dot_product_attention(q, k, v)
    assert torch.equal(found, expected) is not enabled
    with torch.no_grad():
        assert torch.equal(scaled_dot_product_attention(q, k, v), expected) is not enabled


@pytest.mark.parametrize(("queries", "keys", "masked", "avoided"), [
    (197, 197, False, False), (64, 64, False, True), (320, 320, False, True), (128, 128, False, False),
    (1, 197, False, True), (2, 198, False, True), (197, 197, True, True),
])
def test_cudnn_is_avoided_where_its_gradients_may_be_nan(queries, keys, masked, avoided):
    q, k = torch.empty(1, 1, queries, 8), torch.empty(1, 1, keys, 8)
    assert cudnn_may_fail(q, k, torch.ones(queries, keys) if masked else None) is avoided


def test_the_kernels_without_cudnn_are_chosen_in_compiled_code_too():
    def attend(q, k, v):
        with sdpa_kernel(OTHER_THAN_CUDNN):
            return F.scaled_dot_product_attention(q, k, v)

    inputs = torch.randn(3, 2, 5, 8)
    found = torch.compile(attend, fullgraph=True, backend="aot_eager")(*inputs)
    torch.testing.assert_close(found, F.scaled_dot_product_attention(*inputs))


@pytest.mark.parametrize(("found", "vendor", "expected"), [
    ("AVX512", "GenuineIntel", "AVX512 of Intel"),
    ("AVX512", "AuthenticAMD", "AVX512"),
    ("AVX2", "GenuineIntel", "AVX2"),
])
def test_the_operations_depend_on_instructions_and_maker(tmp_path, monkeypatch, found, vendor, expected):
    (tmp_path / "cpuinfo").write_text(f"processor : 0\nvendor_id : {vendor}\n")
    monkeypatch.setattr("torch.backends.cpu.get_cpu_capability", lambda: found)
    monkeypatch.setattr("vit.nn.cpu.is_intel", partial(is_intel, str(tmp_path / "cpuinfo")))
    assert instructions() == expected and expected in FASTER
    assert not is_intel(str(tmp_path / "missing"))


@pytest.mark.parametrize("gradients", [True, False])
@pytest.mark.parametrize("tokens", [5, 40, 800])
@pytest.mark.parametrize(("compiling", "exporting"), [(False, False), (True, False), (True, True)])
def test_attention_by_products_is_for_sequences_of_medium_length(monkeypatch, gradients, tokens, compiling, exporting):
    """Long sequences and exported programs use torch's kernel."""
    calls = []
    monkeypatch.setattr("vit.nn.cpu.ENABLED", ALL)
    monkeypatch.setattr("vit.nn.cpu.attention.attention_by_products", lambda q, *others: calls.append(1) or q)
    monkeypatch.setattr("torch.compiler.is_compiling", lambda: compiling)
    monkeypatch.setattr("torch.compiler.is_exporting", lambda: exporting)
    q = torch.randn(24, 1, tokens, 8).bfloat16()
    with torch.set_grad_enabled(gradients):
        scaled_dot_product_attention(q, q, q)
    assert bool(calls) is (tokens == 40 and not exporting)


@pytest.mark.parametrize(("heads", "queries", "keys", "small"), [
    (3, 65, 65, True), (7, 65, 65, True), (8, 65, 65, False), (3, 197, 197, False), (40, 1, 100, True),
    (41, 1, 100, False), (1, 40, 40, True), (30, 40, 40, False),
])
@pytest.mark.parametrize("masked", [True, False])
def test_attention_of_a_small_batch_without_gradients_is_computed_in_float32(
        monkeypatch, heads, queries, keys, small, masked):
    """Its calls of products take longer than the products."""
    monkeypatch.setattr("vit.nn.cpu.ENABLED", ALL)
    q, k, v = (torch.randn(1, heads, tokens, 8).bfloat16() for tokens in (queries, keys, keys))
    mask = (torch.arange(keys) < keys - 3).expand(queries, keys) if masked else None
    expected = F.scaled_dot_product_attention(q.float(), k.float(), v.float(), mask)
    with torch.no_grad():
        found = scaled_dot_product_attention(q, k, v, mask)
    assert torch.equal(found, expected.bfloat16()) is small
    torch.testing.assert_close(found.float(), expected, rtol=2**-6, atol=2**-6)
    for training, compiling in ((True, False), (False, True)):
        calls = []
        monkeypatch.setattr("vit.nn.cpu.attention.attention_by_products", lambda *a, to=calls: to.append(1) or a[0])
        monkeypatch.setattr("torch.compiler.is_compiling", lambda compiling=compiling: compiling)
        with torch.set_grad_enabled(training):
            scaled_dot_product_attention(q, k, v, mask)
        assert calls


@pytest.mark.parametrize("gradients", [True, False])
@pytest.mark.parametrize("shape", [(2, 3, 41, 197), (700, 197), (6000, 197), (2000, 65), (3, 5)])
@pytest.mark.parametrize("masked", [True, False])
def test_softmax_in_bfloat16(monkeypatch, gradients, shape, masked):
    """Also of rows that are masked in full; oneDNN computes many scores, and torch the gradients."""
    uses_onednn = math.prod(shape) >= LARGE_SOFTMAX and shape[-1] == 197 and computes_bfloat16()
    calls, to_mkldnn = [], torch.Tensor.to_mkldnn
    monkeypatch.setattr(torch.Tensor, "to_mkldnn", lambda x: calls.append(1) or to_mkldnn(x))
    scores = torch.randn(shape, generator=torch.Generator().manual_seed(0)).bfloat16()
    if masked:
        scores[..., 3:] = scores[..., 1:2, :] = -torch.inf
    reference = scores.clone().requires_grad_(gradients)
    expected = reference.softmax(-1)
    with torch.set_grad_enabled(gradients):
        found = softmax(scores.requires_grad_(gradients))
    close = partial(torch.testing.assert_close, rtol=2**-7, atol=1e-6, equal_nan=True)
    close(found, expected)
    assert found.shape == scores.shape and found.dtype == torch.bfloat16
    assert bool(calls) is uses_onednn
    if gradients:
        grad = torch.randn(shape, generator=torch.Generator().manual_seed(1)).bfloat16()
        found.backward(grad)
        expected.backward(grad)
        close(scores.grad, reference.grad, atol=2**-9)


def test_softmax_is_that_of_torch_where_onednn_has_none(monkeypatch):
    monkeypatch.setattr("vit.nn.cpu.attention.computes_bfloat16", lambda: False)
    monkeypatch.setattr("vit.nn.cpu.attention.softmax_by_onednn", lambda *arguments: pytest.fail("oneDNN"))
    scores = torch.randn(700, 197).bfloat16()
    torch.testing.assert_close(softmax(scores), scores.softmax(-1))


def test_softmax_in_transforms_of_torch_func_is_that_of_torch():
    scores = torch.randn(2, 400, 197).bfloat16()
    with torch.no_grad():
        torch.testing.assert_close(torch.func.vmap(softmax)(scores), scores.softmax(-1))


@pytest.mark.parametrize("gradients", [True, False], ids=["gradients", "no gradients"])
def test_softmax_in_forward_mode_is_that_of_torch(gradients):
    numbers = torch.randn(2, 2, 400, 197).bfloat16()

    def tangent(function):
        with torch.set_grad_enabled(gradients), forward_ad.dual_level():
            dual = forward_ad.make_dual(*numbers)
            return forward_ad.unpack_dual(function(dual)).tangent

    assert torch.equal(tangent(softmax), tangent(lambda scores: scores.softmax(-1)))


def test_dropout_in_transforms_of_torch_func_draws_for_each_sample(enabled):
    x, dropout = torch.ones(64, 100), Dropout(0.5)
    torch.manual_seed(0)
    rows = torch.func.vmap(dropout, randomness="different")(x)
    assert len({tuple(row) for row in rows.tolist()}) == 64
    rows = torch.func.vmap(dropout, randomness="same")(x)
    assert len({tuple(row) for row in rows.tolist()}) == 1


@pytest.mark.filterwarnings("ignore:.*torch.jit:FutureWarning")
def test_dropout_is_traced(enabled):
    traced = torch.jit.trace(Dropout(0.5), torch.ones(4, 100), check_trace=False)
    assert set(traced(torch.ones(4, 100)).unique().tolist()) == {0.0, 2.0}
