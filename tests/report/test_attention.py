"""Attention reports: rollout against numpy loops, figures, and the HTML page."""

import base64
import json
import math
import re
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from vit.evaluation.attribution.rollout import rollout
from vit.report.attention.figures import tokens_picture
from vit.report.attention.heat import heat_picture
from vit.report.attention.image_figures import image_picture, image_to_text_picture
from vit.report.attention.maps import ImageMaps, TokenMaps, head_entropy, select_layers
from vit.report.attention.page import image_page, image_to_text_page, image_tokens, tokens_page
from vit.report.attention.positions import _mosaic, positions_picture, similarity

FIRST, GRID = ("class token", "register 1"), (2, 3)
N = len(FIRST) + 6


def random_weights(*shape: int, seed: int = 0) -> np.ndarray:
    weights = np.random.default_rng(seed).random(shape) ** 3
    return (weights / weights.sum(-1, keepdims=True)).astype(np.float32)


LEARNED = np.array([0.5, 0, 0, 0, 0.2, 0.3])
POOLING = {"class": np.eye(N)[0], "mean": np.array([0, 0, *[1 / 6] * 6]), "learned": np.array([0, 0, *LEARNED])}


def image_maps(pooling="class", weights=None, depth=3) -> ImageMaps:
    layers = {f"layer {i}": random_weights(2, N, N, seed=i) if weights is None else weights for i in range(depth)}
    pixels = np.random.default_rng(0).integers(0, 255, (20, 30, 3), np.uint8)
    return ImageMaps(pixels, layers, GRID, FIRST, POOLING[pooling])


def by_hand(layers: list[np.ndarray]) -> np.ndarray:
    """Rollout as the paper's recursion, one number at a time."""
    flow = [[float(i == j) for j in range(N)] for i in range(N)]
    for weights in layers:
        step = [[0.5 * sum(head[i, j] for head in weights) / len(weights) + 0.5 * (i == j) for j in range(N)]
                for i in range(N)]
        flow = [[sum(step[i][m] * flow[m][j] for m in range(N)) for j in range(N)] for i in range(N)]
    return np.array(flow)


def test_rollout_equals_the_recursion_and_its_rows_sum_to_one():
    layers = list(image_maps().layers.values())
    np.testing.assert_allclose(rollout(layers), by_hand(layers), atol=1e-6)
    np.testing.assert_allclose(rollout(layers).sum(-1), 1)
    assert not np.allclose(rollout(layers), rollout(layers[::-1]), atol=1e-3)  # the order of the layers matters


def test_rollout_of_identity_uniform_and_empty_attention():
    np.testing.assert_allclose(rollout([np.eye(N)[None]] * 4), np.eye(N))
    flow = rollout([np.full((2, N, N), 1 / N)] * 30)
    np.testing.assert_allclose(flow, np.full((N, N), 1 / N), atol=1e-6)
    np.testing.assert_allclose(rollout([np.zeros((1, N, N))] * 2), np.eye(N))  # all through the residual


def test_entropy_of_a_head_is_the_mean_of_its_rows_in_bits():
    weights = random_weights(2, 5, 8)
    by_hand = [sum(-p * math.log2(p) for row in head for p in row.tolist() if p > 0) / 5 for head in weights]
    np.testing.assert_allclose(head_entropy(weights), by_hand, rtol=1e-6)
    np.testing.assert_allclose(head_entropy(np.stack([np.eye(8), np.full((8, 8), 1 / 8)])), [0, 3])


@pytest.mark.parametrize("name", POOLING)
def test_the_pooled_output_combines_the_rows_of_the_pooling(name):
    maps = image_maps(name)
    flow, head = by_hand(list(maps.layers.values())), maps.layers["layer 1"][1]
    np.testing.assert_allclose(maps.pooled_rollout().ravel(), (POOLING[name] @ flow)[2:], atol=1e-6)
    np.testing.assert_allclose(maps.pooled_layers()["layer 1"][1].ravel(), (POOLING[name] @ head)[2:], atol=1e-6)


@pytest.mark.parametrize("name", ["class", "mean"])
def test_uniform_attention_gives_uniform_maps(name):
    maps = image_maps(name, np.full((2, N, N), 1 / N, np.float32))
    assert np.ptp(maps.pooled_rollout()) < 1e-7 and np.ptp(maps.pooled_layers()["layer 0"]) < 1e-7


