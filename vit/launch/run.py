"""One run from command-line words to a model on disk: compose, build, fit, test, save."""

import contextlib
import logging
import os
import pathlib
from collections.abc import Iterator
from dataclasses import dataclass

from vit.data import BadImage, DataError
from vit.launch import build
from vit.launch.composing import compose, plain
from vit.launch.console import command, console, log_to_console
from vit.launch.devices import compile_model, find_devices, suited_threads
from vit.launch.finish import finish
from vit.launch.folder import RunFolder, environment
from vit.launch.jobs import Job, prepare
from vit.launch.overrides import word
from vit.launch.plan import RUN_DIR, check_fits, is_main_process, read_words, steps_done
from vit.launch.trainer import build_trainer
from vit.training import Interrupted, explain_out_of_memory, keep_freed_memory, quiet_lightning, seed_everything_once

log = logging.getLogger("vit")


@dataclass(frozen=True)
class Run:
    """A finished run: where it lies and the numbers it reached. The model: `vit.load(run.path)`."""

    path: pathlib.Path
    metrics: dict


def train(overrides: list[str] | None = None) -> Run | None:
    """Train as `python train.py OVERRIDES` does. None in the processes of a run other than the first.

    Raises:
        ConfigError, DataError: before the long work starts, with the key or file, and the fix.
        Interrupted: Ctrl-C or SIGTERM; what was done is saved, `resume` goes on with it.
    """
    from vit.launch.compare import compare, is_comparison  # this module is what it builds on

    main = is_main_process()
    quiet_lightning()
    log_to_console(main)
    words = list(overrides or [])
    if is_comparison(asked := plain(compose(words))):
        return compare(asked, words)
    plan = read_words(asked, words)
    config, checkpoint = plan.config, plan.checkpoint
    with RunFolder(plan.path, main) as folder, explained(config, folder):
        if main:
            folder.begin(resuming=config["resumed"])
        for remark in plan.remarks:
            log.info(remark)
        seed_everything_once(config["seed"])
        devices = find_devices(config["trainer"])
        job = prepare(config, devices, checkpoint)
        check_fits(checkpoint, job.model, config["recipe"]["epochs"])
        trainer = build_trainer(job, folder, devices, steps_done(checkpoint))
        if config["compile"]:
            compile_model(job.model, devices)
        if main:
            write_facts(job, folder)
        if devices.accelerator == "cpu":
            keep_freed_memory()
        threads = suited_threads(job.step_flops, devices)
        with told_to_other_processes(folder), contextlib.closing(job.batches), threads:
            trainer.fit(job.task, job.batches, ckpt_path=checkpoint, weights_only=True)
        return Run(folder.path, finish(job, folder, trainer)) if trainer.is_global_zero else None


def write_facts(job: Job, folder: RunFolder) -> None:
    """What is known before training; from here on the folder is a run that can be resumed."""
    job.write_facts(folder)
    folder.write("environment.json", environment())
    folder.write("config.yaml", job.config)


@contextlib.contextmanager
def told_to_other_processes(folder: RunFolder) -> Iterator[None]:
    """Lightning starts the other processes by the same command: they find the folder in the environment."""
    os.environ.setdefault(RUN_DIR, str(folder.path.resolve()))
    try:
        yield
    finally:
        os.environ.pop(RUN_DIR, None)


@contextlib.contextmanager
def explained(config: dict, folder: RunFolder) -> Iterator[None]:
    """An unreadable image or too little memory in words, and how to go on after a stop."""
    try:
        yield
    except (Interrupted, KeyboardInterrupt):
        if folder.main and folder.used:
            again = command("train", word("resume", str(folder.path)))
            console.print(f"\nStopped. Go on with:\n  {again}", markup=False, highlight=False, soft_wrap=True)
        raise
    except BadImage as error:
        raise DataError(f"{error}; remove it, or leave such images out with data.on_bad_sample=skip") from None
    except (RuntimeError, MemoryError) as error:
        reason = explain_out_of_memory(error, *what_was_computed(config))
        if reason is None:
            raise
        raise MemoryError(reason) from error


def what_was_computed(config: dict) -> tuple:
    """Size of a batch, model, image size if there is one, and the word for the batch."""
    data, recipe = config["data"], config["recipe"]
    model = config["model"]
    name = model.get("name") or model.get("fallback") or model.get("kind")
    batch = "batch_tokens" if recipe.get("batch_tokens") else "batch_size"
    if config["task"]["name"] not in ("classification", "masked_image"):
        return recipe[batch], name, None, batch
    size = data["preprocessing"].get("size") or data["image_size"] or build.DEFAULT_SIZE
    return recipe[batch], name, build.pair(size), batch
