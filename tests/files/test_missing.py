"""Paths that do not exist, and the hints of their errors."""

import pytest

from vit.exchange.source_names import hint_at_missing_source
from vit.files.missing import hint_at_missing, is_missing


@pytest.fixture(autouse=True)
def folders(tmp_path, monkeypatch):
    (tmp_path / "runs" / "digits" / "first").mkdir(parents=True)
    (tmp_path / "runs" / "file").write_text("")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))


@pytest.mark.parametrize(("path", "hint"), [
    ("runs/digits/frist", "; did you mean runs/digits/first?"),
    ("runs/digit/first", "; did you mean runs/digits/first?"),
    ("runs/digit/other", "; did you mean runs/digits?"),
    ("~/runs/digit", "; did you mean {folder}/runs/digits?"),
    ("{folder}/elsewhere", ""),
    ("elsewhere", " in {folder}"),
    ("runs/file/inside", " in {folder}"),
])
def test_the_hint_is_the_nearest_name(tmp_path, path, hint):
    path = path.format(folder=tmp_path)
    assert is_missing(path) and hint_at_missing(path) == hint.format(folder=tmp_path)


def test_what_may_be_there_is_not_missing(tmp_path):
    assert not is_missing("runs/digits") and not is_missing("~/runs")
    (tmp_path / "runs" / ".model.host.7.00c0ffee.old").mkdir()  # its replacement was interrupted
    assert not is_missing("runs/model") and is_missing("runs/mode")
    (tmp_path / "link").symlink_to("gone")
    assert is_missing("link")
    assert not is_missing("a" * 300)  # the system cannot say


def test_names_of_timm_and_the_hub_are_no_paths():
    for name in ("timm:resnet18", "timm/resnet18", "hub:owner/name", "runs/digits"):
        assert hint_at_missing_source(name) is None
    assert hint_at_missing_source("owner/name").endswith("; for a model of the hub, write hub:owner/name")
    assert "hub:" not in hint_at_missing_source("elsewhere") and "hub:" not in hint_at_missing_source("./elsewhere")
