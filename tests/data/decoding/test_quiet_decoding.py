"""Warnings while images are decoded in threads."""

import io
import logging
import warnings
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from PIL import Image

from vit.data import Preprocessing
from vit.data.decoding.decode import load_image
from vit.data.decoding.quiet_decoding import FILTER, quiet_decoding

PREPROCESSING = Preprocessing(size=(8, 8), mean=(0.5,) * 3, std=(0.5,) * 3)


def photo() -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(np.zeros((64, 64, 3), np.uint8)).save(buffer, "JPEG")
    return buffer.getvalue()


def palette_image() -> bytes:
    """A PNG of which Pillow warns: a palette with transparency in bytes."""
    image, buffer = Image.new("P", (8, 8)), io.BytesIO()
    image.putpalette([0, 0, 0, 255, 255, 255])
    image.save(buffer, "PNG", transparency=b"\x00\x80")
    return buffer.getvalue()


def test_threads_leave_the_filters_of_warnings_as_they_were():
    before, encoded = list(warnings.filters), photo()
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(PREPROCESSING.image, [encoded] * 400))
    assert warnings.filters == before


def test_other_warnings_are_shown_while_an_image_is_decoded():
    with pytest.warns(UserWarning, match="of the program"), quiet_decoding, quiet_decoding:
        warnings.warn("of the program", stacklevel=1)
    assert FILTER not in warnings.filters


def test_warnings_of_pillow_are_ignored():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert PREPROCESSING.image(palette_image()).shape == (3, 8, 8)
        with pytest.raises(UserWarning, match="Transparency"):
            Image.open(io.BytesIO(palette_image())).convert("RGB")


def test_a_context_that_restored_the_filters_is_no_error():
    with warnings.catch_warnings():
        quiet_decoding.__enter__()
        warnings.resetwarnings()
        quiet_decoding.__exit__()
        assert FILTER not in warnings.filters


def test_warnings_about_the_call_of_pillow_are_ignored():
    """Deprecations of Pillow are attributed to its caller."""
    warn = "import warnings; warnings.warn('deprecated', DeprecationWarning, stacklevel=1)"
    with warnings.catch_warnings(record=True) as shown, quiet_decoding:
        warnings.simplefilter("always", append=True)
        exec(warn, {"__name__": load_image.__module__})
    assert not shown


def test_the_log_of_pillow_is_not_printed(capsys):
    logging.getLogger("PIL.TiffImagePlugin").error("More samples per pixel than can be decoded: 13")
    assert capsys.readouterr().err == ""
