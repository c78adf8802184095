"""How often the paired bootstrap calls two equally good translators different, by the number of texts.

    VIT_TEST_DATA=DATA python benchmarks/text_significance.py [--trials 400]

Two systems of one kind change words of multi30k's test references at random. In each trial some texts are drawn, and
the outputs of the two systems are exchanged at random for each text, so that neither system is better. A p-value below
0.05 should then occur in 5 % of the trials.
"""

import argparse
import copy
import gzip
import json
import os
from pathlib import Path

import numpy as np

from vit.evaluation.intervals import text_bootstrap
from vit.evaluation.intervals.text_bootstrap import TextStatistics, paired_bootstrap

SIZES = (5, 10, 20, 30, 50, 100)
RESAMPLES = 200


def system(references, words, seed):
    """The references with a random share of the words of each text replaced or left out."""
    rng, texts = np.random.default_rng(seed), []
    for reference in references:
        share = rng.beta(1.2, 2.2)
        draws = rng.random(len(reference.split()))
        changed = [words[rng.integers(len(words))] if draw < 0.5 * share else word
                   for word, draw in zip(reference.split(), draws, strict=True)
                   if not 0.5 * share <= draw < 0.7 * share]
        texts.append(" ".join(changed) or "x")
    return texts


def with_rows(statistics, rows):
    found = copy.copy(statistics)
    found.rows = rows
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=400)
    options = parser.parse_args()
    file = Path(os.environ["VIT_TEST_DATA"]) / "multi30k" / "test_2016_flickr.de.gz"
    references = gzip.decompress(file.read_bytes()).decode().splitlines()
    words = sorted({word for line in references for word in line.split()})
    first, second = (TextStatistics(system(references, words, seed), references) for seed in (1, 2))
    text_bootstrap.FEWEST_TEXTS = 0  # p-values of few texts too
    rng = np.random.default_rng(0)
    for size in SIZES:
        below = dict.fromkeys(("exact_match", "cer", "bleu"), 0)
        for _ in range(options.trials):
            rows, exchanged = rng.choice(len(references), size, replace=False), (rng.random(size) < 0.5)[:, None]
            one = with_rows(first, np.where(exchanged, first.rows[rows], second.rows[rows]))
            other = with_rows(second, np.where(exchanged, second.rows[rows], first.rows[rows]))
            for name, (_, p) in paired_bootstrap(one, other, RESAMPLES).items():
                below[name] += p < 0.05
        print(json.dumps({"texts": size, **{name: round(count / options.trials, 4) for name, count in below.items()}}),
              flush=True)


if __name__ == "__main__":
    main()
