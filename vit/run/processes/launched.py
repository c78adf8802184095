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
SAME_ERROR = 2.0  # seconds between two ranks that find the same error before they join


def started_by() -> tuple[str, int]:
    """The launcher of this process, and the number of processes that it started; ("", 1) without one."""
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
    hidden = {name: os.environ.pop(name) for name in VARIABLES if name in os.environ}
    before, rank_zero_only.rank = rank_zero_only.rank, 0
    try:
        yield (f"{launcher} started {number} processes: with strategy=single each of them is a run of its "
               "own; strategy=ddp trainer.devices=N, their number per machine, makes them one "
               "run",) * (number > 1 and first)
    finally:
        os.environ.update(hidden)
        rank_zero_only.rank = before


def is_single(config: dict) -> bool:
    """Whether each process is a run of its own."""
    return config["strategy"].get("name") == "single" and "_target_" not in config["strategy"]


def check_number(devices: "Devices") -> None:
    """Checks that torchrun or srun started a process for each device. The only task of srun starts them itself.

    Raises:
        ConfigError: another number of them, or SLURM's total, which Lightning refuses.
    """
    launcher, number = started_by()
    if (launcher, number) == ("srun", 1):
        return
    if launcher and number != devices.world:
        raise ConfigError(f"trainer.devices={devices.number} on {number_of(devices.nodes, 'machine')} means "
                          f"{number_of(devices.world, 'process')}, but {launcher} started {number}; trainer.devices is "
                          "their number per machine, trainer.num_nodes the number of machines")
    if launcher == "srun" and is_launched() and "SLURM_NTASKS_PER_NODE" not in os.environ:
        raise ConfigError(f"--ntasks={number} of SLURM does not state the processes of a machine: use "
                          f"--nodes={devices.nodes} --ntasks-per-node={devices.number}")


def leave_error_to_first_rank() -> None:
    """Wait a moment in a process of torchrun that is not the first of its machine, before an error is printed: if the
    first has failed too, as all do at a wrong override, torchrun ends this one, and the error is printed once.

    An error of a rank that has joined the others may be its own, and the cause of theirs: no wait.
    """
    distributed = sys.modules.get("torch.distributed")
    joined = distributed is not None and distributed.is_available() and distributed.is_initialized()
    first = os.environ.get("LOCAL_RANK", "0") == "0"
    if joined or first or started_by()[0] != "torchrun" or threading.current_thread() is not threading.main_thread():
        return
    earlier = signal.signal(signal.SIGTERM, signal.SIG_DFL)  # ends this process without a message
    time.sleep(SAME_ERROR)
    signal.signal(signal.SIGTERM, earlier or signal.SIG_DFL)  # None: a handler in C
