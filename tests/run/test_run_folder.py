"""What a run folder must contain for a run to start in it or to resume from it."""

import datetime
import json
import logging
import shutil
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import yaml
from filelock import FileLock

from tests.faults.resume import DIGITS, run
from tests.slow_values import quick_and_slow
from vit.files.atomic import CheckpointError
from vit.run import main
from vit.run.config.composing import ConfigError
from vit.run.records.folder import RunFolder, new_path
from vit.run.records.reading import NODES, read_config
from vit.run.records.splits import read_record
from vit.run.resume import find_resumable
from vit.tasks.classification import Classification


@pytest.fixture(scope="module")
def stopped(tmp_path_factory):
    """A run that was stopped in its second epoch."""
    folder = tmp_path_factory.mktemp("stopped")
    (done,) = run([*DIGITS, "run_dir=run"], folder, stop=6)
    assert done.code == 143, done.output
    return folder / "run"


@pytest.fixture
def folder(stopped, tmp_path):
    """A copy of it, with links kept apart."""
    return shutil.copytree(stopped, tmp_path / "run")


def set_clock(monkeypatch, *time):
    class Clock(datetime.datetime):
        @classmethod
        def now(cls):
            return cls(*time)

    monkeypatch.setattr("vit.run.records.folder.datetime",
                        SimpleNamespace(datetime=Clock, timedelta=datetime.timedelta))


def test_runs_that_start_in_one_second_have_folders_of_their_own(tmp_path, monkeypatch):
    set_clock(monkeypatch, 2026, 1, 2, 3, 4, 5, 678)
    config = {"run_dir": None, "runs": str(tmp_path), "name": "mine"}
    assert new_path(config, make=False) == tmp_path / "mine/2026-01-02_03-04-05" and not any(tmp_path.iterdir())
    names = ["2026-01-02_03-04-05", "2026-01-02_03-04-05_2", "2026-01-02_03-04-05_3"]
    assert [new_path(config).name for _ in range(3)] == names
    assert [new_path(config, suffix="_sweep").name for _ in range(2)] == [f"{name}_sweep" for name in names[:2]]
    assert new_path({**config, "run_dir": "here"}) == Path("here")
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=rf"runs={tmp_path / 'file'}: cannot write there \(Not a directory\)"):
        new_path({**config, "runs": str(tmp_path / "file")})


def test_the_newest_run_has_the_last_name_also_if_the_clock_was_set_back(tmp_path, monkeypatch, caplog):
    """As in the hour that is repeated at the end of summer time."""
    monkeypatch.setattr("vit.run.records.folder.log.propagate", True)
    config = {"run_dir": None, "runs": str(tmp_path), "name": "mine", "resume": "auto", "overrides": ["seed=1"]}
    stored = "".join(f"{node}: {{}}\n" for node in NODES[:-1]) + "overrides: [seed=1]\n"
    started = [((2, 59, 58), "02-59-58"), ((2, 10), "02-59-59"), ((2, 20), "03-00-00"), ((4, 0), "04-00-00")]
    for clock, name in started:
        set_clock(monkeypatch, 2026, 10, 25, *clock)
        path = new_path(config)
        assert path.name == f"2026-10-25_{name}"
        (path / "checkpoints").mkdir()
        (path / "checkpoints" / "last.ckpt").touch()
        (path / "config.yaml").write_text(stored)
        assert find_resumable(config) == path
    first, _ = dict.fromkeys(message for message in caplog.messages if "has a folder of" in message)
    assert first == (f"{tmp_path / 'mine'} has a folder of 2026-10-25 02:59:58, but the clock is at 2026-10-25 "
                     "02:10:00; the name of the new folder follows that one, which you can rename if its time is wrong")


@pytest.mark.parametrize(("content", "ended"), [
    ('{"ended": "max_time"}', True), ('{"ended": "epochs"}', False), ("{}", False), ("[]", False), ("{", False),
    (None, False)])
def test_a_run_that_its_time_limit_ended_is_known_by_its_metrics(tmp_path, content, ended):
    if content is not None:
        (tmp_path / "metrics.json").write_text(content)
    folder = RunFolder(tmp_path, main=False)
    assert folder.out_of_time == ended and folder.finished == (content is not None)


def test_a_run_that_does_not_start_names_no_folder(tmp_path, capsys):
    assert main(["data=digits", "model.num_heads=5", f"run_dir={tmp_path / 'run'}"]) == 2
    out, err = capsys.readouterr()
    assert "num_heads" in err and "run folder" not in out and not (tmp_path / "run").exists()


