"""Blank figures for tests of whole runs: each run draws four figures, and Matplotlib takes as long for them as tiny
models for their training. The code of the project that makes the figures runs as ever; `tests/report` draws them.
"""

import os
from typing import BinaryIO

import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from PIL import Image

VARIABLE = "VIT_TEST_BLANK_PICTURES"  # tells the commands that a test starts as forks


def use_blank_pictures(patch: pytest.MonkeyPatch) -> None:
    """In this process and in commands that it starts as forks."""
    patch.setattr(FigureCanvasAgg, "print_png", print_blank)
    patch.setenv(VARIABLE, "1")


def print_blank(canvas: FigureCanvasAgg, file: str | os.PathLike[str] | BinaryIO, **_: object) -> None:
    """A white PNG of the figure's size."""
    Image.new("L", canvas.get_width_height(), 255).save(file, "PNG")


def follow_environment() -> None:
    """In a command that a test has started."""
    if VARIABLE in os.environ:
        FigureCanvasAgg.print_png = print_blank
