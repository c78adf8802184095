"""The start of a new head in fine-tuning against the logistic regression of `vit probe`, on two-class sets.

    python -m vit probe MODEL data=folder data.root=PHOTOS --save features.npz
    python benchmarks/start_vs_probe.py features.npz --unseen t-shirt pants shorts

Both have the same frozen features. The start chooses its strength by the log loss of a cross-validation on the training
samples, the probe by the accuracy on the validation samples; test photos that are right are compared. Each case is a
pair of classes and a random split of all their photos: 30, 40 or 60 per class for training, 10 for validation, the
others for the test. `--unseen` reports the pairs with these classes on their own. Intervals (95 %) treat the
differences of the cases as independent.
"""

import argparse
import itertools

import numpy as np
from pairs import report

from vit.evaluation.features.probe import Labelled, fit_linear, logistic_regression

TRAIN, VAL = (30, 40, 60), 10  # photos per class


def split(saved: dict[str, np.ndarray], pair: tuple[int, int], seed: int) -> dict[str, Labelled]:
    """A random split of all photos of two classes, labelled 0 and 1."""
    rng, train = np.random.default_rng((seed, *pair)), TRAIN[seed % len(TRAIN)]
    orders = [rng.permutation(np.flatnonzero(saved["labels"] == label)) for label in pair]
    bounds = {"train": slice(train), "val": slice(train, train + VAL), "test": slice(train + VAL, None)}
    rows = {key: np.concatenate([order[part] for order in orders]) for key, part in bounds.items()}
    return {key: Labelled(saved["features"][r], (saved["labels"][r] == pair[1]).astype(int)) for key, r in rows.items()}


def right(parts: dict[str, Labelled]) -> tuple[np.ndarray, np.ndarray]:
    """Whether each test photo is right by the start, and by the probe."""
    test, fit = parts["test"], fit_linear(parts["train"], 2)
    start = (test.features @ fit.weight.T + fit.bias).argmax(1)
    probe = logistic_regression(parts["train"], parts["val"]).classify(test.features)
    return start == test.labels, probe == test.labels


def paired(name: str, cases: list[tuple[np.ndarray, np.ndarray]]) -> dict:
    """A row of the table: accuracies, discordant photos, and the difference with its interval."""
    differences = np.array([start.sum() - int(probe.sum()) for start, probe in cases])
    photos = sum(len(start) for start, _ in cases)
    return {
        "pairs": name, "cases": len(cases), "test photos": photos,
        "start": f"{sum(start.sum() for start, _ in cases) / photos:.2%}",
        "probe": f"{sum(probe.sum() for _, probe in cases) / photos:.2%}",
        "only start right": int(sum((start & ~probe).sum() for start, probe in cases)),
        "only probe right": int(sum((~start & probe).sum() for start, probe in cases)),
        "difference": f"{differences.sum() / photos:+.2%} ± {1.96 * np.sqrt((differences**2).sum()) / photos:.2%}",
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("features", help="file that `vit probe --save` wrote (.npz)")
    parser.add_argument("--unseen", nargs="*", default=[], help="classes whose pairs are reported on their own")
    parser.add_argument("--seeds", type=int, default=6)
    args = parser.parse_args()
    saved, groups = dict(np.load(args.features)), {"seen": [], "unseen": []}
    unseen = {list(saved["classes"]).index(name) for name in args.unseen}
    for pair in itertools.combinations(range(len(saved["classes"])), 2):
        cases = [right(split(saved, pair, seed)) for seed in range(args.seeds)]
        groups["unseen" if unseen & set(pair) else "seen"] += cases
    report("Test photos that are right", [paired(name, cases) for name, cases in groups.items() if cases])


if __name__ == "__main__":
    main()
