"""After the last step: the best weights as a bundle, read back from disk and tested; pictures, tables, the next command."""

import logging
import shlex

from pytorch_lightning import Trainer

from vit.bundle import load_bundle, save_bundle
from vit.evaluation import Evaluation, evaluate
from vit.launch.console import console, python
from vit.launch.folder import RunFolder
from vit.launch.prepare import Parts
from vit.report.curves import curves_picture
from vit.report.evaluation import write_evaluation
from vit.report.summary import print_summary
from vit.training import Checkpoints, trained_weights

log = logging.getLogger("vit")

SAMPLES = 8


def finish(parts: Parts, folder: RunFolder, trainer: Trainer, seconds: float) -> dict:
    """Write all that a finished run holds and return its final numbers by name."""
    checkpoints = next(c for c in trainer.callbacks if isinstance(c, Checkpoints))
    weights = trained_weights(checkpoints.best_path)
    split = "test" if "test" in parts.source.splits else "val"
    settings = {"batch_size": parts.config["recipe"]["batch_size"], "precision": trainer.precision}
    extra = {"data": data_words(parts.config), "evaluation": settings, "name": parts.config["name"]}
    metrics = {"val/accuracy": checkpoints.best_score, "best_epoch": checkpoints.best_epoch}
    save_bundle(folder.model, parts.model, parts.source.classes, parts.preprocessing, metrics, extra, weights)
    evaluation = tested(folder, parts, split, settings)
    metrics |= {f"{split}/{name}": value for name, value in evaluation.metrics.items()}
    metrics |= speed(parts, trainer, seconds)
    curves_picture(folder.path / "curves.png", folder.path / "metrics.csv", parts.config["name"])
    write_samples(parts, folder, split)
    folder.write("metrics.json", metrics)
    tell(parts, folder, metrics, split)
    return metrics


def tested(folder: RunFolder, parts: Parts, split: str, settings: dict) -> Evaluation:
    """Test the model as it lies on disk, and write the answers and pictures."""
    bundle = load_bundle(folder.model)
    samples = parts.source.splits[split]
    evaluation = evaluate(bundle.model, bundle.preprocessing, samples, bundle.classes, **settings,
                          on_bad_sample=parts.config["data"]["on_bad_sample"])
    write_evaluation(folder.path, evaluation, samples, bundle.preprocessing, f"{parts.config['name']}, {split}")
    return evaluation


def data_words(config: dict) -> list[str]:
    """The command-line words that make the same data set again."""
    return [word for word in config["words"] if word.lstrip("+~").partition("=")[0].split(".")[0] in ("data", "experiment")]


def speed(parts: Parts, trainer: Trainer, seconds: float) -> dict:
    images = trainer.global_step * parts.config["recipe"]["batch_size"]
    return {
        "epochs": trainer.current_epoch,
        "steps": trainer.global_step,
        "seconds": round(seconds, 1),
        "images_per_second": round(images / seconds, 1),
        "parameters": sum(p.numel() for p in parts.model.parameters()),
        "skipped_images": len(parts.batches.bad),
    }


def write_samples(parts: Parts, folder: RunFolder, split: str) -> None:
    """A few images of the split, evenly chosen, as files: something to try the model on."""
    samples, classes = parts.source.splits[split], parts.source.classes
    target = folder.path / "samples"
    target.mkdir(exist_ok=True)
    step = max(1, len(samples) // SAMPLES)
    for i in range(0, min(len(samples), step * SAMPLES), step):
        image = parts.preprocessing.decode(samples.read(i), samples.names[i])
        name = "".join(sign if sign.isalnum() or sign in "-_" else "_" for sign in classes[samples.labels[i]])
        image.save(target / f"{i:05d}_{name}.png")


def tell(parts: Parts, folder: RunFolder, metrics: dict, split: str) -> None:
    minutes, seconds = divmod(round(metrics["seconds"]), 60)
    facts = {
        f"{split} accuracy": f"{metrics[f'{split}/accuracy']:.2%} of {len(parts.source.splits[split]):,} images",
        "time": f"{minutes} min {seconds} s" if minutes else f"{seconds} s",
        "images/s": f"{metrics['images_per_second']:,.0f}",
        "model": str(folder.model),
    }
    command = [*shlex.split(python()), "-m", "vit", "predict", str(folder.model), str(folder.path / "samples"), "--top-k", "3"]
    print_summary(facts, parts.config["name"], shlex.join(command), console)
