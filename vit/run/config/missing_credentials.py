"""Credentials that a run used and did not record: a later command must state them again."""

import os

from vit.files.credentials import masked_keys
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
