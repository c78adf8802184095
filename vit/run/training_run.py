"""One run, from its config to a model on disk: build, fit, save, test."""

import contextlib
import logging
import os
from collections.abc import Iterator, Sequence
from dataclasses import replace

from vit.data import BadImage, DataError
from vit.data.images.preprocessing_values import as_size
from vit.data.system_limits import SystemLimitError, explain_limit, explain_lost_worker
from vit.files.checkpoints import without_weights
from vit.files.machine import available_cores
from vit.messages import number_of
from vit.run.config.overrides import override_text
from vit.run.config.own_configs import own_configs
from vit.run.config.valid_values import DEFAULT_SIZE
from vit.run.console import command, log_to_console, print_line
from vit.run.jobs import Job, build_job, check_job
from vit.run.multirun.comparison_plan import is_comparison
from vit.run.parts.compilation import check_compilation, choose_compile, compile_mode, start_compile_workers
from vit.run.parts.devices import Devices, deterministic_algorithms, find_devices, suited_threads
from vit.run.parts.finetuning import log_recipe
from vit.run.parts.loggers import log_config, without_tracebacks_of_trackers
from vit.run.parts.recipe import AUTO
from vit.run.parts.trainer import build_trainer, choose_strategy, max_time, timeout_of
from vit.run.processes.launched import check_number, is_single, own_run
from vit.run.processes.launcher import LAUNCHER, RankError, first_node, is_launched, run_ranks
from vit.run.processes.master_port import check_master_port
from vit.run.processes.rank import lost_peer
from vit.run.records.environment import environment
from vit.run.records.folder import RunFolder
from vit.run.records.reading import read_config, read_metrics
from vit.run.records.splits import DataRecord, read_record
from vit.run.result import Run
from vit.run.resume import Plan, check_fits, is_main_process, overrides_of_ranks, read_overrides
from vit.training import (
    Heartbeat,
    Interrupted,
    StopSignals,
    explain_out_of_memory,
    keep_freed_memory,
    quiet_lightning,
    seed_everything_once,
    stops_while_joining,
    store_of_environment,
)

log = logging.getLogger("vit")


def train_composed(config: dict, overrides: list[str]) -> Run | None:
    """The run of a resolved config that Hydra has composed from `overrides`, preceded by the recorded ones of a resumed
    run.

    Raises:
        ConfigError, DataError, Interrupted, RankError: as `vit.run.train`.
    """
    with own_run(config) as warnings:
        return train_with_signals(config, overrides, warnings)


def train_with_signals(config: dict, overrides: list[str], warnings: tuple[str, ...] = ()) -> Run | None:
    """`train_composed` with the handlers of stop signals.

    Args:
        warnings: warnings to log.
    """
    main = is_main_process()
    quiet_lightning()
    log_to_console(main)
    signals = StopSignals(main)
    with signals.handled():
        if config["compare"] or config["resume"] and is_comparison(config["resume"]):
            from vit.run.multirun.compare import compare  # loads Matplotlib

            return compare(config, overrides)
        plan = read_overrides(config, overrides)
        plan = replace(plan, warnings=(*warnings, *plan.warnings))
        try:
            devices = find_devices(plan.config["trainer"])
            if devices.world > 1 or not is_single(plan.config):
                check_number(devices)
            if plan.config["compile"] or plan.config.get("compile_mode") not in (None, "default"):
                check_compilation(plan.config, devices)
            if (limit := plan.config["trainer"]["max_time"]) is not None:
                max_time(limit)  # an error before the data is read
            if devices.world > 1 and not is_launched():
                return train_ranks(plan, overrides, devices)
            return train_here(plan, overrides, devices, signals)
        finally:
            with contextlib.suppress(OSError):
                plan.path.rmdir()  # only if the run left it empty


