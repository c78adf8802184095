"""Hydra's config loader with one composition per selection of options.

Composing reads about thirty files, which takes 0.15 s, and a command composes twice: with the options of groups only,
to check its overrides, and with all overrides. The second config is a copy of the first one, with the values set.
"""

import copy
import os
from collections.abc import MutableMapping
from pathlib import Path

from hydra._internal.config_loader_impl import ConfigLoaderImpl, get_overrides_dirname  # Hydra has no public loader
from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.types import RunMode
from omegaconf import DictConfig


class Loader(ConfigLoaderImpl):
    """Hydra's loader, except that overridden values are set in a copy of an earlier composition of the same options.

    With overrides of Hydra's own settings, the search path included, the config is composed anew, and so it is after
    a change of any config file.

    Attributes:
        composed: (primary config, overrides that select options, `file_versions`) -> their config.
    """

    def __init__(self, config_search_path: ConfigSearchPath):
        super().__init__(config_search_path)
        self.composed: MutableMapping[tuple, DictConfig] = {}

    def load_configuration(self, config_name: str | None, overrides: list[str], run_mode: RunMode,
                           from_shell: bool = True, validate_sweep_overrides: bool = True) -> DictConfig:
        """The composed config.

        Raises:
            hydra.errors.HydraException: Hydra cannot compose it.
        """
        parsed = OverridesParser.create().parse_overrides(overrides)
        if run_mode != RunMode.RUN or any(override.is_hydra_override() for override in parsed):
            return super().load_configuration(config_name, overrides, run_mode=run_mode, from_shell=from_shell,
                                              validate_sweep_overrides=validate_sweep_overrides)
        if validate_sweep_overrides:
            self.validate_sweep_overrides_legal(parsed, run_mode, from_shell)
        values = [override for override in parsed
                  if isinstance(override.value(), dict) or not self.repository.group_exists(override.key_or_group)]
        selected = tuple(override.input_line for override in parsed if override not in values)
        key = config_name, selected, self.file_versions()
        if key not in self.composed:
            self.composed[key] = super().load_configuration(
                config_name, [*selected], run_mode=run_mode, from_shell=from_shell)
        config = copy.deepcopy(self.composed[key])
        self._apply_overrides_to_config(values, config)
        hydra = config.hydra
        hydra.overrides.task = [override.input_line for override in parsed]
        hydra.runtime.cwd = os.getcwd()
        hydra.job.override_dirname = get_overrides_dirname(parsed, **hydra.job.config.override_dirname)
        return config

    def file_versions(self) -> tuple[tuple[str, int, int], ...]:
        """(path, time of the last change in ns, bytes) of each config file in the search path."""
        sources = [(source.path or "").removeprefix("file://") for source in self.config_search_path.get_path()]
        folders = [source for source in sources if source and "://" not in source]  # others are packages
        files = sorted(str(file) for folder in folders for file in Path(folder).rglob("*.yaml"))
        return tuple((file, status.st_mtime_ns, status.st_size) for file in files for status in [os.stat(file)])
