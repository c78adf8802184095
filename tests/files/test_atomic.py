"""Outputs replace earlier files only when they are complete."""

import errno
import os
import stat
from pathlib import Path

import pytest

from vit.files.atomic import CheckpointError
from vit.files.outputs import open_output, streamed_file, write_output


def test_a_stream_replaces_the_earlier_file_when_it_is_complete(tmp_path):
    path = tmp_path / "rows.csv"
    path.write_text("earlier")
    path.chmod(0o640)
    with pytest.raises(RuntimeError), open_output(path) as file:
        file.write(b"first")
        raise RuntimeError
    assert path.read_text() == "earlier" and streamed_file(path).read_text() == "first"
    assert streamed_file(path) == tmp_path / "rows.incomplete.csv"
    with open_output(path) as file:
        file.write(b"whole")
    assert path.read_text() == "whole" and path.stat().st_mode & 0o777 == 0o640
    assert list(tmp_path.iterdir()) == [path]


def test_a_stream_follows_the_link_of_its_path_and_no_other(tmp_path):
    (tmp_path / "other").write_text("other")
    (tmp_path / "link").symlink_to(tmp_path / "rows")
    streamed_file(tmp_path / "link").symlink_to(tmp_path / "other")
    with open_output(tmp_path / "link") as file:
        file.write(b"whole")
    assert (tmp_path / "link").is_symlink() and (tmp_path / "rows").read_text() == "whole"
    assert (tmp_path / "other").read_text() == "other" and streamed_file(Path("/dev/null")) == Path("/dev/null")


@pytest.mark.skipif(os.name == "nt", reason="Windows has no sticky folders")
def test_the_file_of_another_user_in_a_sticky_folder_is_named(tmp_path, monkeypatch):
    path = tmp_path / "rows.csv"
    path.write_text("earlier")
    tmp_path.chmod(0o777 | stat.S_ISVTX)
    own = path.stat().st_uid
    monkeypatch.setattr(os, "geteuid", lambda: own + 1)
    for write in (lambda: write_output(path, b"new"), lambda: open_output(path).__enter__()):
        with pytest.raises(CheckpointError, match=r"rows.csv belongs to another user .*; choose another path"):
            write()
    assert path.read_text() == "earlier"
    write_output(tmp_path / "new", b"new")
    tmp_path.chmod(0o777)
    write_output(path, b"new")
    assert path.read_text() == "new"


@pytest.mark.skipif(os.name == "nt", reason="Windows lets no other process replace an open file")
def test_a_stream_that_another_process_writes_is_named_and_one_that_was_killed_is_replaced(tmp_path):
    path = tmp_path / "rows.csv"
    with open_output(path) as file:
        file.write(b"first")
        with pytest.raises(CheckpointError, match=r"another process is writing .*rows.incomplete.csv; wait until"):
            open_output(path).__enter__()
    assert path.read_text() == "first"
    streamed_file(path).write_text("of a killed process")
    with open_output(path) as file:
        file.write(b"second")
    assert path.read_text() == "second" and list(tmp_path.iterdir()) == [path]


@pytest.mark.skipif(os.name == "nt", reason="Windows lets no other process replace an open file")
def test_where_files_cannot_be_locked_no_unfinished_output_of_another_process_is_put_in_place(tmp_path, monkeypatch):
    def unsupported(*args):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr("fcntl.flock", unsupported)
    path = tmp_path / "rows.csv"
    first, second = open_output(path), open_output(path)
    first.__enter__().write(b"first")
    second.__enter__().write(b"second")
    with pytest.raises(CheckpointError, match="another process is writing"):
        first.__exit__(None, None, None)
    assert not path.exists()
    second.__exit__(None, None, None)
    assert path.read_bytes() == b"second"
