"""Data sets of commands: selected by the same overrides as in training, or recorded in the model."""

import logging
import os
from dataclasses import replace
from typing import TYPE_CHECKING

from vit.cli.terminal import staged
from vit.messages import agree, number_of

if TYPE_CHECKING:
    from vit.bundle import Bundle
    from vit.data import PairSource, Source
    from vit.run.records.splits import DataRecord

log = logging.getLogger("vit")

ALL = "all"  # the evaluated split of a data set that is not split


def recorded_overrides(extra: dict, overrides: list[str]) -> list[str]:
    """The overrides of the data set that a bundle records; none if the command selects another one.

    Raises:
        ValueError: neither the bundle nor the command names a data set.
    """
    if "data" not in extra and not overrides:
        raise ValueError("the model has no record of its training data; name a data set: data=folder data.root=photos")
    return [] if any(override.startswith("data=") for override in overrides) else extra.get("data", [])


def compose_data(overrides: list[str], bundle: "Bundle | None" = None, node: str | None = None) -> dict:
    """The config of a data set: the overrides that a bundle records, then those of the command.

    A bundle may come from anyone, so what it records may only select targets that this project or the command names.

    Args:
        node: one other config node that the command reads besides `data`.

    Raises:
        ConfigError: an invalid override, an override of a node that the command does not read, or a recorded target
            that is not allowed.
        ValueError: neither the bundle nor the command names a data set.
    """
    from vit.run.config.composing import ConfigError, compose, resolve
    from vit.run.config.hydra_interface import SEARCH_PATH
    from vit.run.config.overrides import parse
    from vit.run.config.targets import check_overrides, check_stored

    recorded = recorded_overrides(bundle.extra, overrides) if bundle is not None else []
    check_overrides(recorded, bundle.path if bundle is not None else "")
    combined = [*recorded, *overrides]
    config = resolve(compose(combined, strict=False))
    if recorded:
        check_stored({"data": config["data"]}, bundle.path, overrides)
    prefixes = ("data.", f"{node}.") if node else ("data.",)
    for override in parse(combined):
        key = override.key_or_group
        if key not in ("data", "experiment", SEARCH_PATH) and not key.startswith(prefixes):
            allowed = ", ".join(["data=", "experiment=", *(f"{prefix}*" for prefix in prefixes[:-1])])
            raise ConfigError(f"{override.input_line} has no effect; leave it out: this command reads {allowed} "
                              f"and {prefixes[-1]}*")
    if bundle is not None:
        check_preprocessing(config["data"], [override.key_or_group for override in parse(overrides)], bundle)
    return config


def check_preprocessing(data: dict, keys: list[str], bundle: "Bundle") -> None:
    """Check that a command does not contradict the preprocessing of the model, which is always applied.

    Args:
        data: the composed node.
        keys: keys that the command sets.

    Raises:
        ConfigError: a key of the preprocessing has another value than the model.
    """
    from vit.data import Preprocessing
    from vit.data.images.preprocessing_values import as_size
    from vit.run.config.composing import ConfigError

    if not isinstance(bundle.preprocessing, Preprocessing):
        return
    own = {"rounding": bundle.preprocessing.rounding, **bundle.preprocessing.to_dict()}
    for key in keys:
        name = key.removeprefix("data.preprocessing.")
        if key == "data.image_size" and data["image_size"] is not None:
            value, used = as_size(data["image_size"]), tuple(own["size"])
        elif name != key and name in own and data["preprocessing"].get(name) is not None:
            value, used = data["preprocessing"][name], own[name]
        else:
            continue
        if value != used:
            raise ConfigError(f"{key}={format_value(value)} has no effect: the model applies its own "
                              f"preprocessing, with {format_value(used)}; leave it out")


def format_value(value: object) -> str:
    return "x".join(map(str, value)) if isinstance(value, tuple) else str(value)


def open_source(data: dict) -> "Source | PairSource":
    """The source of a `data` node.

    Raises:
        DataError: the data cannot be read.
    """
    from vit.run.parts.data_source import build_source

    with staged() as progress:
        return build_source(data, progress=progress)


def evaluation_source(data: dict, bundle: "Bundle", split: str | None = None) -> "Source | PairSource":
    """A data set for the evaluation of a model. For the data of its run, each sample stays in its recorded split.

    Args:
        split: the only evaluated split; None: all splits.

    Raises:
        DataError: recorded samples of an evaluated split are missing or have changed.
        ConfigError: the data node splits the same data in another way, or members of a combined model have seen
            samples of the split.
    """
    from vit.run.records.members import check_unseen, is_combined
    from vit.run.records.splits import SPLIT_RULE

    record = sample_record(bundle)
    source = open_source(data if record is None else record.with_own_reading(data))
    if is_combined(bundle):
        for key in source.splits if split is None else [split]:
            check_unseen(bundle, source, data, key, is_recorded_location(data, bundle.extra))
        return source
    if record is None or not record.splits:
        may_be_same = "fractions" in data and may_be_recorded(data, bundle.extra)
        if may_be_same and bundle.extra.get("split_rule") != SPLIT_RULE:
            log.warning("%s was saved when splits by fractions depended on the order of the samples, and no run folder "
                        "records its splits: the evaluated split may contain training samples", bundle.path)
        return source
    if record.is_of(data, source):
        record.check_splits(data)
        if leaked := record.leakage.get(split or record.default_split()):
            log.warning("the initial weights or the teacher of %s were trained on %s of %s: results on new "
                        "samples may be worse", bundle.path, number_of(leaked, "sample"),
                        split or record.default_split())
        return record.apply(source, list(record.splits) if split is None else [split])
    evaluated = split or record.default_split()
    if evaluated in source.splits and evaluated != "train" and (count := record.known(source, evaluated)):
        log.warning("%d of the %s of %s, %s, %s the same content as training samples of the model", count,
                    number_of(len(source.splits[evaluated]), "sample"), source.name, evaluated,
                    agree(count, "has", "have"))
    return source


