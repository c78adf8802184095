"""Cards of every kind of model: metadata that the hub library reads, and code that runs unchanged."""

import contextlib
import json
import re
import shlex
import warnings
from html import unescape

import numpy as np
import pytest
import torch
import yaml
from huggingface_hub import ModelCard
from markdown_it import MarkdownIt
from PIL import Image

import vit
from tests.inference.tiny_models import save_image_to_text, save_masked
from tests.run.conftest import write_photos
from vit.bundle import load_bundle, save_bundle
from vit.bundle.files import SourceError
from vit.cli import main
from vit.data import ByteTokenizer, Preprocessing
from vit.exchange.card import (
    base_model,
    code_span,
    data_name,
    escaped,
    hardware,
    model_card,
    precision,
    recipe_section,
    title,
)
from vit.exchange.hub import public_config
from vit.exchange.private_paths import overrides_without_folders, without_folders
from vit.exchange.run_records import RunRecords, read_records
from vit.models import model_from_config

PLAIN = Preprocessing(size=16, mean=(0.5,) * 3, std=(0.25,) * 3)
UNIT = PLAIN.replace(mean=(0.0,) * 3, std=(1.0,) * 3)
CLASSES = ["a|b", "<c>", "d e"]
SMALL = {"dim": 16, "depth": 1, "num_heads": 2}
IMAGES = {"kind": "vit", "image_size": 16, "patch_size": 8, **SMALL}
TEXTS = {"vocab_size": 261, "max_len": 9, **SMALL}
DECODER = {"decoder_dim": 16, "decoder_depth": 1, "decoder_num_heads": 2}
BYTES = {"source": ByteTokenizer()}


def saved(folder, kind):
    """A bundle of some kind, alone, without the run that it came from."""
    torch.manual_seed(0)
    config, classes, preprocessing, more = {
        "image": ({**IMAGES, "num_classes": 3}, CLASSES, PLAIN, {}),
        "two": ({**IMAGES, "num_classes": 2}, CLASSES[:2], PLAIN, {}),
        "labels": ({**IMAGES, "num_classes": 3}, CLASSES, PLAIN, {"thresholds": [0.2, 0.5, 0.7]}),
        "conv": ({**IMAGES, "num_classes": 3, "stem": "conv"}, CLASSES, PLAIN, {}),
        "text": ({"kind": "text_classifier", "num_classes": 3, **TEXTS}, CLASSES, None, {"tokenizers": BYTES}),
        "translator": ({"kind": "encoder_decoder", **TEXTS}, (), None,
                       {"tokenizers": BYTES | {"target": ByteTokenizer()}}),
        "mae": ({**IMAGES, "kind": "mae", **DECODER}, (), PLAIN, {}),
        "pairs": ({"kind": "text_classifier", "num_classes": 3, **TEXTS, "max_len": 40}, CLASSES, None,
                  {"tokenizers": BYTES, "extra": {"columns": 2}}),
        "image features": ({**IMAGES, "num_classes": 0}, (), PLAIN, {}),
        "text features": ({"kind": "text_classifier", "num_classes": 0, **TEXTS}, (), None, {}),
        "ensemble": ({"kind": "ensemble", "member": {**IMAGES, "num_classes": 3}, "means": [[0.5] * 3],
                      "stds": [[0.25] * 3]}, CLASSES, UNIT, {}),
    }[kind]
    warning = pytest.warns(UserWarning, match="under vit's own names") if kind == "conv" else contextlib.nullcontext()
    with warning:
        return save_bundle(folder, model_from_config(config), classes, preprocessing, {"val/accuracy": 0.75}, **more)


@pytest.mark.parametrize(
    ("kind", "task", "library", "sentence"),
    [
        ("image", "image-classification", "timm", "It assigns an image one of 3 classes."),
        ("labels", "image-classification", "timm", "It assigns an image any number of 3 labels, each above its own"),
        ("conv", "image-classification", "vit", "It assigns an image one of 3 classes."),
        ("text", "text-classification", "vit", "It assigns a text one of 3 classes."),
        ("translator", "translation", "vit", "It generates text from a text."),
        ("mae", None, "vit", "It is pre-trained and makes no predictions"),
        ("pairs", "text-classification", "vit", "It assigns a text one of 3 classes."),
        ("image features", None, "timm", "It is pre-trained and makes no predictions"),
        ("text features", None, "vit", "It is pre-trained and makes no predictions"),
        ("ensemble", "image-classification", "vit", "It assigns an image one of 3 classes."),
    ],
)
def test_every_kind_of_model_has_a_card(tmp_path, kind, task, library, sentence):
    text = model_card(load_bundle(saved(tmp_path / "model", kind)), "me/thing", "other")
    card = ModelCard(text)
    assert (card.data.pipeline_tag, card.data.library_name, card.data.license) == (task, library, "other")
    assert sentence in card.text and "hub:me/thing" in card.text and str(tmp_path) not in text
    if task:
        (result,) = card.data.eval_results
        assert (result.metric_name, result.metric_value, result.dataset_split) == ("accuracy", 0.75, "val")
    if kind == "labels":
        assert "multi-label" in card.data.tags and "| a\\|b | 0.2000 |" in text and "| &lt;c> | 0.5000 |" in text


