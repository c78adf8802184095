import pytest


@pytest.fixture(scope="module", autouse=True)
def blank_pictures():
    """Figures are drawn."""
