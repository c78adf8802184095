"""Which epochs are better by a metric."""

import pytest

from vit.training import mode_of
from vit.training.monitoring.metric_direction import MODES


@pytest.mark.parametrize("metric", ["val/loss", "train/loss", "val/perplexity", "val/cer"])
def test_errors_are_better_when_lower(metric):
    assert mode_of(metric) == "min"


@pytest.mark.parametrize("name", sorted(set(MODES) - {"loss", "perplexity", "cer"}))
def test_all_else_is_better_when_higher(name):
    assert mode_of(f"val/{name}") == "max"


def test_an_unknown_metric_has_no_direction():
    with pytest.raises(ValueError, match="val/mood is not one of the metrics"):
        mode_of("val/mood")
