"""`vit attention`: recorded attention against numpy, and the command."""

import math

import numpy as np
import pytest
import torch
from PIL import Image

import vit
from vit.bundle import save_bundle
from vit.cli import main
from vit.data import LinePreprocessing, Preprocessing
from vit.data.text.tokenizers import ByteTokenizer
from vit.inference import MultiLabelPrediction
from vit.models.seq2seq import EncoderDecoderConfig, Transformer
from vit.models.text import TextClassifier, TextClassifierConfig
from vit.nn import ClassMean, Mean, attention_maps
from vit.report.attention.recording import (
    image_attention,
    pooling_weights,
    position_vectors,
    seq2seq_attention,
    teacher_forced_attention,
    text_attention,
)
from vit.report.attention.report import class_title, generated_title, write_attention

SIZE = {"image_size": (8, 12), "patch_size": 4, "num_classes": 3, "dim": 12, "num_heads": 2, "depth": 2}
POOLS = {
    "class": {"registers": 1},
    "mean": {"pool": "mean", "final_norm": "pooled", "registers": 2, "class_token": False, "positions": "rotary",
             "head_dim": 8},
    "attention": {"pool": "attention"},
}


def saved(folder, **options):
    torch.manual_seed(0)
    model = vit.create_model("vit_tiny", **{**SIZE, **options})
    for parameter in model.parameters():
        parameter.data.mul_(2)  # heads that differ
    save_bundle(folder, model, list("abc"), Preprocessing((8, 12), resize="squash"))
    return folder


@pytest.fixture(scope="module")
def image(tmp_path_factory):
    path = tmp_path_factory.mktemp("image") / "photo.png"
    Image.fromarray(np.random.default_rng(0).integers(0, 255, (20, 30, 3), np.uint8)).save(path)
    return path


@pytest.mark.filterwarnings("ignore:saved under vit's own names")
@pytest.mark.parametrize("name", POOLS)
def test_attention_of_an_image_classifier(name, tmp_path, image):
    predictor = vit.load(saved(tmp_path / "model", **POOLS[name]))
    maps = image_attention(predictor, image)
    pixels = predictor.preprocessing.image(image)
    assert maps.image.shape[0] > pixels.shape[1]  # the file's own resolution, of the region that the model reads
    again = predictor.preprocessing.replace(resize="squash", crop_pct=1.0).image(maps.image)
    assert (again.float() - pixels.float()).abs().mean() < 2
    with torch.no_grad(), attention_maps(predictor.model) as recorded:
        predictor.model(predictor.preprocessing.normalize(pixels[None]))
    first, second = (recorded[f"encoder.blocks.{i}.attn"][0][0].numpy() for i in range(2))
    eye = np.eye(first.shape[-1])
    flow = (0.5 * second.mean(0) + 0.5 * eye) @ (0.5 * first.mean(0) + 0.5 * eye)
    prefix = {"class": 2, "mean": 2, "attention": 1}[name]
    if name == "attention":
        read = recorded["pool.attn"][0][0].mean(0)[0].numpy() @ flow[1:]
    else:
        read = flow[0] if name == "class" else flow[2:].mean(0)
    np.testing.assert_allclose(maps.pooled_rollout(), read[prefix:].reshape(2, 3), atol=1e-6)
    first = {"class": ["class token", "register 1"], "mean": ["register 1", "register 2"], "attention": ["class token"]}
    assert maps.prefix == first[name] and list(maps.layers) == ["layer 0", "layer 1"]


