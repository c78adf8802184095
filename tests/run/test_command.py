"""Imports of the command."""

import gc

import pytest

from vit.run.command import no_collection


@pytest.mark.parametrize("enabled", [True, False])
def test_garbage_collection_is_as_before_after_the_imports(enabled):
    before = gc.isenabled()
    try:
        (gc.enable if enabled else gc.disable)()
        with pytest.raises(ImportError), no_collection():
            assert not gc.isenabled()
            raise ImportError
        assert gc.isenabled() is enabled
    finally:
        (gc.enable if before else gc.disable)()
