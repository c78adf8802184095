"""Accuracy after labelling the samples that `vit next` chooses, against random ones of the same number.

    python -m vit probe WEIGHTS data=folder data.root=clothing_small --save features.npz
    python benchmarks/next_to_label.py features.npz [MORE.npz ...] [--seeds 10]

A logistic regression on frozen features starts with 20 random labels; three times 20 more samples of train and val are
labelled, and it is fitted again. Accuracy on the test split. Every seed has other first labels and the same for all
methods.
"""

import numpy as np
from feature_files import measure_files
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler

from vit.evaluation.labelling.next_to_label import POOL
from vit.evaluation.labelling.selection import choose_diverse, directions, most_uncertain, residuals, uncertainty

START, STEP, ROUNDS = 20, 20, 4


def random_choice(features, probabilities, count, rng):
    return rng.choice(len(features), count, replace=False)


def uncertain_choice(features, probabilities, count, rng):
    return most_uncertain(uncertainty(probabilities), count)


def vit_next(features, probabilities, count, rng):
    """As `vit.evaluation.labelling.next_to_label`: the most uncertain candidates, then diverse ones of them."""
    candidates, seed = most_uncertain(uncertainty(probabilities), POOL * count), int(rng.integers(1 << 30))
    chosen = choose_diverse(directions(features)[candidates], residuals(probabilities[candidates]), count, seed)
    return candidates[chosen]


METHODS = {"random": random_choice, "most uncertain": uncertain_choice, "vit next": vit_next}


def curve(features, labels, test, method, seed):
    """The test accuracy after each round."""
    rng = np.random.default_rng(seed)
    known = rng.choice(len(labels), START, replace=False)
    found = []
    for _ in range(ROUNDS + 1):
        model = LogisticRegression(C=0.01, max_iter=300).fit(features[known], labels[known])
        found.append(float(model.score(*test)))
        pool = np.setdiff1d(np.arange(len(labels)), known)
        probabilities = model.predict_proba(features[pool])
        known = np.concatenate([known, pool[METHODS[method](features[pool], probabilities, STEP, rng)]])
    return found


def measure(path, seeds):
    content = np.load(path)
    inside = content["splits"] != "test"
    scaler = StandardScaler().fit(content["features"][inside])
    features = scaler.transform(content["features"])
    test = features[~inside], content["labels"][~inside]
    for method in METHODS:
        found = np.array([curve(features[inside], content["labels"][inside], test, method, seed)
                          for seed in range(seeds)])
        yield {"data": str(path), "method": method, "labels": [START + STEP * k for k in range(ROUNDS + 1)],
               "mean": found.mean(0).round(4).tolist(), "deviation": found.std(0, ddof=1).round(4).tolist(),
               "runs": found[:, -1].round(4).tolist()}


if __name__ == "__main__":
    measure_files(__doc__, measure, seeds=10)
