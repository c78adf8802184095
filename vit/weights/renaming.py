"""Renaming parameters by tables, and fusing or splitting matrices, with a record of what each tensor was made from."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial

import torch
from torch import Tensor

RenameRules = Sequence[tuple[str, str]]  # (regular expression for the start of a name, replacement); first match wins
NamePairs = Sequence[tuple[str | Sequence[str], str]]  # (foreign name, or several alternatives; vit name)


class NameMap:
    """A table of foreign names and vit names that is applied in both directions.

    `{}` matches a number. An entry that ends in "." or "_" is a prefix, any other one is a whole name. The first pair
    that matches is applied; a name that matches none is unchanged. Of several foreign alternatives all are recognised
    and the first one is exported.

    Args:
        optional_prefixes: optional prefixes of the foreign names.
    """

    def __init__(self, pairs: NamePairs, optional_prefixes: Iterable[str] = ()) -> None:
        self._to_vit, self._to_foreign = [], []
        optional = f"(?:{'|'.join(map(re.escape, optional_prefixes))})?" if optional_prefixes else ""
        for foreign, vit in pairs:
            self._to_vit += [(template_pattern(name, optional), vit) for name in alternatives(foreign)]
            self._to_foreign.append((template_pattern(vit), alternatives(foreign)[0]))

    def to_vit(self, name: str) -> str:
        return replace_first(name, self._to_vit)

    def to_foreign(self, name: str) -> str:
        return replace_first(name, self._to_foreign)


def alternatives(names: str | Sequence[str]) -> Sequence[str]:
    return [names] if isinstance(names, str) else names


def template_pattern(template: str, optional: str = "") -> re.Pattern[str]:
    whole = "" if template.endswith((".", "_")) else "$"
    return re.compile(optional + re.escape(template).replace(r"\{\}", r"(\d+)") + whole)


def replace_first(name: str, table: Iterable[tuple[re.Pattern[str], str]]) -> str:
    """The name with the match of the first pattern replaced by its template."""
    for pattern, template in table:
        if match := pattern.match(name):
            return template.format(*match.groups()) + name[match.end() :]
    return name


class RenamedState(dict[str, Tensor]):
    """A state dict under vit's parameter names.

    `sources` maps each name to the foreign names it was made from; an empty tuple if the source omits a zero or
    identity.

    Args:
        rules: rename rules, or a function from foreign to vit names.

    Raises:
        ValueError: two names become the same.
    """

    def __init__(self, state: Mapping[str, Tensor], rules: RenameRules | Callable[[str], str] = ()) -> None:
        super().__init__()
        renamed = rules if callable(rules) else partial(rename, rules=rules)
        self.sources: dict[str, tuple[str, ...]] = {}
        for foreign, tensor in state.items():
            name = renamed(foreign)
            if name in self:
                raise ValueError(f"{self.sources[name][0]} and {foreign} both correspond to {name}; remove one of them")
            self[name] = tensor
            self.sources[name] = (foreign,)

    def make(self, name: str, parts: Sequence[str], function: Callable[..., Tensor]) -> None:
        """Replace the tensors `parts` by `function(*tensors)` under `name`.

        Raises:
            ValueError: one of the parts is missing.
        """
        if missing := [part for part in parts if part not in self]:
            raise ValueError(f"there is no tensor for {missing[0]}; the file is truncated")
        tensors = [self.pop(part) for part in parts]
        self.sources[name] = tuple(source for part in parts for source in self.sources.pop(part, ()))
        self[name] = function(*tensors)

    def rename(self, name: str, new: str) -> None:
        """Raises ValueError if there is no such tensor."""
        self.make(new, [name], lambda tensor: tensor)

    def fuse(self, names: Sequence[str], into: str, prefix: str = "") -> None:
        """Concatenate matrices that have the same input, in every layer that has the first of them: q, k, v -> qkv.

        Args:
            prefix: prefix of the names to look at.

        Raises:
            ValueError: a layer has the first matrix but not the others.
        """
        for first in [name for name in self if name.startswith(prefix) and f".{names[0]}." in name]:
            parts = [first.replace(f".{names[0]}.", f".{name}.") for name in names]
            if missing := [part for part in parts if part not in self]:
                raise ValueError(f"the file has {self.sources[first][0]}, but no tensor for {missing[0]}; it is "
                                 "truncated")
            self.make(first.replace(f".{names[0]}.", f".{into}."), parts, lambda *tensors: torch.cat(tensors))

    def split(self, name: str, into: Mapping[str, int]) -> None:
        """Split a matrix by rows.

        Args:
            into: new name -> its share of the rows, in units of the sum of all shares.
        """
        tensor, source = self.pop(name), self.sources.pop(name)
        rows, start = tensor.shape[0] // sum(into.values()), 0
        for part, count in into.items():
            self[part], self.sources[part] = tensor[start : start + count * rows], source
            start += count * rows

    def add_zero_bias(self, name: str, weight: str) -> None:
        """Add a bias of zeros for a matrix that has none in the source."""
        if weight in self and name not in self:
            self.add_implied(name, self[weight].new_zeros(self[weight].shape[0]))

    def add_implied(self, name: str, tensor: Tensor) -> None:
        """Add a tensor that the source omits because it is zero or the identity."""
        self[name], self.sources[name] = tensor, ()


def rename(name: str, rules: RenameRules) -> str:
    """The name after the first rule that matches its start; unchanged if none does."""
    for pattern, replacement in rules:
        renamed, count = re.subn("^" + pattern, replacement, name)
        if count:
            return renamed
    return name
