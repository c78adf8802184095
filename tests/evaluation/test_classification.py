"""Metrics of a classifier against scikit-learn, and the files of an evaluation."""

import copy
import csv
import tracemalloc

import numpy as np
import pytest
import torch
from PIL import Image
from scipy.sparse import csr_array
from sklearn import metrics as sk

import vit
from vit.bundle import load_bundle, save_bundle
from vit.cli.evaluation.printing import print_classification
from vit.data import BadImage, DataError, Preprocessing, digits
from vit.data.source import Source
from vit.data.splits.split import Split, array_split
from vit.evaluation import Evaluation, evaluate, matched_split
from vit.evaluation.classification import collect
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
