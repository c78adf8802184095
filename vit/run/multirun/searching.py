"""Sweepers that search instead of running every combination: whether they minimize or maximize the monitored metric.

Such sweepers minimize by default. With an accuracy they would return the worst setting and report it as the best one.
"""

from collections.abc import Mapping
from typing import Any

from omegaconf import DictConfig, OmegaConf

from vit.run.config.composing import ConfigError
from vit.training.monitoring.metric_direction import mode_of

GRID = "basic"  # Hydra's own sweeper
# option of hydra/sweeper -> the key of its direction, and that key's values for a lower and a higher metric
DIRECTIONS = {
    "optuna": ("direction", {"min": "minimize", "max": "maximize"}),
    "nevergrad": ("optim.maximize", {"min": False, "max": True}),
    "ax": ("ax_config.experiment.minimize", {"min": True, "max": False}),
}


def direction(config: Mapping[str, Any]) -> str:
    """"min" or "max", whichever is better for the monitored metric.

    Raises:
        ConfigError: no task has this metric.
    """
    try:
        return mode_of(config["callbacks"]["monitor"])
    except ValueError as error:
        raise ConfigError(f"callbacks.monitor: {error}") from None


def direction_overrides(sweeper: str, stated: Mapping[str, Any], config: Mapping[str, Any]) -> list[str]:
    """The override that sets the direction of the monitored metric for a sweeper; none if the command sets it.

    Args:
        stated: the values of the command's overrides.
        config: config of any run of the sweep.

    Raises:
        ConfigError: the command states the other direction.
    """
    if sweeper not in DIRECTIONS:
        return []
    key, values = DIRECTIONS[sweeper]
    best = values[direction(config)]
    if f"hydra.sweeper.{key}" not in stated:
        return [f"hydra.sweeper.{key}={as_text(best)}"]
    check_value(key, stated[f"hydra.sweeper.{key}"], best, config)
    return []


def check_direction(sweeper: DictConfig, config: Mapping[str, Any]) -> None:
    """Checks that the sweeper of a running sweep, which a config may have selected, improves the monitored metric.

    Raises:
        ConfigError: it would make it worse.
    """
    for name, (key, values) in DIRECTIONS.items():
        choice = OmegaConf.select(sweeper, key)
        if str(sweeper.get("_target_")).startswith(f"hydra_plugins.hydra_{name}") and choice is not None:
            check_value(key, getattr(choice, "name", choice), values[direction(config)], config)


def check_value(key: str, found: object, best: object, config: Mapping[str, Any]) -> None:
    """Raises ConfigError if the value found is not the best one."""
    if as_text(found) != as_text(best):
        raise ConfigError(f"hydra.sweeper.{key}={as_text(found)} would search for the worst "
                          f"{config['callbacks']['monitor']}; use hydra.sweeper.{key}={as_text(best)}")


def as_text(value: object) -> str:
    """A value as it is written in an override."""
    return str(value).lower()
