"""Parameters of a test of which the default suite runs a part."""

from collections.abc import Iterable

import pytest


def quick_and_slow(values: Iterable[object], *quick: object) -> list[object]:
    """The values of a parameter, or tuples of several; those that are not `quick` are run by `pytest -m slow`."""
    values = list(values)
    assert set(quick) < set(values), (quick, values)
    return [
        value if value in quick
        else pytest.param(*(value if isinstance(value, tuple) else [value]), marks=pytest.mark.slow)
        for value in values
    ]
