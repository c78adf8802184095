"""The quick cases of every promise."""

import pytest

from tests.faults.__main__ import promises

CASES = [
    pytest.param(case, id=f"{name}: {case.name}")
    for name, promise in promises().items()
    for case in promise.cases()
    if case.quick
]


@pytest.mark.parametrize("case", CASES)
def test_promise_holds(case, tmp_path):
    case.run(tmp_path)


@pytest.mark.parametrize("promise", promises().values(), ids=promises().keys())
def test_case_names_are_unique(promise):
    names = [case.name for case in promise.cases()]
    assert len(set(names)) == len(names)
