"""Complete training runs of this checkout compared with an earlier revision of it.

Both run `train.py` with the same overrides, in turns. "seconds" is the wall time of the whole command, "processor
seconds" its processor time, "samples/s" the throughput that the run reports for its training loop, and "step ms" the
processor time from the start of a training step to the start of the next one, in milliseconds: the median over the
steps of all epochs but the first, which other work on the machine affects least. A ratio above 1 means that this
checkout is faster.

With `--at-once` both run at the same time, each pinned to a core of its own with one thread, and swap cores after each
round (Linux, at least two cores), so that other work on the machine affects both.

    python benchmarks/against_revision.py HEAD~1
    python benchmarks/against_revision.py v1.0 --rounds 12 --at-once recipe.epochs=30
    python benchmarks/against_revision.py v1.0 --rounds 5 data=cifar10 data.root=CIFAR10 recipe.epochs=1
"""

import argparse
import contextlib
import json
import os
import runpy
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
OURS, EARLIER = "this checkout", "earlier"
MEASURED = ("seconds", "processor seconds", "samples/s", "step ms")
Figures = tuple[float, ...]  # in the order of MEASURED
STEPS = "VIT_BENCHMARK_STEPS"  # environment variable: the file into which `train_and_time` writes the step time


def main() -> None:
    from pairs import report  # which an earlier revision, imported by `train_and_time`, may not support

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("revision", help="a commit, tag or branch")
    parser.add_argument("overrides", nargs="*", default=["recipe.epochs=10"], help="of train.py")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--at-once", action="store_true")
    options = parser.parse_intermixed_args()
    runs: dict[str, list[Figures]] = {OURS: [], EARLIER: []}
    with tempfile.TemporaryDirectory() as folder, checked_out(options.revision, Path(folder)) as earlier:
        trees = {OURS: ROOT, EARLIER: earlier}
        for number in range(options.rounds + 1):  # the first warms up
            order = list(trees) if number % 2 == 0 else list(trees)[::-1]
            started = []
            for core, name in enumerate(order):
                started.append(Training(trees[name], options.overrides, core if options.at_once else None))
                if not options.at_once:
                    started[-1].wait()
            for name, training in zip(order, started, strict=True):
                runs[name].append(training.wait())
    figures = {name: [list(column) for column in zip(*found[1:], strict=True)] for name, found in runs.items()}
    rows = [row(what, {name: found[i] for name, found in figures.items()}) for i, what in enumerate(MEASURED)]
    report(f"train.py {' '.join(options.overrides)}, against {options.revision}", rows, runs=figures)


def row(what: str, values: dict[str, list[float]]) -> dict[str, object]:
    above, below = (OURS, EARLIER) if what.endswith("/s") else (EARLIER, OURS)
    ratios = [a / b for a, b in zip(values[above], values[below], strict=True)]
    return {"what": what, **{name: statistics.median(found) for name, found in values.items()},
            "ratio": statistics.median(ratios), "lowest": min(ratios), "highest": max(ratios)}


@contextlib.contextmanager
def checked_out(revision: str, folder: Path) -> Iterator[Path]:
    """A git worktree of the revision, removed afterwards."""
    tree = folder / "tree"
    subprocess.run(["git", "-C", ROOT, "worktree", "add", "--quiet", "--detach", tree, revision], check=True)
    try:
        yield tree
    finally:
        subprocess.run(["git", "-C", ROOT, "worktree", "remove", "--force", tree], check=True)


class Training:
    """A run of `train.py` in the background, bound to one core where one is given."""

    def __init__(self, tree: Path, overrides: list[str], core: int | None):
        self.folder = tempfile.TemporaryDirectory()
        self.begun, self.figures = time.perf_counter(), None
        command = [sys.executable, __file__, "--train", *overrides, f"run_dir={self.folder.name}/run"]
        environment = {**os.environ, "PYTHONPATH": str(tree), STEPS: f"{self.folder.name}/steps"}
        if core is not None:
            available = sorted(os.sched_getaffinity(0))
            command = ["taskset", "--cpu-list", str(available[core]), *command]
            environment["OMP_NUM_THREADS"] = "1"
        self.output = Path(self.folder.name) / "output"
        with self.output.open("w") as file:
            self.process = subprocess.Popen(command, cwd=tree, env=environment, stdout=file, stderr=file)
        self.waiting = threading.Thread(target=self._measure)
        self.waiting.start()

    def _measure(self) -> None:
        _, status, usage = os.wait4(self.process.pid, 0)
        self.process.returncode = os.waitstatus_to_exitcode(status)
        self.seconds = time.perf_counter() - self.begun, usage.ru_utime + usage.ru_stime

    def wait(self) -> Figures:
        if self.figures is None:
            self.waiting.join()
            with self.folder:
                if self.process.returncode:
                    raise RuntimeError(f"{self.process.args}: exit code {self.process.returncode}\n"
                                       f"{self.output.read_text()[-2000:]}")
                metrics = json.loads((Path(self.folder.name) / "run/metrics.json").read_text())
                step = float((Path(self.folder.name) / "steps").read_text())
            rate = next(value for name, value in metrics.items() if name.endswith("_per_second"))
            self.figures = (*self.seconds, rate, step)
        return self.figures


def train_and_time() -> None:
    """Run `train.py` of the current folder and measure its steps from outside, in any revision."""
    import pytorch_lightning as pl

    class StepTimes(pl.Callback):
        def __init__(self) -> None:
            self.times, self.last = [], None

        def on_train_epoch_start(self, trainer, module) -> None:
            self.last = None

        def on_train_batch_start(self, trainer, module, batch, index) -> None:
            now = time.process_time()
            if self.last is not None and trainer.current_epoch > 0:
                self.times.append(1000 * (now - self.last))
            self.last = now

        def on_train_end(self, trainer, module) -> None:
            Path(os.environ[STEPS]).write_text(str(statistics.median(self.times)))

    original = pl.Trainer.__init__

    def with_step_times(self, *arguments, callbacks=None, **options) -> None:
        original(self, *arguments, callbacks=[StepTimes(), *(callbacks or [])], **options)

    pl.Trainer.__init__ = with_step_times
    sys.argv = ["train.py", *sys.argv[2:]]
    runpy.run_path("train.py", run_name="__main__")


if __name__ == "__main__":
    train_and_time() if sys.argv[1:2] == ["--train"] else main()
