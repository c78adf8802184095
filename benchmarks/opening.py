"""Seconds and memory until somebody's ViT-B/16 is a model of ours, by format; each in a fresh process.

Memory is the highest resident size while loading, beyond that before, over the size of the weights.

    python benchmarks/opening.py
"""

import argparse
import statistics
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path

from pairs import report

ROOT = Path(__file__).resolve().parents[1]
LOAD = """
import sys, threading, time
import torch, timm, vit
from vit.exchange import import_weights
from vit.models import model_from_config
def resident():
    return int(next(line for line in open("/proc/self/status") if line.startswith("VmRSS")).split()[1]) * 1024
before, highest, done = resident(), [0], threading.Event()
def watch():
    while not done.wait(0.002):
        highest[0] = max(highest[0], resident())
watcher = threading.Thread(target=watch)
watcher.start()
start, spent = time.perf_counter(), time.thread_time()
model, _ = import_weights(sys.argv[1])
seconds, spent = time.perf_counter() - start, time.thread_time() - spent
done.set(); watcher.join()
size = sum(parameter.nbytes for parameter in model.parameters())
print(seconds, spent, (max(highest[0], resident()) - before) / size)
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    rounds = parser.parse_args().rounds
    with tempfile.TemporaryDirectory() as place:
        rows = [row(name, source, rounds) for name, source in write(Path(place)).items()]
    report("opening a ViT-B/16", rows)


def write(place: Path) -> dict[str, Path]:
    """The same network as different programs save it."""
    import timm
    import torch
    from safetensors.torch import save_file

    sys.path.insert(0, str(ROOT))
    from vit.exchange.convert import convert

    model = timm.create_model("vit_base_patch16_224")
    torch.save(model.state_dict(), place / "timm.pth")
    save_file(model.state_dict(), place / "timm.safetensors")
    with warnings.catch_warnings(action="ignore"):  # how images are prepared does not matter here
        convert(place / "timm.pth", place / "bundle")
        convert(place / "timm.pth", place / "transformers", "transformers")
        convert(place / "timm.pth", place / "torchvision.pth", "torchvision")
    return {path.name: path for path in sorted(place.iterdir())}


def row(name: str, source: Path, rounds: int) -> dict:
    numbers = []
    for _ in range(rounds):
        command = [sys.executable, "-c", LOAD, str(source)]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
        numbers.append([float(word) for word in done.stdout.split()])
    seconds, spent, memory = (statistics.median(column) for column in zip(*numbers, strict=True))
    return {"source": name, "seconds": seconds, "processor seconds": spent, "memory over weights": memory}


if __name__ == "__main__":
    main()
