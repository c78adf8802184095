"""Metrics of a classifier against scikit-learn, and the files of an evaluation."""

import copy
import csv
import json
import re
import tracemalloc
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import timm
import torch
from PIL import Image
from scipy.sparse import csr_array
from sklearn import metrics as sk
from timm.data import ImageNetInfo
from timm.models import save_for_hf

import vit
from vit.bundle import load_bundle, save_bundle
from vit.cli import main
from vit.cli.evaluation.calibrate import matched_source
from vit.cli.evaluation.printing import print_classification
from vit.data import BadImage, DataError, Preprocessing, digits
from vit.data.source import Source
from vit.data.splits.split import Split, array_split
from vit.evaluation import (
    Evaluation,
    among_present,
    evaluate,
    matched_split,
    named_classes,
    read_real_labels,
    with_real_accuracy,
)
from vit.evaluation.classification import collect
from vit.exchange.opening import open_model
from vit.report.evaluation import write_evaluation

PREPROCESSING = Preprocessing(size=(8, 8), resize="none", mean=(0.3,) * 3, std=(0.35,) * 3)


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    model = vit.create_model("vit_tiny", image_size=8, patch_size=4, num_classes=10, depth=1)
    torch.nn.init.normal_(model.head.weight, std=0.3)
    return model


@pytest.fixture(scope="module")
def source():
    return digits()


@pytest.fixture(scope="module")
def evaluation(model, source):
    return evaluate(model, PREPROCESSING, source.splits["test"], source.classes, batch_size=50)


def test_numbers_agree_with_scikit_learn(evaluation, model, source):
    split = source.splits["test"]
    pixels = torch.stack([PREPROCESSING.image(split.read(i)) for i in range(len(split))])
    with torch.no_grad():
        probabilities = model.eval()(PREPROCESSING.normalize(pixels)).double().softmax(-1).numpy()
    predictions = probabilities.argmax(1)
    labels = split.labels
    assert evaluation.metrics["accuracy"] == sk.accuracy_score(labels, predictions)
    assert evaluation.metrics["top5"] == pytest.approx(sk.top_k_accuracy_score(labels, probabilities, k=5))
    assert evaluation.metrics["loss"] == pytest.approx(sk.log_loss(labels, probabilities), rel=1e-5)
    np.testing.assert_array_equal(evaluation.confusion, sk.confusion_matrix(labels, predictions))
    precision, recall, f1, count = sk.precision_recall_fscore_support(labels, predictions, zero_division=np.nan)
    scores = evaluation.class_scores()
    np.testing.assert_allclose(np.array([score.precision for score in scores], float), precision)
    np.testing.assert_allclose([score.accuracy for score in scores], recall)
    np.testing.assert_allclose([score.f1 for score in scores], f1)
    assert [score.images for score in scores] == count.tolist()


def test_scores_of_a_class_without_samples_are_undefined_not_0(capsys):
    confusion = csr_array(np.array([[3, 1, 0, 0], [0, 0, 0, 0], [0, 0, 0, 0], [2, 0, 0, 0]]))
    numbers = np.zeros(6)
    found = Evaluation(["cat", "dog", "owl", "cow"], {}, confusion, numbers, numbers, numbers, numbers, numbers)
    values = [(score.images, score.accuracy, score.precision, score.f1) for score in found.class_scores()]
    assert values == [(4, 0.75, 0.6, 6 / 9), (0, None, 0.0, 0.0), (0, None, None, None), (2, 0.0, None, 0.0)]
    owl = found.to_dict("test")["classes"][2]
    assert owl == {"name": "owl", "images": 0, "accuracy": None, "precision": None, "f1": None}
    print_classification(found, "", "images")
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["owl", "0", "–", "–", "–"] in rows and ["dog", "0", "–", "0.0000", "0.0000"] in rows


def test_numbers_are_reproduced_to_the_last_digit_from_disk(evaluation, model, source, tmp_path):
    bundle = load_bundle(save_bundle(tmp_path / "model", model, source.classes, PREPROCESSING))
    again = evaluate(bundle.model, bundle.preprocessing, source.splits["test"], bundle.classes, batch_size=50)
    assert again.metrics == evaluation.metrics
    assert (again.probabilities == evaluation.probabilities).all()


def test_evaluating_leaves_the_models_mode(model, source):
    few = source.splits["test"].take(np.arange(3))
    model.train()
    evaluate(model, PREPROCESSING, few, source.classes)
    assert model.training
    model.eval()
    done = []
    evaluate(model, PREPROCESSING, few, source.classes, batch_size=2, progress=done.append)
    assert not model.training and done == [2, 1]


