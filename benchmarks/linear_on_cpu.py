"""Linear layers in float32 on a CPU: torch's `linear`, computed by MKL, and `vit.nn`'s, by oneDNN.

MKL does not use AVX-512 on AMD processors, which halves its speed on those that have it. "packed" is `vit.nn`'s with
weights that were packed in advance, as in generation; it has no gradients. All are measured on every processor and for
every size, also where `vit.nn.cpu` does not use them.

    python benchmarks/linear_on_cpu.py
"""

import argparse
import functools
import statistics
from collections.abc import Callable

import torch
import torch.nn.functional as F
from pairs import in_turns, report, times_as_fast

from vit.nn import cpu
from vit.nn.cpu import linear as products
from vit.nn.cpu.linear import ANY_SIZE, Packed, linear

Product = Callable[..., torch.Tensor]
SHAPES = {  # tokens, input width, output width
    "logits of a small translation model, 1 text": (5, 128, 9_700),
    "logits of a small translation model, 32 texts": (160, 128, 9_700),
    "logits of Marian-base, 1 text": (5, 512, 58_101),
    "logits of Marian-base, 8 texts": (40, 512, 58_101),
    "MLP of a small translation model, 8 texts": (40, 128, 256),
    "MLP of a small translation model, 32 texts": (160, 128, 256),
    "MLP of Marian-base, 8 texts": (40, 512, 2_048),
    "its second layer, 1 text": (5, 2_048, 512),
    "its second layer, 8 texts": (40, 2_048, 512),
    "MLP of ViT-Ti/4 of 32 pixels, 1 image": (65, 192, 768),
    "MLP of ViT-Ti/16, 1 image": (197, 192, 768),
    "MLP of ViT-S/8 of 64 pixels, 32 images": (2_080, 384, 1_536),
    "MLP of ViT-B/16, 1 image": (197, 768, 3_072),
    "MLP of ViT-B/16, 8 images": (1_576, 768, 3_072),
}
TRAINING_SHAPES = {
    "MLP of the default model, 64 images": (1_088, 64, 256),
    "MLP of ViT-Ti/4 of 32 pixels, 64 images": (4_096, 192, 768),
    "its second layer": (4_096, 768, 192),
    "its output projection": (4_096, 192, 192),
    "MLP of ViT-B/16, 8 images": (1_576, 768, 3_072),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=20)
    options = parser.parse_args()
    cpu.ENABLED = cpu.ALL
    products.LARGE_PACKED = {torch.float32: ANY_SIZE}
    products.LARGE = dict.fromkeys(products.LARGE, ANY_SIZE)
    torch.manual_seed(0)
    rows = [row(name, shape, options.rounds, gradients=False) for name, shape in SHAPES.items()]
    rows += [row(name, shape, options.rounds, gradients=True) for name, shape in TRAINING_SHAPES.items()]
    report("linear layers in float32 on a CPU", rows)


def row(name: str, shape: tuple[int, int, int], rounds: int, gradients: bool) -> dict[str, object]:
    """Times and difference of the outputs of one product.

    Args:
        gradients: whether to compute those of the inputs and weights too.
    """
    tokens, before, after = shape
    x, weight = torch.randn(tokens, before), torch.randn(after, before) / before**0.5
    variants = {"torch's": F.linear, "ours": linear, "packed": functools.partial(linear, packed=Packed())}
    if gradients:
        inputs, upstream = (x.requires_grad_(), weight.requires_grad_()), torch.randn(tokens, after)
        programs = {way: functools.partial(step, variants[way], inputs, upstream) for way in ("torch's", "ours")}
    else:
        programs = {way: functools.partial(product, x, weight) for way, product in variants.items()}
    with torch.set_grad_enabled(gradients):
        seconds = in_turns(programs, rounds)
        difference = float((variants["ours"](x, weight) - variants["torch's"](x, weight)).detach().abs().max())
    return (
        {"product": name, "gradients": "yes" if gradients else "no"}
        | {f"{way} ms": 1000 * statistics.median(each) for way, each in seconds.items()}
        | {"times as fast": times_as_fast(seconds, "ours", "torch's")}
        | {"packed": None if gradients else times_as_fast(seconds, "packed", "torch's"), "difference": difference}
    )


def step(product: Product, inputs: tuple[torch.Tensor, torch.Tensor], upstream: torch.Tensor) -> None:
    """Forward and backward pass."""
    torch.autograd.grad(product(*inputs), inputs, upstream)


if __name__ == "__main__":
    main()
