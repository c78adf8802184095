"""Precision and recall of `vit audit --labels` on labels of which 8 % were flipped, beside cleanlab used by hand.

    python -m vit probe WEIGHTS data=folder data.root=clothing_small --save features.npz
    python benchmarks/label_errors.py features.npz [MORE.npz ...]

Frozen features with a logistic regression in 5 folds (`vit.data.splits.folds`), instead of `vit cross-validate`.
Each class has one other class that its flipped labels become. By hand: `CleanLearning` with the same classifier, which
makes its own folds. Precision and recall are equal where as many samples are looked at as were flipped.
"""

import numpy as np
from cleanlab.classification import CleanLearning
from feature_files import measure_files
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from vit.data.splits.folds import assign_folds
from vit.evaluation.labelling.label_errors import find_label_errors
from vit.evaluation.out_of_fold import HeldOut

SHARE, FOLDS = 0.08, 5


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


def classifier():
    return make_pipeline(StandardScaler(), LogisticRegression(C=0.01, max_iter=300))


def out_of_fold(features, labels, seed):
    names = [str(i) for i in range(len(labels))]
    folds = assign_folds(names, labels, FOLDS, seed)
    probabilities = np.zeros((len(labels), labels.max() + 1))
    for fold in range(FOLDS):
        inside = folds == fold
        model = classifier().fit(features[~inside], labels[~inside])
        probabilities[inside] = model.predict_proba(features[inside])
    return HeldOut(names, [f"{fold + 1}/{FOLDS}" for fold in folds], labels, probabilities,
                   [str(c) for c in range(labels.max() + 1)])


def measure(path, seed):
    content = np.load(path)
    features, labels = content["features"], content["labels"]
    flipped, wrong = flip(labels, seed)
    ours = find_label_errors(out_of_fold(features, flipped, seed), limit=len(wrong))
    by_itself = find_label_errors(out_of_fold(features, flipped, seed))
    hand = CleanLearning(classifier(), seed=seed, cv_n_folds=FOLDS, verbose=False)
    issues = hand.find_label_issues(features, flipped)
    by_hand = np.argsort(issues["label_quality"].to_numpy(), kind="stable")[: len(wrong)]
    counted = {int(error.name) for error in by_itself}
    return {"data": str(path), "samples": len(labels), "flipped": len(wrong), "seed": seed,
            "vit": len({int(error.name) for error in ours} & wrong) / len(wrong),
            "cleanlab_by_hand": len(set(by_hand.tolist()) & wrong) / len(wrong),
            "counted_as_errors": len(counted), "their_precision": len(counted & wrong) / max(len(counted), 1),
            "their_recall": len(counted & wrong) / len(wrong)}


def measure_seeds(path, seeds):
    for seed in range(seeds):
        yield measure(path, seed)


if __name__ == "__main__":
    measure_files(__doc__, measure_seeds, seeds=3)
