"""Groups of samples that stay in one split, such as the images of a patient, from a column or from file names."""

import logging
import re
from collections.abc import Container, Sequence
from dataclasses import dataclass

from vit.data.errors import DataError, printable
from vit.data.source import Source
from vit.data.splits.split import Split, keys
from vit.messages import agree, number_of

log = logging.getLogger("vit")

OWN = "\0"  # prefix of the key of a sample without a group


def group_column(group: str | int | None, columns: Container[str | int]) -> str | int | None:
    """The column that `data.group` names; None for a regular expression, which has a capture group in parentheses and
    is not one of the `columns`.
    """
    return None if _has_parenthesis(group) and group not in columns else group


def _has_parenthesis(group: str | int | None) -> bool:
    return isinstance(group, str) and "(" in group


@dataclass(frozen=True)
class Grouping:
    """`data.group`: a column of the table, or a regular expression whose first capture group is searched in the file
    names.
    """

    group: str | int

    def keys(self, source: Source, split: str) -> list[str]:
        """The group of each sample of a split; a sample without a group is a group of its own.

        Raises:
            DataError: the data has no such column, or the expression is invalid or has no capture group.
        """
        samples = source.splits[split]
        values = samples.groups if has_column(samples) else self._searched(source, samples.names)
        if all(values):
            return list(values)
        own = keys(samples)
        return [value or OWN + own[i] for i, value in enumerate(values)]

    def _searched(self, source: Source, names: Sequence[str]) -> list[str]:
        """The group of each file, the first capture group of the expression in its name; "" without a match."""
        if not _has_parenthesis(self.group):
            raise DataError(f"data.group={self.group}: {source.name} has no columns besides its images and labels; "
                            "give a regular expression that finds the group in the file names, such as "
                            "'(patient[0-9]+)_'")
        try:
            pattern = re.compile(self.group)
        except re.error as error:
            raise DataError(f"data.group={self.group} is not a regular expression: {error}") from None
        if pattern.groups == 0:
            raise DataError(f"data.group={self.group} has no capture group, a part in parentheses that finds the group "
                            "of a file; write one, such as '(patient[0-9]+)_'")
        matches = (pattern.search(name.replace("\\", "/")) for name in names)
        return [(match[1] or "") if match else "" for match in matches]


def has_column(samples: Split) -> bool:
    """Whether the groups of the samples are a column, which was read with them."""
    return getattr(samples, "groups", None) is not None


def group_keys(source: Source, group: str | int) -> dict[str, list[str]]:
    """The group of each sample, by split; logs their number.

    Raises:
        DataError: as `Grouping.keys`; or no sample has a group, or all have the same one.
    """
    grouping = Grouping(group)
    keys = {split: grouping.keys(source, split) for split in source.splits}
    _check_and_log_groups(source, group, [key for each in keys.values() for key in each], keys)
    return keys


def _check_and_log_groups(source: Source, group: str | int, every: Sequence[str], found: dict[str, list[str]]) -> None:
    """Log the number of groups, and of samples without a group; DataError if no sample has a group, or all have the
    same.
    """
    distinct, alone = set(every), sum(key.startswith(OWN) for key in every)
    unit = source.unit
    if alone == len(every):
        samples = next(iter(source.splits.values()))
        example = printable(samples.names[0])
        if has_column(samples):
            raise DataError(f"data.group={group} is an empty column of {number_of(len(every), unit)}, such as "
                            f"{example!r}")
        raise DataError(f"data.group={group} matches none of the file names of {number_of(len(every), unit)}, such as "
                        f"{example!r}; a value with '(' that is not the name of a column is a regular expression")
    if len(distinct) == 1:
        raise DataError(f"data.group={group}: all {len(every)} {unit}s are in one group, {printable(every[0])!r}, "
                        "which cannot be split; choose another column or expression")
    if len(distinct) == len(every):
        log.warning("data.group=%s: each of the %d %ss is a group of its own, so grouping changes nothing", group,
                    len(every), unit)
        return
    log.info("data.group=%s: %s in %s", group, number_of(len(every), unit), number_of(len(distinct), "group"))
    if alone:
        name = next(source.splits[split].names[i] for split, each in found.items() for i, key in enumerate(each)
                    if key.startswith(OWN))
        log.warning("data.group=%s: %d of %s %s and %s a group each, such as %s", group, alone,
                    number_of(len(every), unit), agree(alone, "has no group", "have no group"),
                    agree(alone, "is", "are"), printable(name))


def check_apart(source: Source, found: dict[str, list[str]], group: str | int) -> None:
    """Checks that no group is in two of the predefined splits of the data. Samples without a group are not compared;
    the run counts equal ones.

    Raises:
        DataError: names the first such group and its splits.
    """
    splits: dict[str, str] = {}
    crossing = {}
    for split, each in found.items():
        for key in dict.fromkeys(each):
            if not key.startswith(OWN) and splits.setdefault(key, split) != split:
                crossing.setdefault(key, (splits[key], split))
    if crossing:
        key, (one, other) = next(iter(crossing.items()))
        raise DataError(f"{source.name}: {number_of(len(crossing), 'group')} of data.group={group} "
                        f"{agree(len(crossing), 'is', 'are')} in more than one of the predefined splits, "
                        f"such as {printable(key)!r} in {one} and {other}; move them to one split, or use "
                        "data.fold=k/n, which makes new splits")
