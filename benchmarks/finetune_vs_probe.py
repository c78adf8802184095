"""Fine-tuning with its defaults against the logistic regression of `vit probe`, and the rules by which an epoch
replaces the start.

    python benchmarks/finetune_vs_probe.py --root clothing_small --weights tf_efficientnet_lite0.safetensors \\
        --sets shirt+longsleeve dress+skirt pants+shorts --methods full head --seeds 0

For each set of classes the photos of all splits are pooled, stored with a shorter side of 192 pixels and split anew, by
default into 50, 16 and up to 70 per class. The first table pools the test photos of all sets and seeds: those that are
right by the saved model, by `vit probe` of the start weights, and by `vit probe` of the saved model, with the paired
difference and its interval (95 %, McNemar). What `--out` holds already is not trained again.

With `--draws` above 0, each run also records the logits of all validation and test photos after every epoch, so one
training serves all rules. Two more tables: the test photos that are right by the probe, the start, the last epoch and
the saved model; then the mean over the random choices of the validation photos among those of validation and test, of
which the others are the test photos: training does not depend on them, the choice of the epoch does.
"""

import argparse
import copy
import json
import random
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytorch_lightning as pl
import torch
from pairs import report
from PIL import Image
from safetensors.torch import load_file

import vit
from vit.bundle import load_bundle
from vit.data import ImageDataset, folder
from vit.evaluation.features.probe import Labelled, accuracy, logistic_regression
from vit.inference.features import Featurizer
from vit.training.finetuning.finetune import head_layer
from vit.training.monitoring.paired_comparison import SampleScores, is_clearly_better

SHORTER = 192  # pixels of the stored photos
MARGINS = (0.0, 1.0, 2.0)  # of the rules in the second table; 1 is the default
HELD_OUT = ("val", "test")
PROBES = ("probe of the start", "probe of the saved model")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, required=True, help="folder with the splits train, validation and test")
    parser.add_argument("--weights", type=Path, required=True, help="file of tf_efficientnet_lite0")
    parser.add_argument("--sets", nargs="+", required=True, help="classes joined by +, or all")
    parser.add_argument("--methods", nargs="+", default=["full", "head"], help="values of finetune=")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--photos", type=int, nargs=3, default=(50, 16, 70), help="per class: train, val, test")
    parser.add_argument("--draws", type=int, default=0, help="of the validation photos")
    parser.add_argument("--out", type=Path, default=Path("finetune_vs_probe"))
    parser.add_argument("--overrides", nargs="*", default=[], help="for every run, such as recipe.epochs=10")
    args = parser.parse_args()
    found = {}
    for name in args.sets:
        root = pooled(args.root, name, args.photos, args.out / "sets")
        for method in args.methods:
            for seed in args.seeds:
                record = args.out / f"{name}.{method}.{seed}.json"
                if not record.exists():
                    train(root, args.weights, method, seed, record, args.draws > 0, args.overrides)
                found[name, method, seed] = json.loads(record.read_text())
    runs = {method: [each for key, each in found.items() if key[1] == method] for method in args.methods}
    report("The saved model against vit probe, all sets and seeds",
           [paired(method, each, probe) for method, each in runs.items() for probe in PROBES])
    if args.draws:
        named = [(dict(zip(("set", "finetune", "seed"), key, strict=True)), each) for key, each in found.items()]
        report("Test photos that are right", [names | correct(each) for names, each in named])
        report("Over redrawn validation photos, against the start",
               [names | row for names, each in named for row in redrawn(each, args.draws)])


def pooled(root: Path, name: str, counts: Sequence[int], target: Path) -> Path:
    """A folder of the set's photos, split into so many per class by a fixed shuffle."""
    target = target / name
    classes = sorted(path.name for path in (root / "train").iterdir()) if name == "all" else name.split("+")
    for label in () if target.exists() else classes:
        files = sorted(path for split in ("train", "validation", "test") for path in (root / split / label).iterdir())
        random.Random(f"0{name}.p{label}").shuffle(files)
        for split, end, count in zip(("train", "val", "test"), np.cumsum(counts), counts, strict=True):
            (target / split / label).mkdir(parents=True)
            for file in files[end - count : end]:
                image = Image.open(file).convert("RGB")
                scale = SHORTER / min(image.size)
                size = round(image.width * scale), round(image.height * scale)
                image.resize(size, Image.BICUBIC).save(target / split / label / f"{file.stem}.jpg", quality=92)
    return target


