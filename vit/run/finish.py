"""The end of a run: the best weights saved as a bundle, loaded from disk and tested; figures, metrics, a summary."""

import logging
import warnings
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from pytorch_lightning import Trainer
from pytorch_lightning.callbacks import Timer

from vit.data import BadImage
from vit.data.splits.recorded import check_unchanged
from vit.messages import duration, number_of
from vit.report.figures.curves import curves_picture
from vit.report.summary import print_summary
from vit.run.config.overrides import override_text
from vit.run.config.own_configs import own_configs, own_folders
from vit.run.console import command, console, progress_bar
from vit.run.jobs import Job
from vit.run.parts.data_source import data_overrides
from vit.run.parts.finetuning import whole_size
from vit.run.records.folder import RunFolder
from vit.run.records.splits import SPLIT_RULE, read_record
from vit.run.reporting import NO_TEST_SPLIT, finish_with_report, leakage_note
from vit.training import Checkpoints, Patience, PeakMemory, ThroughputMeter, trained_weights

log = logging.getLogger("vit")

BY_START_MARGIN = " by more than callbacks.start_margin=%g standard errors of the difference on the same samples"
EPOCH_0 = " (the start of training: no epoch was better)"
PIXEL_KEYS = ("resampling", "cache", "cache_side")  # keys of data that determine the random crops of training


def finish(job: Job, folder: RunFolder, trainer: Trainer, overrides: Sequence[str] = ()) -> dict:
    """Save and test the best weights, write the results of the run, and return its final metrics.

    Args:
        overrides: overrides of the command, whose user configs the printed commands repeat.
    """
    folder.check_in_place()
    numbers = speed(job, trainer)
    checkpoints = next(c for c in trainer.callbacks if isinstance(c, Checkpoints))
    settings = {"batch_size": batch_of_test(job), "precision": trainer.precision}
    weights, score, epoch = checkpoints.final_weights()
    why, text = find_ending(trainer, job.config)
    log.info("ended: %s", text)
    if epoch == 0:
        log.info("best epoch: 0 (the initial model): no epoch was better by %s%s", checkpoints.monitor,
                 "" if checkpoints.start_scores is None else BY_START_MARGIN % checkpoints.margin)
    metrics = {checkpoints.monitor: score, "best_epoch": epoch, "ended": why}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        job.save(folder.model, trained_weights(weights), metrics, bundle_extra(job.config, settings))
    for warning in caught:
        log.warning("model: %s", warning.message)
    check_samples(job, folder, overrides)
    with progress_bar(console) as bar:
        tested = job.test(folder, settings, partial(bar.advance, bar.add_task(job.split, total=job.count)))
    metrics |= {f"{job.split}/{name}": value for name, value in tested.metrics.items()}
    metrics[f"{job.split}/{job.task.unit}"] = job.count - len(tested.unreadable)
    numbers["flops"] = round(job.count_flops(folder.model))
    metrics |= numbers | left_out(job, tested.unreadable) | {"measured_on": job.split}
    metrics |= {f"{split}/leakage": count for split, count in (job.config.get("leakage") or {}).items()}
    if job.split != "test":
        log.warning("%s", NO_TEST_SPLIT)
    curves_picture(folder.path / "curves.png", folder.path / "metrics.csv", job.config["name"], loss_note(job.config),
                   epoch)
    samples = job.save_samples(folder)
    folder.write_metrics(metrics)
    try:
        finish_with_report(job, folder, tested, settings, own_configs(overrides, "report"))
    finally:  # the run is complete even if its report fails
        print_result(job, folder, metrics, text, samples, overrides)
    return metrics


