"""`splits/` of a run folder: the samples of each split, written once and compared when the run is resumed."""

import logging
import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from vit.data import CorpusSource, DataError, PairSource, Source
from vit.data.splits.recorded import (
    NEW,
    Entry,
    format_rows,
    list_entries,
    read_rows,
    restore_splits,
    warn_about_repeats,
)
from vit.data.threads import StageProgress
from vit.files.atomic import Manifest
from vit.messages import agree, number_of, override_for_shell
from vit.run.config.composing import ConfigError
from vit.run.config.overrides import yaml_text
from vit.run.records.folder import METRICS, NAMED, RunFolder, check_contents
from vit.run.records.reading import check_unchanged, config_and_remark, read_stored

log = logging.getLogger("vit")

AnySource = TypeVar("AnySource", Source, PairSource, CorpusSource)
LEFT_OUT, CORRECTED = "left_out", "corrected"
EARLIER = "trained_earlier"  # the file of samples that `init_from` or a teacher was trained on
SPLIT_KEYS = ("split_seed", "fractions", "val", "fold", "group")  # keys of a data node that assign samples to splits
LOCATION = ("_target_", "root", "path", "repo")  # keys of a data node that identify the data
SPLIT_RULE = "hash"  # how fractions assign samples to splits; bundles without it were split by position


@dataclass(frozen=True)
class DataRecord:
    """The recorded data of a run; `classes` are empty if it has none.

    Args:
        left_out: name -> reason.
        labelled: whether the training used labels or targets, which masked pre-training does not.
        earlier: samples that the initial weights or a teacher were trained on; the label is "" if it was not used.
        leakage: split -> its number of such samples, if there are any.
    """

    path: Path
    data: dict
    classes: list[str]
    splits: dict[str, list[Entry]]
    left_out: dict[str, str]
    labelled: bool = True
    earlier: list[Entry] = field(default_factory=list)
    leakage: dict[str, int] = field(default_factory=dict)

    def lineage(self) -> list[Entry]:
        """All samples that the weights were trained on, with those of the runs that they come from. The label is ""
        where it was not used.
        """
        own = self.splits.get("train", [])
        return [*self.earlier, *(own if self.labelled else [entry._replace(label="") for entry in own])]

    def apply(self, source: AnySource, compared: Collection[str] | None = None) -> AnySource:
        """The source with the recorded samples in the recorded splits; new ones are left out and logged.

        Raises:
            DataError: samples of the splits that are `compared` (None: all) are missing or changed, or the classes are.
        """
        if not self.splits:
            log.warning("%s has no record of its splits, so they cannot be compared", self.path)
            return source
        if not any(entry.fingerprint for entry in self.splits["train"][:1]):
            log.info("%s has no fingerprints of its samples, so their contents are not compared", self.path)
        if compared is None:
            self._check_classes(source)
        fix = f"restore them, or start a new run from its weights with {override_for_shell('init_from', self.path)}"
        restored = restore_splits(source, self.splits, compared, self.left_out, fix)
        new = [name for name, reason in restored.left_out if reason == NEW]
        if new:
            log.warning("%s %s %s and %s left out: %s%s", number_of(len(new), "sample"),
                        agree(len(new), "was", "were"), NEW, agree(len(new), "is", "are"), ", ".join(new[:NAMED]),
                        ", ..." if len(new) > NAMED else "")
        return restored

    def with_own_reading(self, data: dict) -> dict:
        """A data node that reads texts as the run did: a run of an earlier version has no key `strip`."""
        former = data["_target_"] == self.data.get("_target_") and "strip" not in self.data
        return {key: value for key, value in data.items() if key != "strip" or not former}

    def is_of(self, data: dict, source: AnySource) -> bool:
        """Whether this is the recorded data: at the same location, or with more than half of the recorded samples."""
        if self.is_at(data):
            return True
        names = {name for rows in source.split_lists().values() for name, _ in rows}
        recorded = [entry.name for rows in self.splits.values() for entry in rows]
        return data["_target_"] == self.data.get("_target_") and 2 * sum(n in names for n in recorded) > len(recorded)

    def is_at(self, data: dict) -> bool:
        """Whether a data node names the location of the recorded data."""
        return all(_real_path(self.data.get(key)) == _real_path(data.get(key)) for key in LOCATION)

    def check_splits(self, data: dict) -> None:
        """Checks that a data node does not split the recorded samples differently.

        Raises:
            ConfigError: names the key.
        """
        for key in SPLIT_KEYS:
            if key in data and key in self.data and data[key] != self.data[key]:
                raise ConfigError(f"data.{key}={yaml_text(data[key])} would evaluate on training samples of {self.path}"
                                  f", which has {yaml_text(self.data[key])}; leave it out, and the recorded splits are "
                                  "used")

    def default_split(self) -> str:
        return "test" if "test" in self.splits else "val"

    def known(self, source: AnySource, split: str) -> int:
        """The number of samples of a split that have the content of a sample that the weights were trained on."""
        trained = {entry.fingerprint for entry in self.lineage()} - {""}
        return sum(entry.fingerprint in trained for entry in list_entries(source, [split])[split])

    def _check_classes(self, source: AnySource) -> None:
        classes = getattr(source, "classes", None) or []
        if not self.classes or classes == self.classes:  # pre-training on images has no classes
            return
        known, present = set(self.classes), set(classes)
        new, gone = [c for c in classes if c not in known], [c for c in self.classes if c not in present]
        what = f"new: {new[:5]}, gone: {gone[:5]}" if new or gone else f"another order: {classes[:5]}"
        raise DataError(f"{source.name}: its {number_of(len(classes), 'class')} are not the {len(self.classes)} that "
                        f"the run recorded ({what}); restore the data, or start a new run with "
                        f"{override_for_shell('init_from', self.path)}")


