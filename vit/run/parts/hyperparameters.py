"""The config of a run as the hyperparameters of its loggers."""

import logging
import sys
from collections.abc import Iterator

from pytorch_lightning import Trainer
from pytorch_lightning.loggers import Logger, TensorBoardLogger

from vit.messages import one_line
from vit.run.config.overrides import ConfigError, yaml_text
from vit.run.records.folder import CONFIG, RunFolder

log = logging.getLogger("vit")

RUN_ID = {"MLFlowLogger": "run_id", "WandbLogger": "id"}  # the option that continues a run of the tracker
WANDB = "WandbLogger"
begun_in_wandb: set[str] = set()  # ids of the W&B runs that trainings of this process began
LEFT_OUT = ("allow_change", "classes", "compare", "leakage", "logger", "overrides", "resume", "resumed", "run_dir",
            "runs")  # not settings of the training


def log_config(config: dict, folder: RunFolder, trainer: Trainer) -> None:
    """Gives the config to every logger as hyperparameters; what a logger cannot store is a warning. The ids of the runs
    of MLflow and W&B become part of the recorded config, so that a resumed run continues them.

    Raises:
        ConfigError: a tracker cannot begin a run, or does not have the one that a resumed run continues.
    """
    values = dict(flat({key: value for key, value in config.items() if key not in LEFT_OUT}))
    nodes = {key: node for key, node in config["logger"].items() if node is not None}
    ids = {}
    for (key, node), logger in zip(nodes.items(), trainer.loggers, strict=True):
        option = RUN_ID.get(node["_target_"].rpartition(".")[2])
        begin(logger, f"logger.{key}", option, node.get(option))
        if option:
            ids[key] = {**node, option: logger.version}
        try:
            log_values(logger, values, config["callbacks"]["monitor"])
        except Exception as error:  # each tracker has its own limits and errors
            log.warning("logger.%s has not stored all of the config (%s)", key, one_line(error))
    if ids:
        folder.write(CONFIG, {**config, "logger": {**config["logger"], **ids}})


def begin(logger: Logger, key: str, option: str | None, former: str | None) -> None:
    """Begins the run of the tracker, or continues `former`.

    Raises:
        ConfigError: the tracker cannot begin a run, or does not have the run `former`.
    """
    ours = type(logger).__name__ == WANDB and ended_in_wandb()
    try:
        getattr(logger, "experiment", None)
    except Exception as error:
        if former is None:
            raise ConfigError(f"{key} cannot be used ({one_line(error)}); {key}=null leaves it out") from error
        raise ConfigError(f"{key}.{option}={former}: the tracker cannot continue this run ({one_line(error)}); "
                          f"++{key}.{option}=null begins another one") from None
    if ours:
        begun_in_wandb.add(logger.version)


def ended_in_wandb() -> bool:
    """End the W&B run of an earlier training in this process, which the logger would continue; whether there is no
    other run, which the program has begun itself and the logger continues.
    """
    run = getattr(sys.modules.get("wandb"), "run", None)
    if run is None or run.id not in begun_in_wandb:
        return run is None
    run.finish()
    return True


def log_values(logger: Logger, values: dict, monitor: str) -> None:
    """TensorBoard gets the name of the monitored metric, whose values it then shows beside the hyperparameters, in
    place of Lightning's `hp_metric` of -1.
    """
    if not isinstance(logger, TensorBoardLogger):
        return logger.log_hyperparams(values)
    from torch.utils.tensorboard.summary import hparams

    logger.log_hyperparams(values, {})
    for summary in hparams(values, {monitor: 0.0})[:2]:  # the third one would say that the run has succeeded
        logger.experiment.file_writer.add_summary(summary)


def flat(node: dict, prefix: str = "") -> Iterator[tuple[str, bool | int | float | str]]:
    """(dotted key, value) of nested nodes; null and lists as in an override, which all loggers can store."""
    for key, value in node.items():
        if isinstance(value, dict) and value:
            yield from flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value if isinstance(value, int | float | str) else yaml_text(value)
