"""What each block changes: mean cosines against a direct computation from the blocks' inputs and outputs."""

import re

import numpy as np
import pytest
import torch

import vit
from tests.inference.tiny_models import save_image_to_text, save_translator
from tests.report.test_attention_report import image, saved  # noqa: F401 (a fixture)
from vit.cli import main
from vit.report.attention.recording import token_similarity
from vit.report.attention.similarity import recorded_blocks, similarity_by_depth, similarity_picture


def cosine(a: torch.Tensor, b: torch.Tensor) -> float:
    return float(a @ b / (a.norm() * b.norm()))


def by_hand(states: list[torch.Tensor]) -> tuple[list[float], list[float]]:
    """Tokens (N,D) before the first block and after each block -> mean cosines, one pair at a time."""
    n = len(states[0])
    between = [sum(cosine(x[i], x[j]) for i in range(n) for j in range(n) if i != j) / (n * (n - 1)) for x in states]
    change = [sum(cosine(x[i], y[i]) for i in range(n)) / n for x, y in zip(states, states[1:], strict=False)]
    return between, change


@pytest.mark.filterwarnings("ignore:saved under vit's own names")
@pytest.mark.parametrize("options", [{"registers": 1}, {"pool": "mean", "class_token": False}])
def test_of_an_image_classifier(options, tmp_path, image):  # noqa: F811
    predictor = vit.load(saved(tmp_path / "model", **options))
    pixels = predictor.preprocessing.normalize(predictor.preprocessing.image(image)[None])
    with torch.no_grad():
        states = [predictor.model.embed(pixels)]
        for block in predictor.model.encoder.blocks:
            states.append(block(states[-1]))
    found = token_similarity(predictor, str(image))
    between, change = by_hand([x[0].double() for x in states])
    assert list(found) == ["encoder"]
    np.testing.assert_allclose(found["encoder"].between, between, atol=1e-5)
    np.testing.assert_allclose(found["encoder"].change, change, atol=1e-5)


def test_of_a_translator_for_its_own_text(tmp_path):
    save_translator(tmp_path / "model")
    predictor = vit.load(tmp_path / "model")
    found = token_similarity(predictor, "ab")
    model, search = predictor.model, predictor.search("ab")
    ids, mask = predictor.collate([predictor.encode("ab", "a")])
    best = search.tree.nodes[search.nodes[0]]
    whole = [1, *search.tree.text(search.nodes[0]), *([2] if best.outcome == "ended" else [])]
    features: list[torch.Tensor] = []
    with torch.no_grad():
        start = model.embed(ids)
        model.encoder(start, mask, features=features)
    between, change = by_hand([x[0].double() for x in (start, *features)])
    np.testing.assert_allclose(found["encoder"].between, between, atol=1e-5)
    np.testing.assert_allclose(found["encoder"].change, change, atol=1e-5)
    with torch.no_grad(), recorded_blocks(model) as recorded:
        model(ids, torch.tensor([whole[:-1]]), mask)
    assert all(len(recorded[name][0]) == len(whole) - 1 for name in recorded if name.startswith("decoder"))
    decoder = similarity_by_depth([recorded[name] for name in recorded if name.startswith("decoder")])
    np.testing.assert_allclose(found["decoder"].between, decoder.between, atol=1e-5)
    assert not any(block._forward_hooks for block in model.modules())


def test_equal_opposite_and_single_tokens():
    ones, signs = np.ones((4, 3)), np.array([[1.0, 2, 3], [-1, -2, -3]])
    found = similarity_by_depth([(ones, 2 * ones), (2 * ones, -ones)])
    np.testing.assert_allclose(found.between, [1, 1, 1])
    np.testing.assert_allclose(found.change, [1, -1])
    np.testing.assert_allclose(similarity_by_depth([(signs, signs)]).between, [-1, -1])
    assert np.isnan(similarity_by_depth([(ones[:1], ones[:1])]).between).all()


def test_the_command_draws_it(tmp_path, image, capsys):  # noqa: F811
    model, output = saved(tmp_path / "model"), tmp_path / "a.svg"
    assert main(["attention", str(model), str(image), "--similarity", "--dark", "-o", str(output)]) == 0
    assert capsys.readouterr().err == f"wrote {output}\nwrote {tmp_path / 'a-similarity.svg'}\n"
    drawn = re.findall(r"<!-- (.*?) -->", (tmp_path / "a-similarity.svg").read_text())
    assert {"photo.png: what each block changes", "cosine", "input", "0", "1"} <= set(drawn)
    save_image_to_text(tmp_path / "ocr")
    assert main(["attention", str(tmp_path / "ocr"), str(image), "--similarity", "-o", str(tmp_path / "b.html")]) == 0
    assert (tmp_path / "b-similarity.png").stat().st_size > 10_000
    assert main(["attention", str(model), "--positions", "--similarity", "-o", str(tmp_path / "c.png")]) == 2
    assert "pass an image or a text" in capsys.readouterr().err


def test_deep_stacks_have_few_ticks(tmp_path):
    blocks = [(np.eye(3), np.eye(3) + i) for i in range(40)]
    stack = similarity_by_depth(blocks)
    drawn = re.findall(r"<!-- (\d+) -->", similarity_picture(tmp_path / "a.svg", {"encoder": stack}, "").read_text())
    assert len(drawn) < 16 and "39" in drawn
