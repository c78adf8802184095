"""The data set of a run, from the `data` node of the config."""

import importlib
import inspect
import logging
import os
from functools import partial

from hydra.utils import instantiate

from vit.data import CorpusSource, DataError, PairSource, Source
from vit.data.quality.corrections import apply_corrections, leave_out
from vit.data.splits.folds import parse_fold
from vit.data.splits.repartition import POOL, Partition, repartition
from vit.data.splits.splitting import watched_splitting
from vit.data.threads import StageProgress
from vit.files.credentials import masked
from vit.messages import agree, number_of
from vit.run.config.composing import ConfigError, stated
from vit.run.config.credential_checks import check_credentials
from vit.run.config.name_hints import nearest
from vit.run.config.overrides import check_kind, checked, key_of, override_text
from vit.run.parts.named_targets import check_module, where_modules_are
from vit.run.records.splits import DataRecord

log = logging.getLogger("vit")

LOADING = {  # keys of a data node that configure how samples are read, not which samples there are
    "_target_", "name", "image_size", "patch_size", "preprocessing", "workers", "balance", "on_bad_sample",
    "audit_seconds", "tokenizer", "max_len", "on_empty", "mask_ratio", "max_source_len", "max_target_len", "on_long",
    "decoder", "resampling", "cache", "cache_side", "cache_limit", "cache_dir", "pack", "max_patches",
    "min_patches",
}
SPLITTING = ("fold", "group")  # keys that are applied to the source that the function returns
EDITS = ("corrections", "leave_out")  # files such as those of vit audit --labels, which change the splits afterwards
# keys of all data sets, with defaults that are accepted where the function has no such parameter
OPTIONAL = {"split_seed": 0, "fold": None, "group": None, "corrections": None, "leave_out": None,
            "on_unknown_split": "error"}
PROGRESS = "progress"  # a parameter that is no key of the config
FRACTIONS = (0.8, 0.1, 0.1)
UNDIVIDED = (1.0, 0.0, 0.0)


def build_source(
    data: dict, record: DataRecord | None = None, overrides: list[str] | None = None,
    progress: StageProgress | None = None,
) -> Source:
    """The data set: calls the function that `data._target_` names with the keys of `data` that are its parameters.

    Args:
        record: the recorded splits of a resumed run, which are used again.
        overrides: overrides of a new run; those that have no effect on this data are reported.
        progress: passed to the function, if it has such a parameter.

    Raises:
        ConfigError: there is no such function, a key is not a parameter of it, or a credential is missing.
        DataError: the data set cannot be read.
    """
    check_credentials({"data": data}, "the config")
    parameters = parameters_of(data)
    shown = {PROGRESS: progress} if PROGRESS in parameters else {}
    node = {"_target_": data["_target_"], **{key: data[key] for key in parameters if key in data}}
    new_splits = any(data.get(key) is not None for key in SPLITTING)
    if data.get("fold") is not None:
        parse_fold(data["fold"])  # an error before the data is read
    if new_splits and "fractions" in parameters:
        node["fractions"] = list(UNDIVIDED)
    with watched_splitting() as assigned:
        source = checked("data", partial(instantiate, _convert_="all", **shown), node)
    check_kind("data", source, Source | PairSource | CorpusSource, "vit.data.Source", node)
    if not (assigned or new_splits) and record is None and "fractions" in parameters:
        warn_about_own_splits(source, data, overrides or [])
    if new_splits:
        if record is None and data.get("fold") is not None and "test" in source.splits:
            count = len(source.splits["test"])
            log.info("data.fold=%s: the folds are made of %s; the %s of test %s left out", data["fold"],
                     " and ".join(key for key in POOL if key in source.splits),
                     number_of(count, "sample"), agree(count, "is", "are"))
        source = with_new_splits(source, data, "fractions" in parameters)
    for key, edit in zip(EDITS, (apply_corrections, leave_out), strict=True):
        if data.get(key):
            if not isinstance(source, Source):
                raise DataError(f"data.{key}: {source.name} has no labels to correct; leave it out")
            source = edit(source, data[key])  # after the split: a corrected label moves no sample to another one
    return source if record is None else record.apply(source)


