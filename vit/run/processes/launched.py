"""Processes that torchrun or srun started: how many, and which of them are separate runs."""

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from vit.messages import number_of
from vit.run.config.composing import ConfigError
from vit.run.processes.launcher import LAUNCHER, is_launched

if TYPE_CHECKING:
    from vit.run.parts.devices import Devices

# variables by which vit and Lightning recognize a rank; LOCAL_WORLD_SIZE, which divides the cores, is not removed
VARIABLES = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "GROUP_RANK", "TORCHELASTIC_RUN_ID", "SLURM_PROCID", "SLURM_NTASKS")
SAME_ERROR = 2.0  # seconds within which all ranks find an error that occurs before they join


def started_by() -> tuple[str, int]:
    """The launcher of this process, and the number of processes that it started; ("", 1) without a launcher."""
    if "RANK" in os.environ and LAUNCHER not in os.environ:
        return "torchrun", int(os.environ.get("WORLD_SIZE", 1))
    if "RANK" not in os.environ and "SLURM_STEP_NUM_TASKS" in os.environ:
        return "srun", int(os.environ["SLURM_STEP_NUM_TASKS"])
    return "", 1


@contextlib.contextmanager
def own_run(config: dict) -> Iterator[tuple[str, ...]]:
    """Within this context a process with `strategy=single` is not a rank: it has its own folder, log and result, such
    as each task of `srun bash -c 'python train.py seed=$SLURM_PROCID'`. Yields a warning if there are several.
    """
    if not is_single(config) or LAUNCHER in os.environ or not any(name in os.environ for name in VARIABLES):
        yield ()
        return
    from lightning_fabric.utilities.rank_zero import rank_zero_only

    launcher, number = started_by()
    first = os.environ.get("RANK", os.environ.get("SLURM_PROCID", "0")) == "0"
    removed = {name: os.environ.pop(name) for name in VARIABLES if name in os.environ}
    before, rank_zero_only.rank = rank_zero_only.rank, 0
    try:
        warning = (f"{launcher} started {number} processes: with strategy=single each of them is a run of its own; to "
                   "make them one run, set strategy=ddp and trainer.devices to the number of processes per machine")
        yield (warning,) if number > 1 and first else ()
    finally:
        os.environ.update(removed)
        rank_zero_only.rank = before


def is_single(config: dict) -> bool:
    """Whether each process is a run of its own."""
    return config["strategy"].get("name") == "single" and "_target_" not in config["strategy"]


def check_number(devices: "Devices") -> None:
    """Checks that torchrun or srun started a process for each device. A single task of srun starts them itself.

    Raises:
        ConfigError: the number of processes differs, or SLURM has only their total number, which Lightning refuses.
    """
    launcher, number = started_by()
    if (launcher, number) == ("srun", 1):
        return
    if launcher and number != devices.world:
        raise ConfigError(f"trainer.devices={devices.number} on {number_of(devices.nodes, 'machine')} means "
                          f"{number_of(devices.world, 'process')}, but {launcher} started {number}; set "
                          "trainer.devices to the number of processes per machine, and trainer.num_nodes to the number "
                          "of machines")
    if launcher == "srun" and is_launched() and "SLURM_NTASKS_PER_NODE" not in os.environ:
        raise ConfigError(f"SLURM's --ntasks={number} does not set the number of processes per machine; use "
                          f"--nodes={devices.nodes} --ntasks-per-node={devices.number}")


def leave_error_to_first_rank() -> None:
    """Wait a moment before an error is printed, in a process of torchrun that is not the first of its machine. All
    processes fail at an error such as a wrong override; then torchrun ends the waiting ones, and the error is printed
    once.

    A rank that has joined the others does not wait, because its error may be the cause of theirs.
    """
    distributed = sys.modules.get("torch.distributed")
    joined = distributed is not None and distributed.is_available() and distributed.is_initialized()
    first = os.environ.get("LOCAL_RANK", "0") == "0"
    if joined or first or started_by()[0] != "torchrun" or threading.current_thread() is not threading.main_thread():
        return
    earlier = signal.signal(signal.SIGTERM, signal.SIG_DFL)  # ends this process without a message
    time.sleep(SAME_ERROR)
    signal.signal(signal.SIGTERM, earlier or signal.SIG_DFL)  # None: a handler in C
