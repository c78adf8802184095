"""How much code runs between a command and its result: the files and functions of vit that a call passes.

Functions that Python calls are counted once each, without comprehensions and without what runs while a module is
imported. Counted are the default run (`python train.py`, scikit-learn's digits) from the command line to its first
loss, the same from `vit.train`, one training step after warm-up, and `vit.load(MODEL).predict(FOLDER)`.

    python benchmarks/call_path.py
    python benchmarks/call_path.py --list "first loss, command line"      # with the names of what was passed
"""

import argparse
import contextlib
import os
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import CodeType, FrameType

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = f"{ROOT / 'vit'}{os.sep}"
UNCOUNTED = ("<module>", "<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>", "find_spec")  # the last one imports
QUICK = ["recipe.epochs=2", "data.workers=0"]
WARM = 10  # training steps before the one that is counted
STEP = ("vit/nn/", "vit/models/", "vit/tasks/")


class Tracer:
    """The functions of vit that run within `with tracer.counting():`, in all threads."""

    def __init__(self) -> None:
        self.passed: set[CodeType] = set()
        self.counts = False
        self._importing = threading.local()

    @contextlib.contextmanager
    def installed(self) -> Iterator[None]:
        threading.setprofile(self._event)
        sys.setprofile(self._event)
        try:
            yield
        finally:
            sys.setprofile(None)
            threading.setprofile(None)

    def start(self) -> None:
        self.passed, self.counts = set(), True

    def stop(self) -> set[CodeType]:
        self.counts = False
        return self.passed

    def _event(self, frame: FrameType, event: str, argument: object) -> None:
        code = frame.f_code
        if code.co_name == "<module>" and event in ("call", "return"):
            depth = getattr(self._importing, "depth", 0)
            self._importing.depth = depth + 1 if event == "call" else max(0, depth - 1)
        elif event == "call" and self.counts and not getattr(self._importing, "depth", 0) and is_counted(code):
            self.passed.add(code)


def is_counted(code: CodeType) -> bool:
    return code.co_filename.startswith(PACKAGE) and code.co_name not in UNCOUNTED


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--list", metavar="PATH", help="also print the functions of one of the counted paths")
    options = parser.parse_args()
    sys.path.insert(0, str(ROOT))
    found: dict[str, set[CodeType]] = {}
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(sys.stderr):
        from vit.run import main as command

        trained, _ = train(lambda overrides: command(overrides), Path(folder) / "first", found, ", command line")
        train(lambda overrides: call_train(overrides), Path(folder) / "second", found, ", vit.train")
        found["predict"] = predict(trained)
    step = found.pop("step, command line")
    found.pop("step, vit.train")
    found["one training step"] = {code for code in step if relative(code).startswith(STEP)}
    found["one training step, with loading, optimizer and callbacks"] = step
    if options.list:
        for code in sorted(found[options.list], key=lambda code: (code.co_filename, code.co_firstlineno)):
            print(f"{relative(code)}:{code.co_firstlineno} {code.co_qualname}", file=sys.stderr)
    from pairs import report

    rows = [{"path": name, "files": len({code.co_filename for code in codes}), "functions": len(codes),
             "by package": by_package(codes)} for name, codes in found.items()]
    report("files and functions of vit that a call passes", rows)


def train(call: Callable, folder: Path, found: dict[str, set[CodeType]], suffix: str) -> tuple[Path, object]:
    """Train on digits; notes what is passed until the first loss, and in one step after `WARM` steps."""
    from vit.tasks import Classification

    tracer, steps, original = Tracer(), 0, Classification.training_step

    def training_step(self, *arguments, **options):
        nonlocal steps
        loss = original(self, *arguments, **options)
        steps += 1
        if steps == 1:
            found[f"first loss{suffix}"] = tracer.stop()
        elif steps == WARM:
            tracer.start()
        elif steps == WARM + 1:
            found[f"step{suffix}"] = tracer.stop()
        return loss

    Classification.training_step = training_step
    try:
        with tracer.installed():
            tracer.start()
            result = call([*QUICK, f"run_dir={folder}"])
    finally:
        Classification.training_step = original
    return folder, result


def call_train(overrides: list[str]) -> object:
    import vit

    return vit.train(overrides)


def predict(folder: Path) -> set[CodeType]:
    """What `vit.load(MODEL).predict(FOLDER)` passes."""
    import vit

    tracer = Tracer()
    with tracer.installed():
        tracer.start()
        vit.load(folder / "model").predict(folder / "samples")
        return tracer.stop()


def relative(code: CodeType) -> str:
    return Path(code.co_filename).relative_to(ROOT).as_posix()


def by_package(codes: set[CodeType]) -> str:
    files = {relative(code) for code in codes}
    counts = Counter(file.split("/")[1] for file in files)
    return ", ".join(f"{name.removesuffix('.py')} {count}" for name, count in counts.most_common())


if __name__ == "__main__":
    main()
