"""Attention in bfloat16 on a CPU, in training steps or without gradients: the fused kernel of torch, products with a
softmax, and what `vit.nn` selects.

Processors with bfloat16 instructions multiply matrices faster in bfloat16, so runs use it there. The backward pass of
the fused kernel, however, is slower in bfloat16 than in float32; `vit.nn.cpu` computes short sequences by products.

    OMP_NUM_THREADS=1 python benchmarks/attention_on_cpu.py [--inference]
"""

import argparse
import functools
import statistics

import torch
import torch.nn.functional as F
from pairs import in_turns, report, times_as_fast
from torch import Tensor

from vit.nn.cpu.attention import attention_by_products, scaled_dot_product_attention

SHAPES = {  # batch, heads, tokens, width of a head
    "captcha model": (8, 4, 46, 32),
    "translation model": (64, 4, 16, 32),
    "ViT-S/8 of 64 pixels": (32, 6, 65, 64),
    "ViT-B/16 of 224 pixels": (8, 12, 197, 64),
    "ViT-B/16 of 384 pixels": (2, 12, 577, 64),
}
INFERENCE = {  # batch, heads, tokens, keys, width of a head
    "image, ViT-Ti/4 of 32 pixels": (1, 3, 65, 65, 64),
    "image, ViT-S/8 of 64 pixels": (1, 6, 65, 65, 64),
    "image, ViT-B/8 of 64 pixels": (1, 12, 65, 65, 64),
    "image, ViT-Ti/16 of 224 pixels": (1, 3, 197, 197, 64),
    "5 beams of Marian-base, 64 keys": (5, 8, 1, 64, 64),
    "5 beams of Marian-base, 200 keys": (5, 8, 1, 200, 64),
    "64 images of ViT-Ti/4, last block": (64, 3, 1, 65, 64),
}


def step(attend, q: Tensor, k: Tensor, v: Tensor, after: Tensor) -> None:
    torch.autograd.grad(attend(q, k, v), (q, k, v), after)


def ours(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return scaled_dot_product_attention(q, k, v)


def products(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return attention_by_products(q, k, v, None, 0.0, False)


def training(rounds: int) -> list[dict]:
    rows = []
    for name, shape in SHAPES.items():
        torch.manual_seed(0)
        q, k, v, after = (torch.randn(shape, dtype=torch.bfloat16) for _ in range(4))
        for x in (q, k, v):
            x.requires_grad_()
        ways = {"torch's": F.scaled_dot_product_attention, "ours": ours}
        rows.append(row(name, {way: functools.partial(step, attend, q, k, v, after) for way, attend in ways.items()},
                        rounds))
    return rows


@torch.inference_mode()
def inference(rounds: int) -> list[dict]:
    rows = []
    for name, (batch, heads, tokens, keys, width) in INFERENCE.items():
        q, k, v = (torch.randn(batch, n, heads, width).bfloat16().transpose(1, 2) for n in (tokens, keys, keys))
        ways = {"torch's": F.scaled_dot_product_attention, "products": products, "ours": ours}
        rows.append(row(name, {way: functools.partial(attend, q, k, v) for way, attend in ways.items()}, rounds))
    return rows


def row(name: str, programs: dict, rounds: int) -> dict:
    """The median milliseconds of each program, and how many times as fast as each other one ours is."""
    seconds = in_turns(programs, rounds)
    return (
        {"shape": name}
        | {f"{way} ms": 1000 * statistics.median(each) for way, each in seconds.items()}
        | {f"times as fast as {way}": times_as_fast(seconds, "ours", way) for way in programs if way != "ours"}
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--inference", action="store_true", help="without gradients, small batches among them")
    options = parser.parse_args()
    kind = "without gradients" if options.inference else "forward and backward"
    rows = inference(options.rounds) if options.inference else training(options.rounds)
    report(f"attention {kind} in bfloat16 on a CPU", rows)


if __name__ == "__main__":
    main()
