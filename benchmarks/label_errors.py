"""Precision and recall of `vit audit --labels` on labels of which 8 % were flipped, beside cleanlab used by hand.

    python -m vit probe WEIGHTS data=folder data.root=clothing_small --save features.npz
    python benchmarks/label_errors.py features.npz [MORE.npz ...]

The features go through `held_out_by_features`, as in `vit audit --labels MODEL`. Each class has one other class that
its flipped labels become. By hand: `CleanLearning` with a logistic regression of the same regularization, which makes
its own folds. Precision and recall are equal where as many samples are looked at as were flipped.
"""

import numpy as np
from cleanlab.classification import CleanLearning
from feature_files import measure_files
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from vit.evaluation.features.probe import FIT_C_VALUES, choose_c, new_regression
from vit.evaluation.labelling.feature_folds import FOLDS, held_out_by_features
from vit.evaluation.labelling.label_errors import find_label_errors

SHARE = 0.08


def flip(labels, seed):
    """Labels of which 8 % became the next class of a random order, and which ones."""
    rng = np.random.default_rng(seed)
    order = rng.permutation(labels.max() + 1)
    following = np.empty_like(order)
    following[order] = np.roll(order, 1)
    wrong = rng.choice(len(labels), round(SHARE * len(labels)), replace=False)
    flipped = labels.copy()
    flipped[wrong] = following[labels[wrong]]
    return flipped, set(wrong.tolist())


def measure(path, seed):
    content = np.load(path)
    features, labels = content["features"], content["labels"]
    flipped, wrong = flip(labels, seed)
    names, classes = [str(i) for i in range(len(labels))], [str(c) for c in range(labels.max() + 1)]
    c, _ = choose_c(StandardScaler().fit_transform(features), flipped, FIT_C_VALUES)
    predictions = held_out_by_features(names, features, flipped, classes, seed=seed, c=c)
    ranked = {int(error.name) for error in find_label_errors(predictions, limit=len(wrong))}
    counted = {int(error.name) for error in find_label_errors(predictions)}
    hand = CleanLearning(make_pipeline(StandardScaler(), new_regression(c)), seed=seed, cv_n_folds=FOLDS, verbose=False)
    issues = hand.find_label_issues(features, flipped)
    by_hand = np.argsort(issues["label_quality"].to_numpy(), kind="stable")[: len(wrong)]
    return {"data": str(path), "samples": len(labels), "flipped": len(wrong), "seed": seed, "c": c,
            "vit": len(ranked & wrong) / len(wrong),
            "cleanlab_by_hand": len(set(by_hand.tolist()) & wrong) / len(wrong),
            "counted_as_errors": len(counted), "their_precision": len(counted & wrong) / max(len(counted), 1),
            "their_recall": len(counted & wrong) / len(wrong)}


def measure_seeds(path, seeds):
    for seed in range(seeds):
        yield measure(path, seed)


if __name__ == "__main__":
    measure_files(__doc__, measure_seeds, seeds=5)