def test_few_classes_have_no_top5(source):
    model = vit.create_model("vit_tiny", image_size=8, patch_size=4, num_classes=2, depth=1)
    split = array_split(np.zeros((4, 8, 8), np.uint8), np.array([0, 1, 0, 1]), "zeros")
    evaluation = evaluate(model, PREPROCESSING, split, ["a", "b"])
    assert set(evaluation.metrics) == {"accuracy", "loss", "ece"}
    assert evaluation.predictions.shape == (4, 2)


def damaged(bad):
    good = np.full((8, 8, 3), 90, np.uint8)
    return Split(np.arange(6) % 3, [f"{i}.png" for i in range(6)], lambda i: b"broken" if i in bad else good)


def test_unreadable_images_stop_or_are_left_out_and_listed(model):
    classes = [str(i) for i in range(10)]
    with pytest.raises(BadImage, match=r"4\.png"):
        evaluate(model, PREPROCESSING, damaged({4}), classes)
    evaluation = evaluate(model, PREPROCESSING, damaged({2, 3, 4}), classes, batch_size=2, on_bad_sample="skip")
    assert [error.name for error in evaluation.unreadable] == ["2.png", "3.png", "4.png"]
    assert evaluation.rows.tolist() == [0, 1, 5] and evaluation.labels.tolist() == [0, 1, 2]
    batches = []
    evaluate(model, PREPROCESSING, damaged({0}), classes, batch_size=2, on_bad_sample="skip", progress=batches.append)
    assert batches == [2, 2, 1]  # as if the image had never been there
    with pytest.raises(BadImage):
        evaluate(model, PREPROCESSING, damaged(set(range(6))), classes, on_bad_sample="skip")


def test_labels_and_classes_must_fit(model, source):
    split = source.splits["test"]
    with pytest.raises(DataError, match="label 9 is out of range, the model has 3 classes"):
        evaluate(model, PREPROCESSING, split.take(split.labels.argsort()[-1:]), ["a", "b", "c"])
    with pytest.raises(DataError, match="0 images"):
        evaluate(model, PREPROCESSING, split.take(np.arange(0)), source.classes)


def test_twenty_thousand_classes_are_matched_by_name():
    names = [f"class {i}" for i in range(20_000)]
    split = Split(np.arange(20_000), names, lambda i: None)
    found = matched_split(Source("many", names, {"train": split, "test": split}), names[::-1])
    assert (found.labels == np.arange(20_000)[::-1]).all()


def test_classes_are_matched_by_name():
    split = array_split(np.zeros((3, 8, 8), np.uint8), np.array([0, 1, 1]), "zeros")
    source = Source("pets", ["cat", "dog"], {"train": split, "test": split})
    assert matched_split(source, ["dog", "eel", "cat"]).labels.tolist() == [2, 0, 0]
    assert matched_split(source, ["cat", "dog"]) is split
    with pytest.raises(DataError, match="has no class 'dog'"):
        matched_split(source, ["cat", "eel"])
    with pytest.raises(DataError, match="split=val: pets has no such split; it has train, test"):
        matched_split(source, ["cat", "dog"], "val")


def test_a_model_is_ranked_among_the_classes_of_the_data(model, source):
    """As `logits[:, present].argmax(1)`, by which ImageNet-A and ImageNet-R are evaluated."""
    split, present = source.splits["test"], [1, 4, 7]
    some = split.take(np.flatnonzero(np.isin(split.labels, present)))
    chooser, classes = among_present(model, source.classes, some)
    assert classes == ["1", "4", "7"]
    found = evaluate(chooser, PREPROCESSING, replace(some, labels=np.searchsorted(present, some.labels)), classes)
    pixels = torch.stack([PREPROCESSING.image(some.read(i)) for i in range(len(some))])
    with torch.no_grad():
        logits = model.eval()(PREPROCESSING.normalize(pixels))[:, present]
    assert found.metrics["accuracy"] == sk.accuracy_score(some.labels, np.array(present)[logits.argmax(1)])
    assert found.metrics["loss"] == pytest.approx(sk.log_loss(some.labels, logits.double().softmax(1)), rel=1e-5)
    assert found.confusion.shape == (3, 3) and found.metrics.keys() == {"accuracy", "loss", "ece"}
    with pytest.raises(DataError, match="have the class '4', and among 1 class each prediction is correct"):
        among_present(model, source.classes, split.take(np.flatnonzero(split.labels == 4)))