def write_record(
    folder: RunFolder, source: AnySource, left_out: Sequence[tuple[str, str]], earlier: Sequence[Entry] = (),
    labelled: bool = True, progress: StageProgress | None = None,
) -> None:
    """Writes files of the folder `splits`: one per split with a line per sample (name, class or target, fingerprint),
    and lists of the left-out samples, of the labels that data.corrections changed (name, former label, new label), and
    of the samples that the initial weights or a teacher were trained on, but not this run. Repeated samples are logged.

    Args:
        labelled: whether the run uses labels; if not, samples whose labels were used before are listed as well.
    """
    corrected, entries = getattr(source, "corrected", []), list_entries(source, progress=progress)
    warn_about_repeats(entries, isinstance(source, Source))
    own = {(entry.name, entry.fingerprint) for entry in entries["train"]} if earlier else set()
    others = [entry for entry in dict.fromkeys(earlier)
              if (entry.name, entry.fingerprint) not in own or (entry.label and not labelled)]
    lists = {**entries, **({LEFT_OUT: left_out} if left_out else {}),
             **({CORRECTED: corrected} if corrected else {}), **({EARLIER: others} if others else {})}
    for split, rows in lists.items():
        folder.write_text(f"splits/{split}.tsv", format_rows(rows))


def read_record(path: Path) -> DataRecord:
    """The record in a run folder; in older runs it has two columns, without fingerprints.

    Raises:
        ConfigError: the folder has no config, or a file of a split is missing or has changed.
    """
    check_contents(path)
    check_unchanged(path, "splits/")
    check_lists(path)
    file = path / "config.yaml"
    config = read_stored(file) if file.is_file() else config_and_remark(file)[0]
    files = {file.stem: file for file in sorted((path / "splits").glob("*.tsv"))}
    splits = {key: [Entry(*row) for row in read_rows(files[key])] for key in ("train", "val", "test") if key in files}
    splits = splits if "train" in splits else {}
    escaped = any(entry.fingerprint for entries in splits.values() for entry in entries)
    left_out = {row[0]: row[-1] for row in read_rows(files[LEFT_OUT], escaped)} if LEFT_OUT in files else {}
    earlier = [Entry(*row) for row in read_rows(files[EARLIER])] if EARLIER in files else []
    return DataRecord(path, config.get("data") or {}, config.get("classes") or [], splits, left_out,
                      uses_labels(config), earlier, config.get("leakage") or {})


def check_lists(path: Path) -> None:
    """Checks that the folder `splits` of a run has all files that its manifest records, or none. A start that was
    killed leaves some, but neither checkpoints nor metrics.

    Raises:
        ConfigError: names the missing one.
    """
    recorded = [path / name for name in Manifest.read(path).files if name.startswith("splits/")]
    missing = [file for file in recorded if not file.is_file()]
    begun = (path / METRICS).exists() or any((path / "checkpoints").glob("*.ckpt"))
    if begun and missing and len(missing) < len(recorded):
        raise ConfigError(f"{missing[0]} is missing, so that its samples are unknown; restore the file that this run "
                          "wrote")


def uses_labels(config: Mapping[str, Any]) -> bool:
    """Whether the training of a run uses labels or targets, which masked pre-training does not."""
    return not str((config.get("task") or {}).get("name")).startswith("masked_")


def record_beside(model: Path) -> DataRecord | None:
    """The record of the run that a bundle or checkpoint belongs to; None outside a run folder."""
    for run in list(Path(model).absolute().parents)[:2]:
        if (run / "config.yaml").is_file() and (run / "splits").is_dir():
            return read_record(run)
    return None


def _real_path(value: object) -> object:
    """A path without links and `~`; other values unchanged."""
    return os.path.realpath(os.path.expanduser(value)) if isinstance(value, str) and os.path.exists(value) else value