def change(file, old, new):
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new))


def test_a_lost_config_is_read_from_the_checkpoint(folder, caplog, monkeypatch):
    monkeypatch.setattr("vit.run.records.folder.log.propagate", True)
    config = read_config(folder)
    (folder / "config.yaml").unlink()
    assert find_resumable({"resume": "auto", "run_dir": str(folder)}) == folder
    assert read_config(folder) == {**config, "resumed": False}
    assert f"resuming with the config in {folder / 'checkpoints' / 'last.ckpt'}" in caplog.text
    assert read_record(folder).data == config["data"]  # the resumed run reads it too
    for file in (folder / "checkpoints").glob("*.ckpt"):
        file.unlink()
    with pytest.raises(ConfigError, match=r"there is no config.yaml"):
        read_config(folder)


@pytest.mark.parametrize("manifest", [True, False], ids=["recorded", "of an earlier version"])
def test_a_cut_config_is_never_used(folder, manifest):
    """Of a run without a manifest the missing part is noticed."""
    text = (folder / "config.yaml").read_text()
    (folder / "config.yaml").write_text(text[: len(text) // 2])
    if manifest:
        with pytest.raises(ConfigError, match=r"config.yaml is not the file that this run wrote.*or remove it"):
            read_config(folder)
    else:
        (folder / "manifest.json").unlink()
        assert read_config(folder)["overrides"] == yaml.safe_load(text)["overrides"]


def test_changed_splits_and_config_are_named(folder):
    recorded = json.loads((folder / "manifest.json").read_text())["files"]
    assert {"config.yaml", "splits/train.tsv", "splits/val.tsv", "splits/test.tsv"} <= recorded.keys()
    change(folder / "splits" / "val.tsv", "\n", "\r\n")
    with pytest.raises(ConfigError, match=r"splits/val.tsv is not the file that this run wrote"):
        read_config(folder)


def test_a_crash_between_record_and_file_leaves_a_valid_config(tmp_path, monkeypatch):
    folder = RunFolder(tmp_path)
    nodes = {"data": 1, "model": 1, "recipe": 1, "task": 1, "trainer": 1, "overrides": []}
    folder.write("config.yaml", nodes)
    with monkeypatch.context() as patch:
        patch.setattr("vit.run.records.folder.write_atomically", lambda *arguments: None)
        folder.write("config.yaml", {**nodes, "data": 2})
    assert read_config(tmp_path) == nodes


@pytest.mark.parametrize("lost", ["config.yaml", "checkpoints"])
def test_a_new_run_overwrites_nothing_of_an_old_one(folder, lost):
    (folder / "manifest.json").unlink()
    for file in [folder / lost] if lost == "config.yaml" else (folder / lost).iterdir():
        file.unlink()
    if lost == "checkpoints":
        (folder / "config.yaml").unlink()
    with pytest.raises(ConfigError, match="already contains (a run|metrics.csv)"), RunFolder(folder) as new:
        new.begin(resuming=False)


def test_a_start_that_was_killed_early_can_be_repeated(tmp_path):
    folder = RunFolder(tmp_path / "run")
    folder.write_text("splits/train.tsv", "a\tb\n")
    with RunFolder(tmp_path / "run") as again:
        again.begin(resuming=False)


def test_a_log_that_cannot_be_written_is_an_error_at_the_end(tmp_path, capsys, monkeypatch):
    def full(text):
        raise OSError(28, "No space left on device")

    folder = RunFolder(tmp_path / "run")
    with pytest.raises(OSError, match=r"cannot write .*log.txt: .*No space left.*all else was written"), folder:
        folder.begin(resuming=False)
        folder.write("config.yaml", {})
        stream = type("Full", (), {"write": full, "flush": print, "close": print})
        monkeypatch.setattr(folder._log, "stream", stream)
        logging.getLogger("vit").error("a line")
        logging.getLogger("vit").error("another")
    assert capsys.readouterr().err.count("No space left") == 1


@pytest.mark.parametrize("there", ["nothing", "a new run"])
def test_a_run_whose_folder_is_moved_ends_and_continues_at_the_new_path(tmp_path, monkeypatch, capsys, there):
    monkeypatch.chdir(tmp_path)
    step, moved = Classification.training_step, []

    def training_step(self, *arguments):
        if self.global_step == 6 and not moved:  # in the second epoch
            moved.append(Path("run").rename("moved"))
            if there == "a new run":
                with RunFolder(Path("run")) as new:
                    new.write("config.yaml", {"new": True})
        return step(self, *arguments)

    monkeypatch.setattr(Classification, "training_step", training_step)
    assert main([*DIGITS, "trainer.accelerator=cpu", "run_dir=run"]) == 1
    error = capsys.readouterr().err
    assert "error: the run folder run was moved" in error and error.count("error: ") == 1
    if Path("/proc/self/fd").is_dir():
        assert f"resume={tmp_path / 'moved'} continues it from its last checkpoint" in error
    if there == "nothing":
        assert not Path("run").exists()
    else:
        assert not any(Path("run/checkpoints").iterdir()) and not Path("run/metrics.csv").exists()
        assert Path("run/config.yaml").read_text() == "new: true\n"
    assert main(["resume=moved"]) == 0
    assert len(Path("moved/metrics.csv").read_text().splitlines()) == 4


def test_a_start_that_fails_removes_no_folder_of_another_run(tmp_path):
    with RunFolder(tmp_path / "run"):
        (tmp_path / "run").rename(tmp_path / "moved")
        other = tmp_path / "run" / "checkpoints"
        other.mkdir(parents=True)
    assert other.is_dir()


def test_nothing_is_written_into_a_folder_that_was_removed(tmp_path):
    folder = RunFolder(tmp_path / "run")
    with pytest.raises(CheckpointError, match="run was moved or removed during the run; if it was moved, "), folder:
        folder.write("config.yaml", {})
        shutil.rmtree(tmp_path / "run")
        folder.write("metrics.json", {})
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("before", "after"),
    quick_and_slow(
        [((), ("fsdp", 2)), (("fsdp", 2), ("single", 1)), (("ddp", 2), ("fsdp", 2)), (("fsdp", 2), ("ddp", 3))],
        (("fsdp", 2), ("ddp", 3)),
    ),
    ids=["single to fsdp", "fsdp to single", "ddp to fsdp", "fsdp 2 to ddp 3"],
)
def test_a_run_resumes_with_another_strategy(tmp_path, before, after):
    name, processes = before or ("single", 1)
    start = [*DIGITS, "trainer.accelerator=cpu", f"strategy={name}", f"trainer.devices={processes}"]
    start += ["callbacks.every_steps=1", "run_dir=run"]
    run(start, tmp_path, processes, stop=6)
    saved = torch.load(tmp_path / "run" / "checkpoints" / "last.ckpt", weights_only=True)
    assert saved["global_step"] == 5 + (processes == 1)
    name, processes = after
    for done in run(["resume=run", f"strategy={name}", f"trainer.devices={processes}"], tmp_path, processes):
        assert done.code == 0, done.output
    assert "changed on resuming: strategy from" in (tmp_path / "run" / "log.txt").read_text()
    resumed = torch.load(tmp_path / "run" / "checkpoints" / "last.ckpt", weights_only=True)
    assert resumed["global_step"] == 12
    steps = {int(state["step"]) for state in resumed["optimizer_states"][0]["state"].values()}
    assert steps == {12}


def test_a_damaged_manifest_is_reported_once(folder, tmp_path):
    """A resumed run reads it many times, and repairs it."""
    for name in ("manifest.json", "checkpoints/manifest.json"):
        (folder / name).write_text('{"fi')
    (done,) = run(["resume=run"], tmp_path)
    assert done.code == 0 and done.output.count("run/manifest.json is damaged") == 1, done.output
    assert done.output.count("checkpoints/manifest.json is damaged") == 1
    assert "manifest.json is damaged" in (folder / "log.txt").read_text()
    assert json.loads((folder / "manifest.json").read_text())["files"]


def test_a_start_waits_for_vit_runs_but_not_for_a_run(tmp_path):
    tmp_path.joinpath("run").mkdir()
    lock = FileLock(tmp_path / "run" / ".lock", thread_local=False)
    lock.acquire()
    threading.Timer(0.3, lock.release).start()
    with RunFolder(tmp_path / "run"):
        start = time.monotonic()
        with pytest.raises(ConfigError, match="another run is writing there"), RunFolder(tmp_path / "run"):
            pass
        assert time.monotonic() - start < 30


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="the path of an open folder is known on Linux only")
def test_a_file_system_may_give_a_folder_other_numbers(tmp_path, monkeypatch):
    with RunFolder(tmp_path / "run") as folder:
        monkeypatch.setattr("os.path.samestat", lambda first, second: False)
        folder.write("audit.json", {})
        (tmp_path / "run").rename(tmp_path / "moved")
        (tmp_path / "run").mkdir()
        with pytest.raises(CheckpointError, match=f"was moved to {tmp_path / 'moved'} during the run"):
            folder.write("audit.json", {})
