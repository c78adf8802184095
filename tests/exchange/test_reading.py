"""Sources of all usual kinds; an error is one line that names what was found and what is accepted."""

import json
import os
import pickle
import zipfile
from pathlib import Path

import numpy as np
import pytest
import timm
import torch
import transformers as hf
from safetensors.torch import save_file
from timm.models import save_for_hf

import vit
from tests.exchange.conftest import CLOSE, SIZE, images, scramble
from vit.bundle import LabelCalibration, save_bundle
from vit.cli import main as vit_main
from vit.data import Preprocessing
from vit.exchange import SourceError
from vit.exchange.convert import convert
from vit.exchange.read import (
    MULTI_LABEL,
    THRESHOLDS,
    assigns_several_labels,
    find_thresholds,
    is_own_checkpoint,
    read_checkpoint,
)
from vit.exchange.timm_networks import timm_config_by_name

NAMES = ["cat", "dog", "emu", "fox", "gnu"]
LABELS = {"id2label": dict(enumerate(NAMES)), "label2id": {name: i for i, name in enumerate(NAMES)}}
CONFIG = hf.ViTConfig(**SIZE, num_labels=5, **LABELS)
TINY = {"image_size": 16, "patch_size": 8, "dim": 24, "depth": 2, "num_heads": 3, "num_classes": 5}


