"""Training steps and inference in which the last block computes the pooled tokens only, against all tokens; in turns,
by processor time.

    OMP_NUM_THREADS=1 python benchmarks/last_block.py
"""

import argparse
import statistics
from collections.abc import Callable
from functools import partial

import torch
from pairs import in_turns, report

from vit.benchmarking import paired_ratio
from vit.benchmarking.steps import infer, train_step
from vit.benchmarking.timing import CLOCKS
from vit.files.machine import keep_freed_memory
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
    rows = []
    for name, (shape, batch) in SHAPES.items():
        for program, size in ((training, batch), (inference, 64)):
            ways = {way: program(model(*shape, way == "pooled"), size, options.precision) for way in ("all", "pooled")}
            seconds = in_turns(ways, options.rounds, CLOCKS["processor"])
            rows.append(
                {"model": name, "pass": program.__name__, "batch": size}
                | {f"{way} ms": 1000 * statistics.median(each) for way, each in seconds.items()}
                | {"times as fast": str(paired_ratio(seconds["pooled"], seconds["all"]))}
            )
    report("the last block: pooled tokens only against all tokens", rows, precision=options.precision)


def model(pixels: int, patch: int, depth: int, dim: int, classes: int, pooled_only: bool) -> VisionTransformer:
    torch.manual_seed(0)
    made = VisionTransformer(VisionTransformerConfig(image_size=pixels, patch_size=patch, depth=depth, dim=dim,
                                                     num_heads=dim // 64, num_classes=classes))
    if not pooled_only:
        made.first = lambda: None
    return made


def training(network: VisionTransformer, batch: int, precision: str) -> Callable[[], None]:
    images, labels = torch.randn(batch, 3, *network.config.image_size), torch.zeros(batch, dtype=torch.long)
    optimizer = build_optimizer(network.train(), lr=1e-4)
    return partial(train_step, network, optimizer, clip_gradients, images, labels, precision)


def inference(network: VisionTransformer, batch: int, precision: str) -> Callable[[], None]:
    copy = inference_copy(network.eval(), DTYPES.get(precision))
    return partial(infer, copy, torch.randn(batch, 3, *network.config.image_size), precision)


if __name__ == "__main__":
    main()
