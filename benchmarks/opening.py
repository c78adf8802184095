"""Time and memory of importing a ViT-B/16 by format of its weights, each in a new process.

Memory is the increase of the resident size while loading, divided by the size of the weights.

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
    with tempfile.TemporaryDirectory() as folder:
        rows = [row(name, source, rounds) for name, source in write(Path(folder)).items()]
    report("opening a ViT-B/16", rows)


def write(folder: Path) -> dict[str, Path]:
    """The same network in the formats of different libraries."""
    import timm
    import torch
    from safetensors.torch import save_file

    sys.path.insert(0, str(ROOT))
    from vit.exchange.convert import convert

    model = timm.create_model("vit_base_patch16_224")
    torch.save(model.state_dict(), folder / "timm.pth")
    save_file(model.state_dict(), folder / "timm.safetensors")
    with warnings.catch_warnings(action="ignore"):  # preprocessing is irrelevant here
        convert(folder / "timm.pth", folder / "bundle")
        convert(folder / "timm.pth", folder / "transformers", "transformers")
        convert(folder / "timm.pth", folder / "torchvision.pth", "torchvision")
    return {path.name: path for path in sorted(folder.iterdir())}


def row(name: str, source: Path, rounds: int) -> dict:
    numbers = []
    for _ in range(rounds):
        command = [sys.executable, "-c", LOAD, str(source)]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
        numbers.append([float(value) for value in done.stdout.split()])
    seconds, spent, memory = (statistics.median(column) for column in zip(*numbers, strict=True))
    return {"source": name, "seconds": seconds, "processor seconds": spent, "memory over weights": memory}


if __name__ == "__main__":
    main()
