"""Nearest neighbours and logistic regression on frozen features, against scikit-learn."""

import numpy as np
import pytest
import torch
from sklearn.datasets import make_blobs
from sklearn.linear_model import LogisticRegression
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from vit.evaluation.features.probe import (
    C_VALUES,
    FIT_C_VALUES,
    MAX_CV_SAMPLES,
    Labelled,
    accuracy,
    choose_c,
    class_balanced_order,
    logistic_regression,
    nearest_neighbours,
    run_probes,
)


def blobs(rows, seed, spread=4.0):
    x, y = make_blobs(600, 6, centers=5, cluster_std=spread, random_state=0)
    chosen = np.random.default_rng(seed).choice(600, rows, replace=False)
    return Labelled(x[chosen].astype(np.float32) + 3, y[chosen].astype(np.int64))


TRAIN, VAL, TEST = blobs(200, 1), blobs(90, 2), blobs(100, 3)


@pytest.mark.parametrize("temperature", [0.07, 1.0])
def test_neighbours_are_those_of_scikit_learn(temperature):
    found = nearest_neighbours(TRAIN, TEST.features, [1, 4, 30, 200], temperature)
    for k, predictions in found.items():
        theirs = KNeighborsClassifier(k, metric="cosine", algorithm="brute",
                                      weights=lambda distance: np.exp((1 - distance) / temperature))
        expected = theirs.fit(TRAIN.features, TRAIN.labels).predict(TEST.features)
        assert (predictions == expected).mean() > 0.99  # in float32 a vote as good as even may fall either way
    assert len({tuple(predictions) for predictions in found.values()}) == 4


def test_many_queries_are_compared_piece_by_piece(monkeypatch):
    whole = nearest_neighbours(TRAIN, TEST.features, [5])[5]
    monkeypatch.setattr("vit.evaluation.features.probe.CHUNK", 7)
    assert np.array_equal(nearest_neighbours(TRAIN, TEST.features, [5])[5], whole)


def test_the_memory_of_the_cosines_is_bounded_for_any_number_of_training_vectors(monkeypatch):
    whole, sizes, topk = nearest_neighbours(TRAIN, TEST.features, [5])[5], [], torch.Tensor.topk
    monkeypatch.setattr(torch.Tensor, "topk", lambda x, k: sizes.append(x.numel()) or topk(x, k))
    monkeypatch.setattr("vit.evaluation.features.probe.LARGEST", 1000)  # 200 training vectors
    assert np.array_equal(nearest_neighbours(TRAIN, TEST.features, [5])[5], whole) and max(sizes) == 1000


@pytest.mark.parametrize("k", [0, 201])
def test_more_neighbours_than_training_vectors_are_rejected(k):
    with pytest.raises(ValueError, match=f"k is {k}, but must be 1 to 200"):
        nearest_neighbours(TRAIN, TEST.features, [5, k])


def test_the_strength_is_chosen_on_validation():
    c_values, seen = (1e-4, 1e-2, 1.0, 100.0), []
    found = logistic_regression(TRAIN, VAL, c_values, lambda: seen.append(1))
    made = {c: make_pipeline(StandardScaler(), LogisticRegression(C=c, max_iter=2000)) for c in c_values}
    fitted = {c: model.fit(TRAIN.features, TRAIN.labels) for c, model in made.items()}
    scores = {c: model.score(VAL.features, VAL.labels) for c, model in fitted.items()}
    first = min(c for c in c_values if scores[c] == max(scores.values()))
    assert first == found.C and len(set(scores.values())) > 1
    assert np.array_equal(found.classify(TEST.features), fitted[found.C].predict(TEST.features))
    reached = fitted[found.C].score(TEST.features, TEST.labels)
    assert accuracy(found.classify(TEST.features), TEST.labels) == pytest.approx(reached)
    assert len(seen) == len(c_values)


def test_the_strength_of_many_samples_that_are_sorted_by_class_is_chosen_on_all_classes():
    x, y = make_blobs(MAX_CV_SAMPLES + 500, 3, centers=2, cluster_std=2.0, random_state=0)
    order = np.argsort(y, kind="stable")
    c, held_out = choose_c(x[order], y[order], FIT_C_VALUES)
    assert c in FIT_C_VALUES and held_out > 0.9


def test_the_class_balanced_order_has_each_class_equally_often_also_of_many_classes():
    labels = np.repeat(np.arange(20_000), 5)
    order = class_balanced_order(labels)
    assert len(set(order.tolist())) == len(labels)
    assert all(len(set(labels[part].tolist())) == 20_000 for part in order.reshape(5, -1))
    uneven = class_balanced_order(np.array([0, 0, 0, 1]))
    assert sorted(uneven.tolist()) == [0, 1, 2, 3] and 3 in uneven[:2]


def test_the_progress_of_the_probes_reaches_its_total():
    seen = []
    run_probes({"train": TRAIN, "val": VAL, "test": TEST}, [1], lambda *report: seen.append(report))
    assert [report for report in seen if report[0] == "nearest neighbours"] == [
        ("nearest neighbours", done, 2) for done in range(3)]
    assert seen[-1] == ("logistic regression", len(C_VALUES), len(C_VALUES))
