"""Numbers of several labels per image against torchmetrics, thresholds against all there are."""

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.metrics import f1_score, log_loss
from torch import nn
from torchmetrics.functional.classification import (
    multilabel_average_precision,
    multilabel_f1_score,
    multilabel_precision,
    multilabel_recall,
)

import vit
from vit.data import DataError, Preprocessing, Source
from vit.data.splits.split import array_split
from vit.evaluation import best_thresholds, evaluate, evaluate_multi_label, matched_split
from vit.evaluation.calibration.outputs import label_outputs
from vit.evaluation.classification import RunOptions
from vit.evaluation.multi_label import average_precisions, reaches

CLASSES = ["ant", "bee", "cow", "dog"]
THRESHOLDS = [0.3, 0.5, 0.45, 0.6]
PLAIN = Preprocessing(size=8, mean=(0.5,) * 3, std=(0.25,) * 3)


def samples(n=61, seed=0):
    rng = np.random.default_rng(seed)
    labels = rng.random((n, 4)) < (0.5, 0.3, 0.2, 0.4)
    return array_split(rng.integers(0, 256, (n, 8, 8, 3), dtype=np.uint8), labels, "toy")


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    model = vit.create_model("vit_tiny", image_size=8, patch_size=4, num_classes=4, depth=1, dim=32, num_heads=2)
    nn.init.normal_(model.head.weight, std=0.5)
    return model


def test_numbers_are_torchmetrics(model):
    split = samples()
    found = evaluate_multi_label(model, PLAIN, split, CLASSES, THRESHOLDS, batch_size=16)
    truth, p = split.labels, found.probabilities
    with torch.inference_mode():
        images = torch.from_numpy(split.pixels).permute(0, 3, 1, 2)
        np.testing.assert_allclose(p, model(PLAIN.normalize(images)).sigmoid().numpy(), atol=1e-6)
    predicted = p >= np.array(THRESHOLDS)
    yes, likely = torch.from_numpy(truth).long(), torch.from_numpy(p)
    given = torch.from_numpy(predicted).long()
    assert found.metrics["map"] == pytest.approx(float(multilabel_average_precision(likely, yes, 4)), abs=1e-6)
    assert found.metrics["f1"] == pytest.approx(float(multilabel_f1_score(given, yes, 4)), abs=1e-6)
    micro = multilabel_f1_score(given, yes, 4, average="micro")
    assert found.metrics["f1_micro"] == pytest.approx(float(micro), abs=1e-6)
    assert found.metrics["exact_match"] == (truth == predicted).all(1).mean()
    each = np.mean([log_loss(truth[:, c], p[:, c].astype(np.float64), labels=[0, 1]) for c in range(4)])
    assert found.metrics["loss"] == pytest.approx(each, rel=1e-5)
    each = [measure(given, yes, 4, average="none") for measure in
            (multilabel_precision, multilabel_recall, multilabel_f1_score)]
    for score, images, *expected in zip(found.class_scores(), truth.sum(0), *each, strict=True):
        assert score.images == images
        assert (score.precision, score.recall, score.f1) == pytest.approx(tuple(map(float, expected)), abs=1e-6)


def test_average_precision_is_torchmetrics_also_with_ties():
    rng = np.random.default_rng(1)
    truth = rng.random((80, 5)) < 0.3
    for p in (rng.random((80, 5)), rng.random((80, 5)).round(1), np.full((80, 5), 0.5)):
        theirs = multilabel_average_precision(torch.from_numpy(p), torch.from_numpy(truth).long(), 5, average="none")
        np.testing.assert_allclose(average_precisions(truth, p), theirs.numpy(), atol=1e-6)


def test_a_label_on_no_image_counts_in_no_mean(model):
    split = samples()
    split.labels[:, 2] = False
    found = evaluate_multi_label(model, PLAIN, split, CLASSES, THRESHOLDS)
    there = [0, 1, 3]
    yes, likely = torch.from_numpy(split.labels[:, there]).long(), torch.from_numpy(found.probabilities[:, there])
    assert found.metrics["map"] == pytest.approx(float(multilabel_average_precision(likely, yes, 3)), abs=1e-6)
    score = found.class_scores()[2]
    assert score.images == 0 and np.isnan(score.average_precision) and score.recall is None
    silent = evaluate_multi_label(model, PLAIN, split, CLASSES, [*THRESHOLDS[:2], 1.1, THRESHOLDS[3]]).class_scores()[2]
    assert (silent.precision, silent.recall, silent.f1) == (None, None, None)
    assert found.metrics["f1"] == np.mean([found.class_scores()[c].f1 for c in there])


