"""Name tables in both directions, and the record of what each tensor was made from."""

import pytest
import torch

from vit.weights.renaming import NameMap, RenamedState

NAMES = NameMap(
    [("tokens", "embed.token"), (("layer.{}.old.", "layer.{}.new."), "blocks.{}.attn."), ("norm.", "last_norm.")],
    optional_prefixes=["model."],
)


@pytest.mark.parametrize(("foreign", "vit"), [
    ("tokens", "embed.token"),
    ("model.tokens", "embed.token"),
    ("layer.12.old.weight", "blocks.12.attn.weight"),
    ("model.layer.3.new.bias", "blocks.3.attn.bias"),
    ("norm.weight", "last_norm.weight"),
    ("tokens.weight", "tokens.weight"),  # an entry without "." is a whole name
    ("layers.1.old.weight", "layers.1.old.weight"),
])
def test_foreign_names_become_vit_names(foreign: str, vit: str) -> None:
    assert NAMES.to_vit(foreign) == vit


def test_the_first_alternative_is_exported() -> None:
    assert NAMES.to_foreign("blocks.7.attn.weight") == "layer.7.old.weight"
    assert NAMES.to_foreign("head.weight") == "head.weight"


def test_fused_split_and_implied_tensors_have_their_sources() -> None:
    q, k, v = torch.randn(3, 2, 4)
    state = RenamedState({"a.query": q, "a.key": k, "a.value": v}, [(r"a\.(q|k|v)\w+", r"a.\1.weight")])
    state.fuse(("q", "k", "v"), "qkv")
    assert torch.equal(state["a.qkv.weight"], torch.cat([q, k, v]))
    assert state.sources == {"a.qkv.weight": ("a.query", "a.key", "a.value")}
    state.split("a.qkv.weight", {"a.q": 1, "a.kv": 2})
    assert torch.equal(state["a.q"], q) and torch.equal(state["a.kv"], torch.cat([k, v]))
    assert state.sources["a.q"] == state.sources["a.kv"] == ("a.query", "a.key", "a.value")
    state.add_zero_bias("a.bias", weight="a.q")
    assert torch.equal(state["a.bias"], torch.zeros(2)) and state.sources["a.bias"] == ()


def test_missing_parts_and_equal_names_are_errors() -> None:
    tensor = torch.zeros(2, 2)
    with pytest.raises(ValueError, match="x.one and x.two both correspond to y; remove one of them"):
        RenamedState({"x.one": tensor, "x.two": tensor}, lambda name: "y")
    state = RenamedState({"a.q.weight": tensor, "a.k.weight": tensor})
    with pytest.raises(ValueError, match="the file has a.q.weight, but no tensor for a.v.weight; it is truncated"):
        state.fuse(("q", "k", "v"), "qkv")
    with pytest.raises(ValueError, match="there is no tensor for b; the file is truncated"):
        state.rename("b", "c")
