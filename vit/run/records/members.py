"""The samples of the members of a combined model: an ensemble, or the mean of the weights of several runs."""

import logging
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from vit.bundle import CONFIG as CONFIG_FILE
from vit.bundle import MEMBER_PATHS, Bundle, BundleError
from vit.data import Source
from vit.data.identity import to_nfc
from vit.data.splits.recorded import Entry
from vit.exchange.run_records import read_object
from vit.messages import agree
from vit.run.config.composing import ConfigError
from vit.run.records.folder import CONFIG
from vit.run.records.splits import DataRecord, read_record

log = logging.getLogger("vit")

HELD_OUT = "held_out"  # key of a bundle's extra: the splits that take no part in the folds of its members
CROSS_VALIDATION = "cross_validation.json"
CHOOSING = "val"  # the split that selects the best epoch of each member


class Origin(NamedTuple):
    """A trained model without its weights: its path, the further values of its bundle, and the kind of its model."""

    path: Path
    extra: Mapping[str, Any]
    kind: str


def is_combined(bundle: Bundle) -> bool:
    """Whether the members of a bundle are recorded, or those of an older one are beside it."""
    return MEMBER_PATHS in bundle.extra or bool(_older_members(bundle))


def members_record(bundle: Bundle | Origin) -> DataRecord | None:
    """All training and all validation samples of the members, each as one split; None where a run is missing.

    Raises:
        BundleError: the record of the members is damaged.
    """
    members = [_member(bundle, path) for path in _texts(bundle, MEMBER_PATHS) or _older_members(bundle)]
    if not members or None in members or not all(record.splits for record in members):
        return None
    splits = {key: _union(record.splits.get(key, ()) for record in members) for key in ("train", CHOOSING)}
    earlier = _union(record.earlier for record in members)
    return DataRecord(bundle.path, members[0].data, members[0].classes, splits, {}, earlier=earlier)


def check_unseen(bundle: Bundle, source: Source, data: dict, split: str, recorded_location: bool) -> None:
    """Checks that no member of a combined model was trained on a sample of a split, and that none selected its best
    epoch with it, unless the split is the validation split of all members.

    Args:
        recorded_location: whether the bundle records the location of this data.

    Raises:
        ConfigError: the split, unless it is train, has such samples.
        BundleError: the record of the members is damaged.
    """
    if split == "train" or split not in source.splits:
        return
    record, total = members_record(bundle), len(source.splits[split])
    if record is None:
        if recorded_location:
            _check_without_runs(bundle, source, data, split)
    elif record.is_of(data, source):
        counts = _seen_samples(record, source)
        if counts[split]:
            unseen = [key for key, count in counts.items() if not count and key != "train"]
            raise ConfigError(_message(bundle, f"{counts[split]} of the {total}", f"{source.name}, {split},", unseen))
    elif count := record.known(source, split):
        log.warning("%d of the %d samples of %s, %s, %s the same content as training samples of the members of %s",
                    count, total, source.name, split, agree(count, "has", "have"), bundle.path)


def _seen_samples(record: DataRecord, source: Source) -> dict[str, int]:
    """The number of samples of each split that members were trained on or, except for val itself, chose by."""
    trained, chosen = ({to_nfc(entry.name) for entry in record.splits[key]} for key in ("train", CHOOSING))
    names = {key: [to_nfc(name) for name, _ in rows] for key, rows in source.split_lists().items()}
    return {key: sum(name in trained or (key != CHOOSING and name in chosen) for name in each)
            for key, each in names.items()}


def _check_without_runs(bundle: Bundle, source: Source, data: dict, split: str) -> None:
    held_out = _texts(bundle, HELD_OUT)
    if HELD_OUT not in bundle.extra:
        log.warning("the runs of the members of %s are missing: %s, %s, may contain their training samples",
                    bundle.path, source.name, split)
    elif split not in held_out or data.get("fold") is not None:
        raise ConfigError(_message(bundle, "the", f"{source.name}, {split},", [] if split in held_out else held_out))


def _message(bundle: Bundle, number: str, split: str, unseen: Sequence[str]) -> str:
    folders = [bundle.path.parent, *(Path(path).parent for path in _texts(bundle, MEMBER_PATHS)[:1])]
    file = next((each / CROSS_VALIDATION for each in folders if (each / CROSS_VALIDATION).is_file()), None)
    numbers = f"; {file} has the accuracy out of fold" if file else ""
    test = f"--split {unseen[0]}, whose samples no member was trained on, or " if unseen else ""
    return (f"{number} samples of {split} are training or validation samples of members of {bundle.path}, "
            f"so their accuracy and calibration would not hold for new ones{numbers}; use {test}other data, with "
            "data=NAME data.root=FOLDER")


def _texts(bundle: Bundle | Origin, key: str) -> list[str]:
    texts = bundle.extra.get(key, [])
    if not isinstance(texts, list) or not all(isinstance(each, str) for each in texts):
        raise BundleError(f"{bundle.path / CONFIG_FILE}: vit.extra.{key} must be a list of strings; copy the folder "
                          "again")
    return texts


def _member(bundle: Bundle | Origin, path: str) -> DataRecord | None:
    """The record of a member, at its path or beside the bundle, where the folder of all was moved."""
    own = Path(path)
    stated = (own, own.parent) if own.is_absolute() else ()
    for run in (*stated, *(folder / own.name for folder in list(bundle.path.absolute().parents)[:2])):
        if (run / CONFIG).is_file() and (run / "splits").is_dir():
            try:
                return read_record(run)
            except (OSError, ValueError) as error:
                log.warning("%s: its splits cannot be read: %s", run, error)
    return None


def _union(parts: Iterable[Iterable[Entry]]) -> list[Entry]:
    return list({(entry.name, entry.fingerprint): entry for entries in parts for entry in entries}.values())


def _older_members(bundle: Bundle | Origin) -> list[str]:
    """The names of the runs of a cross-validation whose ensemble, of an earlier version, does not record them."""
    kind = bundle.kind if isinstance(bundle, Origin) else bundle.model.config.kind
    if kind != "ensemble" or MEMBER_PATHS in bundle.extra:
        return []
    try:
        runs = read_object(bundle.path.parent / CROSS_VALIDATION).get("runs")
    except ValueError as error:
        log.warning("%s", error)
        return []
    return list(runs) if isinstance(runs, dict) else []
