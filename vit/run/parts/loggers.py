"""The loggers of a run: they are built from the config and get it as hyperparameters. Their errors during the training,
such as those of a tracker that cannot be reached, do not end the run.
"""

import contextlib
import functools
import logging
import os
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from hydra.errors import HydraException
from hydra.utils import instantiate
from pytorch_lightning import Trainer
from pytorch_lightning.loggers import Logger, TensorBoardLogger

from vit.bundle.folder_replacement import locked
from vit.files.credentials import masked
from vit.messages import one_line
from vit.run.config.overrides import ConfigError, check_kind, dotted_items, yaml_text
from vit.run.parts.named_targets import check_target
from vit.run.records.folder import CONFIG, RunFolder
from vit.training.fault_tolerance.interrupts import find_stop

log = logging.getLogger("vit")

RUN_ID = {"MLFlowLogger": "run_id", "WandbLogger": "id"}  # the option that continues a run of the tracker
WANDB = "WandbLogger"
PACKAGES = {  # target -> its package, which the extra of the same name installs
    "pytorch_lightning.loggers.MLFlowLogger": "mlflow",
    "pytorch_lightning.loggers.WandbLogger": "wandb",
}
MLFLOW_DATABASE = "mlflow.store.db.utils"  # the logger of its errors
TENSORBOARD_THREAD = "tensorboard.summary.writer.event_file_writer"  # the module of its class
begun_in_wandb: set[str] = set()  # ids of the W&B runs that trainings of this process began
LEFT_OUT = ("allow_change", "classes", "compare", "leakage", "logger", "overrides", "resume", "resumed", "run_dir",
            "runs", "teacher_sha256")  # not settings of the training
CALLS = ("log_metrics", "save", "finalize")  # of Lightning's training loop
SILENCE = 10  # seconds without an answer of a tracker, after which a warning names it
PAUSE = 20  # times the seconds of a failed call: waiting for a tracker takes at most 5 % of the time


def check_loggers(loggers: dict) -> None:
    """Checks that the packages of the trackers are installed, and that there are such classes with these options.

    Raises:
        ConfigError: names the logger, its package and the command that installs it; or as `check_target`.
    """
    for key, settings in loggers.items():
        package = PACKAGES.get(str(settings.get("_target_"))) if isinstance(settings, dict) else None
        if package and sys.modules.get(package) is None and find_spec(package) is None:
            raise ConfigError(f"logger.{key} needs the package {package}, which is not installed: "
                              f"pip install 'vitwright[{package}]', or set logger.{key}=null")
        if isinstance(settings, dict) and isinstance(target := settings.get("_target_"), str):
            check_target(f"logger.{key}", settings, added=("save_dir",) if "TensorBoard" in target else ())


def build_loggers(config: dict, folder: RunFolder) -> list[Logger]:
    """The loggers of the `logger` node, without those that are null; `metrics.csv` is written in any case, also where
    a logger fails during the training.

    Raises:
        ConfigError: a logger has no `_target_`, cannot be imported or rejects its options.
    """
    loggers: list[Logger] = []
    for key, settings in config["logger"].items():
        if settings is None:
            continue
        if not isinstance(settings, dict) or not isinstance(target := settings.get("_target_"), str):
            raise ConfigError(f"logger.{key}={yaml_text(settings)}: must be null, or a node with the _target_ of a "
                              "logger, such as pytorch_lightning.loggers.CSVLogger")
        options = {**logger_defaults(target, settings, folder), **settings}
        try:
            with reported_silence(f"logger.{key}"), alone_in_store(settings):  # Comet is reached here
                logger = instantiate(options)
        except (HydraException, ModuleNotFoundError) as error:
            cause = error.__cause__ or error
            raise ConfigError(f"logger.{key}: {target} cannot be used: {reason(cause, 1000)}"
                              f"{without_scheme(options.get('tracking_uri'))}") from None
        if not all(hasattr(logger, call) for call in CALLS):
            check_kind(f"logger.{key}", logger, Logger, "pytorch_lightning.loggers.Logger", settings)
        loggers.append(LoggerErrors(f"logger.{key}").guard(logger))
    return loggers