@pytest.mark.parametrize("digits", [1, 7])
def test_no_threshold_at_all_is_better_than_the_chosen_ones(digits):
    rng = np.random.default_rng(0)
    truth = rng.random((50, 6)) < (0.9, 0.5, 0.3, 0.1, 0.02, 0.0)
    truth[0, 4] = True
    p = np.clip(truth * 0.3 + rng.random((50, 6)) * 0.7, 0, 1).round(digits).astype(np.float32)
    chosen = best_thresholds(truth, p)
    assert chosen[5] == 0.5 and all(0 <= t <= 1 for t in chosen)
    every = np.unique(np.concatenate([p.ravel(), p.ravel() + 1e-4, [0.0, 1.0]]))
    for c in range(5):
        predicted = p[:, c] >= every[:, None]  # (thresholds,N)
        best = (2 * (predicted & truth[:, c]).sum(1) / (predicted.sum(1) + truth[:, c].sum())).max()
        assert f1_score(truth[:, c], reaches(p, chosen)[:, c]) == pytest.approx(best, abs=1e-12)


def test_of_equally_good_thresholds_the_middle_one():
    truth, p = np.array([[1], [1], [0], [0]], bool), np.array([[0.9], [0.7], [0.2], [0.1]], np.float32)
    assert best_thresholds(truth, p) == [pytest.approx(0.45)]
    assert best_thresholds(np.ones((2, 1), bool), np.array([[0.9], [0.8]])) == [pytest.approx(0.4)]


def test_classes_are_matched_by_name(model):
    split = samples()
    order = [CLASSES.index(name) for name in ("dog", "ant", "bee")]  # no cow in this set
    other = replace(split, labels=split.labels[:, order])
    matched = matched_split(Source("other", ["dog", "ant", "bee"], {"train": other, "test": other}), CLASSES)
    expected = split.labels.copy()
    expected[:, 2] = False
    assert np.array_equal(matched.labels, expected)
    with pytest.raises(DataError, match="has no class 'yak'"):
        matched_split(Source("other", ["dog", "ant", "yak"], {"train": other, "test": other}), CLASSES)


def test_one_label_and_several_are_not_mixed_up(model):
    split = samples()
    with pytest.raises(DataError, match="the data is multi-label, but the model predicts one class"):
        evaluate(model, PLAIN, split, CLASSES)
    one = replace(split, labels=split.labels.argmax(1))
    with pytest.raises(DataError, match="have one class each"):
        evaluate_multi_label(model, PLAIN, one, CLASSES, THRESHOLDS)
    with pytest.raises(DataError, match="have one class each"):
        label_outputs(model, PLAIN, one, CLASSES, RunOptions(8, "32-true", "error", "cpu", None))
    with pytest.raises(DataError, match="none of the 61 images of the split has a label"):
        evaluate_multi_label(model, PLAIN, replace(split, labels=split.labels & False), CLASSES, THRESHOLDS)


def test_a_probability_that_equals_its_threshold_is_predicted():
    assert reaches([[0.3, 0.5], [0.29, 0.7]], [0.3, 0.6]).tolist() == [[True, False], [False, True]]


def test_the_threshold_of_a_label_without_images_is_one_half():
    assert best_thresholds(np.zeros((3, 1), bool), np.array([[0.1], [0.2], [0.9]])) == [0.5]


def test_probabilities_that_are_nan_are_reported(model, caplog):
    damaged = copy.deepcopy(model)
    with torch.no_grad():
        next(damaged.parameters()).fill_(torch.nan)
    found = evaluate_multi_label(damaged, PLAIN, samples(), CLASSES, THRESHOLDS)
    assert np.isnan(found.metrics["map"]) and "NaN for 61 of 61 samples" in caplog.text
