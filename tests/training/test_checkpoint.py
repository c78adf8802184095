"""Checkpoint files: damage is detected, and a valid file remains after a crash at any moment."""

import os
import random
import re
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from tests.faults.file_faults import FileFaults
from tests.forking import forks
from vit.files.atomic import CheckpointError, link_atomically, remove_stale_files, temporary_path
from vit.files.checkpoints import newest_valid, verify
from vit.training.checkpointing.checkpoint import saved_step, settle
from vit.training.checkpointing.checkpoint_io import AtomicCheckpointIO


def content(step, size=4000):
    generator = torch.Generator().manual_seed(step)
    return {
        "step": step,
        "weights": {"a": torch.randn(size, generator=generator), "b": torch.randn(7, generator=generator)},
        "names": ["x", "y"],
    }


def same(a, b):
    return (
        a["step"] == b["step"]
        and a["names"] == b["names"]
        and all(torch.equal(a["weights"][key], b["weights"][key]) for key in ("a", "b"))
    )


def save(path, step):
    AtomicCheckpointIO().save_checkpoint(content(step), path)


def load(path):
    return AtomicCheckpointIO().load_checkpoint(path)


def checkpoints(folder):
    """What the folder holds beside its manifest."""
    return sorted(set(os.listdir(folder)) - {"manifest.json"})


def test_round_trip_keeps_the_one_before(tmp_path):
    for step in range(3):
        save(tmp_path / "last.ckpt", step)
    assert same(load(tmp_path / "last.ckpt"), content(2)) and same(load(tmp_path / "previous.ckpt"), content(1))
    assert checkpoints(tmp_path) == ["last.ckpt", "previous.ckpt"]
    assert newest_valid(tmp_path) == (tmp_path / "last.ckpt", [])


def test_other_names_are_replaced_without_a_copy(tmp_path):
    save(tmp_path / "best.ckpt", 0)
    save(tmp_path / "best.ckpt", 1)
    assert checkpoints(tmp_path) == ["best.ckpt"] and same(load(tmp_path / "best.ckpt"), content(1))


def test_copy_is_a_file_of_its_own_once_the_source_is_replaced(tmp_path):
    save(tmp_path / "last.ckpt", 0)
    link_atomically(tmp_path / "last.ckpt", tmp_path / "best.ckpt")
    link_atomically(tmp_path / "last.ckpt", tmp_path / "best.ckpt")
    save(tmp_path / "last.ckpt", 1)
    assert same(load(tmp_path / "best.ckpt"), content(0))
    assert checkpoints(tmp_path) == ["best.ckpt", "last.ckpt", "previous.ckpt"]


def save_and_kill():
    """In a fork: prints how many processes were killed, each within a save."""
    folder, rng, step = Path(), random.Random(0), 0
    for _ in range(40):
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            while True:
                step += 1
                state = content(step, 100_000)
                os.write(writer, b"x")  # a save begins
                AtomicCheckpointIO().save_checkpoint(state, folder / "last.ckpt")
                (folder / f"done.{step}").touch()
        os.read(reader, 1), os.read(reader, 1)
        time.sleep(rng.uniform(0, 0.004))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(reader), os.close(writer)
        done = max(int(path.suffix[1:]) for path in folder.glob("done.*"))
        path, skipped = newest_valid(folder)
        assert path and not skipped, skipped
        step = AtomicCheckpointIO().load_checkpoint(path)["step"]
        assert done <= step <= done + 1, (done, step)
    print("finished", step)


def test_kill_at_any_moment_leaves_a_whole_checkpoint(tmp_path):
    """Forty processes, each killed within a save: the newest finished checkpoint or a newer one can be loaded."""
    done = forks().run("tests.training.test_checkpoint:save_and_kill", folder=tmp_path)
    assert done.code == 0, done.output
    assert int(done.output.split()[-1]) >= 40
    left = list(tmp_path.glob(".*.tmp"))
    assert sorted(remove_stale_files(tmp_path)) == sorted(left) and not list(tmp_path.glob(".*.tmp"))


