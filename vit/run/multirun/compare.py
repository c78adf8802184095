"""`compare:` several models under one recipe: an ordinary run for each, then a table and a figure."""

import contextlib
import logging
import pathlib
import shlex
import signal
from collections.abc import Iterator

from vit.exchange.run_records import best_epoch
from vit.files.atomic import check_result, remove_stale_files, write_atomically
from vit.files.credentials import masked, masked_override
from vit.files.strict_json import json_text
from vit.messages import override_for_shell
from vit.report.figures.comparison import ComparedModel, comparison_picture, comparison_table
from vit.report.logged_values import read_curves
from vit.run.config.composing import ConfigError
from vit.run.config.hydra_interface import hydra_overrides
from vit.run.config.overrides import override_text
from vit.run.config.own_configs import own_configs
from vit.run.config.targets import TARGET
from vit.run.console import command, console, print_line
from vit.run.multirun.comparison_plan import METRICS, NOT_COMPARABLE, find_plan
from vit.run.multirun.sweep_results import table_text
from vit.run.processes.separate_process import STOPPED, train_in_new_process
from vit.run.records.folder import COMPARISON
from vit.run.records.reading import read_metrics
from vit.run.result import Run
from vit.training import Interrupted

log = logging.getLogger("vit")


class ComparisonError(ValueError):
    """Runs of a comparison failed."""


def compare(config: dict, overrides: list[str]) -> Run:
    """Train the runs that are not finished, then write `comparison.csv`, `comparison.json` and `comparison.png`.

    The metrics of the result are the rows of that table by their names. After a failed run the others are still
    trained, unless none has finished yet: the overrides that all share may be wrong.

    Raises:
        ConfigError: an invalid override of any run, before the first one starts.
        ComparisonError: runs failed; raised at the end.
        Interrupted: Ctrl-C or SIGTERM; the current run has saved its state.
    """
    folder, plan, done, failed = train_all(config, overrides)
    with resume_printed(folder, overrides):
        rows = write_comparison(folder, plan, done) if done else {}
    raise_failed(folder, failed)
    return Run(folder, rows)


def train_all(
    config: dict, overrides: list[str], resumed_by: str = "train"
) -> tuple[pathlib.Path, dict, list[str], list[str]]:
    """Train the runs of a comparison that are not finished; its folder, its plan, the finished and the failed runs.

    Args:
        resumed_by: the command that is printed to resume it.

    Raises:
        ConfigError: an invalid override of any run, before the first one starts.
        Interrupted: Ctrl-C or SIGTERM; the current run has saved its state.
    """
    folder, plan = find_plan(config, overrides, resumed_by)
    remove_stale_files(folder)
    targets = [each for each in overrides if TARGET in each]  # also trusted in stored configs
    settings = [each for each in hydra_overrides(overrides) if not each.startswith("hydra.run.dir=")]  # of the whole
    own = [*settings, *targets]
    log.info("comparison of %s: %s", ", ".join(plan["runs"]), folder)
    done, failed = [], []
    with resume_printed(folder, overrides, resumed_by):
        for number, (name, recorded) in enumerate(plan["runs"].items(), 1):
            run = folder / name
            if (run / "metrics.json").exists():
                done.append(name)
                continue
            print_line(f"\n[{number}/{len(plan['runs'])}] {shlex.join(masked(recorded))}")
            begun = (run / "config.yaml").exists()
            credentials = [each for each in recorded if masked_override(each) != each]
            new = [*recorded, *settings, override_text("run_dir", str(run))]
            code = train_in_new_process([override_text("resume", str(run)), *own, *credentials] if begun else new)
            if code in STOPPED:
                raise Interrupted(STOPPED[code], agreed=True)
            (failed if code else done).append(name)
            if not done:
                break
    return folder, plan, done, failed


