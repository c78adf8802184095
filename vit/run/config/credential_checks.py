"""Credentials in the config of a command: those that a run has not recorded, and those that Hydra would write."""

import os
from collections.abc import Mapping, Sequence
from typing import Any

from hydra.core.override_parser.types import Override

from vit.files.credentials import masked, masked_keys, masked_override
from vit.run.config.overrides import ConfigError


def check_credentials(config: dict, origin: str | os.PathLike) -> None:
    """Checks that no value of a config is masked.

    Args:
        origin: what the config was read from, for the message.

    Raises:
        ConfigError: names the keys of those that are.
    """
    keys = [key for key in masked_keys(config) if not key.startswith("overrides.")]
    if keys:
        one = len(keys) == 1
        raise ConfigError(f"{' and '.join(keys)} {'is a credential' if one else 'are credentials'}, which {origin} has "
                          f"not recorded: add {' '.join(f'++{key}=VALUE' for key in keys)} to the command, where VALUE "
                          "may be '${oc.env:NAME}' for a variable of the environment")


def check_written_config(folder: str | None, overrides: Sequence[Override], values: Mapping[str, Any]) -> None:
    """Checks that there are no credentials where Hydra itself writes the config of a run, which it does unmasked.

    Args:
        folder: `hydra.output_subdir`, None if Hydra writes nothing.
        values: key -> value, of the config without the overrides.

    Raises:
        ConfigError: names the keys.
    """
    if folder is None:
        return
    keys = [each.key_or_group for each in overrides if masked_override(each.input_line) != each.input_line]
    if keys := sorted({*keys, *masked_keys(masked({**values}))}):
        raise ConfigError(f"hydra.output_subdir={folder}: Hydra would write {', '.join(keys)} there unmasked; use "
                          "'${oc.env:NAME}' for a variable of the environment, or hydra.output_subdir=null")
