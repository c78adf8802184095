"""The product that makes logits on a CPU in float32: torch's `linear`, which MKL computes, and ours by oneDNN.

A step of writing ends with tokens times a vocabulary's matrix, most of its work in a small model. The two libraries are
not equally good at it on every processor: on AMD's MKL is slow.

    python benchmarks/logits_on_cpu.py
"""

import argparse
import functools
import statistics

import torch
import torch.nn.functional as F
from pairs import in_turns, report, times_as_fast

from vit.nn.embed import over_vocabulary

SHAPES = {"a small translator": (9_700, 128), "Marian-base": (58_101, 512)}  # vocabulary, width
LINES = (5, 40, 160)  # a beam of 5 for 1, 8 and 32 texts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=20)
    options = parser.parse_args()
    rows = []
    for name, (V, D) in SHAPES.items():
        for lines in LINES:
            torch.manual_seed(0)
            x, weight = torch.randn(lines, 1, D), torch.randn(V, D)
            ways = {"torch's": F.linear, "ours": over_vocabulary}
            with torch.inference_mode():
                programs = {way: functools.partial(product, x, weight) for way, product in ways.items()}
                seconds = in_turns(programs, options.rounds)
                apart = float((programs["ours"]() - programs["torch's"]()).abs().max())
            rows.append(
                {"shape": name, "lines": lines}
                | {f"{way} ms": 1000 * statistics.median(each) for way, each in seconds.items()}
                | {"times as fast": times_as_fast(seconds, "ours", "torch's"), "apart by": apart}
            )
    report("logits in float32 on a CPU", rows)


if __name__ == "__main__":
    main()