def test_positions_of_every_kind(tmp_path):
    table, grid = position_vectors(vit.create_model("vit_tiny", **SIZE, registers=2))
    assert table.shape == (6, 12) and grid == (2, 3)
    model = vit.create_model("vit_tiny", **SIZE, positions="rotary", head_dim=8)
    table, grid = position_vectors(model)
    assert table.shape == (6, 16) and grid == (2, 3)
    # the product of a vector of ones at two positions after their rotations
    turned = model.encoder.rotary()(torch.ones(1, 1, 7, 8))[0, 0, 1:].numpy()
    np.testing.assert_allclose(table @ table.T / 8, turned @ turned.T / 8, atol=1e-6)
    model = vit.create_model("vit_tiny", **SIZE, positions="rotary", head_dim=8, rotary_mixed=True)
    table, grid = position_vectors(model)
    assert grid == (2, 3)
    with torch.no_grad():
        turned = torch.stack([turn(torch.ones(1, 2, 7, 8)) for turn in model.encoder.rotary()])[:, 0, :, 1:]
    products = (turned @ turned.mT / 8).mean((0, 1))  # over blocks and heads
    np.testing.assert_allclose(table @ table.T / (table**2).sum(1)[0], products, atol=1e-6)
    with pytest.raises(ValueError, match="no position embedding"):
        position_vectors(vit.create_model("vit_tiny", **SIZE, positions="none"))
    table, grid = position_vectors(text_model())
    assert table.shape == (9, 12) and grid == (9,)


def text_model(**options) -> TextClassifier:
    torch.manual_seed(0)
    config = TextClassifierConfig(vocab_size=261, num_classes=2, max_len=9, dim=12, depth=2, num_heads=2, **options)
    return TextClassifier(config).eval()


def seq2seq_model(**options) -> Transformer:
    torch.manual_seed(0)
    config = EncoderDecoderConfig(vocab_size=261, max_len=9, dim=12, depth=2, decoder_depth=3, num_heads=2, **options)
    return Transformer(config).eval()


def test_attention_of_a_text_classifier(tmp_path):
    folder = save_bundle(tmp_path / "model", text_model(), ["no", "yes"], tokenizers={"source": ByteTokenizer()},
                         extra={"columns": 2})
    predictor = vit.load(folder)
    maps = text_attention(predictor, ("ab", "c"))
    assert list(maps.keys) == list(maps.queries) == ["<bos>", "a", "b", "<eos>", "c", "<eos>"]
    assert [weights.shape for weights in maps.layers.values()] == [(2, 6, 6)] * 2
    with pytest.raises(ValueError, match="the text: has 1 text, but the model expects two texts"):
        text_attention(predictor, ["ab"])
    assert write_attention(predictor, "ab\tc", tmp_path / "a.png", [-1]) == [tmp_path / "a.png"]


def weights_by_hand(pool: str, hidden: int, model: TextClassifier, tokens: np.ndarray) -> np.ndarray:
    """tokens (N,D) -> the share of each one in the pooled vector, number by number"""
    if pool in ("class", "pooler"):
        return np.eye(len(tokens))[0]
    if pool in ("mean", "sum"):
        return np.full(len(tokens), 1 / len(tokens))
    score = model.pool.score.weight.detach().numpy()[0]
    if hidden:
        tokens = np.tanh(tokens @ model.pool.hidden.weight.detach().numpy().T + model.pool.hidden.bias.detach().numpy())
    powers = [math.exp(sum(float(w) * float(x) for w, x in zip(score, token, strict=True))) for token in tokens]
    return np.array([power / sum(powers) for power in powers])


@pytest.mark.parametrize(("pool", "hidden"), [("class", 0), ("pooler", 0), ("mean", 0), ("sum", 0), ("attention", 0),
                                              ("attention", 7)])
