"""Tokens times weights without gradients on a CPU in float32: torch's `linear`, which MKL computes, and ours by oneDNN.

MKL takes AMD's processors for ones without AVX-512, which is half the speed on those that have it. "again" is ours with
weights that were packed before, as where one token after the other is written.

    python benchmarks/linear_on_cpu.py
"""

import argparse
import functools
import statistics

import torch
import torch.nn.functional as F
from pairs import in_turns, report, times_as_fast

from vit.nn.cpu import Packed, linear

SHAPES = {  # tokens, width, width after it
    "logits of a small translator, 1 text": (5, 128, 9_700),
    "logits of a small translator, 32 texts": (160, 128, 9_700),
    "logits of Marian-base, 1 text": (5, 512, 58_101),
    "logits of Marian-base, 8 texts": (40, 512, 58_101),
    "MLP of a small translator, 8 texts": (40, 128, 256),
    "MLP of a small translator, 32 texts": (160, 128, 256),
    "MLP of Marian-base, 8 texts": (40, 512, 2_048),
    "MLP of ViT-S/8 of 64 pixels, 32 images": (2_080, 384, 1_536),
    "MLP of ViT-B/16, 1 image": (197, 768, 3_072),
    "MLP of ViT-B/16, 8 images": (1_576, 768, 3_072),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=20)
    options = parser.parse_args()
    rows = []
    for name, (tokens, before, after) in SHAPES.items():
        torch.manual_seed(0)
        x, weight = torch.randn(tokens, before), torch.randn(after, before) / before**0.5
        ways = {"torch's": F.linear, "ours": linear, "again": functools.partial(linear, packed=Packed())}
        programs = {way: functools.partial(by, x, weight) for way, by in ways.items()}
        with torch.inference_mode():
            seconds = in_turns(programs, options.rounds)
            apart = float((programs["ours"]() - programs["torch's"]()).abs().max())
        rows.append(
            {"product": name}
            | {f"{way} ms": 1000 * statistics.median(each) for way, each in seconds.items()}
            | {"times as fast": times_as_fast(seconds, "ours", "torch's")}
            | {"again": times_as_fast(seconds, "again", "torch's"), "apart by": apart}
        )
    report("tokens times weights in float32 on a CPU", rows)


if __name__ == "__main__":
    main()
