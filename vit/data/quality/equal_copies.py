"""Samples with equal content: in several splits, which makes a test too easy, or with different labels."""

import logging
from collections import defaultdict
from collections.abc import Mapping, Sequence

from vit.data.errors import printable
from vit.data.splits.recorded import Entry
from vit.messages import agree, number_of

log = logging.getLogger("vit")


def warn_about_repeats(entries: Mapping[str, Sequence[Entry]], labelled: bool) -> None:
    """Warns about samples of val and test whose content is in train, and about equal samples with different labels.

    Args:
        entries: the samples of each split with their fingerprints; of pairs these are those of the sources.
        labelled: whether each sample has a class; a source of pairs may have several targets.
    """
    trained = {entry.fingerprint: entry for entry in reversed(entries.get("train", ())) if entry.fingerprint}
    for split, each in entries.items():
        repeated = [entry for entry in each if entry.fingerprint in trained] if split != "train" else []
        if repeated:
            log.warning("%d of %s of %s %s the content of a training sample, such as %s = %s", len(repeated),
                        number_of(len(each), "sample"), split, agree(len(repeated), "has", "have"),
                        printable(repeated[0].name), printable(trained[repeated[0].fingerprint].name))
    if labelled:
        _warn_about_contradictions(entries)


def _warn_about_contradictions(entries: Mapping[str, Sequence[Entry]]) -> None:
    groups = defaultdict(dict)  # fingerprint → label → name
    for entry in (entry for each in entries.values() for entry in each if entry.fingerprint):
        groups[entry.fingerprint].setdefault(entry.label, entry.name)
    contradictions = [names for names in groups.values() if len(names) > 1]
    if contradictions:
        example = " = ".join(f"{printable(name)} ({printable(label)})" for label, name in contradictions[0].items())
        log.warning("groups of samples with equal content and different labels: %d, such as %s", len(contradictions),
                    example)