def train(
    root: Path, weights: Path, method: str, seed: int, record: Path, epochs: bool, overrides: Sequence[str]
) -> None:
    """One run with the defaults at 128 pixels; its record appears when it has ended."""
    partial, start = record.with_suffix(".partial"), time.perf_counter()
    recorder = [f"+callbacks.recorder.{key}={value}" for key, value in
                {"_target_": "finetune_vs_probe.Recorder", "file": partial, "root": root}.items()]
    run = vit.train([
        "data=folder", f"data.root={root}", "model=timm", "model.name=tf_efficientnet_lite0",
        f"init_from={weights}", f"finetune={method}", "data.image_size=128", f"seed={seed}", "precision=32-true",
        "data.workers=0", f"run_dir={record.with_suffix('')}", *(recorder if epochs else []), *overrides,
    ])
    found = json.loads(partial.read_text()) if epochs else {}
    found |= {"best_epoch": run.metrics["best_epoch"], "saved": run.metrics["test/accuracy"],
              "right": right_by_each(run.path / "model", weights, root),
              "minutes": (time.perf_counter() - start) / 60}
    record.write_text(json.dumps(found))
    partial.unlink(missing_ok=True)


def right_by_each(saved: Path, weights: Path, root: Path) -> dict[str, list[bool]]:
    """Whether each test photo is right by the saved model, and by the probes of the start and of the saved model."""
    bundle, splits = load_bundle(saved), folder(str(root)).splits
    start, head = copy.deepcopy(bundle.model), head_layer(bundle.model)
    own = start.state_dict()
    start.load_state_dict({name: value for name, value in load_file(weights).items() if value.shape == own[name].shape},
                          strict=False)

    def features(model: torch.nn.Module) -> dict[str, Labelled]:
        featurizer, found = Featurizer(model, bundle.preprocessing, torch.device("cpu"), "32-true"), {}
        for key, split in splits.items():
            dataset = ImageDataset(split, bundle.preprocessing, cache=False)
            images = torch.cat([dataset[i]["image"] for i in range(len(dataset))])
            vectors = torch.cat([featurizer.of_images(part) for part in images.split(32)])
            found[key] = Labelled(vectors.numpy(), np.array(split.labels))
        return found

    parts = dict(zip(PROBES, map(features, (start, bundle.model)), strict=True))
    test = parts[PROBES[1]]["test"]
    with torch.no_grad():
        predicted = {"saved": head(torch.from_numpy(test.features)).argmax(1).numpy()}
    for name, part in parts.items():
        predicted[name] = logistic_regression(part["train"], part["val"]).classify(part["test"].features)
    return {name: (each == test.labels).tolist() for name, each in predicted.items()}


def paired(method: str, runs: Sequence[dict], probe: str) -> dict:
    """A row of the first table: the saved models of all runs against one of the probes."""
    saved, other = (np.concatenate([run["right"][key] for run in runs]) for key in ("saved", probe))
    ours, theirs, count = int((saved & ~other).sum()), int((~saved & other).sum()), len(saved)
    return {"finetune": method, "against": probe, "runs": len(runs), "test photos": count,
            "saved": int(saved.sum()), "probe": int(other.sum()), "only saved right": ours,
            "only probe right": theirs,
            "difference": f"{(ours - theirs) / count:+.2%} ± {1.96 * (ours + theirs) ** 0.5 / count:.2%}"}


