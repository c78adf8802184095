"""Errors of the code that reads a config node, reported with the key of that node."""

from collections.abc import Callable
from typing import Any

from hydra.errors import HydraException

from vit.data import DataError
from vit.run.config.overrides import ConfigError


def checked(key: str, build: Callable, values: Any, unpack: bool = False) -> Any:
    """`build(values)`, or `build(**values)` with `unpack`.

    Raises:
        ConfigError: `build` rejected the values; the message starts with `key`.
        DataError, OSError, MemoryError: as `build` raised them.
    """
    try:
        return build(**values) if unpack else build(values)
    except (TypeError, ValueError, HydraException) as error:
        cause = error.__cause__ or error  # Hydra's `instantiate` wraps what its target raises
        if isinstance(cause, DataError | OSError | MemoryError):
            raise cause from None
        raise ConfigError(f"{key}: {' '.join(str(cause).split())}") from None