@pytest.fixture(scope="module")
def of_timm(tmp_path_factory):
    """A network of timm with 1,000 classes without names, images in folders of the classes that it ranks highest among
    three, and the fraction for which it ranks them highest among all.
    """
    torch.manual_seed(0)
    root = tmp_path_factory.mktemp("imagenet")
    network = timm.create_model("vit_tiny_patch16_224", img_size=32, depth=1, num_heads=3,
                                pretrained_cfg_overlay={"input_size": (3, 32, 32)}).eval()
    torch.nn.init.normal_(network.head.weight, std=0.3)
    save_for_hf(network, root / "model", model_args={"img_size": 32, "depth": 1}, safe_serialization=True)
    transform = timm.data.create_transform(**timm.data.resolve_model_data_config(network))
    pixels = np.random.default_rng(0).integers(0, 256, (24, 3, 3, 3), dtype=np.uint8)
    images = [Image.fromarray(each).resize((40, 40), Image.Resampling.NEAREST) for each in pixels]
    with torch.no_grad():
        logits = network(torch.stack([transform(image) for image in images])).numpy()  # (24,1000)
    three = [number for number, _ in Counter(logits.argmax(1).tolist()).most_common(3)]
    ids = ImageNetInfo().label_names()
    chosen = np.array(three)[logits[:, three].argmax(1)]
    for number, (image, index) in enumerate(zip(images, chosen, strict=True)):
        folder = root / "photos" / ids[index]
        folder.mkdir(parents=True, exist_ok=True)
        image.save(folder / f"ILSVRC2012_val_{number + 1:08}.png")
    np.save(root / "predicted.npy", logits.argmax(1))
    return root, np.mean(logits.argmax(1) == chosen)


@pytest.mark.filterwarnings("ignore:.*does not name its 1,000 classes")
@pytest.mark.parametrize("classes", ["model", "data"])
def test_a_published_network_is_evaluated_on_folders_of_wordnet_ids(of_timm, tmp_path, capfd, classes):
    root, right = of_timm
    command = ["evaluate", str(root / "model"), "data=folder", f"data.root={root / 'photos'}", "--split", "all"]
    assert main([*command, "--classes", classes, "--json", str(tmp_path / "found.json")]) == 0
    found = json.loads((tmp_path / "found.json").read_text())
    assert 0 < right < 1 and found["all/accuracy"] == (1.0 if classes == "data" else right)
    names = [each["name"] for each in found["classes"] if each["images"]]
    assert names == sorted(path.name for path in (root / "photos").iterdir())
    assert len(found["classes"]) == (3 if classes == "data" else 1000)
    assert ("among the classes" in " ".join(capfd.readouterr().out.split())) == (classes == "data")


@pytest.mark.filterwarnings("ignore:.*does not name its 1,000 classes")
def test_a_prediction_is_correct_if_it_is_one_of_the_labels_of_imagenet_real(of_timm, tmp_path, capfd):
    root, right = of_timm
    predicted = np.load(root / "predicted.npy").tolist()
    others = [[(answer + 1) % 1000, (answer + 7) % 1000] for answer in predicted]
    labels = [([], [answer, *other], other, [*other, answer])[number % 4]
              for number, (answer, other) in enumerate(zip(predicted, others, strict=True))]
    (tmp_path / "real.json").write_text(json.dumps(labels))
    command = ["evaluate", str(root / "model"), "data=folder", f"data.root={root / 'photos'}", "--split", "all"]
    options = ["--real-labels", str(tmp_path / "real.json"), "--json", str(tmp_path / "found.json")]
    assert main([*command, *options]) == 0
    found = json.loads((tmp_path / "found.json").read_text())
    assert (found["all/real_images"], found["all/real_accuracy"]) == (18, 12 / 18)
    assert found["all/accuracy"] == right and found["images"] == 24
    assert "images with ReaL labels 18" in " ".join(capfd.readouterr().out.split())
    (tmp_path / "real.json").write_text(json.dumps(labels[:5]))
    assert main([*command, *options]) == 1
    assert re.search(r"_val_0000\d+.png has the number \d+, but there are labels of 5 images", capfd.readouterr().err)


