"""The compiled decoding step against the model itself, and what it refuses."""

import shutil

import pytest
import torch
from torch import Tensor, nn

from vit.generation import Compiled, Generation, Unsupported, generate
from vit.generation.native import library
from vit.models.seq2seq import EncoderDecoderConfig, Transformer

V, S = 61, 6  # no multiples of the number of columns that are computed together
pytestmark = pytest.mark.skipif(not any(map(shutil.which, library.COMPILERS)), reason="needs a C++ compiler")

MODELS = {
    "of 2017": {},
    "modern": {"pre_norm": True, "norm": "rms", "mlp": "swiglu", "activation": "silu", "positions": "rotary"},
    "interleaved": {"positions": "rotary", "rotary_pairs": "interleaved", "activation": "quick_gelu"},
    "untied": {"tied": "none", "positions": "learned", "activation": "gelu", "pre_norm": True},
    "wide heads": {"head_dim": 12, "num_heads": 3},
    "images": {"source": "image", "image_size": (8, 12), "patch_size": (4, 4), "in_chans": 1, "tied": "target"},
}
SETTINGS = {
    "greedy": Generation(max_len=9),
    "beam": Generation(beam=4, n_best=3, max_len=9),
    "seven beams": Generation(beam=7, n_best=7, max_len=40, min_len=30),  # tokens of dropped beams are removed
    "prefix": Generation(beam=3, prefix=(9, 7, 9), max_len=9),
    "samples": Generation(sample=True, n_best=3, top_k=9, max_len=9),
}


def model(**options) -> Transformer:
    """Random weights, large enough that probabilities are uneven."""
    torch.manual_seed(0)
    sizes = {"vocab_size": V, "max_len": 48, "dim": 20, "depth": 1, "decoder_depth": 2, "num_heads": 2}
    made = Transformer(EncoderDecoderConfig(**{**sizes, "mlp_ratio": 1.7, **options})).eval()
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.25)
    return made


def sources(made: Transformer) -> tuple[Tensor, Tensor | None]:
    torch.manual_seed(3)
    if made.config.source == "image":
        return torch.rand(4, 1, 8, 12), torch.arange(6) < torch.tensor([6, 2, 4, 6])[:, None]
    mask = torch.arange(S) < torch.tensor([6, 3, 1, 5])[:, None]
    return torch.randint(5, V, (4, S)) * mask, mask


def equal(found: list, expected: list) -> None:
    assert [[text.ids for text in row] for row in found] == [[text.ids for text in row] for row in expected]
    for row, others in zip(found, expected, strict=True):
        assert [text.score for text in row] == pytest.approx([text.score for text in others], abs=1e-4)


@pytest.mark.parametrize("name", MODELS)
def test_texts_are_those_of_the_model(name):
    made = model(**MODELS[name])
    compiled = Compiled(made)
    for settings in SETTINGS.values():
        equal(generate(compiled, *sources(made), settings), generate(made, *sources(made), settings))


@pytest.mark.parametrize("name", MODELS)
@torch.inference_mode()
def test_logits_are_those_of_the_whole_text(name):
    made = model(**MODELS[name])
    source, mask = sources(made)
    ids = torch.randint(5, V, (4, 40))
    compiled = Compiled(made)
    cache = compiled.start(source, mask, capacity=3)
    logits = torch.cat([compiled.advance(ids[:, i : i + 1], cache) for i in range(40)], dim=1)
    torch.testing.assert_close(logits, made(source, ids, mask), rtol=1e-4, atol=1e-4)


def test_a_mask_may_have_any_layout():
    made, settings = model(), SETTINGS["beam"]
    source, mask = sources(made)[0], (torch.arange(S) < 4).expand(4, S)
    equal(generate(Compiled(made), source, mask, settings), generate(made, source, mask, settings))


def test_rows_are_divided_among_threads():
    made = model()
    expected = generate(made, *sources(made), SETTINGS["beam"])
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(3)
        equal(generate(Compiled(made), *sources(made), SETTINGS["beam"]), expected)
    finally:
        torch.set_num_threads(threads)


@pytest.mark.parametrize(("options", "part"), [
    ({"norm": "batch"}, "norms of type BatchNorm"),
    ({"attention": "cosine"}, "scores of type Cosine"),
    ({"block": "res_post_norm", "pre_norm": True}, "blocks of type ResPostNormBlock"),
    ({"decoder_mixer": "gru"}, "a layer of type Recurrent"),
    ({"activation": "gelu_tanh"}, "another activation"),
    ({"layer_scale": 0.1}, "LayerScale"),
    ({"qk_norm": True}, "norms within attention"),
    ({"value_dim": 6}, "heads of widths 10 and 6"),
    ({"positions": "relative"}, "relative positions"),
    ({"projection": "sliced"}, "other projections"),
])
def test_other_parts_are_refused_by_name(options, part):
    with pytest.raises(Unsupported, match=f"{part}.*eager mode"):
        Compiled(model(**options))


def test_changed_models_are_refused():
    hooked, half = model(), model().double()
    hooked.decoder.blocks[1].mlp.register_forward_hook(lambda *_: None)
    with pytest.raises(Unsupported, match="hooks"):
        Compiled(hooked)
    with pytest.raises(Unsupported, match="float32 on the CPU"):
        Compiled(half)
    with pytest.raises(Unsupported, match="a Linear without a decoder"):
        Compiled(nn.Linear(2, 2))


def test_a_missing_or_failing_compiler_is_an_error(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    broken = tmp_path / "decoder.cpp"
    broken.write_text("int main( {")
    monkeypatch.setattr(library, "SOURCE", broken)
    with pytest.raises(ValueError, match="cannot compile decoder.cpp: .*error"):
        library.load_library.__wrapped__()
    assert not list((tmp_path / "vit").iterdir())
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ValueError, match="needs a C\\+\\+ compiler and found none of c\\+\\+"):
        library.load_library.__wrapped__()


def test_the_library_is_built_once(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    first = library.load_library.__wrapped__()
    monkeypatch.setattr(library, "build", None)
    assert library.load_library.__wrapped__().panel() == first.panel()


def test_a_folder_or_library_that_cannot_be_used_is_an_error(monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(ValueError, match="cannot be saved in .*file/vit: .*; set XDG_CACHE_HOME"):
        library.load_library.__wrapped__()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(library, "build", lambda compiler, path: path.write_text("no library"))
    with pytest.raises(ValueError, match="decoder-.*so cannot be loaded: .*delete it"):
        library.load_library.__wrapped__()
