"""One run from overrides to a model on disk: compose, build, fit, test, save."""

import contextlib
import json
import logging
import os
from collections.abc import Iterator

from omegaconf import DictConfig

from vit.data import BadImage, DataError
from vit.data.system_limits import LimitError, explain_limit
from vit.run.compare import compare, is_comparison
from vit.run.config.composing import compose, plain
from vit.run.config.overrides import as_list, override_text
from vit.run.console import command, console, log_to_console
from vit.run.environment import environment
from vit.run.finish import finish
from vit.run.folder import RunFolder, read_config
from vit.run.jobs import Job, prepare
from vit.run.parts.devices import Devices, compile_model, find_devices, suited_threads
from vit.run.parts.preprocessing import DEFAULT_SIZE, as_size
from vit.run.parts.trainer import build_trainer, check_timeout, choose_strategy
from vit.run.processes.ranks import LAUNCHER, RankError, is_launched, run_ranks
from vit.run.records import DataRecord, read_record
from vit.run.result import Run
from vit.run.resume import (
    Plan,
    check_fits,
    is_main_process,
    overrides_of_ranks,
    read_overrides,
    steps_done,
    with_recorded,
)
from vit.training import (
    Heartbeat,
    Interrupted,
    StopSignals,
    explain_out_of_memory,
    keep_freed_memory,
    quiet_lightning,
    seed_everything_once,
    store_of_environment,
)

log = logging.getLogger("vit")


def train(overrides: list[str] | None = None) -> Run | None:
    """Train as `python train.py OVERRIDES` does. None in the processes of a run other than the first.

    Raises:
        ConfigError, DataError: before the long work starts, with the key or file, and the fix.
        Interrupted: Ctrl-C, SIGTERM, SIGUSR1 or SIGHUP; what was done is saved, `resume` goes on with it.
        RankError: a process of a distributed run failed, died or hung.
    """
    overrides = as_list(overrides)
    return train_composed(compose(with_recorded(overrides)), overrides)


def train_composed(config: DictConfig, overrides: list[str]) -> Run | None:
    """The run of a config that Hydra has composed from `overrides`, after the recorded ones of a resumed run."""
    main = is_main_process()
    quiet_lightning()
    log_to_console(main)
    signals = StopSignals(main)
    with signals.handled():
        if is_comparison(asked := plain(config)):
            return compare(asked, overrides)
        plan = read_overrides(asked, overrides)
        try:
            devices = find_devices(plan.config["trainer"])
            if devices.world > 1 and not is_launched():
                return train_ranks(plan, overrides, devices)
            return train_here(plan, devices, signals)
        finally:
            with contextlib.suppress(OSError):
                plan.path.rmdir()  # only where the run left nothing in it


def train_ranks(plan: Plan, overrides: list[str], devices: Devices) -> Run:
    """One process per device; this one starts and watches them."""
    folder = RunFolder(plan.path, main=False)
    choose_strategy(plan.config, devices)
    if not plan.config["resumed"]:
        for remark in plan.remarks:
            log.info(remark)
    with explained(plan.config, folder):
        run_ranks(overrides_of_ranks(plan, overrides), devices, plan.path, check_timeout(plan.config["trainer"]))
    return Run(folder.path, json.loads((folder.path / "metrics.json").read_text(encoding="utf-8")))


def train_here(plan: Plan, devices: Devices, signals: StopSignals) -> Run | None:
    """The whole run, or one rank of it, in this process."""
    main, config, checkpoint = is_main_process(), plan.config, plan.checkpoint
    with RunFolder(plan.path, main) as folder, explained(config, folder), heartbeat(config, devices) as beat:
        if main:
            folder.begin(resuming=config["resumed"])
        for remark in plan.remarks:
            log.info(remark)
        seed_everything_once(config["seed"])
        record = read_record(plan.path) if config["resumed"] and plan.keeps_splits else None
        job = prepare(config, devices, checkpoint, record)
        check_fits(checkpoint, job.model, job.config["recipe"]["epochs"])
        trainer = build_trainer(job, folder, devices, signals, beat, steps_done(checkpoint))
        if config["compile"]:
            compile_model(job.model, devices)
        if main:
            write_facts(job, folder, record)
        if devices.accelerator == "cpu":
            keep_freed_memory()
        with contextlib.closing(job.batches), suited_threads(job.step_flops, devices):
            job.batches.timeout = check_timeout(config["trainer"])
            trainer.fit(job.task, job.batches, ckpt_path=checkpoint, weights_only=True)
        return Run(folder.path, finish(job, folder, trainer)) if trainer.is_global_zero else None


def heartbeat(config: dict, devices: Devices) -> contextlib.AbstractContextManager[Heartbeat | None]:
    """This rank's beats, where there are other ranks."""
    timeout = check_timeout(config["trainer"])
    if devices.world == 1 or timeout is None:
        return contextlib.nullcontext()
    launcher = int(os.environ[LAUNCHER]) if LAUNCHER in os.environ else None
    return Heartbeat(lambda: store_of_environment(timeout), devices.rank, devices.world, timeout, launcher)


def write_facts(job: Job, folder: RunFolder, record: DataRecord | None = None) -> None:
    """What is known before training; from here on the folder is a run that can be resumed.

    What a run recorded about its data stays as it is when it goes on.
    """
    if record is None:
        job.write_facts(folder)
    folder.write("environment.json", environment())
    folder.write("config.yaml", job.config)


@contextlib.contextmanager
def explained(config: dict, folder: RunFolder) -> Iterator[None]:
    """Explain an unreadable image or a lack of memory in one sentence, and print how to resume after a stop."""
    try:
        yield
    except (Interrupted, KeyboardInterrupt, RankError):
        if is_main_process() and LAUNCHER not in os.environ:
            console.print(f"\nStopped. {how_to_go_on(folder)}", markup=False, highlight=False, soft_wrap=True)
        raise
    except BadImage as error:
        raise DataError(f"{error}; remove it, or leave such images out with data.on_bad_sample=skip") from None
    except (RuntimeError, MemoryError, OSError) as error:
        if reason := explain_limit(error):
            raise LimitError(reason) from error
        if isinstance(error, OSError):
            raise
        computed = what_was_computed(read_config(folder.path) if folder.used else config)
        if reason := explain_out_of_memory(error, *computed):
            raise MemoryError(reason) from error
        raise


def how_to_go_on(folder: RunFolder) -> str:
    if not folder.used:
        return "Training had not begun: nothing was saved."
    return f"Go on with:\n  {command('train', override_text('resume', str(folder.path)))}"


def what_was_computed(config: dict) -> tuple:
    """Size of a batch, model, image size if there is one, and the config key of the batch size."""
    data, recipe = config["data"], config["recipe"]
    model = config["model"]
    name = model.get("name") or model.get("fallback") or model.get("kind")
    batch = "batch_tokens" if recipe.get("batch_tokens") else "batch_size"
    if config["task"]["name"] not in ("classification", "masked_image"):
        return recipe[batch], name, None, batch
    size = data["preprocessing"].get("size") or data["image_size"] or DEFAULT_SIZE
    return recipe[batch], name, as_size(size), batch