def train_ranks(plan: Plan, overrides: list[str], devices: Devices) -> Run | None:
    """Starts one process per device of this machine and supervises them. None on all machines but the first, which has
    the run folder.
    """
    folder = RunFolder(plan.path, main=False)
    check_job(plan.config, devices)
    choose_strategy(plan.config, devices)
    if devices.nodes > 1:
        check_master_port(first_node(devices.nodes))
    if not plan.config["resumed"]:
        for remark in plan.remarks:
            log.info(remark)
    for warning in plan.warnings:
        log.warning(warning)
    if devices.accelerator == "cpu" and devices.number > (cores := available_cores()):
        log.warning("trainer.devices=%d: the processes wait for each other, since this machine has %s and the run uses "
                    "no GPU; set trainer.devices to %d or less", devices.number, number_of(cores, "core"), cores)
    with explain_errors(plan.config, folder, overrides):
        run_ranks(overrides_of_ranks(plan, overrides), devices, plan.path, timeout_of(plan.config["trainer"]))
    return Run(folder.path, read_metrics(folder.path)) if first_node(devices.nodes) else None


def train_here(plan: Plan, overrides: list[str], devices: Devices, signals: StopSignals) -> Run | None:
    """The whole run, or one rank of it, in this process."""
    main, config, checkpoint = is_main_process(), plan.config, plan.checkpoint
    if devices.world > 1:
        check_master_port(devices.rank == 0)
    beats = contextlib.nullcontext() if devices.world == 1 else heartbeat(config, devices)
    stops = contextlib.nullcontext() if devices.world == 1 else stops_while_joining(signals)
    with RunFolder(plan.path, main) as folder, explain_errors(config, folder, overrides), stops, beats as beat:
        if main:
            folder.begin(resuming=config["resumed"])
        for remark in plan.remarks:
            log.info(remark)
        for warning in plan.warnings:
            log.warning(warning)
        if config["init_from"] and not config["resumed"]:
            log_recipe(config, overrides)
        seed_everything_once(config["seed"])
        record = read_record(plan.path) if config["resumed"] and plan.keeps_splits else None
        if "_target_" not in config["strategy"]:
            choose_strategy(config, devices)  # an error before the data is read
        job = build_job(config, devices, checkpoint, record)
        if checkpoint is not None:
            check_fits(checkpoint, job.model, job.config["recipe"]["epochs"])
            job.task.resumed = without_weights(checkpoint)
        done = job.task.resumed["global_step"] if checkpoint is not None else None
        trainer = build_trainer(job, folder, devices, signals, beat, done)
        if devices.accelerator == "cpu":
            keep_freed_memory()
        elif config["compile"]:
            start_compile_workers()
        if main:
            write_records(job, folder, record)
        is_deterministic = config["trainer"].get("deterministic", False)
        same_bits = deterministic_algorithms() if is_deterministic else contextlib.nullcontext()
        writing = without_tracebacks_of_trackers() if trainer.loggers else contextlib.nullcontext()
        with contextlib.closing(job.batches), suited_threads(job.step_flops, devices), same_bits, writing:
            if config["compile"] == AUTO:
                job.config["compile"] = choose_compile(job, trainer)
                folder.write("config.yaml", job.config)  # with the decision, which a resumed run keeps
            elif config["compile"]:
                job.model.compile(mode=compile_mode(config))  # in place, which does not change parameter names
            job.batches.timeout = timeout_of(config["trainer"])
            if main and trainer.loggers:
                log_config(job.config, folder, trainer)
            trainer.fit(job.task, job.batches, ckpt_path=checkpoint, weights_only=True)
        from vit.run.finish import finish  # loads Matplotlib, which the first step does not wait for

        return Run(folder.path, finish(job, folder, trainer, overrides)) if trainer.is_global_zero else None


def heartbeat(config: dict, devices: Devices) -> contextlib.AbstractContextManager[Heartbeat | None]:
    """The heartbeat of this rank; None if `trainer.timeout` is not set."""
    timeout = timeout_of(config["trainer"])
    if timeout is None:
        return contextlib.nullcontext()
    return Heartbeat(lambda: store_of_environment(timeout), devices.rank, devices.world, timeout,
                     LAUNCHER in os.environ, lost_peer)


