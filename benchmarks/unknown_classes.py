"""Unknown scores on classes left out of training: area under the ROC curve against the softmax maximum.

    python benchmarks/unknown_classes.py --digits FOLDER
    python -m vit probe MODEL data=folder data.root=PHOTOS --save features.npz
    python benchmarks/unknown_classes.py --features features.npz

With --digits, a model of the default recipe is trained for each of three choices of three left-out digits. With
--features, the head is the logistic regression of a new fine-tuning head on frozen features, for the different ones of
six random choices of three left-out classes. Test samples of the classes in training are known, those of the other
classes unknown; class means and temperature are those of training and validation samples of the known classes. The
Mahalanobis distances (Lee et al., arXiv 1807.03888, and relative, Ren et al., arXiv 2106.09022) and k-nearest
neighbours (Sun et al., arXiv 2204.06507) need a covariance matrix or the training features, which config.json does not
hold.
"""

import argparse
import json
from pathlib import Path

import numpy as np
import torch
from sklearn.metrics import roc_auc_score
from torch.nn import functional as F

import vit
from vit.bundle import Quantiles, UnknownScore
from vit.data import digits
from vit.evaluation.calibration.fitting import Outputs, class_means
from vit.evaluation.calibration.outputs import image_outputs
from vit.evaluation.calibration.temperature import fit_temperature
from vit.evaluation.classification import RunOptions
from vit.evaluation.features.probe import Labelled, fit_linear
from vit.inference.unknown import unknown_scores

LEFT_OUT = ((0, 1, 2), (3, 4, 5), (7, 8, 9))
SHRINKAGE = 0.01
DRAWS = 6


def scores(train: Outputs, val: Outputs, test: Outputs, classes: int) -> dict[str, torch.Tensor]:
    """Name -> score of each test sample, higher for samples less like those of training."""
    temperature = fit_temperature(val.logits, val.labels)
    name, centre, means = class_means(classes, train)
    record = UnknownScore(name, Quantiles(0, ()), centre, means)
    features = train.features.double()
    class_mean = torch.stack([features[train.labels == c].mean(0) for c in range(classes)])
    within = precision(features - class_mean[train.labels])
    overall = features.mean(0, keepdim=True)
    near = mahalanobis(test.features.double(), class_mean, within)
    far = mahalanobis(test.features.double(), overall, precision(features - overall))
    cosines = F.normalize(test.features.double()) @ F.normalize(features).T
    return {
        "softmax maximum": -test.logits.softmax(-1).amax(1),
        "softmax maximum, calibrated": -(test.logits.double() / temperature).softmax(-1).amax(1),
        "energy": unknown_scores(test.logits, None, UnknownScore("energy", record.quantiles)),
        "cosine to class means (used)": unknown_scores(test.logits, test.features, record),
        "Mahalanobis": near,
        "relative Mahalanobis": near - far,
        "10 nearest neighbours": -cosines.topk(10).values[:, -1],
    }


def precision(centred: torch.Tensor) -> torch.Tensor:
    """(N,D) -> (D,D): inverse of the shrunk covariance"""
    covariance = centred.T @ centred / len(centred)
    scale = covariance.trace() / len(covariance)
    return torch.linalg.inv((1 - SHRINKAGE) * covariance + SHRINKAGE * scale * torch.eye(len(covariance)))


def mahalanobis(features: torch.Tensor, means: torch.Tensor, inverse: torch.Tensor) -> torch.Tensor:
    """(N,D) -> (N,): squared distance to the nearest mean"""
    return torch.stack([((features - mean) @ inverse * (features - mean)).sum(1) for mean in means]).amin(0)


def areas(train: Outputs, val: Outputs, test: Outputs, unknown: np.ndarray, classes: int) -> dict[str, float]:
    return {name: float(roc_auc_score(unknown, score.numpy()))
            for name, score in scores(train, val, test, classes).items()}


