"""Rate of matrix products on this machine in GFLOP/s, as stated in the headers of experiments.

The best of all rounds is the rate of the idle machine; the median shows how busy it was.
"""

import argparse
import statistics

import torch
from pairs import in_turns, report

from vit.benchmarking.hardware import product


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=int, default=None, help="rows and columns of the matrices (1024; on a GPU 8192)")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--device", default="cpu", help="cpu (default) or cuda")
    options = parser.parse_args()
    size = options.size or (1024 if options.device == "cpu" else 8192)
    work = 2 * size**3
    programs = {
        name: product(*(torch.randn(size, size, device=options.device).to(dtype) for _ in range(2)))
        for name, dtype in (("float32", torch.float32), ("bf16", torch.bfloat16))
    }
    seconds = in_turns(programs, options.rounds, warmup=3)
    rows = [
        {
            "numbers": name,
            "best GFLOP/s": work / min(times) / 1e9,
            "median GFLOP/s": work / statistics.median(times) / 1e9,
        }
        for name, times in seconds.items()
    ]
    report(f"matrix products, {size}x{size}", rows)


if __name__ == "__main__":
    main()
