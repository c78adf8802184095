"""Leakage: samples of val and test that the initial weights, or a teacher, were trained on."""

import logging
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

from vit.bundle import CONFIG as CONFIG_FILE
from vit.bundle import MEMBER_PATHS
from vit.data import CorpusSource, PairSource, Source
from vit.data.identity import to_nfc
from vit.data.sample_names import has_names
from vit.data.splits.recorded import Entry, list_entries
from vit.messages import number_of, override_for_shell
from vit.models import EnsembleConfig
from vit.run.config.composing import ConfigError
from vit.run.parts.data_source import data_overrides
from vit.run.records.folder import CONFIG
from vit.run.records.members import Origin, members_record
from vit.run.records.splits import SPLIT_KEYS, DataRecord, record_beside

log = logging.getLogger("vit")

ERROR, WARN = "error", "warn"  # values of `on_leakage`
CHECKED = ("val", "test")


class Leaked(NamedTuple):
    """The samples of a split that a model was trained on.

    Args:
        total: all samples of the split.
        known: those with the content, or the name in the same data, of a training sample.
        certain: those of them that are the same sample of the data, and whose label was used.
    """

    total: int
    known: int
    certain: int


def check_leakage(
    key: str, origin: Origin, source: Source | PairSource | CorpusSource, config: Mapping[str, Any],
    decisive: Collection[str] = CHECKED,
) -> tuple[dict[str, int], list[Entry]]:
    """Checks that neither a model nor the initial weights it came from were trained on samples of val or test.

    The same sample, trained on with its label, is an error unless `on_leakage` is "warn". A sample of equal content
    under another name, and one that pre-training used without its label, is a warning.

    Args:
        key: the config key that names the model.
        decisive: splits whose samples are an error; those of the others are a warning.

    Returns:
        The number of such samples by split, without splits that have none, and all samples that the model was trained
        on, as the new run records them.

    Raises:
        ConfigError: names the numbers of samples and the fix.
    """
    if not origin.path.exists():  # a name of timm or of the hub
        return {}, []
    record = origin_record(origin)
    if record is None or not record.splits:
        _warn_without_record(key, origin, source, config)
        return {}, []
    leaked = {split: find_leaked(record, source, config["data"], split) for split in CHECKED if split in source.splits}
    leaked = {split: each for split, each in leaked.items() if each.known}
    if not leaked:
        return {}, record.lineage()
    text = f"{key}={origin.path}: {_counts(leaked)} are samples that it was trained on"
    certain = any(each.certain for split, each in leaked.items() if split in decisive)
    if certain and (config.get("on_leakage") or ERROR) == ERROR:
        fix = _same_splits(record, config["data"], is_ensemble(origin))
        raise ConfigError(f"{text}, so results on them would not hold for new samples; {fix}, or on_leakage={WARN}, "
                          "which records these numbers with the results")
    log.warning("%s; results on them do not hold for new samples, and metrics.json has these numbers", text)
    return {split: each.known for split, each in leaked.items()}, record.lineage()


def is_ensemble(origin: Origin) -> bool:
    """Whether the model combines several runs, whose samples are recorded by those."""
    return MEMBER_PATHS in origin.extra or origin.kind == EnsembleConfig.kind


def origin_record(origin: Origin) -> DataRecord | None:
    """The recorded samples of the run of a model, or of the runs of its members."""
    if is_ensemble(origin):
        folder = origin.path if (origin.path / CONFIG_FILE).is_file() else origin.path / "model"
        return members_record(origin._replace(path=folder))
    return record_beside(origin.path / "model" if (origin.path / CONFIG).is_file() else origin.path)