@contextlib.contextmanager
def resume_printed(folder: pathlib.Path, overrides: list[str], resumed_by: str = "train") -> Iterator[None]:
    """Context manager: a stop of the comparison prints how to resume it, also between two runs and after the last one.

    Args:
        resumed_by: the command that resumes it.

    Raises:
        Interrupted: Ctrl-C or another stop signal.
    """
    try:
        yield
    except (Interrupted, KeyboardInterrupt) as stop:
        signum = getattr(stop, "signal", signal.SIGINT)
        by = f"Stopped by {signum.name}. " if isinstance(stop, KeyboardInterrupt) else ""  # else it is printed already
        again = command(resumed_by, *own_configs(overrides, resumed_by), override_text("resume", str(folder)))
        print_line(f"\n{by}Resume the whole comparison with:\n  {again}")
        raise Interrupted(signum, agreed=True) from None


def raise_failed(folder: pathlib.Path, failed: list[str]) -> None:
    """Raises ComparisonError if runs failed."""
    if failed:
        raise ComparisonError(
            f"{', '.join(failed)} of the comparison failed, see the messages above; when the cause is fixed, "
            f"{override_for_shell('resume', folder)} continues it"
        )


def write_comparison(folder: pathlib.Path, plan: dict, done: list[str]) -> dict:
    """Collect the metrics of the finished runs, write the table and the figure, and print the table."""
    metrics = {name: read_metrics(folder / name) for name in done}
    split, metric = shared_metric(list(metrics.values()))
    models = [compared_model(folder / name, name, numbers, split, metric) for name, numbers in metrics.items()]
    rows = [row(each, metrics[each.name]) for each in models]
    write_atomically(folder / "comparison.csv", table_text(rows).encode())
    comparison_picture(folder / "comparison.png", models, plan["name"])
    if len(done) == len(plan["runs"]):
        write_atomically(folder / COMPARISON, f"{json_text({**masked(plan), 'results': rows})}\n".encode())
    console.print()
    console.print(comparison_table(models, plan["name"], console.width))
    print_line(f"  {folder / 'comparison.png'}")
    return {each["name"]: each for each in rows}


def shared_metric(metrics: list[dict]) -> tuple[str, str]:
    """The split and the name of the metric by which the runs are compared.

    Raises:
        ConfigError: they have no such metric in common.
    """
    pairs = ((split, metric) for metric in METRICS for split in ("test", "val"))
    found = (pair for pair in pairs if all(numbers.get("/".join(pair)) is not None for numbers in metrics))
    try:
        return next(found)
    except StopIteration:
        raise ConfigError(NOT_COMPARABLE) from None


def compared_model(run: pathlib.Path, name: str, metrics: dict, split: str, metric: str) -> ComparedModel:
    """The row of a finished run, from its final metrics and the validation curve in its `metrics.csv`.

    Raises:
        ConfigError: that file has changed since.
    """
    log_file = run / "metrics.csv"
    check_result(log_file, ConfigError)
    curves = read_curves(log_file)
    return ComparedModel(
        name,
        metrics["model"],
        curves.get(f"val/{metric}"),
        split,
        metrics[f"{split}/{metric}"],
        metrics["parameters"],
        metrics["flops"],
        next((value for key, value in metrics.items() if key.endswith("_per_second")), None),
        metrics["seconds"],
        metrics.get("trained_parameters"),
        metrics.get("peak_memory", 0),
        metric,
    )


def row(each: ComparedModel, metrics: dict) -> dict:
    """A row of the table, with the names of `metrics.json`."""
    return {
        "name": each.name,
        "model": each.model,
        **{key: value for key, value in metrics.items() if key.endswith(f"/{each.measure}")},
        "best_epoch": best_epoch(metrics),
        "epochs": metrics["epochs"],
        "parameters": each.parameters,
        "trained_parameters": each.trained,
        "flops": each.flops,
        "per_second": each.per_second,
        "seconds": each.seconds,
        "peak_memory": each.memory,
    }
