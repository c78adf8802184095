"""Blank figures for tests of whole runs: each run draws four figures, and Matplotlib takes as long for them as tiny
models for their training. The code of the project that makes the figures runs unchanged; `tests/report` draws them.
"""

import os
from collections.abc import Iterator
from typing import BinaryIO

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.transforms import Bbox
from PIL import Image

from vit.report.figures import style

VARIABLE = "VIT_TEST_BLANK_PICTURES"  # set for the commands that a test starts as forks


class Nothing:
    """A replacement of what Matplotlib draws: every attribute, item and result of a call is this again."""

    def __getattr__(self, name: str) -> "Nothing":
        if name.startswith("__"):
            raise AttributeError(name)
        return self

    def __call__(self, *_: object, **__: object) -> "Nothing":
        return self

    def __getitem__(self, _: object) -> "Nothing":
        return self

    def __iter__(self) -> Iterator["Nothing"]:
        return iter(())


class BlankAxes(Nothing):
    """Axes with a position, on which nothing is drawn."""

    def __init__(self, figure: Figure):
        self.figure = figure

    def get_position(self) -> Bbox:
        return Bbox.unit()


class BlankFigure(Figure):
    """A figure whose axes are blank."""

    def add_axes(self, *_: object, **__: object) -> BlankAxes:
        return BlankAxes(self)

    def subplots(self, nrows: int = 1, ncols: int = 1, *, squeeze: bool = True, **_: object) -> np.ndarray | BlankAxes:
        axes = np.full((nrows, ncols), BlankAxes(self))
        return axes if not squeeze else axes.item() if axes.size == 1 else axes.squeeze()

    def colorbar(self, *_: object, **__: object) -> Nothing:
        return Nothing()


def use_blank_pictures(patch: pytest.MonkeyPatch) -> None:
    """In this process and in commands that it starts as forks."""
    patch.setattr(style, "Figure", BlankFigure)
    patch.setattr(FigureCanvasAgg, "print_png", print_blank)
    patch.setenv(VARIABLE, "1")


def print_blank(canvas: FigureCanvasAgg, file: str | os.PathLike[str] | BinaryIO, **_: object) -> None:
    """A white PNG of the figure's size."""
    Image.new("L", canvas.get_width_height(), 255).save(file, "PNG")


def follow_environment() -> None:
    """In a command that a test has started."""
    if VARIABLE in os.environ:
        style.Figure = BlankFigure
        FigureCanvasAgg.print_png = print_blank
