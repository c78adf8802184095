"""After the last step: the best weights as a bundle, read back from disk and tested; pictures, tables, the next command."""

import logging
import warnings

from pytorch_lightning import Trainer

from vit.bundle import load_bundle, save_bundle
from vit.evaluation import Evaluation, evaluate
from vit.launch.composing import word
from vit.launch.console import command, console
from vit.launch.folder import RunFolder
from vit.launch.prepare import Parts
from vit.report.curves import curves_picture
from vit.report.evaluation import write_evaluation
from vit.report.summary import print_summary
from vit.training import Checkpoints, ThroughputMeter, trained_weights

log = logging.getLogger("vit")

SAMPLES = 8


def finish(parts: Parts, folder: RunFolder, trainer: Trainer) -> dict:
    """Write all that a finished run holds and return its final numbers by name."""
    numbers = speed(parts, trainer)
    checkpoints = next(c for c in trainer.callbacks if isinstance(c, Checkpoints))
    weights = trained_weights(checkpoints.best_path)
    split = "test" if "test" in parts.source.splits else "val"
    settings = {"batch_size": parts.config["recipe"]["batch_size"], "precision": trainer.precision}
    extra = {"data": data_words(parts.config), "evaluation": settings, "name": parts.config["name"]}
    metrics = {"val/accuracy": checkpoints.best_score, "best_epoch": checkpoints.best_epoch}
    with warnings.catch_warnings(record=True) as remarks:
        warnings.simplefilter("always", UserWarning)
        save_bundle(folder.model, parts.model, parts.source.classes, parts.preprocessing, metrics, extra, weights)
    for remark in remarks:
        log.warning("model: %s", remark.message)
    evaluation = tested(folder, parts, split, settings)
    metrics |= {f"{split}/{name}": value for name, value in evaluation.metrics.items()}
    metrics |= numbers | left_out(parts)
    curves_picture(folder.path / "curves.png", folder.path / "metrics.csv", parts.config["name"])
    write_samples(parts, folder, split)
    folder.write("metrics.json", metrics)
    tell(parts, folder, metrics, split)
    return metrics


def tested(folder: RunFolder, parts: Parts, split: str, settings: dict) -> Evaluation:
    """Test the model as it lies on disk, and write the answers and pictures."""
    bundle = load_bundle(folder.model)
    samples = parts.source.splits[split]
    evaluation = evaluate(
        bundle.model,
        bundle.preprocessing,
        samples,
        bundle.classes,
        **settings,
        on_bad_sample=parts.config["data"]["on_bad_sample"],
    )
    write_evaluation(folder.path, evaluation, samples, bundle.preprocessing, f"{parts.config['name']}, {split}")
    return evaluation


def data_words(config: dict) -> list[str]:
    """The command-line words that make the same data set again, from any directory."""
    chosen = [w for w in config["words"] if w.lstrip("+~").partition("=")[0].split(".")[0] in ("data", "experiment")]
    places = {f"data.{key}": config["data"][key] for key in ("root", "path") if config["data"].get(key)}
    kept = [w for w in chosen if w.partition("=")[0] not in places]
    return [*kept, *(word(key, place) for key, place in places.items())]


def speed(parts: Parts, trainer: Trainer) -> dict:
    """How far, how long and how fast, through all sessions of a resumed run."""
    meter = next(c for c in trainer.callbacks if isinstance(c, ThroughputMeter))
    return {
        "epochs": trainer.current_epoch,
        "steps": trainer.global_step,
        "seconds": round(meter.elapsed, 1),
        "images_per_second": round(meter.images_per_second, 1),
        "parameters": sum(p.numel() for p in parts.model.parameters()),
    }


def left_out(parts: Parts) -> dict:
    """How many images were left out because they cannot be read; each is named in the log."""
    before = parts.audit.bad_samples(decoded=False) if parts.audit else []
    for name, reason in parts.batches.bad.items():
        log.warning("left out %s: %s", name, reason)
    return {"skipped_images": len(before) + len(parts.batches.bad)}


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
    print_summary(
        facts, parts.config["name"], command("predict", folder.model, folder.path / "samples", "--top-k", 3), console
    )
