"""YAML of a run folder: plain values, the same with and without the parser in C."""

import pytest
import yaml

from vit.files.untrusted import LimitError, read_yaml

TEXT = """
seed: 3
rate: 1.0e-3
text: 1e-3  # YAML 1.1: a string
none: null
date: 2026-11-26
names: [a, 'b: c', "é\\n"]
base: &base {depth: 2, flags: [yes, off]}
model: {<<: *base, dim: 8}
lines: |
  one
    two
"""


@pytest.fixture(params=["C", "Python"], autouse=True)
def parser(request, monkeypatch):
    if request.param == "Python":
        monkeypatch.delattr(yaml, "CSafeLoader", raising=False)


def written(folder, text):
    (folder / "config.yaml").write_text(text, encoding="utf-8")
    return folder / "config.yaml"


def test_values_are_those_of_pyyaml(tmp_path):
    assert read_yaml(written(tmp_path, TEXT)) == yaml.load(TEXT, Loader=yaml.SafeLoader)


@pytest.mark.parametrize("text", ["a: [1, 2", "a: b: c", "a: *unknown", "!!python/object/apply:os.mkdir [x]",
                                  "a: \x00"])
def test_what_is_not_plain_yaml_is_an_error_of_one_line(tmp_path, text):
    with pytest.raises(ValueError, match="it is not YAML") as error:
        read_yaml(written(tmp_path, text))
    assert "\n" not in str(error.value)


def test_nesting_and_aliases_are_limited(tmp_path):
    with pytest.raises(LimitError, match="nested deeper than 100"):
        read_yaml(written(tmp_path, "[" * 500_000))
    lines = ["a0: &a0 [0, 0]", *(f"a{i}: &a{i} [*a{i - 1}, *a{i - 1}]" for i in range(1, 30))]
    with pytest.raises(LimitError, match="aliases expand to more than"):
        read_yaml(written(tmp_path, "\n".join(lines)))


def test_the_limit_of_the_parser_is_reported_as_ours(tmp_path, monkeypatch):
    def parse(text, Loader):  # PyYAML 6.0.4 refuses more than 1000 levels before they yield an event
        raise yaml.scanner.ScannerError("while increasing flow level", None, "exceeded maximum nesting depth", None)

    monkeypatch.setattr(yaml, "parse", parse)
    with pytest.raises(LimitError, match="nested deeper than 100"):
        read_yaml(written(tmp_path, "[" * 2000))
