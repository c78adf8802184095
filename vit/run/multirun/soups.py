"""Greedy soups of the models of each fold of a cross-validation, which differ in their seeds."""

import logging
import os
import pathlib
from collections.abc import Sequence

from vit.bundle import MEMBER_PATHS, load_bundle, save_bundle
from vit.bundle.label_calibration import raw_thresholds
from vit.evaluation.out_of_fold import predict_held_out
from vit.run.parts.data_source import build_source
from vit.run.parts.devices import evaluation_device
from vit.run.records.reading import read_config
from vit.run.records.splits import read_record
from vit.training.averaging.soup import State, greedy_soup

log = logging.getLogger("vit")

SOUPS = "soups"


def fold_soups(folder: pathlib.Path, runs: list[pathlib.Path], trusted: Sequence[str] = ()) -> list[dict] | None:
    """A greedy soup of the models of each fold, chosen on the fold's validation split and measured on its test split.

    A soup of two or more models is saved as `soups/foldK`. Soups are made within a fold, because its models share a
    validation split that none of them was trained on. The result is None with a single seed, and without `init_from`,
    because only models from the same initial weights have a useful mean.
    """
    configs = {run: read_config(run, trusted) for run in runs}
    folds: dict[str, list[pathlib.Path]] = {}
    for run, config in configs.items():
        folds.setdefault(config["data"]["fold"], []).append(run)
    if len(folds) == len(runs):
        return None
    if any(config["init_from"] is None for config in configs.values()):
        log.info("no soups: models that start from random weights have no useful mean; use init_from")
        return None
    return [_fold_soup(folder, fold, members, configs[members[0]]) for fold, members in folds.items()]


def _fold_soup(folder: pathlib.Path, fold: str, runs: list[pathlib.Path], config: dict) -> dict:
    """Make and test the soup of the runs of one fold; it is saved if it has two or more ingredients."""
    source = build_source(config["data"], read_record(runs[0]))
    bundles = [load_bundle(run) for run in runs]
    first = bundles[0]
    settings = first.extra.get("evaluation", {}) | {"on_bad_sample": config["data"].get("on_bad_sample", "error"),
                                                    "device": evaluation_device(config["trainer"]["accelerator"])}

    def score(state: State, split: str = "val") -> float:
        first.model.load_state_dict(state)
        return predict_held_out(first, source.splits[split], fold, **settings).accuracy

    states = [{name: tensor.clone() for name, tensor in bundle.model.state_dict().items()} for bundle in bundles]
    soup, chosen = greedy_soup(states, score)
    singles, tested = [score(state, "test") for state in states], score(soup, "test")
    result = {"fold": fold, "ingredients": [runs[i].name for i in chosen], "test_accuracy": tested,
              "single_test_accuracy": sum(singles) / len(singles)}
    if len(chosen) > 1:
        path = folder / SOUPS / f"fold{fold.partition('/')[0]}"
        extra = {**first.extra, MEMBER_PATHS: [os.path.abspath(runs[i]) for i in chosen]}
        save_bundle(path, first.model, first.classes, first.preprocessing, {"test/accuracy": tested}, extra, soup,
                    first.tokenizers, raw_thresholds(first.thresholds, first.calibration))
        result["path"] = str(path)
    return result
