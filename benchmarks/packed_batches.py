"""Images of different sizes in a packed and in a padded batch: forward and backward pass of the same model.

The padded batch computes every layer for the largest number of patches, with a mask in attention and pooling. Logits
and gradients of both must be equal up to rounding; then both are timed in turns, by processor time. The images have
random aspect ratios from 1:3 to 3:1, and as many patches as possible ("aspect ratios") or a random number of them
("resolutions", as data.min_patches draws it).

    OMP_NUM_THREADS=1 python benchmarks/packed_batches.py
    OMP_NUM_THREADS=1 python benchmarks/packed_batches.py --batch 64 dim=384 num_heads=6
"""

import argparse
import math
import random
import statistics
from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
import yaml
from pairs import in_turns, report, times_as_fast
from torch import Tensor

from vit.benchmarking.timing import processor_seconds
from vit.data.images.packed import nearest_grid
from vit.models import VisionTransformer, create_model
from vit.packed_images import PackedImages

PATCH, CLASSES = 16, 10
TOLERANCE = 1e-4  # of logits, and of gradients relative to the largest


def main() -> None:
    options = arguments()
    values = {key: yaml.safe_load(value) for key, _, value in (each.partition("=") for each in options.values)}
    torch.manual_seed(0)
    size = options.side * PATCH
    model = create_model("vit_tiny", image_size=size, patch_size=PATCH, num_classes=CLASSES, **values).train()
    for kind in ("aspect ratios", "resolutions"):
        images = photos(kind, options.batch, options.side**2)
        labels = torch.arange(options.batch) % CLASSES
        worst = check(model, images, labels)
        steps = {"padded": partial(step, model, padded_logits, images, labels),
                 "packed": partial(step, model, packed_logits, images, labels)}
        seconds = in_turns(steps, options.rounds, processor_seconds)
        rows = [{"batch": name, "images/s": options.batch / statistics.median(times), "least": 1000 * min(times),
                 "ms": 1000 * statistics.median(times), "most": 1000 * max(times),
                 "times as fast": times_as_fast(seconds, name, "padded")} for name, times in seconds.items()]
        counts = images.counts
        report(f"{kind}: forward and backward pass, milliseconds of processor time", rows, batch=options.batch,
               dim=model.config.dim, depth=model.config.depth, patches=f"{min(counts)} to {max(counts)}",
               padding=f"{1 - sum(counts) / (len(counts) * max(counts)):.1%}", threads=torch.get_num_threads(),
               largest_difference=worst)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--side", type=int, default=14, help="patches of a side of the model's image")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("values", nargs="*", help="of the model, such as dim=384 num_heads=6 depth=4")
    return parser.parse_args()


def photos(kind: str, count: int, most: int) -> PackedImages:
    """Images of noise in random aspect ratios, each with nearly `most` patches or with a random share of them."""
    draws, made = random.Random(0), []
    for _ in range(count):
        ratio = math.exp(draws.uniform(-math.log(3), math.log(3)))
        patches = most if kind == "aspect ratios" else draws.randint(most // 4, most)
        rows, columns = nearest_grid(1000, round(1000 * ratio), (PATCH, PATCH), patches)
        made.append(torch.randn(3, rows * PATCH, columns * PATCH))
    return PackedImages.of(made, (PATCH, PATCH))


def packed_logits(model: VisionTransformer, images: PackedImages) -> Tensor:
    """(B,classes)"""
    return model(images)


def padded_logits(model: VisionTransformer, images: PackedImages) -> Tensor:
    """(B,classes), with the tokens of all images padded to the same number before the encoder"""
    x, packing = model.embed.packed(images.patches, images.grids)
    x, mask = packing.padded(x)
    return model.head(model.pool(model.encoder(x, mask), mask))


def check(model: VisionTransformer, images: PackedImages, labels: Tensor) -> float:
    """The largest difference of logits and gradients.

    Raises:
        ValueError: it is not due to rounding.
    """
    found = []
    for logits in (packed_logits, padded_logits):
        values = logits(model, images)
        loss = F.cross_entropy(values, labels)
        found.append([values.detach(), *torch.autograd.grad(loss, list(model.parameters()))])
    worst = max(float((a - b).abs().max() / b.abs().max().clamp(min=1)) for a, b in zip(*found, strict=True))
    if worst > TOLERANCE:
        raise ValueError(f"packed and padded batches differ by {worst:.2g}, more than rounding")
    return worst


def step(model: VisionTransformer, logits: Callable[..., Tensor], images: PackedImages, labels: Tensor) -> None:
    """A forward and a backward pass."""
    model.zero_grad(set_to_none=True)
    F.cross_entropy(logits(model, images), labels).backward()


if __name__ == "__main__":
    main()
