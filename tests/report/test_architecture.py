"""The table and the picture of a model's parts, and the command that makes them."""

from xml.etree import ElementTree

import pytest
import torch
from rich.console import Console

from tests.inference.tiny_models import save_classifier, save_image_to_text, save_translator
from vit.bundle import save_bundle
from vit.cli import main
from vit.cli.prediction.explain import opened
from vit.models import create_model
from vit.models.explanation import explain
from vit.report.figures.architecture import architecture_svg, architecture_table, shown_parts

SVG = "{http://www.w3.org/2000/svg}"


def small(**options):
    return create_model("vit_tiny", image_size=32, patch_size=8, depth=3, num_classes=10, **options)


def table_text(explanation):
    console = Console(width=160, no_color=True)
    with console.capture() as captured:
        console.print(architecture_table(explanation))
    return captured.get()


def test_the_picture_is_svg_with_every_block_and_its_bar():
    explanation = explain(small())
    root = ElementTree.fromstring(architecture_svg(explanation))
    texts = [element.text or "" for element in root.iter(f"{SVG}text")]
    boxes = [element for element in root.iter(f"{SVG}rect") if element.get("class") == "block"]
    assert len(boxes) == 3 and all(f"encoder.blocks.{number}" in texts for number in range(3))
    parts = {box.find(f"{SVG}title").text for box in root.iter(f"{SVG}rect") if box.find(f"{SVG}title") is not None}
    assert parts == {part.name for part in shown_parts(explanation)}
    bars = [float(element.get("width")) for element in root.iter(f"{SVG}rect") if element.get("class") == "bar"]
    assert len(bars) == sum(part.flops > 0 for part in shown_parts(explanation)) and max(bars) <= 110
    assert "prefers-color-scheme: dark" in root.find(f"{SVG}style").text


def test_names_are_escaped():
    class Odd(torch.nn.Module):
        pass

    Odd.__name__ = "Odd<&>"
    model = small()
    model.pool.extra = Odd()
    model.extra = Odd()
    model.extra.weight = torch.nn.Parameter(torch.zeros(3))
    svg = architecture_svg(explain(model))
    ElementTree.fromstring(svg)
    assert "Odd&lt;&amp;&gt;" in svg


def test_only_blocks_that_differ_are_shown_with_their_parts():
    names = [part.name for part in shown_parts(explain(small()))]
    assert "encoder.blocks.0.attn" in names and "encoder.blocks.1.attn" not in names and "encoder.blocks.2" in names
    model = small()
    model.encoder.blocks[1].mlp.fc1.bias = None
    names = [part.name for part in shown_parts(explain(model))]
    assert "encoder.blocks.1.attn" in names and "encoder.blocks.2.attn" in names


def test_the_table_has_the_same_numbers():
    explanation = explain(small())
    text = table_text(explanation)
    for part in shown_parts(explanation):
        (line,) = [line for line in text.splitlines() if line.split()[:1] == [part.name]]
        assert f"{part.parameters:,}" in line and part.kind in line
    assert f"{explanation.parameters:,} parameters" in text and "a multiply-add counts as two" in text


def test_the_command_explains_saved_models_of_every_kind(tmp_path, capsys):
    from vit.data import Preprocessing

    save_bundle(tmp_path / "images", small(), list("abcdefghij"), Preprocessing(size=32))
    save_translator(tmp_path / "translator")
    save_image_to_text(tmp_path / "lines")
    save_classifier(tmp_path / "texts")
    save_bundle(tmp_path / "bert", create_model("bert_tiny", vocab_size=20, max_len=9))
    for name in ("images", "translator", "lines", "texts", "bert"):
        assert main(["explain", str(tmp_path / name), "--tokens", "9", "--output", str(tmp_path / f"{name}.svg")]) == 0
        assert "encoder.blocks.0" in capsys.readouterr().out
        ElementTree.parse(tmp_path / f"{name}.svg")
    assert main(["explain", str(tmp_path / "bert")]) == 0  # which reads at most 9 tokens
    assert "for source 9" in capsys.readouterr().out


def test_the_command_explains_names(capsys):
    assert main(["explain", "vit_tiny", "image_size=32", "patch_size=8", "num_classes=10"]) == 0
    assert "PatchEmbed" in capsys.readouterr().out
    assert main(["explain", "timm:resnet18"]) == 0
    assert "BasicBlock" in capsys.readouterr().out


@pytest.mark.parametrize(("arguments", "message"), [
    (["vit_tinny"], "there is no model 'vit_tinny'; nearest: vit_tiny"),
    (["vit_tiny", "image_size"], "'image_size' must have the form KEY=VALUE"),
    (["vit_tiny", "patch_sise=4"], "patch_size"),
    (["vit_tiny", "name=vit_small"], "name=vit_small: the model is named by vit_tiny"),
    (["text_tiny"], "the model needs a value for vocab_size, num_classes"),
    (["no/such/folder"], "no/such/folder: there is no such model"),
    (["vit_tiny", "--output", "picture.png"], "picture.png must end in .svg"),
    (["text_tiny", "vocab_size=9", "num_classes=2", "--tokens", "9999"], "tokens is 9999"),
])
def test_errors_are_one_line(arguments, message, capsys):
    assert main(["explain", *arguments]) == (2 if "--tokens" in arguments else 1)
    error = capsys.readouterr().err
    assert message in error and "Traceback" not in error


@pytest.mark.parametrize("value", ["1e-5", "1E-05", "0.00001", "1.0e-5"])
def test_numbers_may_have_an_exponent(value):
    assert opened("vit_tiny", [f"layer_scale={value}"]).config.layer_scale == 1e-5


def test_values_of_a_saved_model_are_refused(tmp_path, capsys):
    save_classifier(tmp_path / "texts")
    assert main(["explain", str(tmp_path / "texts"), "depth=3"]) == 1
    assert "leave out depth=3" in capsys.readouterr().err