def logger_defaults(target: str, settings: dict, folder: RunFolder) -> dict[str, str]:
    """Arguments of a logger that its node omits.

    For MLflow the store is MLflow's own default, that of MLFLOW_TRACKING_URI or a database in the working directory,
    because Lightning's default is a folder, which MLflow 3 refuses. A new run of MLflow or W&B is named after the run
    folder: MLflow would draw its name with Python's random numbers, so that all runs of one seed had the same name.
    """
    if "TensorBoard" in target:
        return {"save_dir": str(folder.path), "name": "tensorboard", "version": ""}
    name = "/".join(folder.path.resolve().parts[-2:])
    if target.endswith(f".{WANDB}") and not settings.get("id") and "WANDB_NAME" not in os.environ:
        return {"name": name}
    if not target.endswith(".MLFlowLogger"):
        return {}
    named = settings.get("run_id") or "mlflow.runName" in (settings.get("tags") or {})
    options = {} if named else {"run_name": name}
    uri = None if "save_dir" in settings else mlflow_store()
    return options if uri is None else {**options, "tracking_uri": uri}


def mlflow_store() -> str | None:
    """The address of the store that MLflow uses by itself; None if it is not installed, as Lightning's error says."""
    try:
        from mlflow import get_tracking_uri
    except ImportError:
        return None
    return get_tracking_uri()


@contextlib.contextmanager
def alone_in_store(settings: dict) -> Iterator[None]:
    """Context manager: only one process of this machine at a time starts a run in a local store of MLflow, because
    processes that create its tables or its experiment at the same time fail. It has no effect for other loggers and for
    MLflow servers.
    """
    folder = None
    if settings["_target_"].endswith(".MLFlowLogger"):
        folder = local_folder(str(settings.get("tracking_uri") or mlflow_store()))
    with contextlib.nullcontext() if folder is None or not folder.is_dir() else locked(folder):
        yield


def local_folder(uri: str) -> Path | None:
    """The folder of a database of SQLite, the working directory for a store in files, None for a server."""
    _, is_database, file = uri.partition("sqlite:///")
    if is_database:
        return Path(file).parent
    return Path() if uri.startswith("file:") or "://" not in uri else None


def without_scheme(uri: object) -> str:
    """A hint at an address such as localhost:5000, which MLflow takes for a folder."""
    if not isinstance(uri, str) or not re.fullmatch(r"[\w.-]+:\d+/?", uri):
        return ""
    return f"; MLflow takes the address {uri} for a folder: write http://{uri}"


def log_config(config: dict, folder: RunFolder, trainer: Trainer) -> None:
    """Log the config to every logger as hyperparameters; a warning names a logger that cannot store it. The ids of runs
    in MLflow and W&B become part of the recorded config, so that a resumed run continues them.

    Raises:
        ConfigError: a tracker cannot begin a run, or does not have the one that a resumed run continues.
    """
    values = hyperparameters(config)
    nodes = {key: node for key, node in config["logger"].items() if node is not None}
    ids = {}
    for (key, node), logger in zip(nodes.items(), trainer.loggers, strict=True):
        option = RUN_ID.get(node["_target_"].rpartition(".")[2])
        with alone_in_store(node):
            begin(logger, f"logger.{key}", option, node.get(option))
        if option:
            ids[key] = {**node, option: logger.version}
        try:
            log_values(logger, values, config["callbacks"]["monitor"])
        except Exception as error:  # each tracker has its own limits and errors
            log.warning("logger.%s has not stored all of the config (%s)", key, reason(error))
    if ids:
        folder.write(CONFIG, {**config, "logger": {**config["logger"], **ids}})


def begin(logger: Logger, key: str, option: str | None, former: str | None) -> None:
    """Begins the run of the tracker, or continues `former`.

    Raises:
        ConfigError: the tracker cannot begin a run, or does not have the run `former`.
    """
    ours = type(logger).__name__ == WANDB and ended_in_wandb()
    try:
        with reported_silence(key):
            getattr(logger, "experiment", None)
    except Exception as error:
        if former is None:
            raise ConfigError(f"{key} cannot be used ({reason(error)}); {key}=null leaves it out") from error
        raise ConfigError(f"{key}.{option}={former}: the tracker cannot continue this run ({reason(error)}); "
                          f"++{key}.{option}=null begins another one") from None
    if ours:
        begun_in_wandb.add(logger.version)


@contextlib.contextmanager
def reported_silence(key: str) -> Iterator[None]:
    """Context manager: a warning after `SILENCE` seconds in it, because some trackers repeat a call for minutes before
    they fail.
    """
    text = "%s: no answer from the tracker for %g s; the run waits until it answers or gives up (%s=null leaves it out)"
    timer = threading.Timer(SILENCE, log.warning, (text, key, SILENCE, key))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


