"""Standard JSON without NaN and Infinity; every JSON file for users is written through this module."""

import json
import logging
import math
from collections.abc import Mapping
from typing import Any

log = logging.getLogger("vit")


def json_text(value: Any, indent: int | None = 2, ascii_only: bool = True) -> str:
    """The value as JSON text, with null instead of NaN and infinity."""
    return json.dumps(replace_nonfinite(value), indent=indent, ensure_ascii=ascii_only, allow_nan=False)


def replace_nonfinite(value: Any, name: str = "") -> Any:
    """The same plain values with None instead of NaN and infinity; each replaced value is logged with its name."""
    if isinstance(value, float) and not math.isfinite(value):
        log.warning("%s is %s and is saved as null", name or "a value", value)
        return None
    if isinstance(value, Mapping):
        return {key: replace_nonfinite(each, f"{name}.{key}" if name else str(key)) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [replace_nonfinite(each, f"{name}.{i}" if name else str(i)) for i, each in enumerate(value)]
    return value
