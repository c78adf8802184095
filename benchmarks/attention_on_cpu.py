"""Training step of attention in bfloat16 on a CPU: torch's fused kernel against two matrix products and a softmax.

Processors with bfloat16 instructions multiply matrices faster in bfloat16, so runs use it there. The backward pass of
the fused kernel, however, is slower in bfloat16 than in float32; `vit.nn.cpu` computes short sequences by products.

    OMP_NUM_THREADS=1 python benchmarks/attention_on_cpu.py
"""

import argparse
import functools
import statistics

import torch
import torch.nn.functional as F
from pairs import in_turns, report, times_as_fast
from torch import Tensor

from vit.nn.cpu.attention import scaled_dot_product_attention

SHAPES = {  # batch, heads, tokens, width of a head
    "captcha model": (8, 4, 46, 32),
    "translation model": (64, 4, 16, 32),
    "ViT-S/8 of 64 pixels": (32, 6, 65, 64),
    "ViT-B/16 of 224 pixels": (8, 12, 197, 64),
    "ViT-B/16 of 384 pixels": (2, 12, 577, 64),
}


def step(attend, q: Tensor, k: Tensor, v: Tensor, after: Tensor) -> None:
    torch.autograd.grad(attend(q, k, v), (q, k, v), after)


def ours(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return scaled_dot_product_attention(q, k, v)


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