def test_pooling_weights_over_the_words_of_a_text(tmp_path, pool, hidden):
    model = text_model(pool=pool, pool_hidden=hidden)
    if pool == "attention":  # scores that differ
        model.pool.score.weight.data.mul_(20)
    folder = save_bundle(tmp_path / "model", model, ["no", "yes"], tokenizers={"source": ByteTokenizer()})
    predictor = vit.load(folder)
    maps = text_attention(predictor, ["good"])
    with torch.no_grad():
        tokens = predictor.model.encode(torch.tensor([[1, *(byte + 5 for byte in b"good"), 2]]))
        vector = predictor.model.pool(tokens)[0].numpy()
    expected = weights_by_hand(pool, hidden, predictor.model, tokens[0].numpy())
    np.testing.assert_allclose(maps.pooling, expected, atol=1e-6)
    assert maps.pooling.sum() == pytest.approx(1, abs=1e-6)
    if pool in ("class", "mean", "attention"):  # those that are a weighted mean and nothing more
        np.testing.assert_allclose(maps.pooling @ tokens[0].numpy(), vector, atol=1e-5)
    if pool == "attention":
        assert maps.pooling.max() > 1.5 * maps.pooling.min()
    assert main(["attention", str(folder), "good", "-o", str(tmp_path / "a.svg"), "--layer", "-1"]) == 0
    drawn = (tmp_path / "a.svg").read_text()
    assert f"share in the pooled vector, ≤ {expected.max():.2g}" in drawn and "rollout over 2 layers" in drawn
    assert main(["attention", str(folder), "good", "-o", str(tmp_path / "a.html")]) == 0
    assert "text: pooling" in (tmp_path / "a.html").read_text()


@pytest.mark.parametrize("prefix", [0, 1, 3])
def test_the_shares_of_class_token_and_mean(prefix):
    """As far as the pooled vector, of twice the width, depends on each token: the mean of its two halves."""
    x = torch.zeros(1, 7, 1, requires_grad=True)
    ClassMean(prefix)(x).mean().backward()
    np.testing.assert_allclose(pooling_weights(ClassMean(prefix), {}, x.detach()), x.grad[0, :, 0], atol=1e-7)


def test_padding_has_no_share_of_a_mean():
    x, mask = torch.zeros(1, 6, 1, requires_grad=True), torch.tensor([[True, True, True, True, False, False]])
    Mean(1)(x, mask).sum().backward()
    np.testing.assert_allclose(pooling_weights(Mean(1), {}, x.detach(), mask), x.grad[0, :, 0], atol=1e-7)


def test_a_recurrent_text_classifier_shows_its_pooling_by_scores(tmp_path):
    """The network of arXiv 1703.03130: an LSTM below attention pooling."""
    named = {"classes": ["no", "yes"], "tokenizers": {"source": ByteTokenizer()}}
    model = text_model(pool="attention", mixer="lstm", positions="none")
    predictor = vit.load(save_bundle(tmp_path / "scores", model, **named))
    for name in ("a.svg", "a.html"):
        assert write_attention(predictor, "good", tmp_path / name) == [tmp_path / name]
    drawn = (tmp_path / "a.svg").read_text()
    assert "share in the pooled vector" in drawn and "rollout" not in drawn
    mean = vit.load(save_bundle(tmp_path / "mean", text_model(pool="mean", mixer="lstm", positions="none"), **named))
    with pytest.raises(ValueError, match="has mixer=lstm between its tokens, and no attention"):
        write_attention(mean, "good", tmp_path / "b.png")


def test_the_rows_of_a_decoder_are_named_after_predicted_tokens(tmp_path):
    """The last row is the one that predicted the end of the text."""
    model, ids = seq2seq_model(), torch.tensor([[5, 6, 2, 0]])
    mask, target = torch.tensor([[True, True, True, False]]), torch.tensor([[1, 7, 8, 9, 2]])
    names = ["a", "b", "</s>", "<pad>"], ["<s>", "x", "y", "z", "</s>"]
    kinds = teacher_forced_attention(model, ids, mask, target, *names)
    assert list(kinds) == ["target to source", "source", "target"]
    cross, own = kinds["target to source"], kinds["target"]
    assert cross.queries == ["x", "y", "z", "</s>"] and own.keys == ["<s>", "x", "y", "z"]
    assert [len(maps.layers) for maps in kinds.values()] == [3, 2, 3]
    for weights in cross.layers.values():
        assert weights.shape == (2, 4, 4) and (weights[..., 3] == 0).all()
        np.testing.assert_allclose(weights.sum(-1), 1, atol=1e-6)
    assert not np.triu(own.layers["layer 0"][0], 1).any()  # causal mask
    copied = teacher_forced_attention(model, ids, mask, target, names[0], ["<s>", *names[0]])
    assert copied["target to source"].queries == copied["target to source"].keys
    assert [maps.is_self_attention for maps in copied.values()] == [False, True, False]  # no rollout of cross-attention


