"""`vit probe` on saved models of vit and of timm, on texts, and on images without labels."""

import csv
import json

import numpy as np
import pyarrow.parquet
import pytest
import timm
import torch
import transformers
from safetensors.torch import save_file
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler

import vit
from tests.inference.tiny_models import BYTES, save_masked
from tests.run.conftest import write_photos
from vit.bundle import save_bundle
from vit.cli import main
from vit.data import Preprocessing, digits
from vit.exchange import open_model
from vit.models import model_from_config
from vit.weights import load_weights

CLASSES = [str(i) for i in range(10)]
PREPROCESSING = Preprocessing(size=(8, 8), resize="squash", mean=(0.3,) * 3, std=(0.35,) * 3)


def saved(folder, **options):
    torch.manual_seed(0)
    network = vit.create_model("vit_tiny", image_size=8, patch_size=4, dim=24, depth=1, num_heads=2, num_classes=10,
                               **options)
    return save_bundle(folder / "model", network, CLASSES, PREPROCESSING, extra={"data": ["data=digits"]})


def test_features_are_the_input_of_the_head_and_accuracies_equal_scikit_learn(tmp_path, capsys):
    model = saved(tmp_path, final_norm="pooled", pool="mean")
    file, numbers = tmp_path / "vectors.npz", tmp_path / "numbers.json"
    assert main(["probe", str(model), "--k", "1,7", "--save", str(file), "--json", str(numbers)]) == 0
    printed = capsys.readouterr()
    assert "k=7" in printed.out and "logistic regression" in printed.out
    assert f"wrote 1,797 vectors of dimension 24 to {file}" in printed.err
    source, found = digits(), np.load(file)
    assert found["features"].dtype == np.float32 and list(found["classes"]) == CLASSES
    network = vit.load(model).model
    for split, samples in source.splits.items():
        rows = found["splits"] == split
        assert np.array_equal(found["labels"][rows], samples.labels)
        assert list(found["names"][rows]) == list(samples.names)
        logits = torch.from_numpy(found["features"][rows]) @ network.head.weight.T + network.head.bias
        pixels = torch.from_numpy(samples.pixels)[:, None].expand(-1, 3, -1, -1)
        with torch.no_grad():
            torch.testing.assert_close(logits, network(PREPROCESSING.normalize(pixels)), rtol=1e-5, atol=1e-5)
    (one, seven, regression) = json.loads(numbers.read_text())["probes"]
    assert (one["setting"], seven["setting"]) == ("k=1", "k=7")
    train, test = ({key: found[key][found["splits"] == split] for key in ("features", "labels")}
                   for split in ("train", "test"))
    scaler = StandardScaler().fit(train["features"])
    theirs = LogisticRegression(C=float(regression["setting"][2:]), max_iter=2000)
    theirs.fit(scaler.transform(train["features"]), train["labels"])
    assert regression["test/accuracy"] == theirs.score(scaler.transform(test["features"]), test["labels"]) > 0.5
    assert one["test/accuracy"] > 0.8


def test_pictures_without_labels_give_vectors_alone(tmp_path, capsys):
    model, photos = saved(tmp_path), write_photos(tmp_path / "photos", {"a": 3, "b": 2})
    (photos / "a" / "bad.png").write_bytes(b"no image")
    file = tmp_path / "vectors.parquet"
    assert main(["probe", str(model), str(photos), "--save", str(file)]) == 0
    printed = capsys.readouterr()
    assert "1 of 6 files could not be read" in printed.err and not printed.out
    rows = pyarrow.parquet.read_table(file).to_pylist()
    assert [row["name"] for row in rows] == [str(p) for p in sorted(photos.rglob("*.png")) if p.stem != "bad"]
    assert {row["label"] for row in rows} == {None} and {len(row["feature"]) for row in rows} == {24}
    assert main(["probe", str(model), "data=folder", f"data.root={photos}", "data.on_bad_sample=skip",
                 "data.fractions=[0.4,0.3,0.3]", "--k", "1", "--save", str(file)]) == 0
    rows = pyarrow.parquet.read_table(file).to_pylist()
    assert {row["label"] for row in rows} == {"a", "b"} and {row["split"] for row in rows} == {"train", "val", "test"}


