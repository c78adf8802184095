"""Whole trainings of this checkout beside an earlier revision of it: what a change costs or gains a user.

Both run `train.py` with the same overrides in turns. "seconds" is the whole command, "samples/s" is what the run
reports of its training loop, and the ratio is the earlier revision's value over this checkout's for seconds, and the
other way round for samples/s: above 1 this checkout is the faster one.

    python benchmarks/against_revision.py HEAD~1
    python benchmarks/against_revision.py v1.0 --rounds 5 data=cifar10 data.root=CIFAR10 recipe.epochs=1
"""

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from pairs import in_turns, report

ROOT = Path(__file__).resolve().parents[1]
OURS, EARLIER = "this checkout", "earlier"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("revision", help="a commit, tag or branch")
    parser.add_argument("overrides", nargs="*", default=["recipe.epochs=10"], help="of train.py")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_intermixed_args()
    rates: dict[str, list[float]] = defaultdict(list)
    with tempfile.TemporaryDirectory() as folder, checked_out(options.revision, Path(folder)) as earlier:
        trees = {OURS: ROOT, EARLIER: earlier}
        programs = {name: partial(train, tree, options.overrides, rates[name]) for name, tree in trees.items()}
        seconds = in_turns(programs, options.rounds)
    rates = {name: values[1:] for name, values in rates.items()}  # without the warm-up
    rows = [row("seconds", seconds, seconds[EARLIER], seconds[OURS]),
            row("samples/s", rates, rates[OURS], rates[EARLIER])]
    report(f"train.py {' '.join(options.overrides)}, against {options.revision}", rows, seconds=seconds, rates=rates)


def row(what: str, values: dict[str, list[float]], above: list[float], below: list[float]) -> dict[str, object]:
    ratios = [a / b for a, b in zip(above, below, strict=True)]
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


def train(tree: Path, overrides: list[str], rates: list[float]) -> None:
    """One training; appends its samples per second."""
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        command = [sys.executable, "train.py", *overrides, f"run_dir={run}"]
        done = subprocess.run(command, cwd=tree, env={**os.environ, "PYTHONPATH": str(tree)}, capture_output=True,
                              text=True)
        if done.returncode:
            raise RuntimeError(f"{' '.join(command)} in {tree}: exit code {done.returncode}\n{done.stderr[-2000:]}")
        metrics = json.loads((run / "metrics.json").read_text())
    rates.append(next(value for name, value in metrics.items() if name.endswith("_per_second")))


if __name__ == "__main__":
    main()
