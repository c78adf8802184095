"""Training steps and inference in which the last block computes the pooled tokens only, against all tokens; in turns,
by processor time.

    OMP_NUM_THREADS=1 python benchmarks/last_block.py
"""

import argparse
import statistics
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F

from vit.files.machine import keep_freed_memory
from vit.inference import autocast
from vit.low_precision import DTYPES
from vit.models import VisionTransformer, VisionTransformerConfig
from vit.models.inference_copy import inference_copy
from vit.training import build_optimizer, clip_gradients

SHAPES = {  # (pixels, patch, depth, width, classes), batch size of a training step
    "9 blocks of 192, 64 tokens": ((32, 4, 9, 192, 10), 64),
    "ViT-Ti/16 at 224": ((224, 16, 12, 192, 1000), 16),
    "ViT-S/16 at 224": ((224, 16, 12, 384, 1000), 8),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--precision", default="bf16-mixed", choices=["32-true", *DTYPES])
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args()
    keep_freed_memory()
    for name, (shape, batch) in SHAPES.items():
        for program, size in ((training_step, batch), (inference, 64)):
            pair = [program(model(*shape, pooled_only), size, options.precision) for pooled_only in (False, True)]
            ratios = in_turns(pair, options.rounds)
            print(f"{name}, {program.__name__}, batch {size}: {statistics.median(ratios):.3f} "
                  f"({min(ratios):.3f} to {max(ratios):.3f})", flush=True)


def model(pixels: int, patch: int, depth: int, dim: int, classes: int, pooled_only: bool) -> VisionTransformer:
    torch.manual_seed(0)
    made = VisionTransformer(VisionTransformerConfig(image_size=pixels, patch_size=patch, depth=depth, dim=dim,
                                                     num_heads=dim // 64, num_classes=classes))
    if not pooled_only:
        made.first = lambda: None
    return made


def training_step(network: VisionTransformer, batch: int, precision: str) -> Callable[[], None]:
    images, labels = torch.randn(batch, 3, *network.config.image_size), torch.zeros(batch, dtype=torch.long)
    optimizer = build_optimizer(network.train(), lr=1e-4)

    def run() -> None:
        with autocast(images.device, precision):
            logits = network(images)
        F.cross_entropy(logits.float(), labels).backward()
        clip_gradients(network.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    return run


def inference(network: VisionTransformer, batch: int, precision: str) -> Callable[[], None]:
    images = torch.randn(batch, 3, *network.config.image_size)
    copy = inference_copy(network.eval(), DTYPES.get(precision))

    @torch.inference_mode()
    def run() -> None:
        with autocast(images.device, precision):
            copy(images)

    return run


def in_turns(programs: list[Callable[[], None]], rounds: int) -> list[float]:
    """The time of the first program over that of the second one, of each round but the first."""
    ratios = []
    for _ in range(rounds + 1):
        seconds = []
        for run in programs:
            start = time.process_time()
            run()
            seconds.append(time.process_time() - start)
        ratios.append(seconds[0] / seconds[1])
    return ratios[1:]


if __name__ == "__main__":
    main()