def of_digits(folder: Path) -> list[dict[str, float]]:
    source, rows = digits(), []
    for left_out in LEFT_OUT:
        known = [c for c in range(10) if c not in left_out]
        run = folder / "-".join(map(str, left_out))
        if not (run / "model").is_dir():
            train_without(left_out, run)
        predictor, parts = vit.load(run), {}
        for name, split in source.splits.items():
            labels = np.asarray(split.labels)
            chosen = np.arange(len(labels)) if name == "test" else np.flatnonzero(np.isin(labels, known))
            options = RunOptions(64, "32-true", "error", None, None)
            found = image_outputs(predictor.model, predictor.preprocessing, split.take(chosen), source.classes, options)
            parts[name] = Outputs(found.logits, torch.from_numpy(np.searchsorted(known, labels[chosen]).clip(0, 6)),
                                  found.rows, found.features)
        unknown = np.isin(source.splits["test"].labels, left_out)
        rows.append(areas(parts["train"], parts["val"], parts["test"], unknown, len(known)))
    return rows


def train_without(left_out: tuple[int, ...], run: Path) -> None:
    """Train the default model on the digits of the other classes."""
    known, arrays = [c for c in range(10) if c not in left_out], {}
    for name, split in digits().splits.items():
        rows = np.flatnonzero(np.isin(split.labels, known))
        arrays[f"{name}_images"] = np.stack([np.asarray(split.pixels[i]) for i in rows])
        arrays[f"{name}_labels"] = np.searchsorted(known, split.labels[rows])[:, None]
    run.parent.mkdir(parents=True, exist_ok=True)
    np.savez(run.with_suffix(".npz"), **arrays)
    vit.train(["data=table", f"data.path={run.with_suffix('.npz')}", "recipe=digits", "model=micro",
               "data.image_size=8", "data.patch_size=4", f"run_dir={run}"])


def of_features(file: Path) -> list[dict[str, float]]:
    saved, rng, rows = dict(np.load(file)), np.random.default_rng(0), []
    features, labels, splits = saved["features"], saved["labels"], saved["splits"]
    drawn = [tuple(sorted(rng.choice(len(saved["classes"]), 3, replace=False).tolist())) for _ in range(DRAWS)]
    for left_out in dict.fromkeys(drawn):
        known = np.array([c for c in range(len(saved["classes"])) if c not in left_out])
        inside, numbers = np.isin(labels, known), np.searchsorted(known, labels).clip(0, len(known) - 1)
        fitted = inside & (splits == "train")
        fit = fit_linear(Labelled(features[fitted], numbers[fitted]), len(known))
        logits = features @ fit.weight.T + fit.bias

        def part(chosen: np.ndarray, logits=logits, numbers=numbers) -> Outputs:
            found = logits[chosen], numbers[chosen], np.flatnonzero(chosen), features[chosen]
            return Outputs(*map(torch.from_numpy, found))

        test = splits == "test"
        rows.append(areas(part(fitted), part(inside & (splits == "val")), part(test), ~inside[test], len(known)))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--digits", type=Path, help="folder for the trained models; those in it are used again")
    parser.add_argument("--features", type=Path, help="file that `vit probe --save` wrote (.npz)")
    arguments, found = parser.parse_args(), {}
    if arguments.digits:
        found["digits"] = of_digits(arguments.digits)
    if arguments.features:
        found["features"] = of_features(arguments.features)
    for name, rows in found.items():
        print(f"{name}: mean area under the ROC curve of {len(rows)} choices of three classes")
        for score in sorted(rows[0], key=lambda score: -np.mean([row[score] for row in rows])):
            values = [row[score] for row in rows]
            wins = sum(row[score] > row["softmax maximum"] for row in rows)
            print(f"  {score:30s}{np.mean(values):.4f}  ({min(values):.4f} to {max(values):.4f}), above the softmax "
                  f"maximum in {wins}")
    print(json.dumps(found))


if __name__ == "__main__":
    main()
