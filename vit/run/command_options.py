"""The options of `python train.py`, which are Hydra's, and its help."""

import argparse
import sys

from hydra._internal.utils import get_args_parser  # Hydra has no public name for its own options

from vit.run.config.composing import ConfigError, groups_of
from vit.run.config.groups import options
from vit.run.config.hydra_interface import PRIMARY, deferred_option_help, with_config_dir
from vit.run.config.name_hints import nearest

GROUPS = ("data", "task", "model", "recipe", "augment", "finetune", "distill", "strategy", "trainer", "logger",
          "callbacks", "experiment")


def read_arguments(argv: list[str]) -> tuple[argparse.Namespace, list[str]]:
    """Hydra's options, and the overrides. `--config-dir` and `--config-name` become overrides, because the ranks of a
    distributed run and the runs of a sweep compose the config again.

    Raises:
        ConfigError: an option that Hydra does not have, or one without its value.
    """
    with deferred_option_help():
        parser = get_args_parser()
    parser.error = refuse
    found, others = parser.parse_known_args(with_default_cfg(argv) if {"--cfg", "-c"} & {*argv} else argv)
    for other in others:
        if other.startswith("-"):
            hint = nearest(other.partition("=")[0].lstrip("-").replace("-", "_"), list(groups_of([], "train").keys))
            fix = f"{hint} Overrides are key=value, without dashes" if hint else (
                "; --help lists the options, other arguments are key=value")
            raise ConfigError(f"unknown option {other}{fix}")
    overrides = [*found.overrides, *others]
    if found.multirun and (found.cfg or found.info or found.run or found.resolve):
        raise ConfigError("-m starts runs; leave it out to print a config, with the values of one of the runs")
    if found.experimental_rerun:
        raise ConfigError("--experimental-rerun would load a pickle, which can run any program; use resume=RUN")
    if found.config_path:
        raise ConfigError("--config-path would replace all groups of the project; --config-dir adds a folder to them")
    if found.resolve and not (found.cfg or found.help):
        raise ConfigError("--resolve prints a config with its interpolations resolved; add --cfg job")
    if found.package and not found.cfg:
        raise ConfigError(f"--package {found.package} selects what --cfg prints; add --cfg job")
    if found.config_name:
        overrides.append(f"{PRIMARY}={found.config_name}")
    return found, with_config_dir(overrides, found.config_dir)


def refuse(message: str) -> None:
    """Raises ConfigError with the message of the argument parser."""
    raise ConfigError(message)


def with_default_cfg(argv: list[str]) -> list[str]:
    """The arguments with `--cfg job` for a bare `--cfg`, which an override, another option or nothing follows."""
    after = [*argv, "-"][1:]
    bare = [following.startswith(("-", "~")) or "=" in following for following in after]
    return ["--cfg=job" if argument in ("--cfg", "-c") and alone else argument
            for argument, alone in zip(argv, bare, strict=True)]


def check_completed_script(overrides: list[str]) -> None:
    """Raises ConfigError if Hydra would install the completion of `vit`, whose subcommands it does not know."""
    if any(each.startswith("install=") for each in overrides) and not sys.argv[0].endswith(".py"):
        raise ConfigError("Hydra completes scripts, but not vit train: use python train.py --shell-completion with the "
                          "train.py of the checkout, or a script with the line `from vit.run import main; main()`; "
                          "vit --install-completion installs the completion of the other commands")


def option_line(options: argparse.Namespace) -> list[str]:
    """Hydra's options that select something other than a run."""
    texts = {"cfg": options.cfg, "package": options.package, "info": options.info}
    flags = ("resolve", "shell_completion", "hydra_help")
    return [*(f"--{name}={value}" for name, value in texts.items() if value),
            *(f"--{name.replace('_', '-')}" for name in flags if getattr(options, name))]


def help_text() -> str:
    lines = [
        "Train a model:  python train.py [group=name] [key=value] ...",
        "  python train.py                                   scikit-learn's digits, in a minute",
        "  python train.py data=folder data.root=photos      your photos, one folder per class",
        "  python train.py -m seed=0,1,2                     several runs",
        "  python train.py --config-dir my data=flowers      with your own my/data/flowers.yaml",
        "  python train.py resume=auto                       resume a stopped run",
        "",
    ]
    lines += [f"  {group:<11}{', '.join(options(group))}" for group in GROUPS]
    lines += ["", "  --cfg prints the whole config, -m runs all combinations, --debug prints tracebacks;",
              "  --hydra-help lists all options of Hydra, which work as in its manual."]
    return "\n".join(lines)