def batch_of_test(job: Job) -> int | None:
    """Batch size of the test, which runs on one device: the size of the micro-batch of one device in training, which
    fits into its memory. None if `recipe.batch_size` is None.
    """
    recipe = job.config["recipe"]
    size = recipe["batch_size"]
    return size and max(1, size // (recipe["accumulate"] * job.devices.world))


def bundle_extra(config: dict, evaluation: dict) -> dict:
    """What the bundle stores beside the model: how to load the data set again, and the settings of the evaluation."""
    extra = {"data": data_overrides(config), "evaluation": evaluation, "name": config["name"], "split_rule": SPLIT_RULE}
    pixels = {key: config["data"][key] for key in PIXEL_KEYS if key in config["data"]}
    return {**extra, "training_pixels": pixels} if pixels else extra


def find_ending(trainer: Trainer, config: dict) -> tuple[str, str]:
    """(`epochs`, `max_time`, `patience` or `callback`; a description for the log and the summary)."""
    done, planned = trainer.current_epoch, trainer.max_epochs
    so_far = f"epoch {done} of {planned}"
    timer = next((each for each in trainer.callbacks if isinstance(each, Timer)), None)
    early = next((each for each in trainer.callbacks if isinstance(each, Patience)), None)
    stopped = early is not None and (early.stopped_epoch or early.wait_count >= early.patience)  # in epoch 0, maybe
    if stopped and done < planned:
        patience = config["callbacks"]["patience"]
        return "patience", f"no better {early.monitor} in {number_of(patience, 'epoch')}, ended in {so_far}"
    left = None if timer is None else timer.time_remaining()
    if left is not None and left <= 0 and (done < planned or not trainer.is_last_batch):
        return "max_time", f"trainer.max_time={config['trainer']['max_time']} was reached, ended in {so_far}"
    if done < planned and trainer.should_stop:
        return "callback", f"a callback stopped it, ended in {so_far}"
    return "epochs", "the only epoch" if planned == 1 else f"all {planned} epochs"


def loss_note(config: dict) -> str:
    """Why the training loss is not comparable with the validation loss; empty if nothing distinguishes them."""
    recipe, model = config["recipe"], config["model"]
    loss = recipe.get("loss") or {}
    parts = [f"label smoothing {loss['label_smoothing']:g}"] if loss.get("label_smoothing") else []
    parts += [f"CTC loss of weight {loss['ctc']:g}"] if loss.get("ctc") else []
    parts += [name for name, used in {
        "augmentation": recipe.get("crop") or any(step for step in (recipe.get("augment") or {}).values()),
        "mixup": recipe.get("mixup") and recipe["mixup"].get("prob") != 0,
        "distillation": (config.get("distill") or {}).get("kind", "none") != "none",
        "dropout": any(value for key, value in model.items() if key.endswith(("dropout", "drop_path"))),
    }.items() if used]
    if not parts:
        return ""
    *others, last = parts
    return f"Only the training loss is computed with {', '.join(others)}{' and ' if others else ''}{last}."


def check_samples(job: Job, folder: RunFolder, overrides: Sequence[str] = ()) -> None:
    """Checks that the samples of the test are those that the run recorded at its start.

    Raises:
        DataError: names changed and missing samples.
    """
    recorded = read_record(folder.path).splits.get(job.split)
    if recorded:
        again = command("train", *own_configs(overrides), override_text("resume", str(folder.path)))
        fix = f"restore them; {again} then tests and finishes the run"
        check_unchanged(job.source, job.split, recorded, fix)


def speed(job: Job, trainer: Trainer) -> dict:
    """Length, duration, speed and size of the training, over all sessions of a resumed run."""
    meter = next(c for c in trainer.callbacks if isinstance(c, ThroughputMeter))
    return {
        "model": job.description,
        "epochs": trainer.current_epoch,
        "steps": trainer.global_step,
        "seconds": round(meter.elapsed, 1),
        # the first step of a session is not measured
        **({f"{job.task.unit}_per_second": round(meter.rows_per_second, 1)} if meter.seconds else {}),
        "data_wait": round(meter.data_wait, 4),
        **({} if meter.first_step is None else {"first_step_seconds": round(meter.first_step, 2)}),
        "parameters": whole_size(job.model),
        "trained_parameters": sum(p.numel() for group in trainer.optimizers[0].param_groups for p in group["params"]),
        "peak_memory": next(c for c in trainer.callbacks if isinstance(c, PeakMemory)).bytes,
    }


def left_out(job: Job, unreadable: Sequence[BadImage]) -> dict:
    """The number of samples that were left out as unusable: from the start, in training, and in the test."""
    omitted = job.omitted()
    known = {name for name, _ in omitted}
    skipped = job.batches.bad | {error.name: error.reason for error in unreadable}
    skipped = {name: reason for name, reason in skipped.items() if name not in known}
    for name, reason in skipped.items():
        log.warning("left out %s: %s", name, reason)
    return {f"skipped_{job.task.unit}": len(omitted) + len(skipped)}


def print_result(job: Job, folder: RunFolder, metrics: dict, ended: str, samples: Path | None,
                 overrides: Sequence[str] = ()) -> None:
    """Print the result, the facts about the run, and the next command."""
    unit = job.task.unit
    trained, parameters = metrics["trained_parameters"], metrics["parameters"]
    facts = {
        **job.headline(metrics),
        **({} if job.split == "test" else {"note": NO_TEST_SPLIT}),
        **({"leakage": leakage_note(job.config["leakage"])} if job.config.get("leakage") else {}),
        **({"trained": f"{trained:,} of {parameters:,} parameters"} if trained < parameters else {}),
        "time": duration(metrics["seconds"]),
        **({f"{unit}/s": f"{rate:,.0f}"} if (rate := metrics.get(f"{unit}_per_second")) else {}),
        "best epoch": f"{metrics['best_epoch']} of {metrics['epochs']}{EPOCH_0 if metrics['best_epoch'] == 0 else ''}",
        "ended": ended,
        "model": str(folder.model),
    }
    subcommand, *arguments = job.next_command(folder, samples)
    own = own_folders(overrides) if subcommand == "train" else []
    print_summary(facts, job.config["name"], command(subcommand, *own, *arguments), console)
