"""Lightning's Trainer for a config: strategy and callbacks."""

import datetime
import logging
import os
from functools import partial

from hydra.utils import instantiate
from lightning_fabric.plugins.environments import SLURMEnvironment, TorchElasticEnvironment
from pytorch_lightning import Callback, Trainer
from pytorch_lightning.callbacks import GradientAccumulationScheduler, StochasticWeightAveraging, Timer
from pytorch_lightning.strategies import Strategy

from vit.nn.transformer import set_autocast_residual
from vit.run.config.composing import ConfigError
from vit.run.config.overrides import check_kind, checked, yaml_text
from vit.run.config.value_checks import TWO_AVERAGES, wrong_mode
from vit.run.config.value_kinds import Duration, duration
from vit.run.console import console
from vit.run.jobs import Job
from vit.run.parts.devices import Devices, choose_precision
from vit.run.parts.finetuning import read_finetune
from vit.run.parts.loggers import build_loggers
from vit.run.processes.launcher import is_task_of_step
from vit.run.processes.readable_samples import ReadableSamples
from vit.run.processes.same_samples import SameSamples
from vit.run.records.folder import RunFolder
from vit.run.records.metrics_table import MetricsTable
from vit.run.records.same_folder import SameFolder
from vit.training import (
    AtomicCheckpointIO,
    AverageEpochs,
    AverageWeights,
    Checkpoints,
    Finetune,
    FiniteLoss,
    FollowEpoch,
    GracefulStop,
    Heartbeat,
    Patience,
    PeakMemory,
    Progress,
    ProgressBar,
    StopSignals,
    ThroughputMeter,
    Unfreezing,
    build_strategy,
    mode_of,
)
from vit.training.monitoring.paired_comparison import MARGIN
from vit.training.monitoring.throughput import BatchEnd
from vit.training.precision import BF16_RESIDUAL

log = logging.getLogger("vit")

REFUSED = {  # callback of Lightning -> why it does not fit, and the key that does the same
    GradientAccumulationScheduler: "an optimizer step has a fixed number of micro-batches, so that this callback would "
                                   "sum their gradients; use recipe.accumulate",
    StochasticWeightAveraging: "this callback averages the weights after the last checkpoint, so that neither the "
                               "validation nor model/ would have the average; recipe.average_epochs=N averages the "
                               "last N epochs, recipe.ema=0.99 all steps",
}


def build_trainer(
    job: Job,
    folder: RunFolder,
    devices: Devices,
    signals: StopSignals,
    heartbeat: Heartbeat | None = None,
    done: int | None = None,
) -> Trainer:
    """A Trainer that writes into `folder` and trains for `recipe.epochs`, or for a few batches with `debug`.

    With `init_from` a new run validates the loaded weights first: they may be better than all epochs that follow.

    Args:
        done: optimizer steps before the checkpoint of a resumed run; None in a new run.

    Raises:
        ConfigError: a value that does not fit the model, the machine or another value.
    """
    config, recipe = job.config, job.config["recipe"]
    limits = {"limit_train_batches": 4 * recipe["accumulate"], "limit_val_batches": 2} if config["debug"] else {}
    if config["precision"] == BF16_RESIDUAL and not set_autocast_residual(job.model):
        raise ConfigError(f"precision={BF16_RESIDUAL}: the model has no blocks of this project; use bf16-mixed")
    return Trainer(
        accelerator=devices.accelerator,
        devices=devices.number,
        num_nodes=devices.nodes,
        strategy=choose_strategy(config, devices),
        precision=choose_precision(config["precision"], devices.accelerator, job.model),
        max_epochs=min(2, recipe["epochs"]) if config["debug"] else recipe["epochs"],
        accumulate_grad_batches=recipe["accumulate"],
        log_every_n_steps=config["trainer"]["log_every_n_steps"],
        logger=build_loggers(config, folder),
        callbacks=build_callbacks(job, folder, devices, signals, heartbeat, done or 0),
        plugins=[AtomicCheckpointIO(), *cluster_plugins()],
        default_root_dir=folder.path,
        num_sanity_val_steps=-1 if config["init_from"] and done is None else 0,  # -1: all batches
        use_distributed_sampler=False,  # the batches are those of each process already
        enable_model_summary=False,
        **limits,
    )


def cluster_plugins() -> list[SLURMEnvironment]:
    """Lightning's SLURM environment in a SLURM job, without its handler of SIGUSR1, which would resubmit the job. An
    empty list outside SLURM, in an interactive shell, and under torchrun, whose ranks are not those of SLURM.
    """
    if "SLURM_NTASKS" not in os.environ or TorchElasticEnvironment.detect():
        return []
    return [SLURMEnvironment(auto_requeue=False)] if SLURMEnvironment.detect() or is_task_of_step() else []


def choose_strategy(config: dict, devices: Devices) -> str | Strategy:
    """The strategy of the config, or the one that its `_target_` names. Also called before ranks are started, so that
    errors are reported once.

    Raises:
        ConfigError: an unknown strategy or option, or more devices than the strategy uses.
    """
    node = config["strategy"]
    if "_target_" in node:
        return checked("strategy", instantiate, {key: value for key, value in node.items() if key != "name"})
    if devices.world == 1 and node["name"] in ("auto", "single") and not node.get("options"):
        return "auto"  # one device needs no strategy
    timeout = timeout_of(config["trainer"])
    build = partial(build_strategy, node["name"], devices.accelerator, devices.number, devices.nodes, timeout)
    options = node.get("options")
    return checked("strategy", build, options, names=[f"options.{name}" for name in options or ()])


