"""A run that was stopped, killed or damaged is resumed, and ends with the same bits as an uninterrupted one."""

import json
import os
import re
import shlex
import shutil
import signal
import sys
import time

import pytest
import torch
from safetensors.torch import load_file

import vit
from tests import commands
from tests.run.conftest import SMALL, start, table, write_photos, write_questions
from vit.run.changes_on_resuming import adjusted
from vit.run.config.composing import ConfigError
from vit.run.records.reading import NODES, read_stored, unfinished
from vit.run.resume import find_resumable
from vit.training import Interrupted

DIGITS = ["recipe.epochs=5", "precision=32-true", "logger=csv", "report=false", "recipe.batch_size=64", "model.depth=1"]
STEPS = 19  # in an epoch of DIGITS
SPEED = {"train/images_per_second", "train/sentences_per_second", "train/data_wait"}


def outcome(folder):
    """Everything that must be equal: weights, metrics of every epoch, predictions."""
    rows = [{k: v for k, v in row.items() if k not in SPEED} for row in table(folder / "metrics.csv")]
    return load_file(folder / "model" / "model.safetensors"), rows, (folder / "predictions.csv").read_text()


def assert_same(one, other):
    (weights, rows, predictions), (weights2, rows2, predictions2) = outcome(one), outcome(other)
    assert rows == rows2
    assert weights.keys() == weights2.keys() and all(torch.equal(weights[name], weights2[name]) for name in weights)
    assert predictions == predictions2


class StopAfter:
    """Sends this process a signal once the run in `folder` has trained so many batches."""

    def __init__(self, monkeypatch, batches, signum=signal.SIGINT):
        from vit.tasks.base import Task

        step, self.seen = Task.training_step, 0

        def counted(task, batch, batch_idx):
            self.seen += 1
            if self.seen == batches:
                os.kill(os.getpid(), signum)
            return step(task, batch, batch_idx)

        monkeypatch.setattr(Task, "training_step", counted)


def stopped_and_resumed(overrides, folder, monkeypatch, batches, changed=()):
    with monkeypatch.context() as patch:
        StopAfter(patch, batches)
        with pytest.raises(SystemExit) as stop:
            vit.train([*overrides, f"run_dir={folder}"])
    assert stop.value.code == 130
    return vit.train([f"resume={folder}", *changed])


def wait_for(condition, process, seconds=120):
    end = time.monotonic() + seconds
    while not condition():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < end, "the run did not reach this step"
        time.sleep(0.02)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return vit.train([*DIGITS, f"run_dir={tmp_path_factory.mktemp('whole')}"]).path