def test_every_truncation_is_found_and_the_one_before_is_used(tmp_path):
    save(tmp_path / "last.ckpt", 1)
    save(tmp_path / "last.ckpt", 2)
    whole = (tmp_path / "last.ckpt").read_bytes()
    for length in [0, 1, 100, *random.Random(0).sample(range(len(whole)), 40), len(whole) - 1]:
        (tmp_path / "last.ckpt").write_bytes(whole[:length])
        path, skipped = newest_valid(tmp_path)
        assert path == tmp_path / "previous.ckpt", length
        assert len(skipped) == 1 and "last.ckpt" in skipped[0]
    with pytest.raises(CheckpointError, match=r"last.ckpt cannot be used: it is damaged"):
        load(tmp_path / "last.ckpt")


def test_one_flipped_bit_is_found_or_changes_nothing(tmp_path):
    path = tmp_path / "last.ckpt"
    save(path, 1)
    whole, rng, found = path.read_bytes(), random.Random(0), 0
    for _ in range(200):
        data = bytearray(whole)
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        path.write_bytes(data)
        if verify(path):
            found += 1
        else:  # padding between the records
            assert same(torch.load(path, weights_only=True), content(1))
    assert found > 150


def test_a_full_disk_is_one_line_and_keeps_the_old_file(tmp_path):
    save(tmp_path / "last.ckpt", 1)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    for limit in (0, 700, 5000, 15_000):
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
        try:
            with pytest.raises(CheckpointError, match=r"cannot write .*last.ckpt: .*File too large.* unchanged") as e:
                save(tmp_path / "last.ckpt", 2)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert "\n" not in str(e.value)
        assert checkpoints(tmp_path) == ["last.ckpt"] and same(load(tmp_path / "last.ckpt"), content(1))


def test_a_folder_that_cannot_be_made_is_an_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match="cannot write .*nothing was saved"):
        save(tmp_path / "file" / "last.ckpt", 1)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_read_only_folder_is_an_error(tmp_path):
    save(tmp_path / "last.ckpt", 1)
    tmp_path.chmod(0o500)
    try:
        with pytest.raises(CheckpointError, match="Permission denied"):
            save(tmp_path / "last.ckpt", 2)
    finally:
        tmp_path.chmod(0o700)
    assert same(load(tmp_path / "last.ckpt"), content(1))


def test_an_older_or_saved_again_file_under_the_name_is_detected(tmp_path):
    last, previous = tmp_path / "last.ckpt", tmp_path / "previous.ckpt"
    for step in (1, 2, 3):
        AtomicCheckpointIO().save_checkpoint({**content(step), "global_step": step, "is_best": step == 1}, last)
    newest = last.read_bytes()
    last.write_bytes((tmp_path / "best.ckpt").read_bytes())
    assert "another checkpoint of this run, of optimizer step 1" in verify(last)
    assert newest_valid(tmp_path)[0] == previous and load(previous)["step"] == 2
    last.write_bytes(newest)
    assert verify(last) is None
    torch.save(torch.load(last, weights_only=True) | {"step": 4}, last)
    assert "not the file that this run saved" in verify(last)


def test_the_checkpoint_before_the_last_is_identified_too(tmp_path):
    last, previous = tmp_path / "last.ckpt", tmp_path / "previous.ckpt"
    for step in (1, 2, 3):
        AtomicCheckpointIO().save_checkpoint({**content(step), "global_step": step, "is_best": step == 1}, last)
    assert [saved_step(tmp_path, f"{name}.ckpt") for name in ("last", "previous", "best")] == [3, 2, 1]
    torch.save(torch.load(previous, weights_only=True) | {"step": 4}, previous)
    assert "not the file that this run saved" in verify(previous)
    last.write_bytes(b"half")
    settle(tmp_path)
    assert [saved_step(tmp_path, f"{name}.ckpt") for name in ("last", "previous", "best")] == [None, None, 1]


def test_a_damaged_last_file_is_moved_aside_before_the_next_save(tmp_path):
    """The next save would replace the intact file by it."""
    for step in (1, 2):
        save(tmp_path / "last.ckpt", step)
    (tmp_path / "last.ckpt").write_bytes(b"half")
    settle(tmp_path)
    assert checkpoints(tmp_path) == ["last.ckpt.unusable", "previous.ckpt"]
    save(tmp_path / "last.ckpt", 3)
    assert same(load(tmp_path / "previous.ckpt"), content(1)) and same(load(tmp_path / "last.ckpt"), content(3))


