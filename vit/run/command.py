"""`python train.py OVERRIDES`: one run, several with -m, or the config with --cfg.

The overrides are checked first, in a fraction of a second because torch is not loaded yet, and their paths are quoted
(`vit.run.config.overrides`). Then Hydra composes the config and runs the job.
"""

import argparse
import contextlib
import io
import os
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf

from vit.files.machine import discard_output, limit_spinning, limit_threads, unblock_stop_signals
from vit.files.missing import hint_at_missing, is_missing
from vit.messages import error_message
from vit.run.command_options import check_completed_script, help_text, option_line, read_arguments
from vit.run.config.composing import (
    MODE,
    RUN_FOLDER,
    ConfigError,
    compose,
    paths_of_origin,
    prepare_overrides,
    resolve,
    with_paths,
)
from vit.run.config.groups import with_names_of_globs
from vit.run.config.hydra_interface import (
    CONFIG_ERRORS,
    PRIMARY,
    deferred_option_help,
    explained,
    located,
    run_job,
    value_of,
)
from vit.run.config.overrides import as_list, first_of_sweep, key_of, parse
from vit.run.config.paths import check_paths
from vit.run.deferred_modules import quick_imports, skip_in_collections
from vit.run.processes.separate_process import PARENT, stop_with_parent
from vit.training.fault_tolerance.interrupts import StopSignals

if TYPE_CHECKING:
    from vit.run.result import Run


def main(argv: list[str] | None = None) -> int:
    """Run the command and return its exit code: 0 done, 1 data or training failed, 2 a wrong override or option.

    A stopped run raises SystemExit with 128 + the number of the signal: 130 for Ctrl-C, 143 for SIGTERM.
    """
    limit_threads()
    argv = list(sys.argv[1:] if argv is None else argv)
    debug = "--debug" in argv
    try:
        with StopSignals().handled():  # before torch is loaded, which takes seconds
            unblock_stop_signals()  # a launcher of a sweep may start this process with blocked signals
            if PARENT in os.environ:
                stop_with_parent(int(os.environ.pop(PARENT)))  # programs that the run starts do not inherit it
            return run_command([argument for argument in argv if argument != "--debug"], debug)
    except Exception as error:
        if debug or os.environ.get("VIT_DEBUG", "0") not in ("", "0"):
            raise
        return report_error(error)


def train(overrides: list[str] | None = None) -> "Run | None":
    """Train as `python train.py OVERRIDES` does. None in all processes of a distributed run but the first.

    Random states, filters of warnings, and the loggers of `vit` and Lightning are restored afterwards.

    Raises:
        ConfigError, DataError: before training starts, with the key or file, and the fix; a wrong override before
            torch is loaded.
        Interrupted: Ctrl-C, SIGTERM, SIGUSR1 or SIGHUP; the state is saved for `resume`.
        RankError: a process of a distributed run failed, died or hung.
    """
    limit_threads()
    overrides = as_list(overrides)
    config = resolve(compose(with_recorded(overrides)))
    check_paths(config)
    with quick_imports():
        from vit.run.process_state import restored_process_state
        from vit.run.training_run import train_composed

    with restored_process_state():
        return train_composed(config, overrides)


def run_command(argv: list[str], debug: bool) -> int:
    """Print the help, or do what the arguments select; returns the exit code."""
    options, overrides = read_arguments(argv)
    if options.help:
        return print_with(lambda: print(help_text()))
    with environment(VIT_DEBUG="1") if debug else contextlib.nullcontext():  # distributed processes inherit it
        return run(options, overrides)


def run(options: argparse.Namespace, overrides: list[str]) -> int:
    """Check the overrides, then let Hydra do what its options select: a run, a sweep, or printing."""
    if options.shell_completion:
        check_completed_script(overrides)
    if options.shell_completion or options.hydra_help:
        return print_with(lambda: with_hydra(lambda config: None, option_line(options), overrides))
    if options.multirun or not (options.cfg or options.info or options.resolve) and is_sweep(overrides):
        return sweep(overrides)
    parsed = parse(with_recorded(overrides))
    prepared = prepare_overrides(parsed)
    if options.cfg or options.info or options.resolve:
        return print_with(lambda: with_hydra(lambda config: None, option_line(options), prepared.overrides,
                                             prepared.name))
    if prepared.multirun:
        return sweep(overrides)
    codes = []

    def train(config: DictConfig) -> None:
        hydra = HydraConfig.get()
        folder = None
        if value_of(parsed, RUN_FOLDER) or hydra.run.dir != ".":  # a primary config of the user may set it too
            folder = hydra.runtime.output_dir if hydra.job.chdir else hydra.run.dir  # with its interpolations resolved
        config = with_paths(config, folder)
        moved = paths_of_origin(config, hydra.runtime.cwd) if os.getcwd() != hydra.runtime.cwd else []
        for override in parse(moved):
            OmegaConf.update(config, override.key_or_group, override.value())
        codes.append(run_here(config, [*overrides, *moved]))

    run_job(train, prepared.overrides, prepared.name)
    return codes[-1]