def evaluation_split(data: dict, bundle: "Bundle", split: str | None) -> "tuple[Source | PairSource, str]":
    """The data set and the evaluated split: by default test, or val if there is no test split; "all" is the whole data
    set, which must be other data than that of the training.

    Raises:
        DataError, ConfigError: as `evaluation_source`; ConfigError for "all" of the data of the training.
    """
    if split == ALL:
        return whole_source(data, bundle), ALL
    source, evaluated = evaluation_source(data, bundle, split or "test"), split or "test"
    if split is None:
        if "test" not in source.splits:
            source, evaluated = evaluation_source(data, bundle, "val"), "val"
        report_part(source, evaluated, data, bundle)
    return source, evaluated


def calibration_split(source: "Source | PairSource", split: str, data: dict, bundle: "Bundle") -> str | None:
    """The split on which the model was calibrated, if it is the evaluated split, or if `--split all` evaluates it along
    with the others; otherwise None.
    """
    if bundle.calibration is None:
        return None
    if recorded := bundle.calibrated_on:
        used, is_same = recorded.get("split"), recorded.get("data") == source.name
    else:  # by the run, on its validation samples
        used, is_same = "val", is_training_data(source, data, bundle)
    evaluates_it = split == used or (split == ALL and used in source.splits)
    return used if is_same and evaluates_it else None


def splits_of_all(source: "Source | PairSource") -> list[str]:
    """The splits whose samples --split all evaluates."""
    return [name for name in source.splits if name != ALL]


def report_part(source: "Source | PairSource", split: str, data: dict, bundle: "Bundle") -> None:
    """Log how much of a data set is evaluated, if it is not that of the training."""
    whole, part = sum(map(len, source.splits.values())), len(source.splits.get(split, ()))
    if not is_training_data(source, data, bundle) and part < whole:
        log.warning("%d of the %s of %s %s evaluated (its %s split); --split %s evaluates all of them", part,
                    number_of(whole, "sample"), source.name, agree(part, "is", "are"), split, ALL)


def is_training_data(source: "Source | PairSource", data: dict, bundle: "Bundle") -> bool:
    """Whether a model was trained on this data set, by the record of its run or of its bundle."""
    record = sample_record(bundle)
    if record is not None and record.splits:
        return record.is_of(data, source)
    return is_recorded_location(data, bundle.extra)


def sample_record(bundle: "Bundle") -> "DataRecord | None":
    """The recorded samples of the run of a model, or of the runs of its members; None without such a record."""
    from vit.run.records.members import is_combined, members_record
    from vit.run.records.splits import record_beside

    return members_record(bundle) if is_combined(bundle) else record_beside(bundle.path)


def whole_source(data: dict, bundle: "Bundle") -> "Source | PairSource":
    """A data set with the further split `all`, of all its samples.

    Raises:
        DataError: the data cannot be read.
        ConfigError: it is the data that the model was trained on.
    """
    from vit.run.config.composing import ConfigError

    record = sample_record(bundle)
    source = open_source(data if record is None else record.with_own_reading(data))
    if is_training_data(source, data, bundle):
        raise ConfigError(f"--split all would evaluate on the training samples of {bundle.path}; choose other data "
                          "with data=NAME data.path=FILE, or one split")
    parts = list(source.splits.values())
    source = replace(source, splits={**source.splits, ALL: type(parts[0]).concat(parts)})
    if record is not None and record.splits and (count := record.known(source, ALL)):
        log.warning("%d of the %s of %s %s the same content as training samples of the model", count,
                    number_of(len(source.splits[ALL]), "sample"), source.name, agree(count, "has", "have"))
    return source


def is_recorded_location(data: dict, extra: dict) -> bool:
    """Whether a bundle records this data set at the same path, or without one."""
    from vit.run.config.overrides import parse

    if not may_be_recorded(data, extra):
        return False
    stated = {each.key_or_group: each.value() for each in parse(extra.get("data", []))}
    if data.get("repo") and stated.get("data.repo", data["repo"]) != data["repo"]:
        return False
    recorded = {absolute_path(stated[key]) for key in ("data.root", "data.path") if stated.get(key)}
    recorded |= {os.path.dirname(path) for path in recorded}  # the default of the root of a table is its folder
    return recorded >= {absolute_path(data[key]) for key in ("root", "path") if data.get(key)}


def absolute_path(path: object) -> str:
    """A path of a config without `~` and relative parts."""
    return os.path.abspath(os.path.expanduser(str(path)))


def may_be_recorded(data: dict, extra: dict) -> bool:
    """Whether the data set has the same name as the one that a bundle records."""
    if "data" not in extra:
        return False
    names = [override.removeprefix("data=") for override in extra["data"] if override.startswith("data=")]
    return not names or names[-1] == data["name"]  # without a name in the record any data set may be the recorded one
