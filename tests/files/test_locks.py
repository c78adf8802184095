"""Locks on file systems that have none, as some network file systems."""

import errno
import multiprocessing
import os
import signal

import pytest

from vit.files.locks import file_lock, has_locks
from vit.run.config.overrides import ConfigError
from vit.run.records.folder import RunFolder

pytestmark = pytest.mark.skipif(os.name == "nt", reason="the locks of Windows do not depend on the file system")


@pytest.fixture(params=["ENOSYS", "EOPNOTSUPP", "ENOLCK"])
def without_locks(request, monkeypatch):
    code = getattr(errno, request.param)

    def unsupported(*args):
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr("fcntl.flock", unsupported)


def test_a_file_system_with_locks_is_recognized_also_while_the_file_is_locked(tmp_path):
    assert has_locks(tmp_path / "lock")
    with file_lock(tmp_path / "lock"):
        assert has_locks(tmp_path / "lock")
    with pytest.raises(FileNotFoundError):
        has_locks(tmp_path / "absent" / "lock")


def test_a_run_on_a_file_system_without_locks_has_its_folder_for_itself(tmp_path, without_locks):
    path = tmp_path / "run"
    with RunFolder(path) as folder:
        assert folder.in_use
        with pytest.raises(ConfigError, match="another run is writing there.*remove .*/.lock.holder"), RunFolder(path):
            pass
        folder.write("config.yaml", {})
    assert not RunFolder(path).in_use and not (path / ".lock.holder").exists()
    with RunFolder(path) as again:
        assert again.in_use


def test_the_lock_of_a_killed_run_does_not_remain(tmp_path, without_locks):
    def held(ready):
        with RunFolder(tmp_path / "run") as folder:
            folder.write("config.yaml", {})
            ready.set()
            signal.pause()

    context = multiprocessing.get_context("fork")
    ready = context.Event()
    run = context.Process(target=held, args=(ready,))
    run.start()
    assert ready.wait(60) and RunFolder(tmp_path / "run").in_use
    os.kill(run.pid, signal.SIGKILL)
    run.join()
    assert (tmp_path / "run" / ".lock.holder").exists()
    with RunFolder(tmp_path / "run") as folder:
        assert folder.in_use
