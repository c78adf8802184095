"""Predictions of finished runs for the samples that they were not trained on."""

import os
import pathlib
from collections.abc import Sequence

from vit.bundle import load_bundle
from vit.data import DataError
from vit.data.threads import StageProgress
from vit.evaluation.out_of_fold import HeldOut, predict_held_out
from vit.evaluation.progress import as_stage
from vit.files.credentials import is_masked
from vit.messages import override_for_shell
from vit.run.config.composing import ConfigError, compose, resolve
from vit.run.config.hydra_interface import is_hydra_key
from vit.run.config.overrides import parse
from vit.run.config.targets import TARGET
from vit.run.parts.data_source import build_source
from vit.run.parts.devices import evaluation_device
from vit.run.records.folder import RunFolder
from vit.run.records.reading import read_config
from vit.run.records.splits import read_record

TASKS = ("classification", "text_classification")
LOCATIONS = ("data.root", "data.path")


def moved_config(run: pathlib.Path, overrides: Sequence[str]) -> dict:
    """The config of a run whose data has moved to the folder or file that the overrides name.

    Raises:
        ConfigError: an override that does not name the place of this data, or what `read_config` raises.
    """
    config = read_config(run, overrides)
    for override in parse(list(overrides)):
        key, leaf = override.key_or_group, override.key_or_group.removeprefix("data.")
        if is_masked(config["data"].get(leaf)):
            config["data"][leaf] = resolve(compose([override.input_line]))["data"][leaf]
            continue
        if is_hydra_key(key) or key.endswith(f".{TARGET}"):
            continue
        if key not in LOCATIONS or not config["data"].get(leaf):
            keys = " and ".join(each for each in LOCATIONS if config["data"].get(each.removeprefix("data.")))
            fix = f"only {keys} can be set, if the data has moved" if keys else "leave it out"
            raise ConfigError(f"{override.input_line} has no effect: the data is the one that {run} records; {fix}")
        config["data"][leaf] = os.path.abspath(os.path.expanduser(str(override.value())))
    return config


def held_out(
    run: pathlib.Path, splits: Sequence[str] = ("test",), overrides: Sequence[str] = (),
    progress: StageProgress | None = None,
) -> HeldOut:
    """The predictions of a run's model for the recorded samples of these splits that the run has.

    Args:
        overrides: `data.root` or `data.path` of data that has moved, and configs of the user.

    Raises:
        ConfigError: the run is not finished, or its task has no classes.
        DataError: the data has changed, or the run has none of the splits.
    """
    config, record = moved_config(run, overrides), read_record(run)
    if not RunFolder(run, main=False).finished:
        raise ConfigError(f"{run} is not finished, so it has no model to predict with; "
                          f"{override_for_shell('resume', run)} finishes it")
    if config["task"]["name"] not in TASKS:
        raise ConfigError(f"{run}: task={config['task']['name']} has no classes; this is for {', '.join(TASKS)}. "
                          "vit report lists the worst samples of other models, among them wrong references")
    source, bundle = build_source(config["data"], record, progress=progress), load_bundle(run)
    available = [key for key in splits if key in source.splits]
    if not available:
        raise DataError(f"{run} has no split {' or '.join(splits)}; it has {', '.join(source.splits)}")
    settings = bundle.extra.get("evaluation", {})
    on_bad_sample = config["data"].get("on_bad_sample", "error")
    fold, device = config["data"].get("fold") or "run", evaluation_device(config["trainer"]["accelerator"])
    return HeldOut.concat([
        predict_held_out(bundle, source.splits[key], fold, settings.get("batch_size", 64),
                         settings.get("precision", "32-true"), on_bad_sample, device,
                         as_stage(progress, f"predictions of {run.name}", len(source.splits[key])))
        for key in available
    ])
