"""Tests of reports draw their figures, which other tests replace by blank pictures."""

import pytest


@pytest.fixture(scope="module", autouse=True)
def blank_pictures():
    """Figures are drawn."""