@pytest.mark.parametrize(("mode", "prepared"), [("RGB", "as config.json states"), ("L", "another way (they read RGB")])
def test_a_card_states_how_timm_and_transformers_prepare_images(tmp_path, mode, prepared):
    channels = {"RGB": 3, "L": 1}[mode]
    model = model_from_config({**IMAGES, "num_classes": 3, "in_chans": channels})
    preprocessing = Preprocessing(size=16, mean=(0.5,) * channels, std=(0.25,) * channels, mode=mode)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # the same statement
        card = model_card(load_bundle(save_bundle(tmp_path / "model", model, CLASSES, preprocessing)), licence="mit")
    assert f"With timm and transformers, which prepare images {prepared}" in card


@pytest.mark.parametrize(("save", "task", "family", "sentence"), [
    (save_masked, "fill-mask", "transformer", "It predicts masked words of a text, and is a start for training."),
    (save_image_to_text, "image-to-text", "vision-transformer", "It generates text from an image."),
])
def test_models_of_texts_have_the_task_of_the_hub(tmp_path, save, task, family, sentence):
    card = ModelCard(model_card(load_bundle(save(tmp_path / "model")), licence="mit"))
    assert (card.data.pipeline_tag, card.data.tags) == (task, ["vit", family]) and card.data.eval_results is None
    assert sentence in card.text and "## Metrics" not in card.text and "## Classes" not in card.text
    assert card.text.count("## Preprocessing") == (task == "image-to-text")


def test_the_recipe_of_a_run_is_a_table(tmp_path):
    bundle = load_bundle(saved(tmp_path / "model", "image"))
    recipe = {"batch_size": 8, "optimizer": {"name": "adamw", "lr": 0.001, "weight_decay": 0.05},
              "schedule": {"name": "cosine", "warmup": 0.1}, "loss": {"name": "bce", "smoothing": 0.1},
              "augment": {"flip": {"p": 0.5}, "crop": None, "color": {"p": 1}}, "mixup": None, "average_epochs": 3}
    config = {"recipe": recipe, "finetune": {"name": "full"}, "seed": 7, "words": ["data=folder", "data.root=/a/b"],
              "model_name": "timm/vit:tiny", "name": "pets"}
    metrics = {"epochs": 9, "best_epoch": 0, "ended": True, "steps": 12345, "seconds": 200}
    environment = {"accelerators": ["H100", "H100"], "cores": 2, "processor": "EPYC"}
    text = recipe_section(bundle, RunRecords(config, metrics, environment))
    assert "python -m vit train data=folder data.root=b" in text
    lines = [line for line in text.splitlines() if line.startswith("| ")]
    rows = dict(line.removeprefix("| ").removesuffix(" |").split(" | ") for line in lines[2:])
    versions = rows.pop("versions")
    assert rows == {"epochs": "9 (best: 0, before training), 12,345 steps", "batch size": "8",
                    "optimizer": "adamw, lr 0.001, weight decay 0.05", "schedule": "cosine, warm-up 0.1",
                    "loss": "bce, smoothing 0.1", "augmentation": "flip, color", "mixup": "none",
                    "average of weights": "3", "seed": "7", "time": "3 min 20 s on 2 x H100"}
    assert f"torch {torch.__version__}" in versions
    older = {"epochs": 9, "best_epoch": 4, "steps": 1, "seconds": 1}  # which counted epochs from 0
    records = RunRecords({**config, "init_from": "timm:a"}, older, {"cores": 2, "processor": "EPYC"})
    text = recipe_section(bundle, records)
    assert "| 9 (best: 5), 1 step |" in text and "| fine-tuning | full |" in text
    assert "on 2 cores of EPYC |" in text
    assert title(bundle, RunRecords(config)) == "timm-vit-tiny-pets" and title(bundle, RunRecords()) == "vit-model"


