"""The choice between eager mode and the compiled decoding step."""

import shutil

import pytest

import vit
from tests.inference.tiny_models import save_translator
from vit.generation import Hypothesis
from vit.generation.native import library
from vit.inference import fast_generation
from vit.inference.fast_generation import FastGeneration

TEXTS = ["ab", "c", "defg"]
needs_compiler = pytest.mark.skipif(not any(map(shutil.which, library.COMPILERS)), reason="needs a C++ compiler")


@pytest.fixture
def saved(tmp_path):
    return save_translator(tmp_path / "model")


@needs_compiler
def test_fast_generates_the_same_texts(saved):
    plain, fast = vit.load(saved, device="cpu"), vit.load(saved, device="cpu", fast=True)
    assert str(fast.fast_mode) == "fast: eager mode, since no source was read"
    for _ in range(2):
        assert [each.texts for each in fast.predict(TEXTS)] == [each.texts for each in plain.predict(TEXTS)]
    fast.fast_mode.chosen = fast.fast_mode.compiled
    assert [each.texts for each in fast.predict(TEXTS)] == [each.texts for each in plain.predict(TEXTS)]
    assert len(fast.search("ab").tree.nodes) == len(plain.search("ab").tree.nodes)


@needs_compiler
@pytest.mark.parametrize(("seconds", "text", "chosen", "line"), [
    (0.5, (7,), "compiled", "fast: the compiled decoding step, 2.00 times as fast as eager mode; the same texts for 1 "
                            "source (per batch: eager 1000.0 ms, compiled 500.0 ms)"),
    (0.99, (7,), "eager", "fast: eager mode, since the compiled decoding step is not faster (per batch: eager 1000.0 "
                          "ms, compiled 990.0 ms)"),
    (0.5, (8,), "eager", "fast: eager mode, since the compiled decoding step generates other texts for 1 of 1 source"),
])
def test_the_faster_one_with_the_same_texts_is_chosen(monkeypatch, saved, seconds, text, chosen, line):
    mode = FastGeneration(vit.load(saved, device="cpu").models)
    found = {id(mode.models): ((7,), 1.0), id(mode.compiled): (text, seconds)}
    monkeypatch.setattr(fast_generation, "timed", lambda search, models: (search(models), found[id(models)][1]))
    texts = mode.generate(lambda models: [[Hypothesis(found[id(models)][0], 0.0)]])
    assert texts[0][0].ids == (7,)  # those of eager mode
    assert mode.chosen is (mode.compiled if chosen == "compiled" else mode.models) and str(mode).startswith(line)


def test_an_unsupported_model_stays_in_eager_mode(tmp_path):
    fast = vit.load(save_translator(tmp_path / "model", layer_scale=0.1), device="cpu", fast=True)
    assert str(fast.fast_mode) == "fast: eager mode, since the compiled decoding step does not support LayerScale"
    assert len(fast.predict(TEXTS)) == 3


def test_another_precision_is_an_error(saved):
    with pytest.raises(ValueError, match="leave out fast=True or precision=bf16-mixed"):
        vit.load(saved, precision="bf16-mixed", fast=True)


def test_without_a_compiler_texts_are_generated_in_eager_mode(monkeypatch, saved, tmp_path):
    monkeypatch.setattr("vit.generation.native.compiled.load_library", library.load_library.__wrapped__)
    monkeypatch.setenv("PATH", str(tmp_path))
    fast = vit.load(saved, device="cpu", fast=True)
    assert str(fast.fast_mode) == ("fast: eager mode, since the compiled decoding step needs a C++ compiler and found "
                                   "none of c++, g++, clang++; install one")
    assert [each.texts for each in fast.predict(TEXTS)] == [each.texts for each in vit.load(saved).predict(TEXTS)]
