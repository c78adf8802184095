"""`vit cross-validate`: a run per fold (and seed), then mean and deviation, out-of-fold predictions and an ensemble."""

import logging
import pathlib
from collections.abc import Sequence

from vit.bundle import load_bundle, save_ensemble
from vit.data import DataError, PackedPreprocessing, Source, TextSplit
from vit.evaluation.out_of_fold import HeldOut, predict_held_out
from vit.evaluation.progress import as_stage
from vit.files.atomic import write_atomically
from vit.files.strict_json import json_text
from vit.report.cross_validation import print_cross_validation
from vit.run.config.composing import ConfigError, compose, resolve
from vit.run.config.overrides import key_of
from vit.run.config.own_configs import trusted_overrides
from vit.run.config.paths import check_paths
from vit.run.config.valid_values import SEED
from vit.run.console import console, stage_bar
from vit.run.multirun.compare import raise_failed, resume_printed, train_all, write_comparison
from vit.run.multirun.comparison_plan import find_stopped, read_plan
from vit.run.multirun.held_out import TASKS, held_out
from vit.run.multirun.soups import fold_soups
from vit.run.multirun.sweep_results import SweptRun, summary
from vit.run.parts.data_source import build_source, data_overrides
from vit.run.parts.devices import evaluation_device
from vit.run.records.members import CROSS_VALIDATION, HELD_OUT
from vit.run.records.reading import read_config, read_metrics
from vit.run.result import Run
from vit.run.resume import to_record

log = logging.getLogger("vit")

COMMAND = "cross-validate"  # the command of this module, which also resumes it
FOLDS = 5
OWN_KEYS = ("folds", "seeds")  # arguments of this command; all others are overrides of every run
PREDICTIONS, RESULT, ENSEMBLE = "out_of_fold.csv", CROSS_VALIDATION, "ensemble"


def cross_validate(arguments: list[str], predictions: pathlib.Path | None = None) -> Run:
    """Train a model for each fold and seed, except for finished runs, and combine their results in one folder.

    `cross_validation.json` has mean, deviation and every run, `out_of_fold.csv` (or the file `predictions`, CSV or
    Parquet) the calibrated probabilities of each sample by models that were not trained on it, and `ensemble/` the
    mean of all models. `resume=FOLDER` continues a stopped cross-validation.

    Args:
        arguments: overrides, `folds=N` (5 by default) and `seeds=0,1,2`.

    Raises:
        ConfigError: an invalid argument, before the first run starts.
        ComparisonError: runs failed.
        Interrupted: Ctrl-C or SIGTERM; the current run has saved its state.
    """
    own, overrides = split_arguments(arguments)
    check_overrides(overrides)
    config = resolve(compose(overrides))
    check_task(config)
    runs = fold_runs(own)
    stopped = check_resumed(own, config, overrides)
    if stopped is None:
        check_folds(config, next(iter(runs.values())))
    folder, plan, done, failed = train_all({**config, "compare": runs}, overrides, COMMAND)
    raise_failed(folder, failed)
    with resume_printed(folder, overrides, COMMAND):
        write_comparison(folder, plan, done)
        return Run(folder, combine(folder, done, predictions, trusted_overrides(overrides)))