def write_records(job: Job, folder: RunFolder, record: DataRecord | None = None) -> None:
    """Write what is known before training, after which the run can be resumed. A resumed run does not write the record
    of its data again.
    """
    if record is None:
        job.record_data(folder)
    folder.write("environment.json", environment())
    folder.write("config.yaml", job.config)
    if not job.config["resumed"]:
        folder.announce()


@contextlib.contextmanager
def explain_errors(config: dict, folder: RunFolder, overrides: list[str]) -> Iterator[None]:
    """Turn an unreadable image or a lack of memory into an error of one sentence; print how to resume after a stop.

    Raises:
        DataError: an image cannot be read.
        SystemLimitError: a limit of the system was reached.
        MemoryError: a batch does not fit into memory.
        RankError: under torchrun or srun, the connection to another process broke.
    """
    try:
        yield
    except (Interrupted, KeyboardInterrupt, RankError) as error:
        if is_main_process() and LAUNCHER not in os.environ and first_node(config["trainer"]["num_nodes"]):
            by = f" by {error.signal.name}" if isinstance(error, Interrupted) else ""
            print_line(f"\nStopped{by}. {how_to_resume(folder, overrides)}")
        raise
    except BadImage as error:
        if config["data"].get("on_bad_sample") == "skip":  # then all images are unreadable
            raise DataError(f"{error}; copy or download the data again") from None
        raise DataError(f"{error}; remove it, or leave such images out with data.on_bad_sample=skip") from None
    except (RuntimeError, MemoryError, OSError) as error:
        if isinstance(error, SystemLimitError):
            raise
        # torch reports a lost loading process by a signal handler, thus anywhere in a step
        timeout = timeout_of(config["trainer"]) or 0.0
        if reason := explain_limit(error) or explain_lost_worker(error, timeout):
            raise SystemLimitError(reason) from error
        if isinstance(error, OSError):
            raise
        if is_launched() and LAUNCHER not in os.environ and lost_peer(error):
            raise RankError(f"the connection to another rank broke ({str(error).partition('. ')[0]}); its own output "
                            f"says why it ended. {how_to_resume(folder, overrides)}") from error
        computed = batch_in_memory(recorded(config, folder, overrides))
        if reason := explain_out_of_memory(error, *computed):
            raise MemoryError(reason) from error
        raise


def recorded(config: dict, folder: RunFolder, overrides: Sequence[str]) -> dict:
    """The config that a run has recorded, with the values that were `auto`; its `config` where there is none that can
    be read, since the error of the run must not be replaced by one about the record.
    """
    try:
        return read_config(folder.path, overrides) if folder.used else config
    except Exception:  # noqa: BLE001
        return config


def how_to_resume(folder: RunFolder, overrides: Sequence[str] = ()) -> str:
    """A line for the user of a stopped run, with the command that resumes it.

    Args:
        overrides: overrides of the run, whose user configs the printed command repeats.
    """
    if not folder.used:
        return "Training had not started, nothing was saved."
    if folder.finished:  # a resumed run would be refused
        again = command("report", folder.path, *own_configs(overrides, "report"))
        return f"The run is finished, perhaps without its report: {again}"
    return f"Resume with:\n  {command('train', *own_configs(overrides), override_text('resume', str(folder.path)))}"


def batch_in_memory(config: dict) -> tuple:
    """Batch size, name of the model, image size (None for texts) and the config key of the batch size."""
    data, recipe = config["data"], config["recipe"]
    model = config["model"]
    name = model.get("name") or model.get("fallback") or model.get("kind")
    batch = "batch_tokens" if recipe.get("batch_tokens") else "batch_size"
    if config["task"]["name"] not in ("classification", "masked_image"):
        return recipe[batch], name, None, batch
    size = data["preprocessing"].get("size") or data["image_size"] or DEFAULT_SIZE
    return recipe[batch], name, as_size(size), batch
