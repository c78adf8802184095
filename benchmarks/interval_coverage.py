"""How often the 95 % intervals of a report contain the true value, in simulated test sets.

    python benchmarks/interval_coverage.py

Each simulated model has an accuracy per class around the stated one; a test set draws classes and outcomes from it.
Classes are drawn in one half of the test sets, and equally frequent in the other.
"""

import argparse
import json

import numpy as np

from vit.evaluation.intervals.bootstrap import FEWEST, OUTCOMES, macro_interval, rate_interval, resampled_counts

CLASSES = 10


def covered(random: np.random.Generator, accuracy: float, size: int, resamples: int, seed: int) -> tuple[bool, bool]:
    """Whether the intervals of the accuracy and of the mean over classes contain the true value."""
    rates = np.clip(accuracy + (np.arange(CLASSES) - CLASSES / 2 + 0.5) * (1 - accuracy) / 8, 0, 1)
    labels = np.arange(size) % CLASSES if seed % 2 else random.integers(0, CLASSES, size)
    cells = labels * OUTCOMES + np.where(random.random(size) < rates[labels], OUTCOMES - 1, 0)
    drawn = resampled_counts(cells, CLASSES * OUTCOMES, resamples, seed).reshape(resamples, CLASSES, OUTCOMES)
    observed = np.bincount(cells, minlength=CLASSES * OUTCOMES).reshape(1, CLASSES, OUTCOMES)
    found = rate_interval(observed.sum(axis=1), drawn.sum(axis=1), 0.95), macro_interval(observed, drawn, 0.95)
    return tuple(each.low is None or each.low <= rates.mean() <= each.high for each in found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draws", type=int, default=1000)
    parser.add_argument("--resamples", type=int, default=500)
    arguments = parser.parse_args()
    random, rows = np.random.default_rng(0), []
    for accuracy, size in ((0.7, 200), (0.7, 1000), (0.9, 500), (0.97, 1000)):
        hits = np.array([covered(random, accuracy, size, arguments.resamples, seed)
                         for seed in range(arguments.draws)]).mean(axis=0)
        rows.append({"accuracy": accuracy, "samples": size, "accuracy_covered": hits[0], "macro_covered": hits[1]})
        print(f"accuracy {accuracy:.0%}, {size:,} samples: {hits[0]:.1%} of the intervals of the accuracy and "
              f"{hits[1]:.1%} of the mean over classes contain the truth (at least {FEWEST} wrong samples expected)")
    print(json.dumps(rows))


if __name__ == "__main__":
    main()
