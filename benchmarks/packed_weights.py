"""Inference with packed weights (`vit.nn.cpu.prepacked`) against the same model without, against those of vit-pytorch
and timm whose weights are cast to bfloat16 by hand, norms included; in turns, by processor time.

    OMP_NUM_THREADS=1 python benchmarks/packed_weights.py
"""

import argparse
import statistics
import time

import torch
from torch import Tensor, nn

from vit.files.machine import keep_freed_memory
from vit.models import VisionTransformer, VisionTransformerConfig
from vit.nn.cpu.prepacked import prepacked

SHAPES = {"9 blocks of 192, 64 tokens": (32, 4, 9, 10), "ViT-Ti/16 at 224": (224, 16, 12, 1000)}
BF16 = torch.bfloat16


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 64])
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args()
    keep_freed_memory()
    for name, (size, patch, depth, classes) in SHAPES.items():
        for batch in options.batch:
            images = torch.randn(batch, 3, size, size)
            times = in_turns(networks(size, patch, depth, classes), images, options.rounds, max(1, 20 // batch))
            print(f"{name}, batch {batch}: " + ", ".join(f"{key} {value:.2f} ms" for key, value in times.items()))


def networks(size: int, patch: int, depth: int, classes: int) -> dict[str, nn.Module]:
    import timm
    from vit_pytorch import ViT

    config = VisionTransformerConfig(image_size=size, patch_size=patch, num_classes=classes, dim=192, depth=depth,
                                     num_heads=3)
    ours = VisionTransformer(config).eval()
    theirs = ViT(image_size=size, patch_size=patch, num_classes=classes, dim=192, depth=depth, heads=3, mlp_dim=768)
    timms = timm.models.VisionTransformer(img_size=size, patch_size=patch, num_classes=classes, embed_dim=192,
                                          depth=depth, num_heads=3)
    return {"vit": ours, "packed": prepacked(ours, BF16), "vit-pytorch": theirs.eval().to(BF16),
            "timm": timms.eval().to(BF16)}


@torch.inference_mode()
def in_turns(models: dict[str, nn.Module], images: Tensor, rounds: int, calls: int) -> dict[str, float]:
    """The median milliseconds of a call; the first round is a warm-up."""
    times: dict[str, list[float]] = {name: [] for name in models}
    for _ in range(rounds + 1):
        for name, model in models.items():
            by_hand = next(model.parameters()).dtype == BF16
            with torch.autocast("cpu", BF16, enabled=not by_hand):
                start = time.process_time()
                for _ in range(calls):
                    model(images.to(BF16) if by_hand else images)
            times[name].append(1000 * (time.process_time() - start) / calls)
    return {name: statistics.median(each[1:]) for name, each in times.items()}


if __name__ == "__main__":
    main()