class Recorder(pl.Callback):
    """Writes the logits of every validation and test photo after each epoch, by the weights that validation uses."""

    def __init__(self, file: str, root: str):
        self.file, self.root, self.found, self.photos = Path(file), root, {"epochs": []}, {}

    def setup(self, trainer: pl.Trainer, task: pl.LightningModule, stage: str) -> None:
        task.model.to(memory_format=torch.channels_last)  # a third less time in float32 on a CPU
        for key, split in folder(self.root).splits.items():
            dataset = ImageDataset(split, task.preprocessing, cache=False)
            images = torch.cat([dataset[i]["image"] for i in range(len(dataset))])
            self.photos[key] = images, np.array(split.labels)
        self.found["labels"] = {key: self.photos[key][1].tolist() for key in HELD_OUT}

    @torch.no_grad()
    def on_validation_epoch_end(self, trainer: pl.Trainer, task: pl.LightningModule) -> None:
        def through(layers, key: str) -> torch.Tensor:
            return torch.cat([layers(task.preprocessing.normalize(part)) for part in self.photos[key][0].split(64)])

        if trainer.sanity_checking:
            def features(images: torch.Tensor) -> torch.Tensor:
                return task.model.forward_head(task.model.forward_features(images), pre_logits=True)

            data = {key: Labelled(through(features, key).numpy(), self.photos[key][1]) for key in self.photos}
            fit = logistic_regression(data["train"], data["val"])
            self.found["probe"] = {
                key: accuracy(fit.classify(data[key].features), data[key].labels) for key in HELD_OUT
            }
        self.found["epochs"].append({key: through(task.model, key).tolist() for key in HELD_OUT})
        self.file.write_text(json.dumps(self.found))


def scores(found: dict, split: str) -> tuple[np.ndarray, np.ndarray]:
    """right (E,N) and cross entropy (E,N) of the photos of a split after each epoch, the start first."""
    logits = np.array([epoch[split] for epoch in found["epochs"]])  # (E,N,classes)
    logits -= logits.max(-1, keepdims=True)
    labels = np.array(found["labels"][split])
    loss = np.log(np.exp(logits).sum(-1)) - logits[:, np.arange(len(labels)), labels]
    return (logits.argmax(-1) == labels).astype(np.float32), loss


def correct(found: dict) -> dict:
    """Test photos that are right by each model."""
    right, count = scores(found, "test")[0].sum(1), len(found["labels"]["test"])
    epoch = chosen(*scores(found, "val"), margin=1.0)
    return {"photos": count, "probe": round(found["probe"]["test"] * count), "start": int(right[0]),
            "last epoch": int(right[-1]), "best by any difference": int(right[chosen(*scores(found, "val"), margin=0)]),
            "saved": int(right[epoch]), "saved epoch": epoch}


def chosen(right: np.ndarray, loss: np.ndarray, margin: float) -> int:
    """The epoch that a run would save, 0 for the start: right (E,N), loss (E,N) of the validation photos."""
    tables = [SampleScores(torch.arange(right.shape[1]), torch.from_numpy(row)) for row in right]
    best = 0
    for epoch in range(1, len(right)):
        better = right[epoch].mean() - right[best].mean()
        ties = best > 0 and better == 0 and loss[epoch].mean() <= loss[best].mean()
        if (better > 0 or ties) and is_clearly_better(tables[epoch], tables[0], "max", margin):
            best = epoch
    return best


def redrawn(found: dict, draws: int) -> list[dict]:
    """A row per rule: the mean gain over the start on test photos, its lowest tenth, and how often it is replaced."""
    right, loss = (np.concatenate(parts, axis=1) for parts in zip(*(scores(found, s) for s in HELD_OUT), strict=True))
    rng, count = np.random.default_rng(0), len(found["labels"]["val"])
    gains, replaced = {margin: [] for margin in MARGINS}, dict.fromkeys(MARGINS, 0)
    for _ in range(draws):
        order = rng.permutation(right.shape[1])
        val, test = order[:count], order[count:]
        for margin in MARGINS:
            epoch = chosen(right[:, val], loss[:, val], margin)
            gains[margin].append(right[epoch, test].mean() - right[0, test].mean())
            replaced[margin] += epoch > 0
    return [{"margin": margin, "gain": f"{np.mean(gain):+.2%}", "lowest tenth": f"{np.quantile(gain, 0.1):+.2%}",
             "replaced": f"{replaced[margin] / draws:.0%}"} for margin, gain in gains.items()]


if __name__ == "__main__":
    main()
