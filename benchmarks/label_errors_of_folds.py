"""Precision and recall of `vit audit --labels` after a real `vit cross-validate` on digits with 8 % flipped labels.

    python benchmarks/label_errors_of_folds.py FOLDER [--epochs 20] [--seed 0] [--classes one]

The labels of 8 % of the training and validation samples are changed by a file for `data.corrections`, each class into
one other class or, with --classes any, into a random one; the folds are trained with them. Precision and recall are
equal where as many samples are looked at as were flipped. FOLDER is created.
"""

import argparse
import json
from pathlib import Path

import numpy as np
from label_errors import SHARE, flip

from vit.data import digits
from vit.data.quality.corrections import write_corrections
from vit.evaluation.labelling.feature_folds import FOLDS
from vit.evaluation.labelling.label_errors import find_label_errors
from vit.evaluation.out_of_fold import read_held_out
from vit.run.multirun.cross_validation import PREDICTIONS, cross_validate


def samples():
    """Names and labels of all samples of digits that take part in the folds."""
    source = digits()
    parts = [source.splits[key] for key in ("train", "val")]
    return [split.names[i] for split in parts for i in range(len(split))], np.concatenate([s.labels for s in parts])


def flip_to_any(labels, seed):
    """Labels of which 8 % became another random class, and which ones."""
    rng = np.random.default_rng(seed)
    wrong = rng.choice(len(labels), round(SHARE * len(labels)), replace=False)
    flipped = labels.copy()
    flipped[wrong] = (labels[wrong] + rng.integers(1, labels.max() + 1, len(wrong))) % (labels.max() + 1)
    return flipped, set(wrong.tolist())


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0, help="of the flipped labels")
    parser.add_argument("--classes", choices=("one", "any"), default="one", help="into which labels are flipped")
    options = parser.parse_args()
    names, labels = samples()
    flipped, wrong = (flip if options.classes == "one" else flip_to_any)(labels, options.seed)
    options.folder.mkdir(parents=True)
    corrections = options.folder / "flipped.csv"
    write_corrections(corrections, [{"name": names[i], "label": str(labels[i]), "new_label": str(flipped[i])}
                                    for i in sorted(wrong)])
    run = options.folder / "folds"
    cross_validate(["data=digits", f"data.corrections={corrections}", f"recipe.epochs={options.epochs}", "report=false",
                    f"folds={FOLDS}", f"run_dir={run}"])
    held_out, wrong_names = read_held_out(run / PREDICTIONS), {names[i] for i in wrong}
    ranked = {error.name for error in find_label_errors(held_out, limit=len(wrong))}
    counted = {error.name for error in find_label_errors(held_out)}
    print(json.dumps({
        "samples": len(names), "flipped": len(wrong), "classes": options.classes, "seed": options.seed,
        "epochs": options.epochs, "out_of_fold_accuracy_on_flipped_labels": round(held_out.accuracy, 4),
        "precision_at_k": round(len(ranked & wrong_names) / len(wrong), 4), "counted_as_errors": len(counted),
        "their_precision": round(len(counted & wrong_names) / max(len(counted), 1), 4),
        "their_recall": round(len(counted & wrong_names) / len(wrong), 4)}))


if __name__ == "__main__":
    main()