def split_arguments(arguments: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """The values of `folds` and `seeds`, and the overrides."""
    own = {key: value for key, _, value in (each.partition("=") for each in arguments) if key in OWN_KEYS}
    return own, [each for each in arguments if each.partition("=")[0] not in OWN_KEYS]


def check_overrides(overrides: list[str]) -> None:
    """Raises ConfigError for keys that this command sets itself."""
    for override in overrides:
        key = key_of(override)
        if key in ("data.fold", "seed", "compare"):
            fix = {"data.fold": "folds=N", "seed": "seeds=N"}.get(key, "vit train compare=...")
            raise ConfigError(f"{override}: each run of a cross-validation has its own {key}; use {fix}")


def check_task(config: dict) -> None:
    """Raises ConfigError for a task without classes, whose samples have no out-of-fold predictions."""
    task, data = config["task"]["name"], config["data"]
    if task not in TASKS or "fold" not in data:
        raise ConfigError(f"data={data['name']} with task={task} cannot be cross-validated: folds are made of images "
                          "or texts with classes; vit train -m seed=0,1,2 repeats other runs")


def check_folds(config: dict, first: list[str]) -> None:
    """Checks that the samples can be divided into this number of folds, before the configs of all runs are composed.

    Args:
        first: the overrides of the first run.

    Raises:
        DataError: there are more folds than samples, or than samples of a class; or the data cannot be read.
    """
    check_paths(config)
    fold = next(value for key, _, value in (each.partition("=") for each in first) if key == "data.fold")
    with stage_bar(console) as progress:
        build_source({**config["data"], "fold": fold}, progress=progress)


def check_resumed(own: dict[str, str], config: dict, overrides: list[str]) -> pathlib.Path | None:
    """The folder of the stopped cross-validation that the command resumes, or None; checks `folds` and `seeds`, since
    the runs of a stopped one are determined.

    Raises:
        ConfigError: they are others than those of the cross-validation.
    """
    folder = find_stopped(config, to_record(overrides), COMMAND)
    if not own or folder is None:
        return folder
    started: dict[str, dict[str, None]] = {key: {} for key in OWN_KEYS}  # the values of its runs, in their order
    for override in (each for run in read_plan(folder)["runs"].values() for each in run):
        key, _, value = override.partition("=")
        if key == "data.fold":
            started["folds"][value.partition("/")[2]] = None
        elif key == "seed":
            started["seeds"][value] = None
    for key, value in own.items():
        if [each.strip() for each in value.strip("[]").split(",")] != list(started[key]):
            raise ConfigError(f"{key}={value}: resume would continue {folder}, which was started with {key}="
                              f"{','.join(started[key])}; leave {key} out, or leave resume out for a new "
                              "cross-validation")
    return folder


def fold_runs(own: dict[str, str]) -> dict[str, list[str]]:
    """Name and overrides of each run.

    Raises:
        ConfigError: `folds` or `seeds` is invalid.
    """
    folds = own.get("folds", str(FOLDS))
    if not folds.isdecimal() or int(folds) < 2:
        raise ConfigError(f"folds={folds}: must be a whole number, 2 or more")
    seeds = [seed.strip() for seed in own.get("seeds", "0").strip("[]").split(",")]
    if not all(seed.isdecimal() and SEED.accepts(int(seed)) for seed in seeds) or len(set(seeds)) < len(seeds):
        raise ConfigError(f"seeds={own['seeds']}: must be different whole numbers, such as seeds=0,1,2")
    several = len(seeds) > 1
    return {
        f"fold{k}{f'-seed{seed}' if several else ''}": [f"data.fold={k}/{folds}", f"seed={seed}"]
        for seed in seeds for k in range(1, int(folds) + 1)
    }


def combine(
    folder: pathlib.Path, names: list[str], predictions: pathlib.Path | None, trusted: Sequence[str] = ()
) -> dict:
    """The results of the finished runs, written to the folder and printed.

    Args:
        trusted: overrides whose targets the configs of the runs may name.
    """
    runs = [folder / name for name in names]
    metrics = {name: read_metrics(folder / name) for name in names}
    (row,) = summary([SweptRun(str(folder / name), {}, 0, each) for name, each in metrics.items()])
    with stage_bar(console) as progress:
        out_of_fold = HeldOut.concat([held_out(run, overrides=trusted, progress=progress) for run in runs])
    target = predictions or folder / PREDICTIONS
    out_of_fold.save(target)
    result = {
        "runs": metrics, "mean": row["mean"], "deviation": row["deviation"],
        "out_of_fold": {"samples": len(out_of_fold), "accuracy": out_of_fold.accuracy,
                        **({"labels": len(out_of_fold.classes)} if out_of_fold.multi_label else {})},
        "predictions": str(target),
        "soups": fold_soups(folder, runs, trusted), "ensemble": build_ensemble(folder, runs, out_of_fold, trusted),
    }
    write_atomically(folder / RESULT, f"{json_text(result)}\n".encode())
    print_cross_validation(result, console)
    return result


def build_ensemble(
    folder: pathlib.Path, runs: list[pathlib.Path], out_of_fold: HeldOut, trusted: Sequence[str] = ()
) -> dict | None:
    """Save the ensemble of all models, and test it on the predefined test split of the data, which took no part in the
    folds. None for models of texts, whose tokenizers differ between folds, and for images of different sizes.
    """
    first = load_bundle(runs[0])
    if first.preprocessing is None:
        log.info("no ensemble: the tokenizers of the folds differ")
        return None
    if isinstance(first.preprocessing, PackedPreprocessing):
        log.info("no ensemble: with data.pack=true images have different sizes, and an ensemble is for images of one")
        return None
    config = read_config(runs[0], trusted)
    overrides = [each for each in data_overrides(config) if not each.startswith("data.fold=")]
    unseen = unseen_test(config["data"], out_of_fold)
    extra = {"data": overrides, "evaluation": first.extra.get("evaluation", {}), "name": config["name"],
             "split_rule": first.extra.get("split_rule"), HELD_OUT: [] if unseen is None else ["test"]}
    path = folder / ENSEMBLE
    save_ensemble(path, runs, {}, extra)
    result: dict = {"path": str(path), "members": len(runs)}
    if unseen is not None:
        settings = extra["evaluation"] | {"on_bad_sample": config["data"].get("on_bad_sample", "error")}
        settings |= {"device": evaluation_device(config["trainer"]["accelerator"])}
        split = unseen.splits["test"]
        with stage_bar(console) as bar:
            each = [predict_held_out(load_bundle(model), split, "test", **settings,
                                     progress=as_stage(bar, f"test of {model.name}", len(split)))
                    for model in (*runs, path)]
        *members, ensemble = (part.accuracy for part in each)
        result |= {"test_samples": len(each[0]), "test_accuracy": ensemble,
                   "member_test_accuracy": sum(members) / len(members)}
    return result


def unseen_test(data: dict, out_of_fold: HeldOut) -> Source | None:
    """The data with its predefined test split; None if its samples are in the folds."""
    try:
        source = build_source({**data, "fold": None})
    except DataError as error:
        log.info("no test of the ensemble: %s", error)
        return None
    test = source.splits.get("test")
    if test is None or isinstance(test, TextSplit) or set(test.names) & set(out_of_fold.names):
        return None
    return source