def test_numbers_of_neighbours_do_not_exceed_the_readable_samples(tmp_path, capsys):
    model, photos = saved(tmp_path), tmp_path / "photos"
    for split, count in (("train", 5), ("val", 2), ("test", 2)):
        write_photos(photos / split, {"a": count, "b": count})
    next((photos / "train" / "a").iterdir()).write_bytes(b"no image")
    command = ["probe", str(model), "data=folder", f"data.root={photos}", "data.on_bad_sample=skip"]
    assert main([*command, "--json", str(tmp_path / "probes.json")]) == 0
    assert json.loads((tmp_path / "probes.json").read_text())["samples"] == {"train": 9, "val": 4, "test": 4}
    printed = capsys.readouterr().out
    assert "k=5" in printed and "k=10" not in printed
    assert main([*command, "--k", "10"]) == 2
    assert "--k 10: the data has 9 training samples" in capsys.readouterr().err


def vectors(model, photos, file):
    assert main(["probe", str(model), str(photos), "--save", str(file)]) == 0
    return torch.from_numpy(np.load(file)["features"])


def test_timms_networks(tmp_path):
    torch.manual_seed(0)
    preprocessing = PREPROCESSING.replace(size=(32, 32))
    network = model_from_config({"kind": "timm", "name": "test_resnet", "image_size": [32, 32], "num_classes": 10})
    save_bundle(tmp_path / "model", network.eval(), CLASSES, preprocessing)
    photos = write_photos(tmp_path / "photos", {"a": 2})
    found = vectors(tmp_path / "model", photos, tmp_path / "vectors.npz")
    images = torch.stack([preprocessing.image(path, "") for path in sorted(photos.rglob("*.png"))])
    with torch.no_grad():
        expected = network.forward_head(network.forward_features(preprocessing.normalize(images)), pre_logits=True)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("class_token", [True, False])
def test_masked_autoencoders_are_probed_as_a_classifier_would_begin(tmp_path, class_token):
    torch.manual_seed(0)
    sizes = {"image_size": [8, 8], "patch_size": [4, 4], "dim": 24, "depth": 1, "num_heads": 2, "registers": 1}
    decoder = {"decoder_dim": 16, "decoder_depth": 1, "decoder_num_heads": 2}
    network = model_from_config({"kind": "mae", **sizes, **decoder, "class_token": class_token}).eval()
    save_bundle(tmp_path / "model", network, (), PREPROCESSING)
    photos = write_photos(tmp_path / "photos", {"a": 2})
    found = vectors(tmp_path / "model", photos, tmp_path / "vectors.npz")
    classifier = model_from_config({**network.config.classifier(), "num_classes": 0}).eval()
    load_weights(classifier, network.state_dict())
    images = torch.stack([PREPROCESSING.image(path, "") for path in sorted(photos.rglob("*.png"))])
    with torch.no_grad():
        torch.testing.assert_close(found, classifier(PREPROCESSING.normalize(images)), rtol=1e-5, atol=1e-5)


@pytest.mark.filterwarnings("ignore:.*does not state its preprocessing")
def test_a_third_party_file_of_weights_without_a_head(tmp_path):
    """timm's ViT-Ti less its head: the architecture is read off the names, the vector is timm's."""
    torch.manual_seed(0)
    network = timm.create_model("vit_tiny_patch16_224", img_size=32, num_classes=0).eval()
    save_file(network.state_dict(), tmp_path / "foreign.safetensors")
    photos = write_photos(tmp_path / "photos", {"a": 2}, size=(32, 32))
    found = vectors(tmp_path / "foreign.safetensors", photos, tmp_path / "vectors.npz")
    assert found.shape == (2, 192)
    bundle = open_model(tmp_path / "foreign.safetensors", features_only=True)
    images = torch.stack([bundle.preprocessing.image(path, "") for path in sorted(photos.rglob("*.png"))])
    with torch.no_grad():
        expected = network(bundle.preprocessing.normalize(images))
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


def test_text_models(tmp_path, capsys):
    overrides = [*write_answers(tmp_path / "table.csv"), "recipe.epochs=1", "model.dim=16", "logger=csv"]
    overrides += ["report=false", "model.depth=1", "model.num_heads=2", "recipe.batch_size=16", "precision=32-true"]
    run = vit.train([*overrides, f"run_dir={tmp_path / 'run'}"])
    capsys.readouterr()
    file = tmp_path / "vectors.npz"
    assert main(["probe", str(run.path), "--k", "1", "--save", str(file)]) == 0
    found, predictor = np.load(file), vit.load(run.path)
    assert set(found["splits"]) == {"train", "val", "test"} and "k=1" in capsys.readouterr().out
    with open(run.path / "splits" / "test.tsv", encoding="utf-8") as listed:
        names = [line.split("\t")[0] for line in listed]
    rows = found["splits"] == "test"
    assert list(found["names"][rows]) == names
    with torch.no_grad():
        logits = predictor.model.head(torch.from_numpy(found["features"][rows]))
    predictions = [str(found["classes"][i]) for i in logits.argmax(1)]
    with open(run.path / "predictions.csv", newline="") as predicted:
        assert predictions == [row["label"] for row in csv.DictReader(predicted)]
    assert main(["probe", str(run.path / "checkpoints" / "best.ckpt"), *overrides[:2], "--k", "1"]) == 0


