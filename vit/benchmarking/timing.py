"""Programs timed in turns, so that other work on the machine affects all of them alike.

Other work slows a program down at some moments only. Programs that are compared therefore run in turns,
A B B A A B ..., and every round has one time of each.
"""

import time
from collections.abc import Callable, Mapping

from vit.messages import ArgumentError

Program = Callable[[], object]
Clock = Callable[[], float]  # seconds since a fixed moment
Times = dict[str, list[float]]  # program -> seconds in each complete round


def wall_seconds() -> float:
    """Elapsed seconds, after all work on the GPU is done."""
    wait_for_gpu()
    return time.perf_counter()


def processor_seconds() -> float:
    """Seconds that all threads of this process, and its ended child processes, have spent on a processor.

    Time in which another program has the processor does not count. With two threads that are busy all the time it is
    twice the elapsed time.
    """
    try:
        import resource
    except ModuleNotFoundError:  # Windows
        return time.process_time()
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


CLOCKS: dict[str, Clock] = {"wall": wall_seconds, "processor": processor_seconds}


def wait_for_gpu() -> None:
    """Return when the GPU has finished its work; without a GPU, at once."""
    import torch

    if torch.cuda.is_available() and torch.cuda.is_initialized():
        torch.cuda.synchronize()
    elif torch.backends.mps.is_available():
        torch.mps.synchronize()


def in_turns(
    programs: Mapping[str, Program], rounds: int, clock: Clock = wall_seconds, warmup: int = 1,
    times: Times | None = None,
) -> Times:
    """Seconds of each program in each round; every second round runs in reverse order.

    Args:
        warmup: calls of each program before the first round.
        times: extended by each round after all programs have run, so that it has complete rounds only, also after an
            interrupt.

    Raises:
        ValueError: `rounds` is below 1.
    """
    if rounds < 1:
        raise ArgumentError(f"rounds={rounds} must be at least 1")
    times = {} if times is None else times
    for program in list(programs.values()) * warmup:
        program()
    for number in range(rounds):
        order = list(programs) if number % 2 == 0 else list(programs)[::-1]
        seconds = {name: seconds_of(programs[name], clock) for name in order}
        for name in programs:
            times.setdefault(name, []).append(seconds[name])
    return times


def seconds_of(program: Program, clock: Clock = wall_seconds) -> float:
    """Seconds of one call."""
    start = clock()
    program()
    return clock() - start