def print_with(function: Callable[[], None]) -> int:
    """Write what a function prints, all of it at once: Hydra prints with loggers, which would report each line that
    cannot be written. Returns the exit code, which is 1 if the other end of a pipe has closed, as `head` does.
    """
    printed = io.StringIO()
    try:
        with contextlib.redirect_stdout(printed):
            function()
    finally:
        code = write_output(printed.getvalue())
    return code


def write_output(text: str) -> int:
    """Write a text to standard output; returns the exit code of `print_with`."""
    try:
        print(text, end="", flush=True)
        return 0
    except BrokenPipeError:
        discard_output()
        return 1


def is_sweep(overrides: list[str]) -> bool:
    """Whether an override names several values and `hydra.mode` of the command or of a config selects a sweep."""
    parsed = parse(overrides, multirun=True)
    if not any(override.is_sweep_override() for override in parsed):
        return False
    if value_of(parsed, MODE) == RunMode.MULTIRUN.name:
        return True
    try:
        return prepare_overrides(parse(first_of_sweep(with_names_of_globs(overrides)))).multirun
    except ConfigError:  # the check of a single run names the override
        return False


def sweep(overrides: list[str]) -> int:
    """Several runs; returns the highest of their exit codes."""
    from vit.run.multirun.sweeping import sweep_with

    return sweep_with(overrides, with_hydra)


def with_recorded(overrides: list[str]) -> list[str]:
    """The overrides, preceded by those of the run that `resume` names.

    Raises:
        ConfigError: there is no such run.
    """
    if not any(key_of(override) == "resume" for override in overrides):
        return overrides
    if (path := value_of(parse(overrides), "resume")) not in (None, "auto") and is_missing(str(path)):
        raise ConfigError(f"resume={path}: no such run folder or checkpoint{hint_at_missing(str(path))}")
    from vit.run import resume  # loads torch

    return resume.with_recorded(overrides)


def with_hydra(task: Callable[[DictConfig], object], options: list[str], overrides: list[str],
               name: str = "train") -> None:
    """Run the task with `hydra.main`, which reads its command from `sys.argv`.

    Args:
        name: name of the primary config.

    Raises:
        ConfigError: Hydra cannot compose the config.
    """
    parsed = parse(overrides, multirun=True)
    folder, lines = located([each.input_line for each in parsed if each.key_or_group != PRIMARY], name)
    before = sys.argv
    sys.argv = [before[0], *options, *lines]
    try:
        # HYDRA_FULL_ERROR: Hydra raises its errors instead of printing them
        with deferred_option_help(), environment(HYDRA_FULL_ERROR="1"):
            hydra.main(version_base="1.3", config_path=str(folder.resolve()), config_name=name)(task)()
    except CONFIG_ERRORS as error:
        raise ConfigError(explained(error)) from None
    finally:
        sys.argv = before


def run_here(config: DictConfig, overrides: list[str]) -> int:
    """Train in this process; returns the exit code. Errors are printed, because Hydra would wrap them in its own."""
    limit_spinning()
    try:
        resolved = resolve(config)  # reports invalid values before torch is loaded
        check_paths(resolved)
        with quick_imports():
            from vit.run.training_run import train_composed

        skip_in_collections()
        train_composed(resolved, overrides)
        return 0
    except Exception as error:
        if os.environ.get("VIT_DEBUG", "0") not in ("", "0"):
            raise
        return report_error(error)


@contextlib.contextmanager
def environment(**variables: str) -> Iterator[None]:
    """Set environment variables, and restore their previous values afterwards."""
    earlier = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in earlier.items():
            os.environ.pop(name, None)
            os.environ.update({name: value} if value is not None else {})


def report_error(error: Exception) -> int:
    """Print the error as one line, and return the exit code."""
    if "LOCAL_RANK" in os.environ:
        from vit.run.processes.launched import leave_error_to_first_rank

        leave_error_to_first_rank()
    print(f"error: {error_message(error)}", file=sys.stderr)
    return getattr(error, "exit_code", 1)
