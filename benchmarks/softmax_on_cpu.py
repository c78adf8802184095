"""The softmax of attention in bfloat16 on a CPU, alone and with its gradients, by processor time: torch's against that
of `vit.nn.cpu`, by oneDNN.

    OMP_NUM_THREADS=1 python benchmarks/softmax_on_cpu.py
"""

import argparse
import statistics

import torch
from pairs import in_turns, report, times_as_fast

from vit.benchmarking.timing import CLOCKS
from vit.files.machine import keep_freed_memory
from vit.nn.cpu.attention import softmax

SHAPES = {  # batch, heads, tokens
    "9 blocks of 192, 65 tokens, batch 64": (64, 3, 65),
    "ViT-B/32 of 224 pixels, 50 tokens, batch 64": (64, 12, 50),
    "ViT-S/16 of 224 pixels, 197 tokens, batch 1": (1, 6, 197),
    "ViT-S/16 of 224 pixels, 197 tokens, batch 64": (64, 6, 197),
    "ViT-B/16 of 384 pixels, 577 tokens, batch 8": (8, 12, 577),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=20)
    options = parser.parse_args()
    keep_freed_memory()
    rows = []
    for name, (batch, heads, tokens) in SHAPES.items():
        scores = torch.randn(batch, heads, tokens, tokens).bfloat16()
        trained, grad = scores.clone().requires_grad_(), torch.randn_like(scores)
        ways = {
            "torch's": torch.inference_mode()(lambda scores=scores: scores.softmax(-1)),
            "ours": torch.inference_mode()(lambda scores=scores: softmax(scores)),
            "torch's with gradients": lambda x=trained, grad=grad: torch.autograd.grad(x.softmax(-1), x, grad),
            "ours with gradients": lambda x=trained, grad=grad: torch.autograd.grad(softmax(x), x, grad),
        }
        seconds = in_turns(ways, options.rounds, CLOCKS["processor"])
        rows.append(
            {"scores": name}
            | {f"{way} ms": 1000 * statistics.median(each) for way, each in seconds.items()}
            | {"times as fast": times_as_fast(seconds, "ours", "torch's")}
            | {"with gradients": times_as_fast(seconds, "ours with gradients", "torch's with gradients")}
        )
    report("softmax in bfloat16 on a CPU", rows)


if __name__ == "__main__":
    main()