def test_attention_of_a_saved_translator(tmp_path):
    parts = {"tokenizers": {"source": ByteTokenizer(), "target": ByteTokenizer()}, "extra": {"generation": {"beam": 2}}}
    predictor = vit.load(save_bundle(tmp_path / "model", seq2seq_model(), **parts))
    recorded = seq2seq_attention(predictor, "abc")
    assert recorded.text == predictor.predict(["abc"])[0].text and recorded.image is None
    assert recorded.maps["source"].keys == ["a", "b", "c", "<eos>"]
    files = write_attention(predictor, "abc", tmp_path / "a.png", [-1], positions=True)
    assert [file.name for file in files] == ["a.png", "a-source.png", "a-target.png", "a-positions.png"]
    assert all(file.stat().st_size > 10_000 for file in files)
    assert [file.name for file in write_attention(predictor, "abc", tmp_path / "a.html")] == ["a.html"]


def test_titles_are_predictions_with_their_probability(tmp_path, image):
    predictor = vit.load(saved(tmp_path / "model"))
    with torch.no_grad():
        logits = predictor.model(predictor.preprocessing.normalize(predictor.preprocessing.image(image)[None]))
    best = logits.softmax(-1).max(-1)
    assert class_title("photo.png", predictor.predict([image])[0]) == (
        f"photo.png → {'abc'[best.indices[0]]} {best.values[0]:.1%}")
    labels = MultiLabelPrediction("photo.png", ("cat", "dog"), (0.91, 0.62))
    assert class_title("photo.png", labels) == "photo.png → cat 91.0%, dog 62.0%"
    assert class_title("photo.png", MultiLabelPrediction("photo.png", (), ())) == "photo.png → no label"


@pytest.mark.parametrize(("penalty", "prefix", "form"), [(1.0, (), "power"), (0.3, (), "power"), (0.6, (), "gnmt"),
                                                         (1.0, (102, 103), "power")])
def test_the_probability_of_a_generated_text_is_the_product_of_those_of_its_tokens(tmp_path, penalty, prefix, form):
    settings = {"beam": 2, "max_len": 5, "length_penalty": penalty, "length_penalty_form": form, "prefix": prefix}
    predictor = vit.load(save_bundle(tmp_path / "model", seq2seq_model(), extra={"generation": settings}, tokenizers={
        "source": ByteTokenizer(), "target": ByteTokenizer()}))
    recorded = seq2seq_attention(predictor, "abc")
    source, ids = torch.tensor([[*(byte + 5 for byte in b"abc"), 2]]), predictor.search("abc").tree
    text = ids.text(ids.collected()[0])
    whole = [*text, *([2] if ids.nodes[ids.collected()[0]].outcome == "ended" else [])]
    with torch.no_grad():
        table = predictor.model(source, torch.tensor([[1, *whole[:-1]]]), None)[0].double().softmax(-1)
    expected = math.prod(float(table[i, token]) for i, token in enumerate(whole) if i >= len(prefix))
    assert recorded.probability == pytest.approx(expected, rel=1e-4)
    assert generated_title("abc", recorded) == f"abc → {recorded.text} {expected:.1%}"


def test_attention_of_a_saved_image_to_text_model(tmp_path, image):
    model = seq2seq_model(source="image", image_size=(8, 24), patch_size=4, in_chans=1, tied="target",
                          class_token=True, registers=1)
    line = LinePreprocessing(height=8, patch_size=(4, 4), max_width=24, mode="L", mean=(0.5,), std=(0.5,))
    parts = {"preprocessing": line, "tokenizers": {"target": ByteTokenizer()}}
    predictor = vit.load(save_bundle(tmp_path / "model", model, **parts))
    recorded = seq2seq_attention(predictor, str(image))  # 20x30 pixels: 8x12
    assert recorded.grid == (2, 3) and recorded.prefix == 2 and recorded.image.shape == (8, 12, 1)
    cross = recorded.maps["target to source"]
    assert cross.keys[:3] == ["class token", "register 1", "row 0, column 0"] and len(cross.keys) == 2 + 6
    written = [file.name for ending in ("png", "html")
               for file in write_attention(predictor, str(image), tmp_path / f"a.{ending}", [0])]
    assert written == ["a.png", "a-heads.png", "a.html"] and all((tmp_path / name).exists() for name in written)


