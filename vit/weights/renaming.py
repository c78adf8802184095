"""Names exchanged by tables, matrices fused and split, and which of theirs each of ours was made of."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial

import torch
from torch import Tensor

Rules = Sequence[tuple[str, str]]  # a pattern for the beginning of a name, and what replaces it; the first that fits
Pairs = Sequence[tuple[str | Sequence[str], str]]  # theirs, in one way or several, and ours


class Names:
    """Their names beside ours, to read by and to write by.

    `{}` stands for a number. What ends in "." or "_" is the beginning of names, all else is a whole name. The first
    pair that fits counts, and a name that none fits stays. Where theirs are several, all are read and the first is
    written.

    Args:
        before: what may stand before all of theirs.
    """

    def __init__(self, pairs: Pairs, before: Iterable[str] = ()) -> None:
        self.reading, self.writing = [], []
        optional = f"(?:{'|'.join(map(re.escape, before))})?" if before else ""
        for theirs, ours in pairs:
            self.reading += [(compiled(one, optional), ours) for one in several(theirs)]
            self.writing.append((compiled(ours), several(theirs)[0]))

    def ours(self, name: str) -> str:
        return exchanged(name, self.reading)

    def theirs(self, name: str) -> str:
        return exchanged(name, self.writing)


def several(names: str | Sequence[str]) -> Sequence[str]:
    return [names] if isinstance(names, str) else names


def compiled(template: str, optional: str = "") -> re.Pattern[str]:
    whole = "" if template.endswith((".", "_")) else "$"
    return re.compile(optional + re.escape(template).replace(r"\{\}", r"(\d+)") + whole)


def exchanged(name: str, table: Iterable[tuple[re.Pattern[str], str]]) -> str:
    for pattern, template in table:
        if found := pattern.match(name):
            return template.format(*found.groups()) + name[found.end() :]
    return name


class Renamed(dict[str, Tensor]):
    """Tensors under our names.

    `origins` says which of theirs each of ours was made of; none where theirs have none because it changes nothing.
    """

    def __init__(self, state: Mapping[str, Tensor], rules: Rules | Callable[[str], str] = ()) -> None:
        super().__init__()
        named = rules if callable(rules) else partial(rename, rules=rules)
        self.origins: dict[str, tuple[str, ...]] = {}
        for theirs, tensor in state.items():
            ours = named(theirs)
            if ours in self:
                raise ValueError(f"{self.origins[ours][0]} and {theirs} would both be {ours} here; keep one of them")
            self[ours] = tensor
            self.origins[ours] = (theirs,)

    def make(self, name: str, parts: Sequence[str], how: Callable[..., Tensor]) -> None:
        """Put one tensor in the place of others.

        Raises:
            ValueError: one of these is missing.
        """
        if missing := [part for part in parts if part not in self]:
            raise ValueError(f"there is no tensor for {missing[0]}; the file is cut")
        tensors = [self.pop(part) for part in parts]
        self.origins[name] = tuple(theirs for part in parts for theirs in self.origins.pop(part, ()))
        self[name] = how(*tensors)

    def fuse(self, names: Sequence[str], into: str, within: str = "") -> None:
        """One matrix instead of several with the same input, wherever the first of them stands: q, k, v -> qkv.

        Args:
            within: the beginning of the names that are looked at.
        """
        for first in [name for name in self if name.startswith(within) and f".{names[0]}." in name]:
            parts = [first.replace(f".{names[0]}.", f".{name}.") for name in names]
            if missing := [part for part in parts if part not in self]:
                raise ValueError(f"{self.origins[first][0]} is there, but what would be {missing[0]} is missing; "
                                 "the file is cut")
            self.make(first.replace(f".{names[0]}.", f".{into}."), parts, lambda *tensors: torch.cat(tensors))

    def split(self, name: str, into: Mapping[str, int]) -> None:
        """Several matrices instead of one; `into` says how many parts of equal height each takes."""
        tensor, theirs = self.pop(name), self.origins.pop(name)
        height, start = tensor.shape[0] // sum(into.values()), 0
        for part, count in into.items():
            self[part], self.origins[part] = tensor[start : start + count * height], theirs
            start += count * height

    def zeros(self, name: str, like: str) -> None:
        """A bias of zeros beside a matrix that has none there."""
        if like in self and name not in self:
            self.imply(name, self[like].new_zeros(self[like].shape[0]))

    def imply(self, name: str, tensor: Tensor) -> None:
        """A tensor that they leave out because it changes nothing."""
        self[name], self.origins[name] = tensor, ()


def rename(name: str, rules: Rules) -> str:
    """The name after the first rule that fits its beginning; one that fits none stays."""
    for pattern, ours in rules:
        renamed, found = re.subn("^" + pattern, ours, name)
        if found:
            return renamed
    return name