def timeout_of(trainer: dict) -> float | None:
    """`trainer.timeout` in seconds, None for no limit; 30 minutes in configs of older runs, which lack it."""
    return trainer.get("timeout", 1800)


def build_callbacks(
    job: Job, folder: RunFolder, devices: Devices, signals: StopSignals, heartbeat: Heartbeat | None, done: int
) -> list[Callback]:
    """All callbacks of a run, in the order of their calls. `Checkpoints` follows those with a state, so that it saves
    what they have computed.

    Raises:
        ConfigError: names the key of `callbacks` or `recipe`.
    """
    config, chosen, finetune = job.config, job.config["callbacks"], read_finetune(job.config)
    mode = monitor_mode(job)
    margin = chosen.get("start_margin", MARGIN)  # not in the records of earlier versions
    rescored = job.changed_scoring()
    meter = ThroughputMeter()
    return [
        GracefulStop(signals),
        SameFolder(folder),
        *([SameSamples(job.source.split_lists(), config), ReadableSamples()] if devices.world > 1 else []),
        FollowEpoch(),
        FiniteLoss(),
        meter,
        PeakMemory(),
        ProgressBar(console=console),
        *([Progress(heartbeat)] if heartbeat else []),
        *weight_averages(config["recipe"]),
        *([time_limit(config["trainer"]["max_time"], devices)] if config["trainer"]["max_time"] is not None else []),
        *([Patience(chosen["monitor"], chosen["patience"], mode, bool(rescored))] if chosen["patience"] else []),
        *([unfreezing(job, finetune)] if finetune.freezes else []),
        *job.callbacks(folder),
        *([job.film(folder, chosen["film"])] if chosen.get("film") else []),
        *own_callbacks(chosen),
        MetricsTable(folder.path / "metrics.csv", done),
        Checkpoints(folder.checkpoints, chosen["monitor"], mode, chosen["every_steps"], margin, job.task.sample_scores,
                    rescored),
        BatchEnd(meter),
    ]


def monitor_mode(job: Job) -> str:
    """`min` or `max`, whichever is better for the monitored metric.

    Raises:
        ConfigError: the task has no such metric, or `callbacks.mode` contradicts it in a new run.
    """
    monitor, stated = job.config["callbacks"]["monitor"], job.config["callbacks"]["mode"]
    if monitor not in job.task.metric_names:
        raise ConfigError(f"callbacks.monitor={yaml_text(monitor)}: must be one of {', '.join(job.task.metric_names)}")
    if problem := wrong_mode(monitor, stated):
        if not job.config["resumed"]:
            raise ConfigError(f"{problem}; leave callbacks.mode out")
        log.warning("%s; the resumed run uses %s", problem, mode_of(monitor))
    return mode_of(monitor)


def weight_averages(recipe: dict) -> list[Callback]:
    """The average of the weights that `recipe.ema` or `recipe.average_epochs` requests.

    Raises:
        ConfigError: both are set.
    """
    if recipe["ema"] and recipe["average_epochs"]:
        raise ConfigError(TWO_AVERAGES)
    if recipe["ema"]:
        return [AverageWeights(recipe["ema"])]
    return [AverageEpochs(recipe["average_epochs"])] if recipe["average_epochs"] else []


def time_limit(limit: object, devices: Devices) -> Timer:
    """A timer for `trainer.max_time`. Several processes check it once per epoch, because they must stop at the same
    step.
    """
    return Timer(max_time(limit), interval="step" if devices.world == 1 else "epoch", verbose=False)


def max_time(value: object) -> datetime.timedelta | None:
    """`7m`, `1h30m`, `90s`, `2d` or DD:HH:MM:SS; None for null.

    Raises:
        ConfigError: another format, or zero.
    """
    if value is None:
        return None
    if not (found := duration(value)):
        raise ConfigError(f"trainer.max_time={value}: must be {Duration()}")
    return found


def unfreezing(job: Job, finetune: Finetune) -> Unfreezing:
    """The callback that unfreezes weights as the epochs pass."""
    begins = finetune.begins(job.model, job.config["recipe"]["epochs"])
    return Unfreezing(begins, finetune.batch_norm != "frozen")


def own_callbacks(chosen: dict) -> list[Callback]:
    """Third-party callbacks, each a node with a `_target_` below the `callbacks` node; null switches one off.

    Raises:
        ConfigError: names the key whose `_target_` returns no callback or one of `REFUSED`.
    """
    found = []
    for key, node in chosen.items():
        if isinstance(node, dict) and "_target_" in node:
            found.append(checked(f"callbacks.{key}", instantiate, node))
            check_kind(f"callbacks.{key}", found[-1], Callback, "pytorch_lightning.Callback", node)
            if why := next((why for kind, why in REFUSED.items() if isinstance(found[-1], kind)), None):
                raise ConfigError(f"callbacks.{key}: {why}")
    return found
