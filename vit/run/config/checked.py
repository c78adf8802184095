"""Errors of the code that reads a config node, reported with the key of that node."""

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from hydra.errors import HydraException

from vit.data import DataError
from vit.run.config.overrides import ConfigError


def checked(key: str, build: Callable, values: Any, unpack: bool = False, names: Iterable[str] = ()) -> Any:
    """`build(values)`, or `build(**values)` with `unpack`.

    Args:
        names: keys of the node that a message may have, in addition to those of the values.

    Raises:
        ConfigError: `build` rejected the values; the message has their keys in full, or starts with `key`.
        DataError, OSError, MemoryError: as `build` raised them.
    """
    try:
        return build(**values) if unpack else build(values)
    except (TypeError, ValueError, HydraException) as error:
        cause = error.__cause__ or error  # Hydra's `instantiate` wraps what its target raises
        if isinstance(cause, DataError | OSError | MemoryError):
            raise cause from None
        message = " ".join(str(cause).split())
        whole = full_keys(message, key, {*names, *(values if isinstance(values, Mapping) else ())})
        raise ConfigError(f"{key}: {message}" if whole == message else whole) from None


def full_keys(message: str, node: str, names: Iterable[str]) -> str:
    """The message with the node of each `name=value` in it: `mixer=lstm` -> `model.mixer=lstm`."""
    for name in names:
        message = re.sub(rf"(?<![\w.]){re.escape(name)}=", f"{node}.{name}=", message)
    return message
