"""Whether sweepers that search minimize or maximize the monitored metric."""

import pytest
from omegaconf import OmegaConf

from vit.run.config.composing import ConfigError
from vit.run.multirun.searching import check_direction, direction_overrides

LOSS, ACCURACY = ({"callbacks": {"monitor": f"val/{name}"}} for name in ("loss", "accuracy"))
TARGET = "hydra_plugins.hydra_{}_sweeper.core.Sweeper"
SWEEPERS = [  # as in the manuals of Hydra's plugins: the key, its values for a lower and for a higher metric
    ("optuna", "direction", "minimize", "maximize"),
    ("nevergrad", "optim.maximize", False, True),
    ("ax", "ax_config.experiment.minimize", True, False),
]


@pytest.mark.parametrize(("name", "key", "lower", "higher"), SWEEPERS)
def test_a_search_improves_the_monitored_metric(name, key, lower, higher):
    for config, best, worst in ((LOSS, lower, higher), (ACCURACY, higher, lower)):
        given = f"hydra.sweeper.{key}"
        assert direction_overrides(name, {}, config) == [f"{given}={str(best).lower()}"]
        assert direction_overrides(name, {given: best}, config) == []
        with pytest.raises(ConfigError, match=f"{given}={str(worst).lower()} would search for the worst val/"):
            direction_overrides(name, {given: worst}, config)
        sweepers = []
        for value in (best, worst):
            sweepers.append(OmegaConf.create({"_target_": TARGET.format(name)}))
            OmegaConf.update(sweepers[-1], key, value)
        check_direction(sweepers[0], config)
        with pytest.raises(ConfigError, match=f"use {given}={str(best).lower()}$"):
            check_direction(sweepers[1], config)


def test_other_sweepers_and_other_meanings_of_the_key_are_left_alone():
    assert direction_overrides("mine", {}, ACCURACY) == []
    check_direction(OmegaConf.create({"_target_": "mine.Sweeper", "direction": "minimize"}), ACCURACY)
    check_direction(OmegaConf.create({"_target_": TARGET.format("optuna"), "direction": None}), ACCURACY)


def test_a_metric_without_direction_is_an_error():
    with pytest.raises(ConfigError, match="callbacks.monitor: val/speed is not one of the metrics"):
        direction_overrides("optuna", {}, {"callbacks": {"monitor": "val/speed"}})