def test_labels_of_imagenet_real_that_do_not_fit_are_refused(evaluation, source, tmp_path):
    file = tmp_path / "real.json"
    for text, message in (("[[1], [1000]]", "entry 2 is no list of class numbers in 0..999"), ("[[1], 2]", "entry 2"),
                          ("{}", "entry 1"), ("[[true]]", "entry 1"), ("[", "cannot be read as JSON")):
        file.write_text(text)
        with pytest.raises(DataError, match=f"real.json:? .*{message}|real.json {message}"):
            read_real_labels(file)
    file.write_text("[[1], []]")
    labels = read_real_labels(file)
    assert labels == [[1], []]
    names = [f"ILSVRC2012_val_{2:08}.JPEG"] * len(source.splits["test"])
    with pytest.raises(DataError, match="the class '0' of the model is not one of its WordNet ids"):
        with_real_accuracy(evaluation, names, labels)
    named = replace(evaluation, classes=ImageNetInfo().label_names()[:len(evaluation.classes)])
    with pytest.raises(DataError, match="none of the .* images has a label of ImageNet-ReaL"):
        with_real_accuracy(named, names, labels)
    with pytest.raises(DataError, match="photo.png is not named as a validation image of ImageNet-1k"):
        with_real_accuracy(named, ["photo.png"] * len(names), labels)


@pytest.mark.filterwarnings("ignore:.*does not name its 1,000 classes")
def test_a_published_network_is_calibrated_on_data_with_wordnet_ids(of_timm, monkeypatch):
    ids = ImageNetInfo().label_names()
    names = sorted(ids, reverse=True)  # the data has the classes in another order
    split = array_split(np.zeros((1000, 8, 8), np.uint8), np.arange(1000), "zeros")
    data = Source("in1k", names, {"train": split, "test": split})
    monkeypatch.setattr("vit.cli.evaluation.calibrate.evaluation_source", lambda *_: data)
    found = matched_source({"data": {}}, open_model(str(of_timm[0] / "model")), "test")
    assert [ids[label] for label in found.splits["test"].labels] == names


def test_class_names_of_a_model_are_kept(source):
    few = source.splits["test"].take(np.flatnonzero(source.splits["test"].labels < 3))
    wordnet = Source("some", ["n01440764", "n02123045", "n03761084"], {"train": few, "test": few})
    assert named_classes([str(i) for i in range(1000)], wordnet)[281] == "n02123045"
    assert named_classes([str(i) for i in range(1000)], source)[281] == "281"
    assert named_classes([f"class {i}" for i in range(1000)], wordnet)[281] == "class 281"
    assert named_classes(["0", "1", "2"], wordnet) == ["0", "1", "2"]


def test_the_report_files_agree_with_the_metrics(evaluation, source, tmp_path):
    split = source.splits["test"]
    write_evaluation(tmp_path, evaluation, split, PREPROCESSING)
    rows = list(csv.DictReader((tmp_path / "predictions.csv").read_text().splitlines()))
    assert [row["file"] for row in rows] == list(split.names)
    assert [row["true"] for row in rows] == [source.classes[label] for label in split.labels]
    assert np.mean([row["right"] == "1" for row in rows]) == evaluation.metrics["accuracy"]
    assert all((row["true"] == row["label"]) == (row["right"] == "1") for row in rows)
    assert np.mean([float(row["loss"]) for row in rows]) == pytest.approx(evaluation.metrics["loss"], abs=1e-6)
    for name in ("confusion.png", "mistakes.png"):
        assert Image.open(tmp_path / name).size[0] > 300


def test_the_confusions_of_many_classes_take_the_memory_of_their_pairs():
    """The matrix of 20,000 classes would take 3.2 GB."""
    classes, count = 20_000, 5_000
    labels = torch.arange(count) * 4
    predictions = torch.stack([(labels + (torch.arange(count) % 2)) % classes] * 5, dim=1)
    rest = [torch.rand(count) for _ in range(3)]
    columns = [torch.arange(count), labels, *rest, torch.full((count,), -1), torch.zeros(count, dtype=torch.bool),
               predictions, torch.rand(count, 5)]
    tracemalloc.start()
    found = collect([f"class {i}" for i in range(classes)], columns, [])
    values = found.to_dict("test")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 100e6, f"{peak / 1e6:.0f} MB"
    assert values["confusion"] is None and [4, 5, 1] in values["confusion_cells"]
    assert sum(cell[2] for cell in values["confusion_cells"]) == count
    assert values["classes"][0]["accuracy"] == 1 and values["classes"][4]["accuracy"] == 0


def test_outputs_that_are_nan_are_reported(model, source, tmp_path, caplog):
    damaged, few = copy.deepcopy(model), source.splits["test"].take(np.arange(20))
    evaluate(model, PREPROCESSING, few, source.classes)
    assert not caplog.records
    with torch.no_grad():
        damaged.head.weight[3] = torch.nan
    found = evaluate(damaged, PREPROCESSING, few, source.classes)
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "NaN for 20 of 20 samples: their predictions are arbitrary" in caplog.text
    write_evaluation(tmp_path, found, few, PREPROCESSING)
    assert (tmp_path / "reliability.png").is_file()