@pytest.mark.parametrize("name", POOLING)
def test_the_pooled_output_of_a_text_is_after_the_last_layer_and_by_rollout(name):
    maps = TokenMaps(image_maps().layers, list("abcdefgh"), list("abcdefgh"), POOLING[name])
    pooled, flow = maps.pooled(), by_hand(list(maps.layers.values()))
    assert list(pooled.layers) == ["pooling", "rollout"] and pooled.keys == list("abcdefgh")
    np.testing.assert_array_equal(pooled.layers["pooling"], POOLING[name][None, None])
    np.testing.assert_allclose(pooled.layers["rollout"][0, 0], POOLING[name] @ flow, atol=1e-6)
    assert list(replace(maps, layers={}).pooled().layers) == ["pooling"]


def test_layers_are_chosen_by_number():
    layers = image_maps().layers
    assert list(select_layers(layers, [])) == list(layers)
    assert list(select_layers(layers, [-1, 0])) == ["layer 2", "layer 0"]
    with pytest.raises(ValueError, match="layers=3: the model has no such layer; it has 3 layers, 0 to 2"):
        select_layers(layers, [3])
    with pytest.raises(ValueError, match="layers=-1: no layer of the model has attention"):
        select_layers({}, [-1])


def test_a_heat_picture_has_the_colour_of_each_value_over_its_patch():
    image, values = np.full((9, 12, 3), 100, np.uint8), np.array([[0.0, 1.0, 2.0], [2.0, 0.0, 1.0]])
    picture = heat_picture(image, values)
    assert picture.shape == (9 * 13, 12 * 13, 3)  # 160 pixels at least, about
    colours = {0.0: [60] * 3, 1.0: 0.45 * 60 + 0.55 * np.array([217, 98, 43]),
               2.0: 0.1 * 60 + 0.9 * np.array([255, 224, 77])}  # of the maximum: none, half and all
    for y in range(picture.shape[0]):
        for x in range(0, picture.shape[1], 5):
            value = values[int(y > 58), x // 52]
            np.testing.assert_allclose(picture[y, x], colours[value], atol=0.51)
    bright = np.arange(0, 240, 20, dtype=np.uint8).reshape(3, 4, 1)
    corners = heat_picture(bright, np.zeros((2, 3)))[[0, 0, -1, -1], [0, -1, 0, -1], 0]
    assert corners.tolist() == [0, 36, 96, 132]  # darkened to 0.6


def test_mismatched_sizes_are_rejected():
    with pytest.raises(ValueError, match=r"weights \(3, 4\) for 3 queries and 5 keys"):
        TokenMaps({"layer 0": np.zeros((1, 3, 4))}, list("abc"), list("abcde"))
    with pytest.raises(ValueError, match=r"weights \(8, 8\), but 1 prefix tokens and a grid \(2, 3\) are 7"):
        ImageMaps(np.zeros((2, 3, 3), np.uint8), {"layer 0": np.zeros((1, 8, 8))}, GRID, FIRST[:1], np.eye(8)[0])


def test_similarity_is_the_cosine():
    table = np.random.default_rng(0).normal(size=(5, 8))
    expected = [[a @ b / np.sqrt(a @ a * (b @ b)) for b in table] for a in table]
    np.testing.assert_allclose(similarity(table), expected)


def size(path) -> tuple[int, int]:
    with Image.open(path) as image:
        return image.size


def test_each_map_is_at_its_position():
    table = np.random.default_rng(0).normal(size=(2 * 20, 8))
    cells, ((rows, row_names), (columns, column_names)) = _mosaic(similarity(table), 2, 20)
    assert row_names == [0, 1] and column_names == list(range(0, 20, 2))  # every second one, to be large enough
    assert cells.shape == (2 * 3 - 1, 10 * 21 - 1) and rows == [0.5, 3.5] and columns[1] == 21 + 9.5
    expected = similarity(table)[1 * 20 + 4].reshape(2, 20)  # row 1, column 4: the third map of the second line
    np.testing.assert_array_equal(cells[3:5, 2 * 21 : 2 * 21 + 20], expected)
    assert np.isnan(cells[2]).all() and np.isnan(cells[:, 20]).all()


def test_position_pictures_of_lines_and_grids(tmp_path):
    table = np.random.default_rng(0).normal(size=(12, 8))
    assert size(positions_picture(tmp_path / "line.png", table, (12,)))[0] > 400
    width, height = size(positions_picture(tmp_path / "grid.png", table, (2, 6)))
    assert width > height
    large = positions_picture(tmp_path / "large.png", np.random.default_rng(0).normal(size=(40 * 40, 4)), (40, 40))
    assert size(large)[0] < 2200
    with pytest.raises(ValueError, match=r"12 positions, but the grid \(3, 5\) has 15"):
        positions_picture(tmp_path / "no.png", table, (3, 5))


def blue(path) -> int:
    pixels = np.asarray(Image.open(path).convert("RGB")).astype(int)
    return int((pixels[..., 2] > pixels[..., 0] + 60).sum())


def test_tokens_picture_is_as_blue_as_there_is_attention(tmp_path):
    tokens = [f"word{i}" for i in range(9)]
    sharp = TokenMaps({"layer 0": np.eye(9)[None], "layer 1": np.eye(9)[None]}, tokens, tokens)
    broad = TokenMaps({name: np.full((1, 9, 9), 1 / 9) for name in sharp.layers}, tokens, tokens)
    assert 0 < blue(tokens_picture(tmp_path / "a.png", sharp)) < blue(tokens_picture(tmp_path / "b.png", broad)) / 4


@pytest.mark.filterwarnings("error")
def test_tokens_picture_accepts_any_text_layers_of_unlike_heads_and_long_texts(tmp_path):
    layers = {"layer 0": random_weights(3, 2, 60), "layer 1": random_weights(1, 2, 60)}
    maps = TokenMaps(layers, ["$x_1$", "猫\n"], [str(i) for i in range(60)])
    width, height = size(tokens_picture(tmp_path / "new" / "a.png", maps, "a $heading$"))
    assert width > height
    np.testing.assert_allclose(maps.mean(), (layers["layer 0"].mean(0) + layers["layer 1"][0]) / 2)


@pytest.mark.parametrize("kind", ["tokens", "image", "lines"])
def test_dark_figures_and_the_texts_of_a_figure(kind, tmp_path):
    """The ground is dark; tokens, layers, heads, entropies, colour scale and title are in the drawing."""
    maps = TokenMaps({"layer 0": random_weights(2, 3, 3), "layer 1": random_weights(2, 3, 3, seed=1)}, *["abc", "abc"])
    draw = {
        "tokens": lambda path, dark: tokens_picture(path, maps, "a b c → yes 98.3%", dark),
        "image": lambda path, dark: image_picture(path, image_maps(), None, "a.png → yes 98.3%", dark),
        "lines": lambda path, dark: image_to_text_picture(path, np.zeros((8, 32, 1), np.uint8), TokenMaps(
            {"layer 0": random_weights(2, 3, 6)}, "abc", "123456"), GRID, "a.png → abc 98.3%", dark),
    }[kind]
    corners = [np.asarray(Image.open(draw(tmp_path / f"{dark}.png", dark)).convert("L"))[-3:, -3:].mean()
               for dark in (False, True)]
    assert corners[0] == 255 and corners[1] < 40
    drawn = re.findall(r"<!-- (.*?) -->", draw(tmp_path / "a.svg", True).read_text())
    assert any("98.3%" in each for each in drawn)
    if kind == "lines":
        return
    assert {"mean", "head 0", "head 1", "layer 0", "layer 1", "maximum"} <= set(drawn)
    assert any(each.startswith("rollout over") for each in drawn)
    weights = (maps if kind == "tokens" else image_maps()).layers["layer 1"]
    assert sum(each.endswith(f", {head_entropy(weights)[1]:.1f} bit") for each in drawn) >= 1
    if kind == "tokens":
        assert [drawn.count(token) for token in "abc"] == [2 + 2 + 2 + 3] * 3  # two large maps, two rows, three columns


def bars(path) -> list[int]:
    """Heights in pixels of the bars of a picture without maps, from left to right."""
    pixels = np.asarray(Image.open(path).convert("RGB")).astype(int)
    heights = (np.abs(pixels - [47, 111, 183]).max(-1) < 3).sum(0)
    starts = np.flatnonzero(np.diff((heights > 3).astype(int), prepend=0) == 1)
    return [int(heights[start + 3]) for start in starts]


def test_the_bars_of_a_pooling_are_as_high_as_its_shares(tmp_path):
    tokens, shares = list("abcd"), np.array([0.1, 0.4, 0.2, 0.3])
    drawn = bars(tokens_picture(tmp_path / "a.png", TokenMaps({}, tokens, tokens, shares)))
    assert np.array(drawn) / sum(drawn) == pytest.approx(shares, abs=0.01)
    still = TokenMaps({"layer 0": np.eye(4)[None], "layer 1": np.eye(4)[None]}, tokens, tokens, shares)
    texts = re.findall(r"<!-- (.*?) -->", tokens_picture(tmp_path / "a.svg", still, shown=["layer 1"]).read_text())
    assert {"share in the pooled vector, ≤ 0.4", "the same by rollout, ≤ 0.4", "mean of layer 1, all heads, ≤ 1",
            "rollout over 2 layers, ≤ 1", "layer 1"} <= set(texts) and "layer 0" not in texts


def test_image_picture_is_bright_where_the_pooled_output_attends(tmp_path):
    weights = np.zeros((1, N, N), np.float32)
    weights[..., 2 + 3] = 1  # all tokens attend to row 1, column 0
    maps = replace(image_maps(weights=weights), image=np.zeros((20, 30, 3), np.uint8))
    pixels = np.asarray(Image.open(image_picture(tmp_path / "a.png", maps, ["layer 2"])).convert("RGB")).astype(int)
    yellow = (pixels[..., 0] > 200) & (pixels[..., 1] > 180) & (pixels[..., 2] < 120)
    columns = np.diff(yellow.sum(0) > 20, prepend=False, append=False).nonzero()[0]
    assert len(columns) == 2 * 3  # one patch in the rollout, one in the layer's mean, one in its head, and nothing else
    deep = image_maps(weights=weights, depth=9)
    assert size(image_picture(tmp_path / "b.png", deep))[1] > len(pixels)  # more layers, more rows


def test_image_to_text_picture_shows_every_token(tmp_path):
    pixels = np.zeros((8, 32, 1), np.uint8)
    maps = TokenMaps({"layer 0": random_weights(2, 5, 6)}, list("abcde"), list("123456"))
    assert size(image_to_text_picture(tmp_path / "a.png", pixels, maps, GRID))[0] > 400


def page_data(path) -> dict:
    """The data of the page with its weights unpacked; checks that the page has no external references."""
    text = path.read_text(encoding="utf-8")
    assert not re.search(r"https?:|//[a-z]|src=|@import|url\(", text.replace("</", "<"))
    found = re.findall(r'<script type="application/json" id="data">(.*?)</script>', text, re.S)
    data = json.loads(found[0])
    for panel in data["panels"]:
        for layer in panel["layers"]:
            shape = layer["heads"], len(panel["queries"]), len(panel["keys"])
            raw = np.frombuffer(base64.b64decode(layer["weights"]), np.uint8).reshape(shape) / 255
            layer["array"] = raw * np.array(layer["tops"]).reshape(*shape[:2], 1)
    return data


def test_the_page_of_a_text_holds_all_weights_and_any_token(tmp_path):
    cross = TokenMaps({"layer 0": random_weights(2, 3, 4)}, ["</script>", "<b>", "DATA"], list("wxyz"))
    own = TokenMaps({"layer 0": random_weights(2, 4, 4)}, list("wxyz"), list("wxyz"))
    data = page_data(tokens_page(tmp_path / "a.html", {"cross": cross, "source": own}, "a <i>heading"))
    assert [panel["name"] for panel in data["panels"]] == ["cross", "source"] and data["heading"] == "a <i>heading"
    assert data["panels"][0]["queries"] == cross.queries and data["image"] is None
    np.testing.assert_allclose(data["panels"][0]["layers"][0]["array"], cross.layers["layer 0"], atol=1 / 400)


def test_the_page_of_an_image_holds_the_pooled_output_every_token_and_the_rollout(tmp_path):
    maps = image_maps("mean")
    data = page_data(image_page(tmp_path / "a.html", maps, ["layer 1"]))
    (panel,) = data["panels"]
    assert data["image"].startswith("data:image/png;base64,")
    assert panel["queries"][:4] == ["pooled output", *FIRST, "row 0, column 0"]
    assert panel["patches"] == 3 and len(panel["keys"]) == 6
    assert [layer["name"] for layer in panel["layers"]] == ["layer 1", "rollout"]
    layer, flow = (layer["array"] for layer in panel["layers"])
    np.testing.assert_allclose(layer[:, 0], maps.pooled_layers()["layer 1"].reshape(2, 6), atol=1 / 400)
    np.testing.assert_allclose(layer[:, 1:], maps.layers["layer 1"][:, :, 2:], atol=1 / 400)
    np.testing.assert_allclose(flow[0, 0], maps.pooled_rollout().ravel(), atol=1 / 400)
    np.testing.assert_allclose(flow[0, 1:], maps.rollout()[:, 2:], atol=1 / 400)
    assert image_tokens(maps).keys == panel["keys"]


def test_the_page_of_image_to_text_has_the_grid_of_the_image(tmp_path):
    cross = TokenMaps({"layer 0": random_weights(2, 3, 6)}, list("abc"), list("123456"))
    own = TokenMaps({"layer 0": random_weights(2, 3, 3)}, list("abc"), list("abc"))
    data = page_data(image_to_text_page(tmp_path / "a.html", np.zeros((8, 8, 1), np.uint8), GRID, cross, {"text": own}))
    assert [(panel["name"], panel["grid"]) for panel in data["panels"]] == [("text to image", [2, 3]), ("text", None)]
