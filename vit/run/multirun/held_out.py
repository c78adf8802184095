"""Predictions of finished runs for the samples that they were not trained on."""

import pathlib
from collections.abc import Sequence

from vit.bundle import load_bundle
from vit.data import DataError
from vit.evaluation.out_of_fold import HeldOut, predict_held_out
from vit.evaluation.progress import Progress
from vit.run.config.composing import ConfigError
from vit.run.parts.data_source import build_source
from vit.run.records.folder import RunFolder
from vit.run.records.reading import read_config
from vit.run.records.splits import read_record

TASKS = ("classification", "text_classification")


def held_out(run: pathlib.Path, splits: Sequence[str] = ("test",), progress: Progress | None = None) -> HeldOut:
    """The predictions of a run's model for the recorded samples of these splits that the run has.

    Raises:
        ConfigError: the run is not finished, or its task has no classes.
        DataError: the data has changed, or the run has none of the splits.
    """
    config, record = read_config(run), read_record(run)
    if not RunFolder(run, main=False).finished:
        raise ConfigError(f"{run} is not finished, so it has no model to predict with; resume={run} finishes it")
    if config["task"]["name"] not in TASKS:
        raise ConfigError(f"{run}: task={config['task']['name']} has no classes; this is for {', '.join(TASKS)}. "
                          "vit report lists the worst samples of other models, among them wrong references")
    source, bundle = build_source(config["data"], record), load_bundle(run)
    found = [key for key in splits if key in source.splits]
    if not found:
        raise DataError(f"{run} has no split {' or '.join(splits)}; it has {', '.join(source.splits)}")
    settings = bundle.extra.get("evaluation", {})
    on_bad_sample = config["data"].get("on_bad_sample", "error")
    fold = config["data"].get("fold") or "run"
    return HeldOut.concat([
        predict_held_out(bundle, source.splits[key], fold, settings.get("batch_size", 64),
                         settings.get("precision", "32-true"), on_bad_sample, progress)
        for key in found
    ])