def find_leaked(
    record: DataRecord, source: Source | PairSource | CorpusSource, data: Mapping[str, Any], split: str
) -> Leaked:
    """The samples of a split that the recorded model, or its initial weights, were trained on.

    Samples of equal content that are in the training split, too, are not counted: the run reports them as repeated.
    """
    entries = list_entries(source, [split])[split]
    lineage = sorted(record.lineage(), key=lambda entry: entry.label != "")  # of several, one with a label counts
    by_content = {entry.fingerprint for entry in lineage if entry.fingerprint}
    by_both = {(to_nfc(entry.name), entry.fingerprint): entry for entry in lineage if entry.fingerprint}
    named = has_names(getattr(source.splits[split], "names", ()))
    by_name = _identified_by_name(record, named) if record.is_at(dict(data)) else {}
    names = [to_nfc(entry.name) for entry in entries]
    found = [(by_both.get((name, entry.fingerprint)), by_name.get(name))
             for name, entry in zip(names, entries, strict=True)]
    same = [max(each, key=lambda known: 0 if known is None else 1 + bool(known.label)) for each in found]
    copies = {e.fingerprint for e, known in zip(entries, same, strict=True) if known is None} & by_content
    if copies:
        copies -= {entry.fingerprint for entry in list_entries(source, ["train"])["train"]}
    certain = sum(known is not None and bool(known.label) for known in same)
    others = sum(e.fingerprint in copies for e, known in zip(entries, same, strict=True) if known is None)
    return Leaked(len(entries), sum(known is not None for known in same) + others, certain)


def _identified_by_name(record: DataRecord, named: bool) -> dict[str, Entry]:
    """Name -> training sample, of the samples that a name is enough to identify in data at the recorded location.

    They are the files of the run itself, even if their content has changed, and samples that were recorded without
    content. Files of earlier runs are not among them, because their names may belong to other data.

    Args:
        named: whether names identify the samples of the split, as file names do and row numbers do not.
    """
    lineage = record.lineage()
    own = lineage[len(record.earlier):] if named else []
    known = [*(entry for entry in lineage if not entry.fingerprint), *own]
    return {to_nfc(entry.name): entry for entry in sorted(known, key=lambda entry: entry.label != "")}


def _counts(found: Mapping[str, Leaked]) -> str:
    """`3 of the 10 samples of val and 1 of the 5 samples of test`"""
    return " and ".join(f"{each.known} of the {number_of(each.total, 'sample')} of {split}"
                        for split, each in found.items())


def _same_splits(record: DataRecord, data: Mapping[str, Any], combined: bool) -> str:
    """The fix in the error: the overrides of the model's own splits, or other data where they do not help.

    Args:
        combined: whether the model is an ensemble, whose members have several splits.
    """
    keys = [key for key in SPLIT_KEYS if key in record.data and record.data[key] != data.get(key)]
    if not keys or combined:
        return "use other data, or a split that it was not trained on"
    return f"use its splits with {' '.join(override_for_shell(f'data.{key}', record.data[key]) for key in keys)}"


def _warn_without_record(
    key: str, origin: Origin, source: Source | PairSource | CorpusSource, config: Mapping[str, Any]
) -> None:
    """Warns that val and test may contain training samples of a model whose run is missing: of an ensemble, and of a
    model of the same data with other splits.
    """
    if is_ensemble(origin):
        log.warning("%s=%s: the runs of its members are missing, so val and test of %s may contain samples that they "
                    "were trained on", key, origin.path, source.name)
        return
    names = {f"data.{name}" for name in SPLIT_KEYS}
    overrides, recorded = data_overrides(dict(config)), origin.extra.get("data", [])
    splits = [{each for each in listed if each.partition("=")[0] in names} for listed in (overrides, recorded)]
    paths = [{each for each in listed if each.startswith(("data=", "data.root=", "data.path="))}
             for listed in (overrides, recorded)]
    if "data" in origin.extra and paths[0] == paths[1] and splits[0] != splits[1]:
        log.warning("%s=%s: its run is missing, and it was trained on %s with other splits (%s), so val and test may "
                    "contain samples that it was trained on", key, origin.path, source.name,
                    " ".join(sorted(splits[1])) or "the default ones")
