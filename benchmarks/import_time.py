"""Start-up time: `import vit` compared with `import torch`, and commands that only print.

Each measurement runs in a new Python process, and the programs take turns. Peers: timm, and transformers if it is
installed.

    python benchmarks/import_time.py
"""

import argparse
import importlib.util
import os
import statistics
import subprocess
import sys
from functools import partial
from pathlib import Path

from pairs import in_turns, report

from vit.benchmarking.timing import CLOCKS

ROOT = Path(__file__).resolve().parents[1]
IMPORTS = {
    "torch": "import torch",
    "torch, then vit": "import torch, vit",
    "torch, then vit.create_model": "import torch, vit; vit.create_model",
    "torch, then timm": "import torch, timm",
    "torch, then transformers' ViT": "import torch; from transformers import ViTForImageClassification",
}
COMMANDS = {
    "python -m vit --help": ["-m", "vit", "--help"],
    "python train.py --help": ["train.py", "--help"],
    "python train.py --cfg": ["train.py", "--cfg"],
    "python train.py with a misspelled option": ["train.py", "data=digit"],
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--clock", choices=CLOCKS, default="wall",
                        help="processor: seconds of processor time, to which other work on the machine adds little")
    parser.add_argument("--commands", action="store_true", help="measure the commands only")
    options = parser.parse_args()
    imports = {
        name: code
        for name, code in IMPORTS.items()
        if not options.commands and ("transformers" not in name or importlib.util.find_spec("transformers"))
    }
    programs = {name: partial(run, ["-c", code]) for name, code in imports.items()}
    programs |= {name: partial(run, arguments) for name, arguments in COMMANDS.items()}
    seconds = in_turns(programs, options.rounds, CLOCKS[options.clock])
    rows = []
    for name, times in seconds.items():
        row = {"what": name, "seconds": statistics.median(times), "lowest": min(times), "highest": max(times)}
        if name in imports:
            beyond = [a - b for a, b in zip(times, seconds["torch"], strict=True)]
            row["seconds beyond torch"] = statistics.median(beyond)
        rows.append(row)
    report("start-up", rows, clock=options.clock)


def run(arguments: list[str]) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    subprocess.run([sys.executable, *arguments], cwd=ROOT, env=environment, capture_output=True)


if __name__ == "__main__":
    main()