def test_a_folder_without_a_manifest_is_checked_by_the_files_own_checksums(tmp_path, caplog):
    for step in (1, 2):
        save(tmp_path / "last.ckpt", step)
    for manifest in (None, "{", '{"files": 3}', '{"files": {}, "saving": 5}',
                     '{"files": {}, "saving": {"sha256": "0"}}', "[" * 100_000):
        if manifest is None:
            (tmp_path / "manifest.json").unlink()
        else:
            (tmp_path / "manifest.json").write_text(manifest)
        assert newest_valid(tmp_path) == (tmp_path / "last.ckpt", [])
    assert "manifest.json is damaged" in caplog.text
    save(tmp_path / "last.ckpt", 3)
    assert newest_valid(tmp_path) == (tmp_path / "last.ckpt", []) and verify(tmp_path / "previous.ckpt") is None
    settle(tmp_path)
    assert same(load(tmp_path / "previous.ckpt"), content(2))


def crash_at_every_operation():
    """In a fork: prints how many file operations a save has."""
    for crash in range(100):
        folder = Path(str(crash))
        for step in (1, 2):
            saved = {**content(step), "global_step": step, "is_best": True}
            AtomicCheckpointIO().save_checkpoint(saved, folder / "last.ckpt")
        if os.fork() == 0:
            FileFaults(folder, "crash", crash).install()
            saved = {**content(3), "global_step": 3, "is_best": True}
            AtomicCheckpointIO().save_checkpoint(saved, folder / "last.ckpt")
            os._exit(0)
        if os.wait()[1] == 0:
            break
        settle(folder)
        last, best = (AtomicCheckpointIO().load_checkpoint(folder / name)["step"]
                      for name in ("last.ckpt", "best.ckpt"))
        assert last == best and last in (2, 3), (crash, last, best)
        assert verify(folder / "previous.ckpt") in (None, "there is no such file")
    print("crashes", crash)


def test_after_a_crash_at_any_operation_the_best_is_the_one_that_the_last_names(tmp_path):
    done = forks().run("tests.training.test_checkpoint:crash_at_every_operation", folder=tmp_path)
    assert done.code == 0, done.output
    assert int(done.output.split()[-1]) > 20


class Harm:
    def __reduce__(self):
        return os.system, ("touch harmed",)


def test_code_in_a_checkpoint_does_not_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    torch.save({"weights": torch.zeros(1), "harm": Harm()}, "last.ckpt")
    for weights_only in (True, False, None):
        with pytest.raises(Exception, match="(?i)weights"):
            AtomicCheckpointIO().load_checkpoint("last.ckpt", weights_only=weights_only)
    assert not os.path.exists("harmed")


def test_files_that_are_no_checkpoint(tmp_path):
    (tmp_path / "last.ckpt").write_bytes(b"<html>not found</html>")
    assert "damaged" in verify(tmp_path / "last.ckpt")
    assert verify(tmp_path / "nothing.ckpt") == "there is no such file"
    assert newest_valid(tmp_path)[0] is None and newest_valid(tmp_path / "missing") == (None, [])


def test_cleaning_keeps_the_files_of_running_processes(tmp_path):
    sleeper = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    try:
        mine = temporary_path(tmp_path / "last.ckpt")
        mine.touch()
        theirs = mine.with_name(re.sub(r"\.\d+\.tmp$", f".{sleeper.pid}.tmp", mine.name))
        theirs.touch()
        elsewhere = mine.with_name(".last.ckpt.otherhost.999999.tmp")
        elsewhere.touch()
        assert remove_stale_files(tmp_path) == []
    finally:
        sleeper.send_signal(signal.SIGKILL)
        sleeper.wait()
    assert remove_stale_files(tmp_path) == [theirs]
    assert mine.exists() and elsewhere.exists()


def test_a_dangling_previous_checkpoint_is_replaced(tmp_path):
    AtomicCheckpointIO().save_checkpoint({"global_step": 1}, tmp_path / "last.ckpt")
    (tmp_path / "previous.ckpt").symlink_to("nowhere")
    AtomicCheckpointIO().save_checkpoint({"global_step": 2}, tmp_path / "last.ckpt")
    assert AtomicCheckpointIO().load_checkpoint(tmp_path / "previous.ckpt")["global_step"] == 1