def test_numbers_and_preprocessing_are_as_they_are_recorded(tmp_path):
    metrics = {"val/accuracy": 0.75, "val/images": 8, "train/loss": 0.5}
    model = model_from_config({**IMAGES, "num_classes": 3})
    text = model_card(load_bundle(save_bundle(tmp_path / "model", model, CLASSES, PLAIN, metrics)))
    assert "| accuracy | 0.7500 |\n| images | 8 |\n" in text and "loss" not in text
    assert "| size | 16, 16 |" in text and "| mean | 0.5, 0.5, 0.5 |" in text and "max_pixels" not in text
    assert "## Licence" not in text and "training samples" not in text and "\n\n\n" not in text


def test_the_numbers_of_a_run_are_those_of_its_test_split(tmp_path):
    """A bundle in its run folder: whole numbers count samples, and a class may have no training sample."""
    bundle = load_bundle(saved(tmp_path / "model", "image"))
    (tmp_path / "config.yaml").write_text(yaml.safe_dump({"data": {"name": "folder", "root": "/x/pets"}, "recipe": {
        "optimizer": {"name": "adamw", "lr": 0.1}, "schedule": {"name": "cosine", "warmup": 0}}, "overrides": [],
        "init_from": "/x/start"}))
    assert read_records(bundle) == RunRecords()  # a run that has not ended
    metrics = {"val/accuracy": 0.5, "test/accuracy": 0.25, "test/top5": 0.75, "test/images": 3}
    (tmp_path / "metrics.json").write_text(json.dumps(metrics))
    (tmp_path / "splits").mkdir()
    for split, labels in {"train": ["d e", "a|b", "d e", "d e"], "val": ["<c>"] * 2, "test": ["<c>"] * 4}.items():
        lines = [f"{i}.png\t{label}\t{i:016x}\n" for i, label in enumerate(labels)]  # one image cannot be read
        (tmp_path / "splits" / f"{split}.tsv").write_text("".join(lines))
    text = model_card(bundle)
    assert "Test split, 3 samples of `pets`." in text and "4 train / 2 val / 4 test" in text
    assert "| metric | value |\n| --- | --- |\n| accuracy | 0.2500 |\n| top5 | 0.7500 |\n\n" in text
    results = ModelCard(text).data.eval_results
    assert [(each.dataset_split, each.metric_type, each.metric_name, each.metric_value) for each in results] == [
        ("test", "accuracy", "accuracy", 0.25), ("test", "top_5_accuracy", "top5", 0.75)]
    assert "parameters, trained from other weights. It assigns an image" in text
    assert "| a\\|b | 1 |\n| &lt;c> | 0 |\n| d e | 3 |\n" in text
    (tmp_path / "config.yaml").unlink()
    assert read_records(bundle) == RunRecords()


def test_the_labels_of_a_run_with_several_per_image_are_counted_one_by_one(tmp_path):
    bundle = load_bundle(saved(tmp_path / "model", "labels"))
    (tmp_path / "config.yaml").write_text("{}")
    (tmp_path / "metrics.json").write_text("{}")
    (tmp_path / "splits").mkdir()
    cells = ["a|b;d e", "", "d e"]
    lines = [f"{i}.png\t{cell}\t{i:016x}\n" for i, cell in enumerate(cells)]
    (tmp_path / "splits" / "train.tsv").write_text("".join(lines))
    assert read_records(bundle).counts == {"train": {"a|b": 1, "d e": 2}}


@pytest.mark.parametrize("count", [200, 201])
def test_a_card_lists_at_most_200_classes(tmp_path, count):
    model = model_from_config({**IMAGES, "num_classes": count})
    classes = [f"class {number}" for number in range(count)]
    text = model_card(load_bundle(save_bundle(tmp_path / "model", model, classes, PLAIN)))
    assert sum(f"| {name} |\n" in text for name in classes) == 200 and "| class 199 |\n" in text
    assert ("... and 1 more, listed in config.json." in text) == (count > 200)


@pytest.mark.parametrize("kind", ["image", "two", "labels", "text", "translator", "pairs", "ensemble"])
def test_the_code_of_a_card_runs_unchanged(tmp_path, monkeypatch, capsys, kind):
    folder = saved(tmp_path / "FOLDER", kind)
    monkeypatch.chdir(tmp_path)
    Image.fromarray(np.random.default_rng(0).integers(0, 255, (20, 24, 3), np.uint8)).save("photo.jpg")
    blocks = re.findall(r"```python\n(.*?)```", model_card(load_bundle(folder)), re.DOTALL)
    assert len(blocks) == (3 if kind in ("image", "two", "labels") else 1)
    for block in blocks:
        exec(block, {})
    printed = capsys.readouterr().out
    if kind in ("image", "two", "labels", "ensemble"):
        count = {"image": 3, "two": 2, "ensemble": 3}.get(kind)
        assert str(vit.load(folder).predict("photo.jpg", top_k=count)[0].names) in printed


