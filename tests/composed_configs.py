"""Composed configs that all processes of a test session share, so that each selection of options is composed once."""

import hashlib
import os
import pickle
from collections.abc import Iterator, MutableMapping
from pathlib import Path

from omegaconf import DictConfig

from vit.run.config.hydra_interface import config_folder, hydra_over

VARIABLE = "VIT_TEST_COMPOSED_CONFIGS"  # the folder, for the processes that a test starts


class SharedConfigs(MutableMapping):
    """The `composed` of a `Loader`, in a folder: a file per config."""

    def __init__(self, folder: Path):
        self.folder, self.loaded = folder, {}

    def file(self, key: tuple) -> Path:
        return self.folder / hashlib.sha256(repr(key).encode()).hexdigest()

    def __getitem__(self, key: tuple) -> DictConfig:
        if key not in self.loaded:
            try:
                self.loaded[key] = pickle.loads(self.file(key).read_bytes())
            except FileNotFoundError:
                raise KeyError(key) from None
        return self.loaded[key]

    def __setitem__(self, key: tuple, config: DictConfig) -> None:
        self.loaded[key] = config
        unfinished = self.folder / f"{os.getpid()}"
        unfinished.write_bytes(pickle.dumps(config))
        unfinished.replace(self.file(key))

    def __delitem__(self, key: tuple) -> None:
        raise NotImplementedError

    def __iter__(self) -> Iterator[tuple]:
        return iter(self.loaded)

    def __len__(self) -> int:
        return len(self.loaded)


def share_composed_configs() -> None:
    """With the folder of the environment variable; does nothing without it."""
    if VARIABLE in os.environ:
        hydra_over(config_folder()).config_loader.composed = SharedConfigs(Path(os.environ[VARIABLE]))
