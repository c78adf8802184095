"""The start of a new head in fine-tuning against the logistic regression of `vit probe`, on all pairs of classes.

    python -m vit probe MODEL data=folder data.root=PHOTOS --save features.npz
    python benchmarks/start_vs_probe.py features.npz

Both see the same frozen features. The start chooses its strength by cross-validation on the training samples, the probe
by the accuracy on the validation samples; test accuracies are compared.
"""

import argparse
import itertools
import json

import numpy as np

from vit.evaluation.probe import Labelled, accuracy, fit_linear, logistic_regression

SPLITS = ("train", "val", "test")


def part(saved: dict[str, np.ndarray], split: str, classes: tuple[int, ...]) -> Labelled:
    """The samples of some classes in one split, their labels counted from 0."""
    rows = (saved["splits"] == split) & np.isin(saved["labels"], classes)
    return Labelled(saved["features"][rows], np.searchsorted(classes, saved["labels"][rows]))


def compare(saved: dict[str, np.ndarray], classes: tuple[int, ...]) -> tuple[float, float]:
    """Test accuracies of the start and of the probe."""
    train, val, test = (part(saved, split, classes) for split in SPLITS)
    fit, probe = fit_linear(train, len(classes)), logistic_regression(train, val)
    start = (test.features @ fit.weight.T + fit.bias).argmax(1)
    return accuracy(start, test.labels), accuracy(probe.classify(test.features), test.labels)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("features", help="file that `vit probe --save` wrote (.npz)")
    saved = dict(np.load(parser.parse_args().features))
    number = len(saved["classes"])
    pairs = np.array([compare(saved, pair) for pair in itertools.combinations(range(number), 2)])
    start, probe = pairs.mean(0)
    print(json.dumps({"pairs": len(pairs), "start": start, "probe": probe,
                      "start better": int((pairs[:, 0] > pairs[:, 1]).sum()),
                      "probe better": int((pairs[:, 1] > pairs[:, 0]).sum()),
                      "all classes": dict(zip(("start", "probe"), compare(saved, tuple(range(number))), strict=True))}))


if __name__ == "__main__":
    main()