SHORTENED = {
    "data=folder": "data=folder",
    "data.root='/home/me/my, photos'": "data.root='my, photos'",
    "data.path=../x/labels.csv": "data.path=labels.csv",
    "init_from=runs/a/b": "init_from=b",
    "init_from=hub:me/pets@abc": "init_from=hub:me/pets@abc",
    "init_from=timm:vit_tiny": "init_from=timm:vit_tiny",
    "init_from=timm/vit_tiny": "init_from=timm/vit_tiny",
    "data.root=.": "data.root=.",
    "data.root=../photos/": "data.root=photos",
    "distill.teacher=runs/big/1": "distill.teacher=1",
    "name=/srv/secret": "name=secret",
    "model.vectors=~/glove.txt": "model.vectors=glove.txt",
    "data.files=[/home/me/a.txt,'~/my b/c.txt',../d.txt]": "data.files=[a.txt,'c.txt',d.txt]",
    "data.repo=me/pets": "data.repo=me/pets",
    "model.name=timm/resnet18": "model.name=timm/resnet18",
    "x=C:\\Users\\me\\y.csv": "x=y.csv",
    "logger.tracking_uri=file:///home/me/runs": "logger.tracking_uri=runs",
    "logger.tracking_uri=sqlite:////home/me/runs.db": "logger.tracking_uri=runs.db",
    "logger.tracking_uri=https://a.org/b/c": "logger.tracking_uri=https://a.org/b/c",
    "name='of:/home/me/x'": "name='of:x'",
    "recipe.epochs=3": "recipe.epochs=3",
    "data.label_separator='/'": "data.label_separator='/'",
    "~data.split": "~data.split",
    "+logger.comet.api_key=4f2a": "+logger.comet.api_key='***'",
    "++logger.n.api_token='a b'": "++logger.n.api_token='***'",
    "+logger.m.tracking_uri=http://bob:pw@host:5000": "+logger.m.tracking_uri=http://host:5000",
    "model.class_token=false": "model.class_token=false",
    "logger.comet.api_key=null": "logger.comet.api_key=null",
}


def test_credentials_are_not_published():
    recorded = {"logger": {"a": {"api_key": "4f2a", "project": "b"}, "c": [{"uri": "https://u:p@h/x"}]}, "token": True}
    published = {"logger": {"a": {"api_key": "***", "project": "b"}, "c": [{"uri": "https://h/x"}]}, "token": True}
    assert without_folders(recorded) == published


def test_paths_in_overrides_are_left_out():
    assert dict(zip(SHORTENED, overrides_without_folders(list(SHORTENED)), strict=True)) == SHORTENED
    assert escaped("a|b\n<script>") == "a\\|b &lt;script>"


@pytest.mark.parametrize("name", ["**bold**", "*", "_it_", "_a_b", "__init__", "a_b",
                                  "5$ to 9$", "$x_1$", "a&amp;b", "&lt;",
                                  "[link](http://x.y)", "~~gone~~", "`code`", "a\\b", "\\*", "# a", "<b>", "a|b"])
def test_names_are_shown_as_they_are_in_markdown(name):
    """Rendered by markdown-it, without its formulas: for those there is no `$` left."""
    html = MarkdownIt("gfm-like", {"linkify": False}).render(f"| name |\n| --- |\n| {escaped(name)} |\n")
    cells = re.findall(r"<td>(.*)</td>", html)
    assert len(cells) == 1 and unescape(cells[0]) == name and "<" not in cells[0] and "$" not in escaped(name)
    shown = re.fullmatch(r"<p><code>(.*)</code></p>\n", MarkdownIt().render(code_span(name)))
    assert unescape(shown[1]) == name


def test_the_base_model_is_one_of_the_hub():
    names = {"hub:me/pets@abc": "me/pets", "timm:vit_tiny": "timm/vit_tiny", "timm/vit_tiny": "timm/vit_tiny",
             "runs/pets": None, "C:/runs/pets": None, None: None}
    assert {source: base_model(source) for source in names} == names