def write_answers(file):
    with open(file, "w", newline="") as table:
        csv.writer(table).writerows([["text", "label"], *([f"{w} {i}", w] for i in range(40) for w in ("yes", "no"))])
    return ["data=text_table", f"data.path={file}"]


def test_the_features_of_a_masked_language_model_are_those_of_its_pooler(tmp_path):
    model, file = save_masked(tmp_path / "model"), tmp_path / "vectors.npz"
    assert main(["probe", str(model), *write_answers(tmp_path / "table.csv"), "--save", str(file)]) == 0
    found, network = np.load(file), open_model(model).model
    row = list(found["names"]).index("table.csv line 2")  # "yes 0"
    source = torch.tensor([[1, *BYTES.encode("yes 0"), 2]])
    with torch.no_grad():
        mask = torch.ones_like(source, dtype=torch.bool)
        expected = network.pool(network.encode(source, mask, torch.zeros_like(source)), mask)
    torch.testing.assert_close(torch.from_numpy(found["features"][row]), expected[0], rtol=1e-4, atol=1e-5)


def test_a_text_encoder_without_a_tokenizer_is_named(tmp_path, capsys):
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    transformers.BertModel(transformers.BertConfig(vocab_size=9, **sizes)).save_pretrained(tmp_path / "bert")
    assert main(["probe", str(tmp_path / "bert"), *write_answers(tmp_path / "table.csv")]) == 1
    assert "bert has no tokenizer of this project" in capsys.readouterr().err
    assert main(["probe", str(tmp_path / "bert"), "data=digits"]) == 1
    assert "digits holds labelled images, but the model reads texts" in capsys.readouterr().err


@pytest.mark.parametrize(("arguments", "code", "message"), [
    (["{photos}"], 2, "add --save FILE"),
    (["{photos}", "data=digits"], 2, "either config overrides or images"),
    (["--save", "vectors.csv"], 2, "are saved as .npz or .parquet"),
    (["--k", "1,x"], 2, "--k 1,x: must be numbers of neighbours"),
    (["--k", "5000"], 2, "--k 5000: the data has 1,257 training samples"),
    (["data=spelled_numbers"], 1, "does not have one class per sample"),
    (["data=text_table"], 1, "holds labelled texts, but the model reads images"),
    (["data.image_size=16"], 2, "data.image_size=16x16 has no effect: the model applies its own"),
    (["data.preprocessing.mode=L"], 2, "data.preprocessing.mode=L has no effect"),
    (["+data.preprocessing.rounding=timm"], 2, "data.preprocessing.rounding=timm has no effect"),
])
def test_errors_are_one_line_and_a_code(tmp_path, capsys, caplog, arguments, code, message):
    model, photos = saved(tmp_path), write_photos(tmp_path / "photos", {"a": 1})
    assert main(["probe", str(model), *(argument.format(photos=photos) for argument in arguments)]) == code
    printed = capsys.readouterr()
    assert printed.err.startswith("error: ") and message in printed.err and printed.err.count("\n") == 1
    assert not printed.out
    assert not caplog.records  # no warning about data that the model was not trained on


def test_overrides_may_repeat_the_preprocessing_of_the_model(tmp_path, capsys):
    assert main(["probe", str(saved(tmp_path)), "data.image_size=8", "data.preprocessing.resize=squash"]) == 0


def test_repeated_numbers_of_neighbours_are_one(tmp_path, capsys):
    model, numbers = saved(tmp_path), tmp_path / "numbers.json"
    assert main(["probe", str(model), "--k", "3,1,3", "--json", str(numbers)]) == 0
    probes = json.loads(numbers.read_text())["probes"]
    assert [probe["setting"] for probe in probes][:-1] == ["k=3", "k=1"]
    assert main(["probe", str(model), "--k", "²"]) == 2
    assert "must be numbers of neighbours" in capsys.readouterr().err
