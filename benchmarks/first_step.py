"""Seconds from the start of `python train.py` to the end of its first training step, by the wall clock and of the
processor, in turns with another checkout of this project. The run stops there.

    OMP_NUM_THREADS=1 python benchmarks/first_step.py --rounds 7
    git worktree add ../earlier HEAD~1
    OMP_NUM_THREADS=1 python benchmarks/first_step.py --rounds 7 --against ../earlier
    OMP_NUM_THREADS=1 python benchmarks/first_step.py data=folder data.root=photos model=small
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from pytorch_lightning import Callback

ROOT = Path(__file__).resolve().parents[1]
RESULT = "VIT_BENCHMARK_FIRST_STEP"  # environment variable: the file into which `FirstStep` writes
CLOCKS = ("wall", "processor")


class FirstStep(Callback):
    """Writes the seconds of both clocks since the process was started, and ends it."""

    def on_train_batch_end(self, *_: object) -> None:
        from vit.training.monitoring.throughput import process_age

        Path(os.environ[RESULT]).write_text(json.dumps([process_age(), time.process_time()]), encoding="utf-8")
        os._exit(0)


def main() -> None:
    from pairs import report, times_as_fast

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--against", type=Path, help="the folder of the other checkout")
    options, overrides = parser.parse_known_args()
    checkouts = {"this checkout": ROOT} | ({"the other": options.against.resolve()} if options.against else {})
    for checkout in checkouts.values():
        measure(checkout, overrides)  # Python compiles its modules
    times = {name: [] for name in checkouts}
    for turn in range(options.rounds):
        for name in sorted(checkouts, reverse=turn % 2 == 1):
            times[name].append(measure(checkouts[name], overrides))
    rows = []
    for column, clock in enumerate(CLOCKS):
        seconds = {name: [each[column] for each in measured] for name, measured in times.items()}
        rows += [{"clock": clock, "checkout": name, "seconds": statistics.median(each), "lowest": min(each),
                  "highest": max(each)} for name, each in seconds.items()]
        if options.against:
            rows[-2]["times as fast"] = times_as_fast(seconds, *checkouts)
    report("first step", rows, overrides=overrides, rounds=options.rounds)


def measure(checkout: Path, overrides: list[str]) -> list[float]:
    """Seconds until the first step of a new process, in the order of `CLOCKS`."""
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "first_step.json"
        path = os.pathsep.join([str(checkout), str(Path(__file__).parent)])
        subprocess.run([sys.executable, checkout / "train.py", "report=false", f"run_dir={folder}/run",
                        "+callbacks.first_step._target_=first_step.FirstStep", *overrides],
                       env={**os.environ, "PYTHONPATH": path, RESULT: str(result)}, check=True, capture_output=True)
        return json.loads(result.read_text(encoding="utf-8"))


if __name__ == "__main__":
    main()