class Marks:
    """A pickle of this runs a program when it is read the way pickles are read."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self):
        return os.mkdir, (self.path,)


@pytest.fixture
def folder(tmp_path):
    """A folder of transformers with its preparation of images."""
    scramble(hf.ViTForImageClassification(CONFIG)).save_pretrained(tmp_path / "vit")
    processor = hf.ViTImageProcessorPil(size={"height": 32, "width": 32}, resample=2, image_mean=[0.3] * 3,
                                        image_std=[0.4] * 3)
    processor.save_pretrained(tmp_path / "vit")
    return tmp_path / "vit"


def photo() -> np.ndarray:
    return np.random.default_rng(0).integers(0, 255, (40, 50, 3), np.uint8)


def test_load_predicts_the_same_as_transformers(folder) -> None:
    from PIL import Image

    predictor = vit.load(folder)
    pillow = hf.ViTImageProcessorPil.from_pretrained(folder)  # the other one resizes with torch, to other pixels
    pipeline = hf.pipeline("image-classification", model=str(folder), image_processor=pillow, device="cpu")
    expected = pipeline(Image.fromarray(photo()), top_k=5)
    (prediction,) = predictor.predict([photo()], top_k=5)
    assert prediction.names == tuple(row["label"] for row in expected)
    assert prediction.probabilities == pytest.approx([row["score"] for row in expected], abs=1e-5)


def test_one_output_of_transformers_is_the_sigmoid_of_its_pipeline(folder, tmp_path) -> None:
    from PIL import Image

    model = scramble(hf.ViTForImageClassification(hf.ViTConfig(**SIZE, num_labels=1, id2label={0: "cat"})))
    model.save_pretrained(folder)
    pillow, image = hf.ViTImageProcessorPil.from_pretrained(folder), Image.fromarray(photo())
    (expected,) = hf.pipeline("image-classification", model=str(folder), image_processor=pillow, device="cpu")(image)
    with pytest.warns(UserWarning, match="has one output: the sigmoid of it is the probability of the label"):
        predictor = vit.load(folder)
    assert predictor.bundle.thresholds == (0.5,)
    (found,) = predictor.predict(image, top_k=1)
    assert (found.names, found.probabilities) == (("cat",), (pytest.approx(expected["score"], abs=1e-5),))
    with pytest.warns(UserWarning, match="has one output"):
        convert(folder, tmp_path / "bundle")
    assert vit.load(tmp_path / "bundle").predict(image, top_k=1)[0].probabilities == pytest.approx(found.probabilities)


@pytest.mark.parametrize("outputs", [1, 3])
def test_numbers_of_a_regression_are_no_probabilities(folder, tmp_path, outputs: int) -> None:
    config = hf.ViTConfig(**SIZE, num_labels=outputs, problem_type="regression")
    scramble(hf.ViTForImageClassification(config)).save_pretrained(folder)
    for use in (vit.load, lambda path: convert(path, tmp_path / "bundle")):
        with pytest.raises(SourceError, match=r"its outputs are numbers \(problem_type=regression\), not scores"):
            use(folder)
    assert vit.import_weights(folder)[0].config.num_classes == outputs


@pytest.mark.parametrize("labels", [
    {"num_labels": 2}, {"num_labels": 12}, {"id2label": dict(enumerate("lkjihgfedcba"))}])
def test_classes_of_transformers_keep_their_order(folder, labels) -> None:
    """Its config sorts the numbers of the classes as texts, and does not save the names that it gives to two."""
    model = scramble(hf.ViTForImageClassification(hf.ViTConfig(**SIZE, **labels)))
    model.save_pretrained(folder)
    assert vit.load(folder).classes == list(model.config.id2label.values())


def test_the_file_of_weights_of_a_bundle_is_the_bundle(tmp_path) -> None:
    model, preprocessing = vit.create_model("vit_tiny", **TINY), Preprocessing(size=16, mean=(0.1,) * 3)
    saved = save_bundle(tmp_path / "model", model, NAMES, preprocessing, thresholds=[0.1, 0.2, 0.3, 0.4, 0.5])
    found = read_checkpoint(saved / "model.safetensors")
    assert found.class_names == NAMES and found.preprocessing == preprocessing
    assert found.thresholds == (0.1, 0.2, 0.3, 0.4, 0.5) and found.name == str(saved / "model.safetensors")


def test_load_a_timm_folder(tmp_path) -> None:
    model = scramble(timm.create_model("vit_tiny_patch16_224", img_size=32, depth=2, num_classes=5))
    save_for_hf(model, tmp_path, model_args={"img_size": 32, "depth": 2}, model_config={"label_names": NAMES})
    predictor = vit.load(tmp_path)
    assert predictor.classes == NAMES
    cfg = timm.data.resolve_model_data_config(model)
    assert (predictor.preprocessing.mean, predictor.preprocessing.crop_pct) == (cfg["mean"], cfg["crop_pct"])
    with torch.no_grad():
        torch.testing.assert_close(predictor.model(images()), model(images()), **CLOSE)


def test_load_a_model_in_memory() -> None:
    theirs = scramble(timm.create_model("vit_tiny_patch16_224", img_size=32, depth=2, num_classes=5)).eval()
    with pytest.warns(UserWarning, match="does not name its 5 classes; numbers are used as names"):
        predictor = vit.load(theirs)
    (prediction,) = predictor.predict([photo()], top_k=5)
    pixels = predictor.preprocessing.image(photo(), "photo")
    with torch.inference_mode():
        expected = theirs(predictor.preprocessing.normalize(pixels[None])).softmax(-1)[0]
    assert prediction.probabilities == pytest.approx(expected.sort(descending=True).values.tolist(), abs=1e-5)
    assert prediction.names == tuple(map(str, expected.argsort(descending=True).tolist()))


def test_what_a_file_does_not_state_is_a_warning(tmp_path) -> None:
    model = scramble(timm.create_model("vit_tiny_patch16_224", img_size=32, num_classes=5))
    save_file(model.state_dict(), tmp_path / "weights.safetensors")
    with pytest.warns(UserWarning) as warned:
        predictor = vit.load(tmp_path / "weights.safetensors")
    printed = " ".join(str(each.message) for each in warned)
    assert "does not state its preprocessing" in printed and "does not name its 5 classes" in printed
    assert predictor.classes == ["0", "1", "2", "3", "4"] and predictor.preprocessing.size == (32, 32)


def test_training_begins_with_a_folder_of_transformers(folder, tmp_path) -> None:
    overrides = ["recipe.epochs=1", "precision=32-true", "logger=csv", "report=false", "recipe.optimizer.lr=1e-30",
                 "recipe.ema=null"]
    run = vit.train([*overrides, f"init_from={folder}", "data.image_size=32", f"run_dir={tmp_path / 'run'}"])
    source, _ = vit.import_weights(folder)
    trained = vit.load(run.path)
    assert trained.model.config.dim == 32 and trained.preprocessing.mean == (0.3,) * 3
    after, before = trained.model.state_dict(), source.state_dict()
    other = {name for name in before if after[name].shape != before[name].shape}
    other |= {name for name in set(before) - other if not torch.allclose(after[name], before[name], 0, 1e-20)}
    assert other == {"head.weight", "head.bias"}
    assert "fused" in (run.path / "log.txt").read_text()


@pytest.mark.parametrize("stated", ["model.num_heads=4", ""])
def test_training_requires_what_tensors_do_not_determine(folder, tmp_path, stated, capsys) -> None:
    overrides = ["recipe.epochs=1", "precision=32-true", "logger=csv", "report=false",
                 f"init_from={folder / 'model.safetensors'}"]
    (folder / "config.json").unlink()
    code = vit.run.main([*overrides, *([stated] if stated else []), f"run_dir={tmp_path / 'run'}"])
    printed = capsys.readouterr().err
    assert code == (0 if stated else 2), printed
    assert stated or "give num_heads=" in printed


def test_a_bundle_is_loaded_unchanged(tmp_path) -> None:
    model = scramble(vit.create_model("vit_tiny", **TINY))
    preprocessing = Preprocessing(size=(16, 16))
    save_bundle(tmp_path / "bundle", model, NAMES, preprocessing)
    again, report = vit.import_weights(tmp_path / "bundle")
    assert again.config == model.config and {row.status for row in report.rows} == {"loaded"}
    assert all(torch.equal(again.state_dict()[name], tensor) for name, tensor in model.state_dict().items())
    wider, report = vit.import_weights(tmp_path / "bundle", image_size=32, num_classes=2)
    assert wider.config.image_size == (32, 32) and set(report.named("new")) == {"head.weight", "head.bias"}
    assert 0.01 < wider.head.weight.std() < 0.03 and not wider.head.bias.any()


def test_everything_in_a_bundle_is_read(tmp_path) -> None:
    model, preprocessing = scramble(vit.create_model("vit_tiny", **TINY)), Preprocessing((16, 16), crop_pct=0.5)
    calibration = LabelCalibration(9, (2.0, 0.5, 1.0, 1.0, 1.0), (0.5, 0.25), (0.125, 0.0625))
    save_bundle(tmp_path / "bundle", model, NAMES, preprocessing, extra={"data": ["data=digits"]},
                thresholds=[0.1, 0.2, 0.3, 0.4, 0.5], calibration=calibration)
    found = read_checkpoint(tmp_path / "bundle")
    assert (found.class_names, found.stated_preprocessing, found.calibration) == (NAMES, preprocessing, calibration)
    assert (found.thresholds, found.extra) == ((0.1, 0.2, 0.3, 0.4, 0.5), {"data": ["data=digits"]})
    assert found.model_config == model.config.to_dict() and found.name == str(tmp_path / "bundle")


def test_only_a_file_of_the_usual_name_has_the_config_beside_it(folder) -> None:
    assert read_checkpoint(folder / "model.safetensors").class_names == NAMES
    (folder / "model.safetensors").rename(folder / "epoch3.safetensors")
    found = read_checkpoint(folder / "epoch3.safetensors")
    assert (found.source_config, found.class_names, found.stated_preprocessing) == ({}, [], None)


def test_a_layer_of_torch_is_no_model() -> None:
    refused(torch.nn.Linear(2, 2), "the Linear in memory", "not those of a known Vision Transformer")
    refused(torch.nn.DataParallel(torch.nn.Linear(2, 2)), "the Linear in memory")


def test_tensors_of_a_model_in_memory_are_copied() -> None:
    theirs = scramble(timm.create_model("vit_tiny_patch16_224", img_size=32, depth=2, num_classes=5))
    before = theirs.head.bias.detach().clone()
    model, _ = vit.import_weights(theirs)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    assert torch.equal(theirs.head.bias, before)


def test_another_size_aspect_channels_and_classes_in_one_call() -> None:
    theirs = scramble(timm.create_model("vit_tiny_patch16_224", img_size=32, depth=2, num_classes=5))
    model, report = vit.import_weights(theirs, image_size=(24, 48), patch_size=8, in_chans=1, num_classes=7)
    other = {"img_size": (24, 48), "patch_size": 8, "depth": 2, "num_classes": 0}
    again = timm.create_model("vit_tiny_patch16_224", **other)
    state = timm.models.vision_transformer.checkpoint_filter_fn(theirs.state_dict(), again)
    state["patch_embed.proj.weight"] = timm.models.adapt_input_conv(1, state["patch_embed.proj.weight"])
    one = timm.create_model("vit_tiny_patch16_224", **other, in_chans=1)
    one.load_state_dict({name: tensor for name, tensor in state.items() if not name.startswith("head.")})
    x = images((24, 48), channels=1)
    with torch.no_grad():
        torch.testing.assert_close(model.pool(model.encode(x)), one.eval()(x), **CLOSE)
    assert set(report.named("resized")) == {"embed.pos_embed", "embed.proj.weight"}
    assert set(report.named("new")) == {"head.weight", "head.bias"}


@pytest.mark.parametrize("ending", ["safetensors", "pth", "npz"])
def test_a_model_does_not_depend_on_its_file_after_loading(tmp_path, ending: str) -> None:
    """The file of a model is often overwritten; a mapped file would change the model."""
    from tests.exchange.test_google import npz

    state = scramble(timm.create_model("vit_tiny_patch16_224", img_size=32, depth=2, num_classes=5)).state_dict()
    file = tmp_path / f"weights.{ending}"
    if ending == "npz":
        npz(file)
    else:
        save_file(state, file) if ending == "safetensors" else torch.save(state, file)
    model, _ = vit.import_weights(file, num_heads=4)
    before = model(images())
    with open(file, "rb+") as stream:
        stream.write(b"\0" * file.stat().st_size)
    with open(file, "rb+") as stream:
        stream.truncate(10)
    assert torch.equal(model(images()), before)


@pytest.mark.parametrize("others", [1, 8], ids=["mostly weights", "mostly an optimizer's memory"])
def test_a_checkpoint_does_not_depend_on_its_file_after_loading(tmp_path, others: int) -> None:
    state = scramble(timm.create_model("vit_tiny_patch16_224", img_size=32, depth=2, num_classes=5)).state_dict()
    numbers = sum(tensor.numel() for tensor in state.values())
    torch.save({"state_dict": state, "optimizer": {"state": {0: torch.zeros(numbers * others // 2)}}},
               tmp_path / "last.ckpt")
    model, _ = vit.import_weights(tmp_path / "last.ckpt", num_heads=3)
    with open(tmp_path / "last.ckpt", "rb+") as stream:
        stream.truncate(10)
    assert torch.equal(model.head.weight, state["head.weight"])


def test_the_command_line_accepts_the_same_sources(folder, tmp_path, capsys) -> None:
    from PIL import Image

    Image.fromarray(photo()).save(tmp_path / "photo.png")
    assert vit_main(["predict", str(folder), str(tmp_path / "photo.png")]) == 0
    row = capsys.readouterr().out.splitlines()[1].split(",")
    (expected,) = vit.load(folder).predict([photo()])
    assert row[0].endswith("photo.png") and row[1] == expected.label
    assert vit_main(["predict", "timm:vit_tiny_patch16_224.augreg_in21k", str(tmp_path / "photo.png")]) == 1
    printed = capsys.readouterr().err
    assert printed.count("\n") == 1 and "could not be fetched" in printed


def refused(source, *texts: str, **arguments) -> str:
    """The error of importing the source: one line with all of these texts."""
    with pytest.raises(SourceError) as error:
        vit.import_weights(source, **arguments)
    message = str(error.value)
    assert "\n" not in message and all(text in message for text in texts), message
    return message


@pytest.mark.parametrize("names", [("images", "labels"), ("train_images", "train_labels"), ("x_train", "y_train")])
def test_the_arrays_of_a_data_set_are_no_weights(tmp_path, capsys, monkeypatch, names):
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "set.npz"
    np.savez(file, **dict.fromkeys(names, np.zeros((4, 8, 8))))
    refused(file, f"{file}: it holds the arrays of a data set ({', '.join(names)})", f"data=table data.path={file}")
    assert vit_main(["predict", str(file), "photo.png"]) == 1
    assert "holds the arrays of a data set" in capsys.readouterr().err
    assert vit_main(["train", f"init_from={file}"]) == 2
    assert "holds the arrays of a data set" in capsys.readouterr().err


@pytest.mark.parametrize("protocol", ["zip", "legacy", "plain pickle", "npz"])
def test_a_pickle_that_runs_a_program_is_refused_and_does_not_run(tmp_path, protocol: str) -> None:
    mark, file = tmp_path / "it ran", tmp_path / "weights.pth"
    content = {"state_dict": {"cls_token": torch.zeros(1, 1, 8)}, "hyper_parameters": Marks(str(mark))}
    if protocol == "plain pickle":
        file.write_bytes(pickle.dumps(content))
    elif protocol == "npz":
        with zipfile.ZipFile(file, "w") as archive, archive.open("a.npy", "w") as stream:
            np.lib.format.write_array(stream, np.array([Marks(str(mark))], dtype=object), allow_pickle=True)
    else:
        torch.save(content, file, _use_new_zipfile_serialization=protocol == "zip")
    message = refused(file, str(file), "could be any program", "only")
    assert protocol in ("npz", "plain pickle") or "mkdir" in message
    assert not mark.exists()
    if protocol == "npz":
        np.load(file, allow_pickle=True)["a"]
    elif protocol == "plain pickle":
        pickle.loads(file.read_bytes())
    else:
        torch.load(file, weights_only=False)
    assert mark.exists()  # it would have run


@pytest.mark.parametrize("ending", ["safetensors", "pth", "npz"])
@pytest.mark.parametrize("kept", [0.9, 0.3, 40])
def test_a_file_that_is_cut_off(tmp_path, ending: str, kept: float) -> None:
    state = timm.create_model("vit_tiny_patch16_224", img_size=32, depth=1, num_classes=5).state_dict()
    file = tmp_path / f"weights.{ending}"
    if ending == "safetensors":
        save_file(state, file)
    elif ending == "pth":
        torch.save(state, file)
    else:
        np.savez(file, **{name: tensor.numpy() for name, tensor in state.items()})
    whole = file.read_bytes()
    file.write_bytes(whole[: int(kept if kept > 1 else kept * len(whole))])
    refused(file, str(file), "cut off or damaged", "again")


def test_a_file_with_a_flipped_header(tmp_path) -> None:
    file = tmp_path / "weights.safetensors"
    save_file({"a": torch.zeros(3)}, file)
    file.write_bytes(b"\xff" * 7 + file.read_bytes()[7:])
    refused(file, str(file), "damaged")


def test_a_resnet(tmp_path) -> None:
    state = timm.create_model("resnet18", num_classes=5).state_dict()
    save_file(state, tmp_path / "resnet.safetensors")
    for source in (tmp_path / "resnet.safetensors", state):
        refused(source, "the names of a ResNet", "accepted: ", "torchvision", "must be called NAME.safetensors")


def test_a_resnet_whose_architecture_is_known(tmp_path) -> None:
    theirs = timm.create_model("resnet18", num_classes=5).eval()
    save_file(theirs.state_dict(), tmp_path / "resnet18.safetensors")
    images = torch.randn(2, 3, 64, 64)
    for source in (tmp_path / "resnet18.safetensors", theirs):
        ours = vit.import_weights(source)[0].eval()
        torch.testing.assert_close(ours(images), theirs(images), rtol=0, atol=0)


def test_shapes_that_contradict_each_other(folder) -> None:
    config = json.loads((folder / "config.json").read_text())
    for key, value, message in (("image_size", 48, "image_size"),
                                ("hidden_size", 64, "(32, 3, 8, 8), but must be (64,"),
                                ("num_hidden_layers", 3, "depth is 3"), ("num_attention_heads", 5, "num_heads 5")):
        (folder / "config.json").write_text(json.dumps({**config, key: value}))
        refused(folder, str(folder), message)
    (folder / "config.json").write_text(json.dumps(config))
    refused(folder, "num_heads=8 was given, but the source's config has 4", num_heads=8)
    state = vit.import_weights(folder)[0].state_dict()
    for name, shape in (("encoder.blocks.1.mlp.fc1.weight", (90, 32)), ("embed.pos_embed", (1, 12, 32)),
                        ("head.weight", (5, 31))):
        refused({**state, name: torch.zeros(shape)}, str(shape[-1 if "mlp" not in name else 0]) if "pos" not in name
                else "12 rows", num_heads=4, activation="gelu")


def test_tensors_left_over_or_missing(folder) -> None:
    model, _ = vit.import_weights(folder)
    state = dict(timm.create_model("vit_tiny_patch16_224", img_size=32, num_classes=5).state_dict())
    refused({**state, "adapter.weight": torch.zeros(3)}, "does not use 1 tensors: adapter.weight (3,); strict=False")
    _, report = vit.import_weights({**state, "adapter.weight": torch.zeros(3)}, strict=False)
    assert report.named("unused") == ["adapter.weight"]
    missing = {name: tensor for name, tensor in state.items() if name != "blocks.3.norm2.bias"}
    refused(missing, "norm2.bias", "absent", "block 3")
    missing = {name: tensor for name, tensor in state.items() if not name.startswith("blocks.3.")}
    refused(missing, "block 3 is missing, but block 11 is there")


def test_only_some_of_many_tensors_are_named(folder) -> None:
    state = hf.ViTForImageClassification.from_pretrained(folder).state_dict()
    more = {f"extra.{i}": torch.zeros(1, dtype=torch.int64) for i in range(12)}
    hints = {"num_heads": 4, "activation": "gelu"}
    with pytest.raises(SourceError, match=r"does not use 12 tensors: extra.0 .*extra.7 \(1,\) and 4 more; strict="):
        vit.import_weights({**state, **more}, **hints)
    report = vit.import_weights({"model": {**state, **more}, "ema": {**state, **more}}, **hints, strict=False)[1]
    assert len(report.named("unused")) == 12 and "of ema, model the weights of ema are used" in report.notes


@pytest.mark.parametrize(("config", "count", "expected"), [
    ({}, 3, ()),
    ({"problem_type": "single_label_classification"}, 3, ()),
    ({"problem_type": MULTI_LABEL}, 3, (0.5,) * 3),
    ({"problem_type": MULTI_LABEL, "num_classes": 4}, 0, (0.5,) * 4),
    ({"problem_type": MULTI_LABEL, "pretrained_cfg": {"num_classes": 2}}, 0, (0.5,) * 2),
    ({"problem_type": MULTI_LABEL, "pretrained_cfg": None}, 0, ()),
    ({"problem_type": MULTI_LABEL, THRESHOLDS: [0.25, 1]}, 2, (0.25, 1.0)),
])
def test_thresholds_of_several_labels(config, count, expected) -> None:
    assert find_thresholds(config, count) == expected


@pytest.mark.parametrize(("content", "own"), [
    ({"pytorch-lightning_version": "2", "config": {"model": {"kind": "vit"}}}, True),
    ({"config": {"model": {"kind": "vit"}}}, False),
    ({"pytorch-lightning_version": "2", "config": {"model": {"name": "vit"}}}, False),
    ({"pytorch-lightning_version": "2", "config": {"model": "kind"}}, False),
    ({"pytorch-lightning_version": "2", "config": "model"}, False),
    ({"pytorch-lightning_version": "2"}, False),
])
def test_checkpoints_of_other_programs_with_lightning_are_distinguished_from_ours(content, own) -> None:
    assert is_own_checkpoint(content) is own


@pytest.mark.parametrize(("config", "several"), [
    ({"data": {}}, False),
    ({"data": {"label_separator": None}, "callbacks": None}, False),
    ({"data": {}, "callbacks": {"monitor": "val/accuracy"}}, False),
    ({"data": {}, "callbacks": {"monitor": "val/map"}}, True),
    ({"data": {"label_separator": ","}, "callbacks": {"monitor": "val/loss"}}, True),
])
def test_runs_with_several_labels_per_image(config, several) -> None:
    assert assigns_several_labels(config) is several


def test_files_of_other_kinds_are_refused(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    refused("nowhere.pth", "nowhere.pth: no such file or folder", "accepted: ", ".safetensors", "timm:NAME")
    refused("google/vit-base-patch16-224", "for a model of the hub, write hub:google/vit-base-patch16-224")
    refused(3.5, "float is not a source of weights", "accepted")
    refused({}, "holds no tensors by name, but nothing")
    refused({"model": {"lr": 0.1}}, "holds no tensors by name, but lr")
    for content, message in ((b"", "is empty"), (b"hello, I am a text", "is of no known format"),
                             (b"version https://git-lfs.github.com/spec/v1\n", "Git LFS pointer"),
                             (b"<!DOCTYPE html><html>", "is a web page")):
        (tmp_path / "thing.pth").write_bytes(content)
        refused("thing.pth", "thing.pth", message)
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "tf_model.h5").write_bytes(b"1")
    refused("folder", "holds no known file of weights", "tf_model.h5")
    with zipfile.ZipFile("photos.zip", "w") as archive:
        archive.writestr("cat.jpg", b"1")
    refused("photos.zip", "a zip file without weights")
    refused("timm:resnet_18", "nearest: timm:resnet18")
    refused("timm:vit_tiny_patch16_224.augreg_in21k", "could not be fetched", "use a file or folder")


def test_a_torchscript_program_is_not_run(tmp_path) -> None:
    torch.jit.script(torch.nn.Linear(2, 2)).save(tmp_path / "clip.pt")
    refused(tmp_path / "clip.pt", "TorchScript program", "torch.jit.load('clip.pt').state_dict()")


@pytest.mark.parametrize("zipped", [True, False])
def test_a_small_file_whose_tensors_would_fill_the_memory(tmp_path, zipped: bool) -> None:
    file = tmp_path / "weights.pth"
    torch.save({"a": torch.zeros(1).expand(1 << 30)}, file, _use_new_zipfile_serialization=zipped)
    refused(file, "made to fill the memory", "its tensors need")


def test_missing_shards_are_named(folder) -> None:
    (folder / "model.safetensors").rename(folder / "model-00001-of-00001.safetensors")
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"a": "../vit/model-00001-of-00001.safetensors"}}))
    refused(folder, "names the shard '../vit/model-00001-of-00001.safetensors', which is not beside it")
    index.write_text(json.dumps({"weight_map": {"a": "model-00001-of-00001.safetensors"}}))
    refused(folder, "names a, which is not in model-00001-of-00001.safetensors")
    index.write_text("{")
    refused(folder, "cannot be read as JSON")


def test_argparse_namespaces_in_a_checkpoint_are_harmless(tmp_path) -> None:
    import argparse

    state = timm.create_model("vit_tiny_patch16_224", img_size=32, num_classes=5).state_dict()
    torch.save({"model": state, "args": argparse.Namespace(lr=1)}, tmp_path / "deit.pth")
    model, report = vit.import_weights(tmp_path / "deit.pth")
    assert model.config.num_heads == 3
    assert any("num_heads 3 is that of the published models of dim 192 and depth 12" in note for note in report.notes)


@pytest.mark.parametrize(("file", "tagged"), [
    ("tf_efficientnet_b0.ap_in1k.safetensors", "tf_efficientnet_b0.ap_in1k"),
    ("tf_efficientnet_b0_ap-3b8a4f.pth", "tf_efficientnet_b0.ap_in1k"),  # timm's name until 0.8
    ("tf_efficientnet_b0.safetensors", "tf_efficientnet_b0"), ("resnet18-5c106cde.pth", "resnet18"),
    ("resnet18.mine.pth", "resnet18"),
])
def test_the_tag_in_a_file_name_of_timm_chooses_the_preprocessing(file, tagged):
    """Weights trained with another mean got that of the default weights."""
    found, stated = timm_config_by_name(Path(file), {}), timm.get_pretrained_cfg(tagged)
    assert found["architecture"] == tagged.split(".")[0]
    assert (found["pretrained_cfg"]["tag"], found["pretrained_cfg"]["mean"]) == (stated.tag, stated.mean)


@pytest.mark.parametrize(("file", "head"), [("resnet18-5c106cde.pth", "fc"),
                                            ("vit_tiny_patch16_224.safetensors", "head"),
                                            ("deit_tiny_distilled_patch16_224.pth", "head_dist")])
def test_the_classes_of_a_file_named_after_a_timm_model_are_those_of_its_head(file, head):
    found = timm_config_by_name(Path(file), {f"{head}.weight": torch.zeros(7, 3)})
    assert found["num_classes"] == found["pretrained_cfg"]["num_classes"] == 7
    assert timm_config_by_name(Path(file), {})["num_classes"] == 0
    assert timm_config_by_name(Path("best.pth"), {}) == {}
