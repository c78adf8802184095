"""The terminal: a progress bar with rate and remaining time, and a clean screen after Ctrl-C."""

import os
import pty
import re
import select
import subprocess
import sys
import time

import pytest

from tests.commands import TRAIN, execute
from tests.forking import forks
from tests.run.conftest import QUICK, ROOT, write_photos


def watch(overrides, cwd, until=None, seconds=150):
    """Run train.py on a pseudo-terminal of 80 columns; Ctrl-C is typed after `until` is shown. (exit code, all that was
    shown)
    """
    main, end = pty.openpty()
    environment = os.environ | {
        "OMP_NUM_THREADS": "1",
        "TERM": "xterm",
        "COLUMNS": "80",
        "LINES": "40",
        "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
    }
    process = subprocess.Popen(
        [sys.executable, str(ROOT / "train.py"), *overrides],
        cwd=cwd,
        env=environment,
        stdin=end,
        stdout=end,
        stderr=end,
        preexec_fn=lambda: take_terminal(end),
    )
    os.close(end)
    shown, limit, typed = b"", time.monotonic() + seconds, False
    while time.monotonic() < limit:
        if select.select([main], [], [], 0.1)[0]:
            try:
                shown += os.read(main, 65536)
            except OSError:  # the other end is closed
                break
        if until and not typed and re.search(until, shown):
            os.write(main, b"\x03")
            typed = True
    os.close(main)
    return process.wait(timeout=30), shown.decode()


def take_terminal(end):
    """The terminal becomes the process's own, so that a typed Ctrl-C reaches it and its workers as at a keyboard."""
    import fcntl
    import termios

    os.setsid()
    fcntl.ioctl(end, termios.TIOCSCTTY, 0)


def test_a_bar_then_the_table(tmp_path):
    code, shown = watch(["recipe.epochs=5", "precision=32-true", "logger=csv", "report=false", "run_dir=run"], tmp_path)
    assert code == 0, shown
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown)
    bars = re.findall(r"epoch (\d+)/5 ━.*?(\d+)% ([\d,]+) images/s  (\d+:\d\d) left\s+loss .*?val/accuracy", plain)
    assert len({epoch for epoch, *_ in bars}) >= 2 and re.search("test ━+ .*360/360", plain)
    last = shown[shown.rindex("left") :]
    assert (
        "\x1b[2K" in last and "test accuracy" in last and "Next:" in last
    )  # the bar is erased, and the table is printed instead
    assert shown.count("\x1b[?25l") == shown.count("\x1b[?25h")  # the cursor is back


@pytest.mark.slow
def test_ctrl_c_leaves_a_clean_screen(tmp_path):
    """With workers, which Ctrl-C reaches too: they print nothing, and the last step is saved."""
    root = write_photos(tmp_path / "photos", {"cat": 60, "dog": 60})
    overrides = [
        "data=folder",
        f"data.root={root}",
        "model=micro",
        "data.image_size=16",
        "data.patch_size=8",
        "recipe.batch_size=8",
        "recipe.epochs=500",
        "precision=32-true",
        "logger=csv", "report=false",
        "data.workers=2",
        "data.audit_seconds=1",
        "run_dir=run",
    ]
    code, shown = watch(overrides, tmp_path, rb"images/s")
    assert code == 130, shown
    after = shown[shown.index("^C") :]
    assert "SIGINT: stopping after this step and saving" in after and "Resume with:" in after and "resume=run" in after
    assert "Traceback" not in shown and "Error" not in shown and after.count("SIGINT: stopping") == 1
    assert shown.count("\x1b[?25l") == shown.count("\x1b[?25h")
    assert "images/s" not in after[after.index("Resume with:") :]
    assert (tmp_path / "run" / "checkpoints" / "last.ckpt").exists()


@pytest.mark.parametrize("stderr_too", [False, True])
def test_training_goes_on_when_the_reader_of_its_output_has_closed_the_pipe(tmp_path, stderr_too):
    """As in `python train.py | head -1`, and `2>&1 | head -1`."""
    overrides = ["model=micro", *QUICK, "recipe.epochs=1", "run_dir=run"]
    done = forks().run("tests.run.test_terminal:train_without_reader", stderr_too, overrides, folder=tmp_path)
    assert done.code == 0 and (tmp_path / "run" / "metrics.json").is_file()
    assert done.output.count("the run goes on without output") == (not stderr_too)


def train_without_reader(stderr_too: bool, overrides: list[str]) -> None:
    """In a fork: train.py with a closed pipe as its output."""
    reading, writing = os.pipe()
    os.close(reading)
    for stream in (1, 2) if stderr_too else (1,):
        os.dup2(writing, stream)
    execute(TRAIN, overrides)
