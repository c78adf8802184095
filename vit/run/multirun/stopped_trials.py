"""Trials of Optuna that a stop leaves without a value: a study in a storage repeats them in the next search.

Hydra's sweeper requests trials from a study and reports their values to it. A trial without a value would stay in the
state RUNNING. Each trial records its process, so that the next search finds those of a process that was killed.
"""

import contextlib
import logging
import os
import pathlib
import socket
import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING

from omegaconf import DictConfig

from vit.files.machine import is_alive

if TYPE_CHECKING:
    import optuna

log = logging.getLogger("vit")

PROCESS = "vit_process"  # user attribute of a trial: HOST:PID of the search that requested it


@contextlib.contextmanager
def repeated_if_stopped(sweeper: DictConfig, continued: pathlib.Path | None = None) -> Iterator[None]:
    """Context manager of a search: it repeats the unfinished trials of earlier searches in the same study, and marks
    its own for the next search if it is stopped.

    Args:
        continued: folder with runs of an earlier search, whose trials the study must contain.
    """
    if not str(sweeper.get("_target_")).startswith("hydra_plugins.hydra_optuna") or not sweeper.get("storage"):
        yield
        return
    import optuna

    ask, studies = optuna.Study.ask, []

    def ask_and_record(study: "optuna.Study", *arguments: object, **options: object) -> "optuna.Trial":
        if not studies:
            studies.append(study)
            if continued is not None and not study.trials:
                log.warning("the study %s in %s has no trials, but %s has runs: this search begins anew, without their "
                            "results; is %s another file in this working directory?", study.study_name,
                            sweeper.storage, continued, sweeper.storage)
            repeat_stopped(study)
        trial = ask(study, *arguments, **options)
        trial.set_user_attr(PROCESS, f"{socket.gethostname()}:{os.getpid()}")
        return trial

    optuna.Study.ask = ask_and_record
    try:
        yield
    finally:
        optuna.Study.ask = ask
        for study in studies:
            repeat_stopped(study)


def repeat_stopped(study: "optuna.Study") -> None:
    """Ends the trials that this process, or one that is no longer alive, has left running, and queues their values."""
    import optuna

    if isinstance(study.sampler, optuna.samplers.GridSampler):  # repeats running trials itself, at its end
        return
    running = study.get_trials(states=[optuna.trial.TrialState.RUNNING])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)  # of `enqueue_trial`
        for trial in filter(lambda trial: is_stopped(trial.user_attrs.get(PROCESS, "")), running):
            study.tell(trial.number, state=optuna.trial.TrialState.FAIL)
            if trial.params:
                study.enqueue_trial(trial.params)


def is_stopped(process: str) -> bool:
    """Whether HOST:PID is this process, which asks for no more trials, or one of this machine that has ended."""
    host, _, pid = process.rpartition(":")
    return host == socket.gethostname() and (int(pid) == os.getpid() or not is_alive(int(pid)))
