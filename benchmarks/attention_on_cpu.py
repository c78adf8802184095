"""Attention's training step in bfloat16 on a CPU: torch's kernel as it is, and our way round its slow way back.

Processors with bfloat16 multiply matrices faster in it, so runs train in it there; but the fused kernel's backward pass
takes longer than in float32 where sequences are short. `vit.nn.attention.fused` computes those in float32; both get and
return bfloat16.

    OMP_NUM_THREADS=1 python benchmarks/attention_on_cpu.py
"""

import argparse
import functools
import statistics

import torch
import torch.nn.functional as F
from pairs import in_turns, report, times_as_fast
from torch import Tensor

from vit.nn.attention import fused

SHAPES = {  # batch, heads, tokens, width of a head
    "a captcha reader": (8, 4, 46, 32),
    "a translator": (64, 4, 16, 32),
    "ViT-S/8 of 64 pixels": (32, 6, 65, 64),
    "ViT-B/16 of 224 pixels": (8, 12, 197, 64),
    "ViT-B/16 of 384 pixels": (2, 12, 577, 64),
}


def step(attend, q: Tensor, k: Tensor, v: Tensor, after: Tensor) -> None:
    torch.autograd.grad(attend(q, k, v), (q, k, v), after)


def ours(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return fused(q, k, v, None, False, 0.0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=20)
    options = parser.parse_args()
    rows = []
    for name, shape in SHAPES.items():
        torch.manual_seed(0)
        q, k, v, after = (torch.randn(shape, dtype=torch.bfloat16) for _ in range(4))
        for x in (q, k, v):
            x.requires_grad_()
        ways = {"torch's": F.scaled_dot_product_attention, "ours": ours}
        seconds = in_turns({w: functools.partial(step, way, q, k, v, after) for w, way in ways.items()}, options.rounds)
        rows.append(
            {"shape": name}
            | {f"{w} ms": 1000 * statistics.median(s) for w, s in seconds.items()}
            | {"times as fast": times_as_fast(seconds, "ours", "torch's")}
        )
    report("attention forward and backward in bfloat16 on a CPU", rows)


if __name__ == "__main__":
    main()
