"""`vit attention`: real models watched, their answers against plain numpy, and the command."""

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

import vit
from vit.bundle import save_bundle
from vit.cli import main
from vit.data import Preprocessing
from vit.models.classifier import Classifier
from vit.nn import (
    Attention,
    Block,
    Decoder,
    Encoder,
    LayerNorm,
    Mlp,
    Rotary,
    TokenEmbed,
    attention_maps,
    learned,
    sincos_1d,
)
from vit.nn.pool import ClassToken
from vit.report.watch import position_table, watch_image, watch_text, watch_writing, write_reading, write_texts

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


@pytest.mark.filterwarnings("ignore:saved under our own names")
@pytest.mark.parametrize("name", POOLS)
def test_what_an_image_model_looks_at(name, tmp_path, image):
    predictor = vit.load(saved(tmp_path / "model", **POOLS[name]))
    maps = watch_image(predictor, image)
    pixels = predictor.preprocessing.image(image)
    assert np.array_equal(maps.image, pixels.permute(1, 2, 0).numpy())
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
    np.testing.assert_allclose(maps.rollout(), read[prefix:].reshape(2, 3), atol=1e-6)
    first = {"class": ["class token", "register 1"], "mean": ["register 1", "register 2"], "attention": ["class token"]}
    assert maps.first == first[name] and list(maps.layers) == ["layer 0", "layer 1"]


def test_positions_of_every_kind(tmp_path):
    table, grid = position_table(vit.create_model("vit_tiny", **SIZE, registers=2))
    assert table.shape == (6, 12) and grid == (2, 3)
    model = vit.create_model("vit_tiny", **SIZE, positions="rotary", head_dim=8)
    table, grid = position_table(model)
    assert table.shape == (6, 8) and grid == (2, 3)
    # turned by its position, a vector of ones and itself elsewhere: what is left of their product
    from vit.nn import rotate

    turned = rotate(torch.ones(1, 1, 7, 8), model.encoder.rotary())[0, 0, 1:].numpy()
    np.testing.assert_allclose(table @ table.T / 4, turned @ turned.T / 8, atol=1e-6)
    with pytest.raises(ValueError, match="no position encodings"):
        position_table(vit.create_model("vit_tiny", **SIZE, positions="none"))
    table, grid = position_table(text_model())
    assert table.shape == (9, 12) and grid == (9,)


def blocks(cross: bool) -> list[Block]:
    return [Block(12, Attention(12, 2), Mlp(12, 12), Attention(12, 2, cross=True) if cross else None) for _ in range(2)]


def text_model() -> Classifier:
    torch.manual_seed(0)
    return Classifier(TokenEmbed(20, 12, pos_embed=learned(9, 12)), Encoder(blocks(False), LayerNorm(12)), ClassToken(),
                      nn.Linear(12, 2)).eval()


class Writing(nn.Module):
    """The smallest encoder-decoder with the house's names."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.target_embed = TokenEmbed(20, 12, pos_embed=sincos_1d(9, 12)), TokenEmbed(20, 12)
        self.encoder = Encoder(blocks(False), LayerNorm(12))
        self.decoder = Decoder(blocks(True), LayerNorm(12), rotary=Rotary((9,), 6))

    def forward(self, source, target_in, source_mask=None, target_mask=None):
        memory = self.encoder(self.embed(source), source_mask)
        return self.decoder(self.target_embed(target_in), memory, target_mask, source_mask)


def test_texts_and_translations_are_named_by_what_is_written(tmp_path):
    ids = torch.tensor([[1, 5, 6, 2]])
    views = watch_text(text_model(), ids, ["<s>", "a", "b", "</s>"])
    assert views["text"].layers["layer 1"].shape == (2, 4, 4)
    mask, target = torch.tensor([[True, True, True, False]]), torch.tensor([[1, 7, 8, 9, 2]])
    views = watch_writing(Writing().eval(), ids, mask, target, ["<s>", "a", "b", "<pad>"],
                          ["<s>", "x", "y", "z", "</s>"])
    assert list(views) == ["target to source", "source", "target"]
    cross, target = views["target to source"], views["target"]
    assert cross.queries == ["x", "y", "z", "</s>"] and target.keys == ["<s>", "x", "y", "z"]
    for weights in cross.layers.values():
        assert weights.shape == (2, 4, 4) and (weights[..., 3] == 0).all()
        np.testing.assert_allclose(weights.sum(-1), 1, atol=1e-6)
    assert not np.triu(target.layers["layer 0"][0], 1).any()  # nobody looks ahead
    files = write_texts(tmp_path / "a.png", views, [-1], "a heading")
    assert [file.name for file in files] == ["a.png", "a-source.png", "a-target.png"]
    assert all(file.stat().st_size > 10_000 for file in files)
    assert [file.name for file in write_texts(tmp_path / "a.html", views)] == ["a.html"]


def test_a_read_image_leaves_out_the_tokens_before_the_patches(tmp_path):
    views = watch_writing(Writing().eval(), torch.tensor([[1, 2, 3, 4, 5, 6, 7]]), None, torch.tensor([[1, 7, 2]]),
                          ["class token", *"123456"], ["<s>", "x", "</s>"])
    pixels = np.zeros((8, 12, 3), np.uint8)
    for ending in ("png", "html"):
        assert write_reading(tmp_path / f"a.{ending}", pixels, (2, 3), 1, views).exists()


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


@pytest.mark.parametrize(("words", "code", "says"), [
    (["{model}"], 2, "name an image"),
    (["{model}", "{model}/config.json"], 1, "config.json"),
    (["{model}", "{image}", "--layer", "2"], 1, "no layer 2: the model has 2, 0 to 1"),
    (["{model}", "{image}", "--output", "{folder}"], 1, "is a folder"),
    (["{model}", "{image}", "--output", "{folder}/a.gif"], 1, ".png, .svg, .pdf or .html"),
    (["{timm}", "{image}"], 1, "take a vit_... model"),
    (["{timm}", "--positions"], 1, "take a vit_... model"),
])
def test_errors_are_one_line_and_a_code(tmp_path, image, capsys, words, code, says):
    places = {"model": saved(tmp_path / "model"), "image": image, "folder": tmp_path, "timm": tmp_path / "timm"}
    network = vit.create_model("timm/resnet10t", num_classes=3, image_size=(8, 12)) if "{timm}" in words else None
    if network is not None:
        save_bundle(places["timm"], network, list("abc"), Preprocessing((8, 12), resize="squash"))
    assert main(["attention", *(word.format(**places) for word in words)]) == code
    said = capsys.readouterr().err
    assert said.startswith("error: ") and says in said and said.count("\n") == 1