def parameters_of(data: dict) -> list[str]:
    """The names of the parameters of the function that `data._target_` names.

    Raises:
        ConfigError: there is no such function, or a key of `data` is not a parameter of it.
    """
    module, _, name = data["_target_"].rpartition(".")
    check_module(module, f"data._target_={data['_target_']}")
    try:
        parameters = list(inspect.signature(getattr(importlib.import_module(module), name)).parameters)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(f"data._target_={data['_target_']}: there is no such function ({error})"
                          f"{where_modules_are(error, module)}") from None
    keys = [name for name in parameters if name != PROGRESS]
    known = (*keys, *SPLITTING, *EDITS, *LOADING)
    for key, value in data.items():
        if key not in known and value != OPTIONAL.get(key, ...):
            raise ConfigError(f"data.{key}: {data['_target_']} has no parameter {key!r}{nearest(key, keys)}")
    return parameters


def warn_about_own_splits(source: Source | PairSource | CorpusSource, data: dict, overrides: list[str]) -> None:
    """Warns that overrides of how data is split have no effect on data of this project's kinds that has its splits."""
    found = [key for key in ("fractions", "split_seed") if key in stated(overrides, "data")]
    given = any(data.get(key) for key in ("root", "path", "repo"))  # generated data has a seed, too
    if found and given and data["_target_"].startswith("vit.data."):
        listed = " and ".join(f"data.{key}={data[key]}" for key in found)
        verb, pronoun = ("have", "them") if len(found) > 1 else ("has", "it")
        log.warning("%s %s no effect: %s has its own splits %s; leave %s out", listed, verb, source.name,
                    ", ".join(source.splits), pronoun)


def with_new_splits(source: Source, data: dict, undivided: bool) -> Source:
    """The source with the splits of `data.fold` and `data.group`.

    Args:
        undivided: whether the function has returned data without predefined splits as one split.

    Raises:
        DataError: they cannot be applied to this data.
    """
    if not isinstance(source, Source):
        key = next(key for key in SPLITTING if data.get(key) is not None)
        raise DataError(f"data.{key}: {source.name} has no labelled samples, which folds and groups require; leave "
                        "it out")
    fractions = tuple(data.get("fractions") or FRACTIONS)
    partition = Partition(data.get("fold"), data.get("group"), fractions, data.get("split_seed") or 0, undivided)
    return repartition(source, partition)


def with_absolute_paths(data: dict) -> dict:
    """The data node with absolute paths, so that a resumed run and `vit evaluate` work in any current folder."""
    keys = ("root", "path", *EDITS, "cache_dir")
    paths = {key: os.path.abspath(os.path.expanduser(data[key])) for key in keys if data.get(key)}
    return {**data, **paths}


def truncates(data: dict) -> bool:
    """Whether texts that are too long are truncated in evaluation and prediction; otherwise they are an error."""
    return data["on_long"] != "error"


def check_validation(source: Source | PairSource | CorpusSource, unit: str) -> None:
    """Checks that there are validation samples, by which the best epoch is chosen.

    Raises:
        DataError: the validation split is empty.
    """
    train, val = (len(source.splits.get(key, ())) for key in ("train", "val"))
    if val == 0:
        raise DataError(
            f"{source.name}: 0 of its {number_of(train, unit.removesuffix('s'))} are for validation, so the best epoch "
            f"cannot be chosen; increase the second value of data.fractions, or add {unit} for val"
        )


def data_overrides(config: dict) -> list[str]:
    """The overrides that load the same data set again, from any directory; without credentials."""
    chosen = [override for override in dict.fromkeys(config["overrides"])
              if key_of(override).partition(".")[0] in ("data", "experiment")]
    paths = {f"data.{key}": config["data"][key] for key in ("root", "path", "revision", "corrections", "leave_out")
             if config["data"].get(key)}
    others = [override for override in chosen if override.partition("=")[0] not in paths]
    return masked([*others, *(override_text(key, path) for key, path in paths.items())])
