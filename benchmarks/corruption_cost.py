"""What the corruptions of `vit report --corruptions` take beyond one evaluation per kind and severity.

    python train.py experiment=cifar10 data.root=CIFAR10 run_dir=RUN
    OMP_NUM_THREADS=1 python benchmarks/corruption_cost.py RUN --images 1000 --severity 3

`vit evaluate` reads, decodes and classifies the images once per corruption in this comparison; the report reads them
once for all corruptions, so that its time beyond the evaluations can be below 0. Processor time, in turns.
"""

import argparse
import statistics
import time

import numpy as np

import vit
from vit.cli.data.data_sets import compose_data, evaluation_source
from vit.evaluation import evaluate, matched_split
from vit.evaluation.robustness import accuracy_under_corruptions, levels

WHOLE = 10_000  # images of the stated time


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--images", type=int, default=1000)
    parser.add_argument("--severity", type=int, nargs="+", default=[3])
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    predictor = vit.load(options.model)
    source = evaluation_source(compose_data([], predictor.bundle)["data"], predictor.bundle)
    split = matched_split(source, predictor.classes)
    split = split.take(np.arange(min(options.images, len(split))))
    count, beyond = len(levels(options.severity)), []
    for _ in range(options.rounds):
        start = time.process_time()
        evaluate(predictor.model, predictor.preprocessing, split, predictor.classes)
        middle = time.process_time()
        accuracy_under_corruptions(predictor.model, predictor.preprocessing, split, options.severity)
        once, corrupted = middle - start, time.process_time() - middle
        beyond.append((corrupted - count * once) * WHOLE / len(split))
        per_image = 1e3 / len(split)
        print(f"evaluation {per_image * once:.2f} ms per image, corrupted {per_image * corrupted / count:.2f} ms; "
              f"{WHOLE:,} images: {corrupted * WHOLE / len(split):.0f} s, "
              f"{beyond[-1]:+.0f} s beyond {count} evaluations")
    print(f"beyond: median {statistics.median(beyond):+.0f} s ({min(beyond):+.0f} to {max(beyond):+.0f})")


if __name__ == "__main__":
    main()