def test_what_is_published_contains_no_path(tmp_path):
    extra = {"data": ["data=folder", "data.root=/home/me/pets"], "evaluation": {"batch_size": 8},
             "teachers": [{"from": "/srv/models/big", "alpha": 0.5}]}
    model = model_from_config({**IMAGES, "num_classes": 3})
    folder = save_bundle(tmp_path / "model", model, CLASSES, PLAIN, extra=extra)
    values = json.loads(public_config(folder / "config.json"))
    assert values["vit"]["extra"] == {"data": ["data=folder", "data.root=pets"], "evaluation": {"batch_size": 8},
                                      "teachers": [{"from": "big", "alpha": 0.5}]}
    assert "/home/me" in (folder / "config.json").read_text()


def test_a_licence_is_an_identifier(tmp_path):
    with pytest.raises(SourceError, match="--licence 'Apache 2.0' is not an identifier of the hub; write it like"):
        model_card(load_bundle(saved(tmp_path / "model", "image")), licence="Apache 2.0")


def bash_commands(text):
    """The arguments of every command in the bash blocks of a card, after `python -m vit`."""
    commands = [shlex.split(block) for block in re.findall(r"```bash\n(.*?)```", text, re.DOTALL)]
    assert all(command[:3] == ["python", "-m", "vit"] for command in commands)
    return [command[3:] for command in commands]


QUICK = ["recipe.epochs=1", "trainer.accelerator=cpu", "precision=32-true", "logger=csv", "report=false"]


@pytest.mark.parametrize("kind", ["mae", "image features"])
def test_the_command_of_a_pre_trained_model_runs(tmp_path, monkeypatch, kind):
    monkeypatch.chdir(tmp_path)
    write_photos(tmp_path / "photos", {"cat": 10, "dog": 10})
    (command,) = bash_commands(model_card(load_bundle(saved(tmp_path / "FOLDER", kind))))
    assert main([*command, *QUICK]) == 0


def test_the_command_of_a_recipe_runs_beside_the_data(tmp_path, monkeypatch):
    """In the folder of the photos and the weights; other paths of the run are omitted."""
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    write_photos(tmp_path / "my, photos (1)", {"cat": 10, "dog": 10})
    saved(tmp_path / "mae model", "mae")
    run = tmp_path / "first run"
    overrides = [f"data.root={tmp_path / 'my, photos (1)'}", f"init_from={tmp_path / 'mae model'}", f"run_dir={run}"]
    assert main(["train", "data=folder", *overrides, *QUICK]) == 0
    (command,) = bash_commands(model_card(load_bundle(run)))
    monkeypatch.chdir(tmp_path)
    assert main(command) == 0


def test_the_name_on_the_hub_is_checked(tmp_path, capsys):
    folder = saved(tmp_path / "model", "image")
    for name, code in (("owner/name", 0), ("hub:owner/name", 0), ("name", 2), ("hub:", 2)):
        card = tmp_path / f"{code}{name.count(':')}.md"
        assert main(["card", str(folder), "--name", name, "--output", str(card), "--licence", "mit"]) == code
        printed = capsys.readouterr().err
        if code:
            assert "this is not a name of the hub; write hub:OWNER/NAME" in printed and not card.exists()
        else:
            assert 'vit.load("hub:owner/name")' in card.read_text()


@pytest.mark.parametrize(("stated", "tested", "found"), [
    ("auto", "bf16-mixed", "bf16-mixed (auto)"),
    ("bf16-residual", "bf16-mixed", "bf16-residual"),
    ("auto", None, "auto"),
])
def test_the_precision_is_the_one_that_auto_has_chosen(tmp_path, stated, tested, found):
    extra = {"evaluation": {"precision": tested}} if tested else {}
    model = model_from_config({**IMAGES, "num_classes": 3})
    bundle = load_bundle(save_bundle(tmp_path / "model", model, CLASSES, PLAIN, extra=extra))
    assert precision(bundle, RunRecords({"precision": stated})) == found


def test_the_hardware_counts_cores():
    assert hardware({"cores": 1, "processor": "AMD EPYC"}) == "1 core of AMD EPYC"
    assert hardware({"cores": 2, "processor": "AMD EPYC", "accelerators": []}) == "2 cores of AMD EPYC"
    assert hardware({}) == "? cores of a processor" and hardware({"accelerators": ["H100"] * 2}) == "2 x H100"


@pytest.mark.parametrize(("data", "name"), [
    ({"repo": "owner/set", "path": "/home/me/file", "name": "hub"}, "owner/set"),
    ({"root": "/home/me/photos", "name": "folder"}, "photos"),
    ({"path": "/home/me/table.csv", "name": "table"}, "table.csv"),
    ({"name": "digits"}, "digits"),
    ({}, "unknown"),
])
def test_data_are_named_as_on_the_hub_else_by_the_last_part_of_their_path(data, name):
    assert data_name(RunRecords(config={"data": data})) == name
