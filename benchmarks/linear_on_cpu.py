"""Linear layers without gradients in float32 on a CPU: torch's `linear`, computed by MKL, and `vit.nn`'s, by oneDNN.

MKL does not use AVX-512 on AMD processors, which halves its speed on those that have it. "packed" is `vit.nn`'s with
weights that were packed in advance, as in generation. Both are measured on every processor, also where `vit.nn.cpu`
does not use them.

    python benchmarks/linear_on_cpu.py
"""

import argparse
import functools
import statistics

import torch
import torch.nn.functional as F
from pairs import in_turns, report, times_as_fast

from vit.nn import cpu
from vit.nn.cpu import Packed, linear

SHAPES = {  # tokens, input width, output width
    "logits of a small translation model, 1 text": (5, 128, 9_700),
    "logits of a small translation model, 32 texts": (160, 128, 9_700),
    "logits of Marian-base, 1 text": (5, 512, 58_101),
    "logits of Marian-base, 8 texts": (40, 512, 58_101),
    "MLP of a small translation model, 8 texts": (40, 128, 256),
    "MLP of a small translation model, 32 texts": (160, 128, 256),
    "MLP of Marian-base, 8 texts": (40, 512, 2_048),
    "MLP of ViT-S/8 of 64 pixels, 32 images": (2_080, 384, 1_536),
    "MLP of ViT-B/16, 1 image": (197, 768, 3_072),
    "MLP of ViT-B/16, 8 images": (1_576, 768, 3_072),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=20)
    options = parser.parse_args()
    cpu.ENABLED = cpu.ALL
    rows = []
    for name, (tokens, before, after) in SHAPES.items():
        torch.manual_seed(0)
        x, weight = torch.randn(tokens, before), torch.randn(after, before) / before**0.5
        variants = {"torch's": F.linear, "ours": linear, "packed": functools.partial(linear, packed=Packed())}
        programs = {name: functools.partial(product, x, weight) for name, product in variants.items()}
        with torch.inference_mode():
            seconds = in_turns(programs, options.rounds)
            difference = float((programs["ours"]() - programs["torch's"]()).abs().max())
        rows.append(
            {"product": name}
            | {f"{way} ms": 1000 * statistics.median(each) for way, each in seconds.items()}
            | {"times as fast": times_as_fast(seconds, "ours", "torch's")}
            | {"packed": times_as_fast(seconds, "packed", "torch's"), "difference": difference}
        )
    report("linear layers in float32 on a CPU", rows)


if __name__ == "__main__":
    main()
