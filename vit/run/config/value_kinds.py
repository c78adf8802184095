"""The kinds of valid values of a config key: a number in a range, true or false, one of several names, any string,
or a node.

`accepts(value)` checks a value; `str()` describes the valid ones in an error message.
"""

import datetime
import math
import re
from dataclasses import dataclass
from typing import Any

UNITS = {"d": "days", "h": "hours", "m": "minutes", "s": "seconds"}
SHORT = re.compile(r"(?:(?P<d>\d+)d)?(?:(?P<h>\d+)h)?(?:(?P<m>\d+)m(?:in)?)?(?:(?P<s>\d+)s)?", re.IGNORECASE)
LONG = re.compile(r"(?P<d>\d+):(?P<h>\d\d):(?P<m>\d\d):(?P<s>\d\d)")
INT64 = -(2**63), 2**63 - 1


@dataclass(frozen=True)
class Number:
    """The range of one key.

    Args:
        low, high: the bounds; `above` and `below` exclude them.
        whole: integers only.
        null: whether null is valid too.
        names: strings that are valid too; None for any string.
        lists: whether a list of such values is valid too.
        length: number of values that a list must have; None for any.
        scalar: whether one number is valid; otherwise only a list.
    """

    low: float = -math.inf
    high: float = math.inf
    above: bool = False
    below: bool = False
    whole: bool = False
    null: bool = False
    names: tuple[str, ...] | None = ()
    lists: bool = False
    length: int | None = None
    scalar: bool = True

    def accepts(self, value: Any) -> bool:
        if value is None:
            return self.null
        if isinstance(value, list | tuple):
            return self.lists and self.length in (None, len(value)) and not any(
                each is None or isinstance(each, list | tuple) or not self._accepts_one(each) for each in value)
        return self._accepts_one(value) and (self.scalar or isinstance(value, str))

    def _accepts_one(self, value: Any) -> bool:
        if isinstance(value, str):
            return self.names is None or value in self.names
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            return False
        if self.whole and not isinstance(value, int):
            return False
        return self.low <= value <= self.high and not (self.above and value == self.low or
                                                       self.below and value == self.high)

    def __str__(self) -> str:
        """`a whole number, 1 or more, or null`"""
        parts = ["a whole number" if self.whole else "a number"]
        if not self.scalar:
            parts = [f"a list of {f'{self.length} ' if self.length else ''}{'whole ' if self.whole else ''}numbers"]
        if (self.low, self.high) == INT64:
            parts = ["a whole number of 64 bits"]
        elif self.low > -math.inf:
            parts.append(f"above {self.low:g}" if self.above else f"{self.low:g} or more")
        if self.high < math.inf and (self.low, self.high) != INT64:
            parts.append(f"below {self.high:g}" if self.below else f"{self.high:g} or less")
        pair = [f"a list of {self.length} of them"] if self.length and self.scalar else []
        others = [*(self.names or ()), *pair, *(["null"] if self.null else [])]
        return ", ".join(parts) + (f", or {' or '.join(others)}" if others else "")


@dataclass(frozen=True)
class Boolean:
    """True or false; also 1, 0 and null, which a YAML file may have.

    Args:
        names: strings that are valid too.
    """

    names: tuple[str, ...] = ()

    def accepts(self, value: Any) -> bool:
        return value in self.names if isinstance(value, str) else value is None or value in (0, 1)

    def __str__(self) -> str:
        """`true, false or auto`"""
        return " or ".join([", ".join(["true", "false", *self.names][:-1]), ["true", "false", *self.names][-1]])


@dataclass(frozen=True)
class Choice:
    """The names that one key accepts.

    Args:
        null: whether null is valid too.
        any_case: whether upper case is valid too.
        former: names of earlier versions, which are valid but not listed.
    """

    names: tuple[str, ...]
    null: bool = False
    any_case: bool = False
    former: tuple[str, ...] = ()

    def accepts(self, value: Any) -> bool:
        if value is None:
            return self.null
        return (str(value).lower() if self.any_case else value) in (*self.names, *self.former)

    def __str__(self) -> str:
        """`one of none, memory, disk`"""
        return f"one of {', '.join(self.names)}"


@dataclass(frozen=True)
class Text:
    """Any string but an empty one.

    Args:
        null: whether null is valid too.
    """

    null: bool = False

    def accepts(self, value: Any) -> bool:
        return isinstance(value, str) and value != "" or value is None and self.null

    def __str__(self) -> str:
        return f"a string that is not empty{', or null' if self.null else ''}"


@dataclass(frozen=True)
class NotEmpty:
    """One path or name: any value but a list, a node and an empty string, which a shell makes of a variable that is not
    set.
    """

    def accepts(self, value: Any) -> bool:
        return value != "" and not isinstance(value, list | tuple | dict)

    def __str__(self) -> str:
        return "one path or name, not empty (a variable of the shell may not be set)"


@dataclass(frozen=True)
class Names:
    """A list of names, which YAML may parse as numbers, or null.

    Args:
        kind: what they are, in the message.
        one: whether one name is valid too.
    """

    kind: str = "names"
    one: bool = False

    def accepts(self, value: Any) -> bool:
        if self.one and isinstance(value, str):
            return value != ""
        return value is None or isinstance(value, list | tuple) and all(
            isinstance(each, str | int) and not isinstance(each, bool) and each != "" for each in value)

    def __str__(self) -> str:
        return f"a list of {self.kind}, or null"


@dataclass(frozen=True)
class Fold:
    """One of n folds, k/n with k in 1..n, or null."""

    def accepts(self, value: Any) -> bool:
        found = re.fullmatch(r"\s*(\d+)\s*/\s*(\d+)\s*", str(value))
        return value is None or found is not None and int(found[2]) >= 2 and 1 <= int(found[1]) <= int(found[2])

    def __str__(self) -> str:
        return "k/n with k in 1..n and 2 or more folds, such as 1/5 for the first of 5 folds, or null"


@dataclass(frozen=True)
class Node:
    """A node with keys of its own.

    Args:
        null: whether null is valid too.
        target: what the `_target_` of the node makes, with an example; empty for a node without one.
    """

    null: bool = False
    target: str = ""

    def accepts(self, value: Any) -> bool:
        if not isinstance(value, dict):
            return value is None and self.null
        return not self.target or isinstance(value.get("_target_"), str) and value["_target_"] != ""

    def __str__(self) -> str:
        if self.target:
            return f"null, or a node with the _target_ of {self.target}"
        return f"a node with keys{', or null' if self.null else ''}"


@dataclass(frozen=True)
class Duration:
    """A time above zero, or null."""

    def accepts(self, value: Any) -> bool:
        return value is None or bool(duration(value))

    def __str__(self) -> str:
        return "a time such as 7m, 1h30m, 90s, 2d or 00:01:30:00 (days:hours:minutes:seconds)"


def duration(value: object) -> datetime.timedelta:
    """`7m`, `1h30m`, `90s`, `2d` or DD:HH:MM:SS; zero for another format."""
    text = str(value).strip()
    found = LONG.fullmatch(text) or SHORT.fullmatch(text)
    parts = {UNITS[key]: int(number) for key, number in (found.groupdict() if found else {}).items() if number}
    return datetime.timedelta(**parts)
