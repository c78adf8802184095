"""Lightning's Trainer for a config: strategy, loggers, callbacks."""

import logging
from functools import partial

from hydra.errors import HydraException
from hydra.utils import instantiate
from lightning_fabric.plugins.environments import SLURMEnvironment, TorchElasticEnvironment
from pytorch_lightning import Callback, Trainer
from pytorch_lightning.callbacks import Timer
from pytorch_lightning.loggers import Logger
from pytorch_lightning.strategies import Strategy

from vit.run.config.checked import checked
from vit.run.config.composing import ConfigError, nearest
from vit.run.console import console
from vit.run.ending import max_time
from vit.run.folder import RunFolder
from vit.run.jobs import Job
from vit.run.metrics_table import MetricsTable
from vit.run.parts.devices import Devices, choose_precision
from vit.run.parts.finetuning import read_finetune
from vit.training import (
    AtomicCheckpointIO,
    AverageEpochs,
    AverageWeights,
    Checkpoints,
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

log = logging.getLogger("vit")

OPTIONS = ("monitor", "mode", "patience", "every_steps")  # keys of the callbacks node


def build_trainer(
    job: Job,
    folder: RunFolder,
    devices: Devices,
    signals: StopSignals,
    heartbeat: Heartbeat | None = None,
    done: int | None = None,
) -> Trainer:
    """A Trainer that writes into `folder` and trains for `recipe.epochs`, or a few batches where `debug` is on.

    A run that begins with trained weights validates them first: they may be better than every epoch that follows.

    `done`: optimizer steps that a resumed run has behind it; None for a run that begins.
    """
    config, recipe = job.config, job.config["recipe"]
    limits = {"limit_train_batches": 4 * recipe["accumulate"], "limit_val_batches": 2} if config["debug"] else {}
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
        use_distributed_sampler=False,
        enable_model_summary=False,
        **limits,
    )


def choose_strategy(config: dict, devices: Devices) -> str | Strategy:
    """The strategy of the config, or the one that its `_target_` names; also called before ranks are started, so that
    errors are reported once.

    Raises:
        ConfigError: an unknown strategy or option, or more devices than the strategy uses.
    """
    node, timeout = config["strategy"], check_timeout(config["trainer"])
    if "_target_" in node:
        return checked("strategy", instantiate, {key: value for key, value in node.items() if key != "name"})
    build = partial(build_strategy, node["name"], devices.accelerator, devices.number, devices.nodes, timeout)
    return checked("strategy", build, node.get("options"))


def cluster_plugins() -> list[SLURMEnvironment]:
    """Under SLURM without Lightning's handler of SIGUSR1, which would resubmit the job on its own."""
    slurm = SLURMEnvironment.detect() and not TorchElasticEnvironment.detect()
    return [SLURMEnvironment(auto_requeue=False)] if slurm else []


def check_timeout(trainer: dict) -> float | None:
    """`trainer.timeout` in seconds, or None for no limit; 30 minutes in the records of runs that lack it."""
    timeout = trainer.get("timeout", 1800)
    if timeout is not None and (isinstance(timeout, bool) or not isinstance(timeout, int | float) or timeout <= 0):
        raise ConfigError(f"trainer.timeout={timeout}: must be a number of seconds above 0, or null for no limit")
    return timeout


def build_callbacks(
    job: Job, folder: RunFolder, devices: Devices, signals: StopSignals, heartbeat: Heartbeat | None, done: int
) -> list[Callback]:
    """The checkpoint callback stands last: what it saves, the others have finished with.

    Several processes look at the clock once an epoch, because they must agree on what it says.
    """
    config, chosen, recipe = job.config, job.config["callbacks"], job.config["recipe"]
    if chosen["monitor"] not in job.task.metric_names:
        raise ConfigError(f"callbacks.monitor={chosen['monitor']}: must be one of {', '.join(job.task.metric_names)}")
    mode = mode_of(chosen["monitor"])
    if chosen["mode"] not in (None, mode):
        contradiction = (
            f"callbacks.mode={chosen['mode']}: {chosen['monitor']} is best where it is "
            f"{'lowest' if mode == 'min' else 'highest'} ({mode})"
        )
        if not config["resumed"]:
            raise ConfigError(f"{contradiction}; leave callbacks.mode out")
        log.warning("%s; the run goes on with that", contradiction)
    callbacks: list[Callback] = [
        GracefulStop(signals),
        FollowEpoch(),
        FiniteLoss(),
        ThroughputMeter(),
        PeakMemory(),
        ProgressBar(console=console),
    ]
    if heartbeat:
        callbacks.append(Progress(heartbeat))
    if recipe["ema"] and recipe["average_epochs"]:
        raise ConfigError("recipe.ema and recipe.average_epochs are two ways to average; set one of them to null")
    if recipe["ema"]:
        callbacks.append(AverageWeights(recipe["ema"]))
    if recipe["average_epochs"]:
        callbacks.append(AverageEpochs(recipe["average_epochs"]))
    if config["trainer"]["max_time"]:
        interval = "step" if devices.world == 1 else "epoch"
        callbacks.append(Timer(max_time(config["trainer"]["max_time"]), interval=interval, verbose=False))
    if chosen["patience"]:
        callbacks.append(Patience(chosen["monitor"], mode=mode, patience=chosen["patience"]))
    if (finetune := read_finetune(config)).freezes:
        begins = finetune.begins(job.model, recipe["epochs"])
        callbacks.append(Unfreezing(begins, finetune.batch_norm != "frozen"))
    table = MetricsTable(folder.path / "metrics.csv", done)
    return [
        *callbacks,
        *job.callbacks(folder),
        *own_callbacks(chosen),
        table,
        Checkpoints(folder.checkpoints, chosen["monitor"], mode, chosen["every_steps"]),
    ]


def own_callbacks(chosen: dict) -> list[Callback]:
    """The callbacks that the user adds to the `callbacks` node, each a node with a `_target_`.

    Raises:
        ConfigError: names the key that is neither an option nor such a node.
    """
    made = []
    for key, node in chosen.items():
        if isinstance(node, dict) and "_target_" in node:
            made.append(checked(f"callbacks.{key}", instantiate, node))
        elif key not in OPTIONS:
            raise ConfigError(f"callbacks.{key}={node}: no such option{nearest(key, list(OPTIONS))}; a callback of "
                              f"your own is named by callbacks.{key}._target_")
    return made


def build_loggers(config: dict, folder: RunFolder) -> list[Logger]:
    """What the logger group names; `metrics.csv` is written beside them."""
    loggers: list[Logger] = []
    for settings in config["logger"].values():
        place = (
            {"save_dir": str(folder.path), "name": "tensorboard", "version": ""}
            if "TensorBoard" in settings["_target_"]
            else {}
        )
        try:
            loggers.append(instantiate({**place, **settings}))
        except (HydraException, ModuleNotFoundError) as error:
            cause = error.__cause__ or error
            raise ConfigError(f"logger {settings['_target_']} cannot be used: {' '.join(str(cause).split())}") from None
    return loggers