@contextlib.contextmanager
def without_tracebacks_of_trackers() -> Iterator[None]:
    """Within this context, errors in TensorBoard's writer thread and of MLflow's database print no traceback, because
    the logger also raises them, in the same or in its next call.
    """
    earlier, database = threading.excepthook, logging.getLogger(MLFLOW_DATABASE)

    def print_others(error: "threading.ExceptHookArgs") -> None:
        if type(error.thread).__module__ != TENSORBOARD_THREAD:
            earlier(error)

    def is_no_error(record: logging.LogRecord) -> bool:
        return not record.exc_info

    threading.excepthook = print_others
    database.addFilter(is_no_error)
    try:
        yield
    finally:
        threading.excepthook = earlier
        database.removeFilter(is_no_error)


def reason(error: BaseException, limit: int = 300) -> str:
    """One line about an error of a tracker; that of a database is without the SQL."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(found := getattr(cause, "orig", None), Exception):
            return one_line(found, limit)
        cause = cause.__cause__ or cause.__context__
    return one_line(error, limit)


def ended_in_wandb() -> bool:
    """End the W&B run of an earlier training in this process, which the logger would continue. False if the program
    has begun a run itself, which the logger does continue.
    """
    run = getattr(sys.modules.get("wandb"), "run", None)
    if run is None or run.id not in begun_in_wandb:
        return run is None
    run.finish()
    return True


def end_failed_run(logger: Logger, status: str) -> None:
    """End with exit code 1 the W&B run of a training that stopped or failed: otherwise W&B shows it as finished. A run
    that the program has begun itself goes on.
    """
    if status != "success" and type(logger).__name__ == WANDB and logger.version in begun_in_wandb:
        logger.experiment.finish(exit_code=1)


def log_values(logger: Logger, values: dict, monitor: str) -> None:
    """Give a logger the hyperparameters. TensorBoard also gets the name of the monitored metric, whose values it then
    shows beside them, in place of Lightning's `hp_metric` of -1.
    """
    if not isinstance(logger, TensorBoardLogger):
        return logger.log_hyperparams(values)
    from torch.utils.tensorboard.summary import hparams

    logger.log_hyperparams(values, {})
    for summary in hparams(values, {monitor: 0.0})[:2]:  # the third one would say that the run has succeeded
        logger.experiment.file_writer.add_summary(summary)


def hyperparameters(config: dict) -> dict[str, bool | int | float | str]:
    """Dotted key -> value of the settings of the training, without credentials; null, lists and empty nodes are texts,
    as in an override, which all loggers can store.
    """
    settings = masked({key: value for key, value in config.items() if key not in LEFT_OUT})
    return {key: value if isinstance(value, int | float | str) else yaml_text(value)
            for key, value in dotted_items(settings) if not isinstance(value, dict) or not value}


@dataclass
class LoggerErrors:
    """The first error of a logger is a warning; later ones are not reported.

    After a failed call the logger gets nothing for `PAUSE` times the seconds of that call, because some trackers repeat
    a call for minutes.

    Args:
        key: the node of the logger in the config.
    """

    key: str
    failed: bool = False
    paused_until: float = 0.0

    def guard(self, logger: Logger) -> Logger:
        """The same logger; its methods no longer raise errors."""
        finalize = logger.finalize

        def finalize_run(status: str) -> None:
            finalize(status)
            end_failed_run(logger, status)

        logger.finalize = finalize_run
        for name in CALLS:
            setattr(logger, name, self._guarded(name, getattr(logger, name)))
        return logger

    def _guarded(self, name: str, call: Callable) -> Callable:
        @functools.wraps(call)
        def guarded(*arguments: object, **options: object) -> None:
            started = time.monotonic()
            if started < self.paused_until and name != "finalize":
                return
            try:
                with reported_silence(self.key) if not self.failed else contextlib.nullcontext():
                    call(*arguments, **options)
            except Exception as error:
                if find_stop(error):
                    raise
                if not self.failed:
                    log.warning("%s: %s failed (%s); the run continues, and values may be missing there; metrics.csv "
                                "has all of them", self.key, name, reason(error))
                self.failed = True
                self.paused_until = time.monotonic() + PAUSE * (time.monotonic() - started)

        return guarded