def test_the_command_writes_pictures_and_pages(tmp_path, image, capsys):
    model = saved(tmp_path / "model")
    output = tmp_path / "seen.png"
    assert main(["attention", str(model), str(image), "--output", str(output), "--layer", "-1", "--positions"]) == 0
    assert capsys.readouterr().err == f"wrote {output}\nwrote {tmp_path / 'seen-positions.png'}\n"
    assert main(["attention", str(model), str(image), "-o", str(tmp_path / "seen.html")]) == 0
    assert "photo.png" in (tmp_path / "seen.html").read_text()
    assert main(["attention", str(model), "--positions", "-o", str(tmp_path / "only.png")]) == 0
    written = {path.name for path in tmp_path.iterdir()}
    assert written == {"model", "seen.png", "seen-positions.png", "seen.html", "only.png"}


@pytest.mark.parametrize(("arguments", "code", "message"), [
    (["{model}"], 2, "pass an image or a text"),
    (["{model}", "{model}/config.json"], 1, "config.json"),
    (["{model}", "{image}", "--layer", "2"], 2, "--layer 2: the model has no such layer; it has 2 layers, 0 to 1"),
    (["{model}", "{image}", "--output", "{folder}"], 1, "is a folder"),
    (["{model}", "{image}", "--dark", "-o", "{folder}/a.html"], 2, "leave it out, or write a figure"),
    (["{model}", "{image}", "--output", "{folder}/a.gif"], 2, ".png, .svg, .pdf or .html"),
    (["{timm}", "{image}"], 1, "use a vit_... model"),
    (["{timm}", "--positions"], 1, "use a vit_... model"),
])
def test_errors_are_one_line_and_a_code(tmp_path, image, capsys, arguments, code, message):
    paths = {"model": saved(tmp_path / "model"), "image": image, "folder": tmp_path, "timm": tmp_path / "timm"}
    network = vit.create_model("timm:resnet10t", num_classes=3, image_size=(8, 12)) if "{timm}" in arguments else None
    if network is not None:
        save_bundle(paths["timm"], network, list("abc"), Preprocessing((8, 12), resize="squash"))
    assert main(["attention", *(argument.format(**paths) for argument in arguments)]) == code
    printed = capsys.readouterr().err
    assert printed.startswith("error: ") and message in printed and printed.count("\n") == 1


@pytest.mark.filterwarnings("ignore:saved under vit's own names")
@pytest.mark.parametrize("options", [{}, {"pool": "attention"}], ids=["class", "attention"])
def test_a_model_without_attention_is_named(tmp_path, image, options):
    predictor = vit.load(saved(tmp_path / "model", mixer="lstm", **options))
    assert write_attention(predictor, None, tmp_path / "table.png", positions=True)
    with pytest.raises(ValueError, match="has mixer=lstm between its tokens, and no attention that could be shown"):
        write_attention(predictor, str(image), tmp_path / "maps.png")


def test_a_translator_with_other_layers_shows_its_cross_attention():
    model = Transformer(EncoderDecoderConfig(vocab_size=9, max_len=12, dim=12, depth=1, decoder_depth=1, num_heads=3,
                                             mixer="gru", positions="none")).eval()
    maps = teacher_forced_attention(model, torch.tensor([[3, 4, 5]]), None, torch.tensor([[1, 3, 2]]), "abc", "xyz")
    assert list(maps) == ["target to source"] and maps["target to source"].mean().shape == (2, 3)
