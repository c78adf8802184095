"""Odd folders and tables: every sample has its own label and is in its own split, or an error names what is wrong."""

from collections.abc import Iterator

import tests.faults.layout_folders
import tests.faults.layout_tables
import tests.faults.layout_texts  # noqa: F401
from tests.faults.layout_checks import LAYOUTS
from tests.faults.promise import Case, Promise


def cases() -> Iterator[Case]:
    for name, run in LAYOUTS.items():
        yield Case(name, run, quick=True)


PROMISE = Promise("odd folders and tables: the right mapping or a named error", cases)
