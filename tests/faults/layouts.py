"""Unusual folders and tables: every sample has its label and is in its split, or an error names the fault."""

from collections.abc import Iterator

import tests.faults.layout_annotations
import tests.faults.layout_folders
import tests.faults.layout_known
import tests.faults.layout_splits
import tests.faults.layout_tables
import tests.faults.layout_texts  # noqa: F401
from tests.faults.layout_checks import LAYOUTS
from tests.faults.promise import Case, Promise


def cases() -> Iterator[Case]:
    for name, run in LAYOUTS.items():
        yield Case(name, run, quick=True)


PROMISE = Promise("unusual folders and tables: the correct mapping, or an error that names the file", cases)