@pytest.mark.parametrize(("signum", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_stopped_by_a_signal_and_resumed_by_the_printed_command(tmp_path, whole, signum, code):
    """The signal reaches the workers too, as Ctrl-C at a keyboard and a cluster's SIGTERM do."""
    process = start([*DIGITS, "data.workers=2", "run_dir=run"], tmp_path)
    wait_for((tmp_path / "run" / "checkpoints" / "last.ckpt").exists, process)
    os.killpg(process.pid, signum)
    out, err = process.communicate(timeout=60)
    assert process.returncode == code, err
    assert "Traceback" not in err and "stopping after this step and saving" in err
    command = shlex.split(out[out.index("Resume with:") :].splitlines()[1])
    assert os.path.dirname(shutil.which(command[0])) == os.path.dirname(sys.executable)
    assert command[1:] == ["-m", "vit", "train", "resume=run"]
    if signum == signal.SIGINT:
        code, out, err = commands.run(commands.VIT, command[3:], tmp_path)
        assert code == 0 and "resuming run from last.ckpt" in out, err
    else:
        vit.train([f"resume={tmp_path / 'run'}"])
    assert_same(tmp_path / "run", whole)


def test_resume_auto_finds_a_killed_run_by_its_overrides(tmp_path, whole, monkeypatch, capsys):
    """`resume=auto` selects the newest unfinished run with the same overrides, and no other."""
    monkeypatch.chdir(tmp_path)
    overrides = [*DIGITS, "runs=runs"]
    process = start(overrides, tmp_path)
    folder = tmp_path / "runs" / "digits"
    wait_for(lambda: list(folder.glob("*/checkpoints/last.ckpt")), process)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    (killed,) = folder.iterdir()
    vit.train([*overrides, "debug=true", "resume=auto"])
    printed = capsys.readouterr().out
    assert "no run to resume" in printed
    assert f"{killed.relative_to(tmp_path)} is unfinished, but has other overrides (" in printed
    vit.train([*overrides, "resume=auto"])
    assert f"resuming {killed.relative_to(tmp_path)}" in capsys.readouterr().out
    assert_same(killed, whole)
    vit.train([*overrides, "recipe.epochs=1", "resume=auto"])
    assert "no run to resume" in capsys.readouterr().out


def test_resume_auto_skips_a_run_without_a_readable_config_and_finished_ones(tmp_path, caplog, monkeypatch):
    monkeypatch.setattr("vit.run.records.reading.log.propagate", True)
    stored = "".join(f"{node}: {{}}\n" for node in NODES[:-1])
    files = {"1": "config.yaml", "2": "config.yaml", "3": "broken", "4": "metrics.json", "5": "no checkpoint"}
    for name, what in files.items():
        folder = tmp_path / "mine" / name
        (folder / "checkpoints").mkdir(parents=True)
        (folder / "config.yaml").write_text("data: [" if what == "broken" else f"{stored}overrides: [seed={name}]\n")
        if what == "metrics.json":
            (folder / what).write_text("{}")
        if what != "no checkpoint":
            (folder / "checkpoints/last.ckpt").touch()
    found = list(unfinished({"runs": str(tmp_path), "name": "mine"}))
    assert found == [(tmp_path / "mine/2", ["seed=2"]), (tmp_path / "mine/1", ["seed=1"])]
    (message,) = {record.getMessage() for record in caplog.records}
    assert message.startswith(f"resume=auto skips {tmp_path / 'mine/3'}: ")


def test_resume_auto_finds_a_run_with_other_loggers(tmp_path):
    folder = tmp_path / "mine" / "1"
    (folder / "checkpoints").mkdir(parents=True)
    (folder / "checkpoints/last.ckpt").touch()
    stored = "".join(f"{node}: {{}}\n" for node in NODES[:-1])
    (folder / "config.yaml").write_text(f"{stored}overrides: [seed=1, logger=csv]\n")
    config = {"resume": "auto", "run_dir": None, "runs": str(tmp_path), "name": "mine"}
    for loggers in ([], ["logger=csv"], ["logger=default", "+logger.mine._target_=a.B", "~logger.tensorboard"]):
        assert find_resumable({**config, "overrides": [*loggers, "seed=1"]}) == folder
    assert find_resumable({**config, "overrides": ["seed=2", "logger=csv"]}) is None


@pytest.mark.parametrize("batches", [10, STEPS * 3, STEPS * 3 + 1])
def test_stopped_within_an_epoch_at_its_end_and_after(tmp_path, whole, monkeypatch, batches):
    stopped_and_resumed(DIGITS, tmp_path, monkeypatch, batches)
    assert_same(tmp_path, whole)


def test_repeats(tmp_path, monkeypatch):
    overrides = [*DIGITS[1:], "recipe.epochs=2", "recipe.repeats=3"]
    whole = vit.train([*overrides, f"run_dir={tmp_path / 'whole'}"]).path
    stopped_and_resumed(overrides, tmp_path / "run", monkeypatch, STEPS + 5)
    assert_same(tmp_path / "run", whole)


def test_accumulation_and_mixup(tmp_path, monkeypatch):
    overrides = [
        *DIGITS[1:],
        "recipe.epochs=2",
        "recipe.accumulate=2",
        "recipe.mixup={mixup: 0.3, cutmix: 1.0, prob: 0.8}",
        "model.drop_path=0.1",
        "model.dropout=0.1",
    ]

    through = vit.train([*overrides, f"run_dir={tmp_path / 'whole'}"]).path
    stopped_and_resumed(overrides, tmp_path / "parts", monkeypatch, 2 * STEPS + 7)
    assert_same(tmp_path / "parts", through)


def test_pictures_streamed_by_workers(tmp_path, monkeypatch):
    root = write_photos(tmp_path / "photos", {"cat": 40, "dog": 30})
    overrides = ["data=folder", f"data.root={root}", "recipe.epochs=3", "precision=32-true", "logger=csv",
                 "report=false", *SMALL]
    monkeypatch.setattr("vit.data.images.dataset.ImageDataset._fits", lambda self, limit: False)
    through = vit.train([*overrides, "data.workers=0", f"run_dir={tmp_path / 'whole'}"]).path
    stopped_and_resumed([*overrides, "data.workers=2"], tmp_path / "parts", monkeypatch, 10, ["data.workers=1"])
    assert_same(tmp_path / "parts", through)


def test_a_damaged_checkpoint_is_skipped_and_named(tmp_path, whole, monkeypatch, capsys):
    with monkeypatch.context() as patch:
        StopAfter(patch, STEPS * 3 + 5)
        with pytest.raises(SystemExit):
            vit.train([*DIGITS, f"run_dir={tmp_path}"])
    last = tmp_path / "checkpoints" / "last.ckpt"
    content = bytearray(last.read_bytes())
    middle = slice(len(content) // 2, len(content) // 2 + 4096)  # a single byte may lie in the padding between tensors
    content[middle] = bytes(byte ^ 255 for byte in content[middle])
    last.write_bytes(content)
    capsys.readouterr()
    vit.train([f"resume={tmp_path}"])
    printed = capsys.readouterr().out
    assert f"skipped {last}: it is damaged" in printed and "from previous.ckpt" in printed
    assert_same(tmp_path, whole)


def test_no_whole_checkpoint_is_an_error(tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        StopAfter(patch, 3)
        with pytest.raises(SystemExit):
            vit.train([*DIGITS, f"run_dir={tmp_path}"])
    (tmp_path / "checkpoints" / "last.ckpt").write_bytes(b"half a file")
    with pytest.raises(ConfigError, match=r"none of its checkpoints is valid \(\S+last\.ckpt: it is .*\); start"):
        vit.train([f"resume={tmp_path}"])
    with pytest.raises(ConfigError, match=r"last\.ckpt: cannot be used: it is damaged"):
        vit.train([f"resume={tmp_path / 'checkpoints' / 'last.ckpt'}"])


def test_a_changed_override_is_logged_and_recorded(tmp_path, monkeypatch, capsys):
    changed = ["recipe.epochs=2", "recipe.ema=0.99", "name=2026", "callbacks.patience=${recipe.epochs}"]
    run = stopped_and_resumed(DIGITS, tmp_path, monkeypatch, 30, changed)
    printed = capsys.readouterr().out
    assert "changed on resuming: recipe.epochs from 5 to 2" in printed and "recipe.ema" not in printed
    assert "changed on resuming: callbacks.patience from null to 2" in printed
    assert run.metrics["epochs"] == 2
    stored = read_stored(tmp_path / "config.yaml")
    assert stored["name"] == "2026" and stored["callbacks"]["patience"] == 2  # an interpolation is stored resolved
    (tmp_path / "metrics.json").unlink()
    with pytest.raises(ConfigError, match=r"recipe.epochs=1, but .*last.ckpt has completed 2 epochs"):
        vit.train([f"resume={tmp_path}", "recipe.epochs=1"])
    assert "recipe.epochs from 5 to 2" in (tmp_path / "log.txt").read_text()


def test_the_repeated_command_of_a_run_resumes_it(tmp_path, monkeypatch):
    """Of a repeated key the last value counts; `auto` is the number that the run has resolved it to."""
    overrides = ["recipe.epochs=2", *DIGITS[1:], "recipe.batch_size=auto", "recipe.ema=auto", "model.depth=2",
                 "model.depth=1", f"run_dir={tmp_path / 'run'}"]
    with monkeypatch.context() as patch:
        StopAfter(patch, 25)
        with pytest.raises(SystemExit):
            vit.train(overrides)
    with pytest.raises(ConfigError, match=r"changes model.depth from 1 to 2, .*allow_change=model.depth$"):
        vit.train([*overrides, "model.depth=2", "resume=auto"])
    assert vit.train([*overrides, "resume=auto"]).metrics["epochs"] == 2
    assert "changed on resuming" not in (tmp_path / "run" / "log.txt").read_text()


def test_what_cannot_change_on_resuming(tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        StopAfter(patch, 3)
        with pytest.raises(SystemExit):
            vit.train([*DIGITS, f"run_dir={tmp_path}"])
    with pytest.raises(ConfigError, match="recipe.epochs=0: must be a whole number, 1 or more"):
        vit.train([f"resume={tmp_path}", "recipe.epochs=0"])
    with pytest.raises(ConfigError, match="model=tiny cannot change in a resumed run"):
        vit.train([f"resume={tmp_path}", "model=tiny"])
    with pytest.raises(ConfigError, match="init_from=x has no effect on a resumed run, .* leave resume out for a new"):
        vit.train([f"resume={tmp_path}", "init_from=x"])
    with pytest.raises(
        ConfigError, match=r"last.ckpt: .* is \(.*64.*\) in the checkpoint and \(.*128.*\) in the model"
    ):
        vit.train([f"resume={tmp_path}", "model.dim=128", "allow_change=model.dim"])
    with pytest.raises(ConfigError, match="data.patch_size=2: the model of the resumed run has patches of 4x4; leave"):
        vit.train([f"resume={tmp_path}", "data.patch_size=2", "allow_change=data.patch_size"])
    with pytest.raises(ConfigError, match=r"model.image_size=\[8, 8\], but the data has image_size \[16, 16\]"):
        vit.train([f"resume={tmp_path}", "data.image_size=16", "allow_change=data.image_size"])
    vit.train([f"resume={tmp_path}", "recipe.epochs=1"])
    with pytest.raises(ConfigError, match="that run is finished; start from its model with init_from="):
        vit.train([f"resume={tmp_path}"])


def test_a_key_of_a_node_that_the_run_has_dropped_cannot_change():
    with pytest.raises(ConfigError, match=r"recipe.mixup.prob=0.5 cannot change in a resumed run"):
        adjusted({"recipe": {"mixup": None}, "overrides": ["data.pack=true"]}, ["recipe.mixup.prob=0.5"])


def test_a_free_key_that_is_newer_than_the_run_can_be_set():
    stored = {"recipe": {"epochs": 2}, "callbacks": {"patience": None}, "overrides": ["recipe.epochs=2"]}
    config, changes = adjusted(stored, ["report=false", "callbacks.every_steps=5"])
    assert (config["report"], config["callbacks"]["every_steps"]) == (False, 5)
    assert changes == {"report": (None, False), "callbacks.every_steps": (None, 5)}
    assert config["overrides"] == ["recipe.epochs=2"]
    for override in ("recipe.clip=1.0", "+callbacks.own={_target_: x.Y}", "+callbacks.own._target_=x.Y"):
        with pytest.raises(ConfigError, match="cannot change in a resumed run"):
            adjusted(stored, [override])


@pytest.mark.parametrize("key", ["root", "leave_out"])
def test_a_path_from_the_current_folder_is_the_stored_absolute_one(tmp_path, monkeypatch, key):
    monkeypatch.chdir(tmp_path)
    stored = {"data": {key: str(tmp_path / "photos")}, "overrides": [f"data.{key}={tmp_path}/photos"]}
    config, changes = adjusted(stored, [f"data.{key}=photos"])
    assert not changes and config["data"][key] == str(tmp_path / "photos")
    changed = adjusted(stored, [f"data.{key}=other"], [f"data.{key}"])[1]
    assert changed == {f"data.{key}": (str(tmp_path / "photos"), "other")}


@pytest.mark.parametrize(("key", "value"), [("lr", 0.1), ("weight_decay", 0.0), ("name", "sgd")])
def test_the_optimizer_is_that_of_the_checkpoint(key, value):
    """Its state restores rates and options; those of the command had no effect."""
    stored = {"recipe": {"optimizer": {key: "other"}}, "overrides": []}
    with pytest.raises(ConfigError, match="a resumed run has the optimizer of its checkpoint"):
        adjusted(stored, [f"recipe.optimizer.{key}={value}"], [f"recipe.optimizer.{key}"])


def test_a_run_that_was_killed_while_it_was_tested_only_finishes(tmp_path, whole, monkeypatch):
    def killed(*arguments):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("vit.run.jobs.classification.ImageClassificationJob.test", killed)
        with pytest.raises(KeyboardInterrupt):
            vit.train([*DIGITS, f"run_dir={tmp_path}"])
    run = vit.train([f"resume={tmp_path}"])
    assert_same(tmp_path, whole)
    assert run.metrics["seconds"] > 0 and run.metrics["images_per_second"] > 0


def stop_before_training(overrides, monkeypatch):
    def stop(*arguments):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("vit.run.training_run.suited_threads", stop)
        with pytest.raises(KeyboardInterrupt):
            vit.train(overrides)


def test_stopped_before_anything_was_saved(tmp_path, whole, monkeypatch):
    stop_before_training([*DIGITS, f"run_dir={tmp_path}"], monkeypatch)
    vit.train([f"resume={tmp_path}"])
    assert "from the start: it has saved nothing yet" in (tmp_path / "log.txt").read_text()
    assert_same(tmp_path, whole)


def test_stopped_before_anything_was_saved_any_value_may_change(tmp_path, whole, monkeypatch):
    """Nothing has been computed that they would contradict."""
    lr = read_stored(whole / "config.yaml")["recipe"]["optimizer"]["lr"]
    other = ["seed=3", "recipe.optimizer.lr=0.1"]
    stop_before_training([*DIGITS, *other, f"run_dir={tmp_path}"], monkeypatch)
    vit.train([f"resume={tmp_path}", "seed=0", f"recipe.optimizer.lr={lr}"])
    assert_same(tmp_path, whole)


@pytest.mark.parametrize("kind", ["image", "text"])
def test_stopped_before_anything_was_saved_it_begins_from_the_same_weights(tmp_path, whole, monkeypatch, kind):
    overrides = [*DIGITS, "recipe.epochs=1", f"init_from={whole}"]
    if kind == "text":
        tiny = ["data=spelled_numbers", "data.limit=1000", "data.train=100", "data.val=20", "data.test=20"]
        tiny += [*DIGITS[1:3], "recipe.epochs=1", "model.dim=16", "model.depth=1", "model.decoder_depth=1"]
        vit.train([*tiny, f"run_dir={tmp_path / 'first'}"])
        overrides = [*tiny, f"init_from={tmp_path / 'first'}"]
    vit.train([*overrides, f"run_dir={tmp_path / 'one'}"])
    stop_before_training([*overrides, f"run_dir={tmp_path / 'two'}"], monkeypatch)
    vit.train([f"resume={tmp_path / 'two'}"])
    assert_same(tmp_path / "one", tmp_path / "two")


def test_word_vectors_are_not_needed_again(tmp_path, monkeypatch):
    file = tmp_path / "vectors.txt"
    file.write_text(f"has{' 0.5' * 16}\nwho{' -0.5' * 16}\n")
    overrides = ["data=text_table", write_questions(tmp_path / "questions.csv"), *DIGITS[1:3], "model.dim=16"]
    overrides += ["model.num_heads=2", "model.depth=1"]
    overrides += ["recipe.epochs=2", "recipe.batch_size=100", f"model.vectors={file}"]
    vit.train([*overrides, f"run_dir={tmp_path / 'one'}"])
    with monkeypatch.context() as patch:
        StopAfter(patch, 3)
        with pytest.raises(SystemExit):
            vit.train([*overrides, f"run_dir={tmp_path / 'two'}"])
    file.unlink()
    vit.train([f"resume={tmp_path / 'two'}"])
    assert_same(tmp_path / "one", tmp_path / "two")


def test_time_and_images_are_counted_through_the_stop(tmp_path, monkeypatch):
    run = stopped_and_resumed(DIGITS, tmp_path, monkeypatch, 70)
    first = torch.load(tmp_path / "checkpoints" / "last.ckpt", weights_only=True)["callbacks"]["ThroughputMeter"]
    assert first["rows"] == pytest.approx(5 * STEPS * 64, abs=3 * 64)
    assert re.fullmatch(r"\d+\.\d", str(run.metrics["seconds"])) and run.metrics["seconds"] >= first["elapsed"] - 0.1


def test_a_cache_that_is_lost_between_two_sessions_changes_no_bit(tmp_path, monkeypatch):
    photos = write_photos(tmp_path / "photos", {"cat": 16, "dog": 14}, size=(60, 50))
    overrides = ["data=folder", f"data.root={photos}", *SMALL, "recipe.epochs=2", "precision=32-true", "logger=csv",
                 "report=false", "data.cache=disk"]
    straight = vit.train([*overrides, f"data.cache_dir={tmp_path / 'one'}", f"run_dir={tmp_path / 'straight'}"])
    assert len(list((tmp_path / "one").glob("*.images"))) == 2  # of train and val
    stopped = [*overrides, f"data.cache_dir={tmp_path / 'two'}"]
    resumed = stopped_and_resumed(stopped, tmp_path / "resumed", monkeypatch, 4,
                                  [f"data.cache_dir={tmp_path / 'three'}", "data.cache_limit=0.00000001"])
    assert not list((tmp_path / "three").glob("*.images"))
    assert_same(straight.path, resumed.path)
    stored = (resumed.path / "config.yaml").read_text()
    assert "cache: disk" in stored and "cache_side: auto" in stored and "resampling: torch" in stored
    model = json.loads((resumed.path / "model" / "config.json").read_text())
    recorded = {"resampling": "torch", "cache": "disk", "cache_side": "auto"}
    assert model["vit"]["extra"]["training_pixels"] == recorded


def test_a_stop_signal_while_a_trained_run_is_tested(tmp_path, monkeypatch):
    """Of a resumed run without steps to do: the signal was recorded as for the end of a step, which never came."""
    vit.train([*SMALL, *DIGITS, "recipe.epochs=1", f"run_dir={tmp_path}"])
    (tmp_path / "metrics.json").unlink()
    monkeypatch.setattr("vit.run.finish.check_samples", lambda *arguments: signal.raise_signal(signal.SIGTERM))
    with pytest.raises(Interrupted):
        vit.train([f"resume={tmp_path}"])
    assert not (tmp_path / "metrics.json").exists()
