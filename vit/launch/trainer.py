"""Lightning's Trainer for a config: strategy, precision, loggers, callbacks; and torch.compile."""

import shutil

from hydra.errors import HydraException
from hydra.utils import instantiate
from pytorch_lightning import Callback, Trainer
from pytorch_lightning.callbacks import EarlyStopping, Timer
from pytorch_lightning.loggers import Logger
from torch import nn

from vit.launch.composing import ConfigError
from vit.launch.console import console
from vit.launch.folder import RunFolder
from vit.launch.metrics_log import MetricsLog
from vit.training import (
    AtomicCheckpointIO,
    AverageWeights,
    Checkpoints,
    FiniteLoss,
    FollowEpoch,
    GracefulStop,
    ProgressBar,
    ThroughputMeter,
    build_strategy,
    resolve_precision,
)


def build_trainer(config: dict, folder: RunFolder, done: int = 0) -> Trainer:
    """A Trainer that writes into `folder` and trains for `recipe.epochs`, or a few batches where `debug` is on.

    `done`: optimizer steps that a resumed run has behind it.
    """
    wanted, recipe = config["trainer"], config["recipe"]
    accelerator = resolve_accelerator(wanted["accelerator"])
    devices = resolve_devices(wanted["devices"], accelerator)
    limits = {"limit_train_batches": 4, "limit_val_batches": 2} if config["debug"] else {}
    return Trainer(
        accelerator=accelerator,
        devices=devices,
        num_nodes=wanted["num_nodes"],
        strategy=build_strategy(config["strategy"]["name"], accelerator, devices, wanted["num_nodes"]),
        precision=resolve_precision(config["precision"], accelerator),
        max_epochs=min(2, recipe["epochs"]) if config["debug"] else recipe["epochs"],
        accumulate_grad_batches=recipe["accumulate"],
        log_every_n_steps=wanted["log_every_n_steps"],
        logger=build_loggers(config, folder, done),
        callbacks=build_callbacks(config, folder),
        plugins=[AtomicCheckpointIO()],
        default_root_dir=folder.path,
        num_sanity_val_steps=0,
        use_distributed_sampler=False,
        enable_model_summary=False,
        **limits,
    )


def build_callbacks(config: dict, folder: RunFolder) -> list[Callback]:
    """The checkpoint callback stands last: what it saves, the others have finished with."""
    chosen, recipe = config["callbacks"], config["recipe"]
    callbacks: list[Callback] = [GracefulStop(), FollowEpoch(), FiniteLoss(), ThroughputMeter(), ProgressBar(console=console)]
    if recipe["ema"]:
        callbacks.append(AverageWeights(recipe["ema"]))
    if config["trainer"]["max_time"]:
        callbacks.append(Timer(config["trainer"]["max_time"], interval="epoch"))
    if chosen["patience"]:
        callbacks.append(EarlyStopping(chosen["monitor"], mode=chosen["mode"], patience=chosen["patience"]))
    return [*callbacks, Checkpoints(folder.checkpoints, chosen["monitor"], chosen["mode"], chosen["every_steps"])]


def build_loggers(config: dict, folder: RunFolder, done: int) -> list[Logger]:
    """`metrics.csv` always, and what the logger group names."""
    loggers: list[Logger] = [MetricsLog(folder.path / "metrics.csv", done)]
    for settings in config["logger"].values():
        place = {"save_dir": str(folder.path), "name": "tensorboard", "version": ""} if "TensorBoard" in settings["_target_"] else {}
        try:
            loggers.append(instantiate({**place, **settings}))
        except (HydraException, ModuleNotFoundError) as error:
            cause = error.__cause__ or error
            raise ConfigError(f"logger {settings['_target_']} cannot be used: {' '.join(str(cause).split())}") from None
    return loggers


def resolve_accelerator(name: str) -> str:
    """`auto` -> gpu where CUDA is, else cpu."""
    import torch

    if name == "auto":
        return "gpu" if torch.cuda.is_available() else "cpu"
    if name in ("gpu", "cuda") and not torch.cuda.is_available():
        raise ConfigError(f"trainer.accelerator={name}: this machine has no CUDA device; use trainer.accelerator=cpu or auto")
    return name


def resolve_devices(devices: int | str, accelerator: str) -> int:
    """`auto` or -1 -> all GPUs, or one CPU process."""
    import torch

    if devices in ("auto", -1):
        return torch.cuda.device_count() if accelerator == "gpu" else 1
    if not isinstance(devices, int) or devices < 1:
        raise ConfigError(f"trainer.devices={devices}: must be a number of devices, or auto")
    if accelerator == "gpu" and devices > torch.cuda.device_count():
        raise ConfigError(f"trainer.devices={devices}: this machine has {torch.cuda.device_count()} GPUs")
    return devices


def compile_model(model: nn.Module, accelerator: str) -> None:
    """torch.compile in place, which keeps all names; a missing compiler is told now, not in the first step."""
    compilers = ("c++", "g++", "clang++")
    if accelerator == "cpu" and not any(shutil.which(name) for name in compilers):
        raise ConfigError(f"compile=true needs a C++ compiler on CPU and found none of {', '.join(compilers)}; use compile=false")
    model.compile()
