"""Standard JSON without NaN and Infinity; every JSON file for users is written through this module."""

import json
import logging
import math
import re
from collections.abc import Mapping
from typing import Any

log = logging.getLogger("vit")

Replaced = dict[tuple[str, str], tuple[str, int]]  # (name without the indices of lists, value) -> first name, number


def json_text(value: Any, indent: int | None = 2, ascii_only: bool = True, replaced: Replaced | None = None) -> str:
    """The value as JSON text, with null instead of NaN and infinity.

    Args:
        replaced: collects the replaced values of several texts, which the caller logs at the end; None logs them here.
    """
    plain = replace_nonfinite(value, replaced=replaced)
    return json.dumps(plain, indent=indent, ensure_ascii=ascii_only, allow_nan=False)


def replace_nonfinite(value: Any, name: str = "", replaced: Replaced | None = None) -> Any:
    """The same plain values with None instead of NaN and infinity, which are logged with their names; values of lists
    whose names differ by the index in one line. `replaced` as for `json_text`.
    """
    nonfinite = {} if replaced is None else replaced
    plain = _replace(value, name, nonfinite)
    if replaced is None and nonfinite:
        log_replaced(nonfinite)
    return plain


def log_replaced(replaced: Replaced) -> None:
    """Log the values that were replaced by null."""
    for (pattern, value), (first, count) in replaced.items():
        if count > 1:
            log.warning("%d values of %s are %s and are saved as null", count, pattern or "a list", value)
        else:
            log.warning("%s is %s and is saved as null", first or "a value", value)


def _replace(value: Any, name: str, found: Replaced) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        key = re.sub(r"(^|\.)\d+(?=\.|$)", "", name).lstrip("."), str(value)
        first, count = found.get(key, (name, 0))
        found[key] = first, count + 1
        return None
    if isinstance(value, Mapping):
        return {key: _replace(each, f"{name}.{key}" if name else str(key), found) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_replace(each, f"{name}.{i}" if name else str(i), found) for i, each in enumerate(value)]
    return value
