"""Calibration of a trained classifier: error before and after, and coverage of prediction sets over 100 resplits.

    python train.py run_dir=RUN
    python benchmarks/calibration.py RUN

The first table compares the test split without and with the temperature of the model. For the second one, validation
and test samples are joined and split again at random 100 times, in parts of the same sizes; temperature and quantiles
are fitted on the first part and measured on the second. A level of 90 % promises a mean coverage of 0.9 to 0.9 +
1 / (n + 1).
"""

import argparse
import json

import numpy as np
import torch

import vit
from vit.bundle import Quantiles
from vit.cli.data.data_sets import compose_data, evaluation_source
from vit.data import TextSplit
from vit.evaluation import matched_split
from vit.evaluation.calibration.fitting import Outputs
from vit.evaluation.calibration.outputs import image_outputs, text_outputs
from vit.evaluation.calibration.reliability import calibration_error, certainty
from vit.evaluation.calibration.temperature import fit_temperature
from vit.evaluation.classification import RunOptions
from vit.inference.conformal import prediction_sets, true_scores

RESPLITS = 100


def outputs(predictor, source, name: str) -> Outputs:
    split = matched_split(source, predictor.classes, name)
    if isinstance(split, TextSplit):
        return text_outputs(predictor, split)
    options = RunOptions(64, "32-true", "skip", None, None)
    return image_outputs(predictor.model, predictor.preprocessing, split, predictor.classes, options)


def before_and_after(test: Outputs, temperature: float) -> dict:
    found = {}
    for name, divisor in (("before", 1.0), ("after", temperature)):
        logits = test.logits.double() / divisor
        highest, right = certainty(logits.softmax(-1), test.labels)
        found[name] = {"accuracy": float(right.mean()), "ece": calibration_error(highest, right),
                       "log loss": float(torch.nn.functional.cross_entropy(logits, test.labels))}
    return found


def resplits(
    logits: torch.Tensor, labels: torch.Tensor, draws: torch.Tensor, count: int, method: str, level: float
) -> dict:
    """Coverage and mean set size of the samples beyond the first `count`, over random orders."""
    coverage, sizes, empty = [], [], []
    for seed in range(RESPLITS):
        order = torch.from_numpy(np.random.default_rng(seed).permutation(len(labels)))
        val, test = order[:count], order[count:]
        probabilities = (logits / fit_temperature(logits[val], labels[val])).softmax(-1)
        limit = Quantiles.of(true_scores(probabilities[val], draws[val], labels[val], method).numpy()).at(level)
        size, _ = prediction_sets(probabilities[test], draws[test], limit, method)
        covered = true_scores(probabilities[test], draws[test], labels[test], method) <= limit
        coverage.append(float(covered.double().mean()))
        sizes.append(float(size.double().mean()))
        empty.append(float((size == 0).double().mean()))
    return {"method": method, "level": level, "coverage": float(np.mean(coverage)), "sd": float(np.std(coverage)),
            "size": float(np.mean(sizes)), "empty": float(np.mean(empty))}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", help="run folder of a classifier with a test split")
    predictor = vit.load(parser.parse_args().run)
    source = evaluation_source(compose_data([], predictor.bundle)["data"], predictor.bundle)
    val, test = outputs(predictor, source, "val"), outputs(predictor, source, "test")
    temperature = predictor.bundle.calibration.temperature
    found = {"temperature": temperature, "test": before_and_after(test, temperature)}
    logits, labels = torch.cat([val.logits, test.logits]), torch.cat([val.labels, test.labels])
    draws = torch.cat([val.draws, test.draws])
    found["resplits"] = [resplits(logits, labels, draws, len(val.labels), method, level)
                         for method in ("aps", "raps") for level in (0.9, 0.95)]
    print(f"temperature {temperature:.3f}")
    for name, row in found["test"].items():
        print(f"{name:7s}" + "  ".join(f"{key} {value:.4f}" for key, value in row.items()))
    for row in found["resplits"]:
        print(f"{row['method']:5s} {row['level']:.2f}  coverage {row['coverage']:.4f} +- {row['sd']:.4f}  "
              f"mean size {row['size']:.3f}  empty {row['empty']:.3f}")
    print(json.dumps(found))


if __name__ == "__main__":
    main()
