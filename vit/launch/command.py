"""`python train.py WORDS`: one run, several with -m, or a look at the config."""

import contextlib
import os
import sys
from collections.abc import Iterator

from vit.launch.composing import ConfigError, compose, options
from vit.launch.overrides import sweep
from vit.training.interrupts import StopSignals

GROUPS = ("data", "model", "recipe", "finetune", "distill", "strategy", "trainer", "logger", "callbacks", "experiment")


def main(argv: list[str] | None = None) -> int:
    """Run the command and return its exit code: 0 done, 1 the data or the training failed, 2 a word that cannot be.

    A run that is stopped leaves with SystemExit: 128 + the signal's number, so 130 for Ctrl-C and 143 for SIGTERM.
    """
    with StopSignals().handled():  # before torch is loaded, which takes seconds
        return answer(argv)


def answer(argv: list[str] | None) -> int:
    words = list(sys.argv[1:] if argv is None else argv)
    flags = {word for word in words if word.startswith("-")}
    words = [word for word in words if word not in flags]
    unknown = flags - {"-m", "--multirun", "-h", "--help", "--cfg", "--debug"}
    try:
        if unknown:
            raise ConfigError(
                f"unknown option {sorted(unknown)[0]}; there are -m, --cfg, --debug and --help, all else is key=value"
            )
        if flags & {"-h", "--help"}:
            print(help_text())
            return 0
        if flags & {"--cfg"}:
            return show(words)
        if flags & {"-m", "--multirun"}:
            from vit.launch.sweeping import run_each

            return run_each(sweep(words))
        compose(words)  # a wrong word is told before torch is loaded
        os.environ.setdefault(
            "OMP_WAIT_POLICY", "PASSIVE"
        )  # torch's threads wait asleep: spinning, they starve on a busy machine
        from vit.launch.run import train

        with debugging("--debug" in flags):
            train(words)
        return 0
    except Exception as error:
        if "--debug" in flags or os.environ.get("VIT_DEBUG", "0") not in ("", "0"):
            raise
        return failed(error)


@contextlib.contextmanager
def debugging(wanted: bool) -> Iterator[None]:
    """Lets the processes of a distributed run show tracebacks too."""
    earlier = os.environ.get("VIT_DEBUG")
    if wanted:
        os.environ["VIT_DEBUG"] = "1"
    try:
        yield
    finally:
        if wanted:
            os.environ.pop("VIT_DEBUG")
            os.environ.update({"VIT_DEBUG": earlier} if earlier is not None else {})


def failed(error: Exception) -> int:
    """One line on standard error."""
    from vit.launch.console import one_line

    print(f"error: {one_line(error)}", file=sys.stderr)
    return 2 if isinstance(error, ConfigError) else 1


def help_text() -> str:
    lines = [
        "Train a model:  python train.py [group=name] [key=value] ...",
        "  python train.py                                   scikit-learn's digits, in a minute",
        "  python train.py data=folder data.root=photos      your photos, a folder per class",
        "  python train.py -m seed=0,1,2                     one run after the other",
        "  python train.py resume=auto                       go on with what was stopped",
        "",
    ]
    lines += [f"  {group:<11}{', '.join(options(group))}" for group in GROUPS]
    return "\n".join(
        [*lines, "", "  --cfg prints the whole config, -m runs every combination, --debug shows tracebacks."]
    )


def show(words: list[str]) -> int:
    from omegaconf import OmegaConf

    print(OmegaConf.to_yaml(compose(words)), end="")
    return 0
