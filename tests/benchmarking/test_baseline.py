"""The comparison of speed ratios with those of an earlier report."""

import json

import pytest

from vit.benchmarking import compare_with_baseline, read_baseline

A, B, C = (f"step: batch {i} against timm" for i in range(3))


def report(ratios, clock="wall", processor="EPYC", instructions="AVX512"):
    machine = {"processor": processor, "instructions": instructions}
    return {"format": 1, "clock": clock, "ratios": ratios, "machine": machine}


def test_a_ratio_may_fall_by_the_tolerance():
    before = report({A: 1.0, B: 2.0})
    assert compare_with_baseline(report({A: 0.91, B: 3.0}), before, 0.1).fallen == {}
    found = compare_with_baseline(report({A: 0.89, B: 1.0}), before, 0.1)
    assert found.fallen == {A: (1.0, 0.89), B: (2.0, 1.0)} and found.compared == 2
    assert compare_with_baseline(report({A: 0.89, B: 1.9}), before, 0.2).fallen == {}
    assert "0.89, below the baseline's 1.00 by more than 10%" in found.lines()[0]


def test_ratios_of_one_report_only_are_listed():
    found = compare_with_baseline(report({A: 1.0, C: 1.0}), report({A: 1.0, B: 1.0}, processor="Xeon"))
    assert (found.compared, found.missing, found.new) == (1, (B,), (C,))
    assert f"not measured: {B}" in found.lines() and f"not in the baseline: {C}" in found.lines()
    assert found.lines()[-1] == "the baseline is of another machine: Xeon (AVX512) instead of EPYC (AVX512)"
    found = compare_with_baseline(report({A: 1.0}, instructions="AVX2"), report({A: 1.0}))
    assert found.lines()[-1] == "the baseline is of another machine: EPYC (AVX512) instead of EPYC (AVX2)"
    assert compare_with_baseline(report({A: 1.0}), report({A: 1.0})).other_machine is None


def test_a_baseline_without_its_machine_is_compared():
    """`machine` is null, or absent, in a report that was edited by hand."""
    for before in ({**report({A: 1.0}), "machine": None}, {"clock": "wall", "ratios": {A: 1.0}}):
        found = compare_with_baseline(report({A: 0.5}), before)
        assert found.fallen == {A: (1.0, 0.5)}
        assert found.lines()[-1] == "the baseline is of another machine: unknown instead of EPYC (AVX512)"


@pytest.mark.parametrize(("now", "message"), [
    (report({B: 1.0}), "no ratio of the baseline was measured"),
    (report({}), "none \\(add --against\\)"),
    (report({A: 1.0}, clock="processor"), "the baseline was measured with --clock wall"),
])
def test_reports_that_cannot_be_compared_are_refused(now, message):
    with pytest.raises(ValueError, match=message):
        compare_with_baseline(now, report({A: 1.0}))


@pytest.mark.parametrize(("text", "message"), [
    ("{", "is not JSON"),
    ("[]", "is not a report of vit bench --json"),
    (json.dumps({**report({A: 1.0}), "format": 99}), "is not a report of vit bench --json"),
    (json.dumps(report({})), "has no ratios"),
    (json.dumps(report({A: -1.0})), "has no ratios"),
])
def test_a_file_that_is_no_baseline_is_named(tmp_path, text, message):
    path = tmp_path / "baseline.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=message) as error:
        read_baseline(path)
    assert str(path) in str(error.value)
