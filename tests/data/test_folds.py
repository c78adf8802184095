"""Folds by a hash of names or groups, beside scikit-learn's StratifiedGroupKFold."""

import numpy as np
import pytest
from sklearn.model_selection import StratifiedGroupKFold

from vit.data import DataError
from vit.data.splits.folds import assign_folds, parse_fold


def table(folds, labels, n):
    """Samples of each class in each fold (n,classes)."""
    counts = np.zeros((n, labels.max() + 1), int)
    np.add.at(counts, (folds, labels), 1)
    return counts


@pytest.mark.parametrize(("text", "message"), [
    ("0/5", "fold 0 is out of range"), ("6/5", "fold 6 is out of range, the 5 folds are 1/5 to 5/5"),
    ("1/1", "1 fold; there must be 2 or more"), ("a", "is not k/n"), ("1.5/5", "is not k/n"), ("-1/5", "is not k/n"),
])
def test_a_fold_out_of_range(text, message):
    with pytest.raises(DataError, match=message):
        parse_fold(text)


def test_a_valid_fold():
    assert parse_fold("5/5") == (5, 5) and parse_fold(" 2 / 3 ") == (2, 3)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("groups", "samples", "mixed"), [(150, 3000, True), (40, 1000, True), (120, 1500, False)])
def test_groups_stay_whole_and_classes_are_balanced_as_with_scikit_learn(seed, groups, samples, mixed):
    """`mixed`: a group has samples of several classes, else of one."""
    rng = np.random.default_rng(seed)
    group = rng.integers(0, groups, samples)
    labels = rng.integers(0, 3, samples) if mixed else group % 2
    ours = assign_folds([f"patient {g}" for g in group], labels, 5, seed)
    theirs = np.zeros(samples, int)
    for fold, (_, held_out) in enumerate(StratifiedGroupKFold(5).split(labels, labels, group)):
        theirs[held_out] = fold
    for folds in (ours, theirs):
        assert all(len(set(folds[group == g])) <= 1 for g in range(groups))
    found, reference = table(ours, labels, 5), table(theirs, labels, 5)
    assert found.sum() == reference.sum() and (found.sum(0) == reference.sum(0)).all()
    share = found.sum(0) / 5
    assert (found >= np.floor(share / 2)).all() and (found <= np.ceil(1.5 * share)).all()
    assert abs(found.sum(1) / found.sum() - 0.2).max() <= 0.06  # theirs: 0.01; no hash of few groups is as even
    rates = [each / each.sum(1, keepdims=True) for each in (found, reference)]
    assert abs(rates[0] - rates[1]).max() < 0.12


@pytest.mark.parametrize("each", [5, 6, 20, 137])
def test_added_samples_hardly_move_others(each):
    labels = np.arange(10 * each) % 10
    moved = 0
    for seed in range(10):
        keys = [f"{i}.jpg" for i in range(len(labels))]
        before = assign_folds(keys, labels, 5, seed)
        assert table(before, labels, 5).min() >= 1
        after = assign_folds(["new.jpg", *keys], np.append(seed % 10, labels), 5, seed)[1:]
        moved += int((after != before).sum())
    assert moved <= (0 if each > 100 else 15)  # of 10 additions to 50, 60, 200 and 1,370 samples


def test_the_order_of_samples_does_not_matter():
    keys, labels = [f"{i}.jpg" for i in range(500)], np.arange(500) % 7
    order = np.random.default_rng(0).permutation(500)
    folds = assign_folds(keys, labels, 4, 3)
    assert np.array_equal(assign_folds([keys[i] for i in order], labels[order], 4, 3), folds[order])


def test_several_labels_per_sample():
    rng = np.random.default_rng(0)
    labels = rng.random((400, 6)) < 0.1
    folds = assign_folds([f"{i}.jpg" for i in range(400)], labels, 5, 0)
    counts = np.stack([labels[folds == fold].sum(0) for fold in range(5)])
    assert (counts >= np.maximum(np.floor(labels.sum(0) / 10), 1)).all()


def test_leave_one_group_out():
    group = np.repeat(np.arange(10), 30)
    folds = assign_folds([f"site {g}" for g in group], np.arange(300) % 2, 10, 0)
    assert sorted(len(set(group[folds == fold])) for fold in range(10)) == [1] * 10


def test_impossible_folds_are_errors():
    with pytest.raises(DataError, match="class 'emu' has 3 samples, fewer than the 5 folds.*use at most 3 folds"):
        assign_folds([f"{i}" for i in range(23)], np.array([0] * 20 + [1] * 3), 5, 0, ["cat", "emu"])
    with pytest.raises(DataError, match="group 'big' has 60 of the 100 samples.* of about 20 samples; use at most 2"):
        assign_folds(["big"] * 60 + [f"{i}" for i in range(40)], np.arange(100) % 2, 5, 0)
    with pytest.raises(DataError, match="class '0' has 2 groups, fewer than the 3 folds"):
        assign_folds(["a"] * 5 + ["b"] * 5 + ["c"] * 5 + ["d"] * 5, np.repeat([0, 0, 1, 1], 5), 3, 0)
    with pytest.raises(DataError, match="3 samples cannot be divided into 5 folds"):
        assign_folds(["a", "b", "c"], np.zeros(3, int), 5, 0)
