"""Residual connections in bfloat16 on a CPU: `precision=bf16-residual` against bf16-mixed, where they are float32.

The training steps of a Vision Transformer of 9 blocks of width 192 with 64 tokens are timed in turns. The training
losses are compared after the same number of steps from the same weights on scikit-learn's digits, enlarged to 32x32;
the float32 loss shows how far both are from exact arithmetic.

    OMP_NUM_THREADS=1 python benchmarks/bf16_residual.py [--rounds 15] [--steps 40] [--seeds 0 1]
"""

import argparse
import statistics
import time
from contextlib import nullcontext

import torch
import torch.nn.functional as F
from pairs import in_turns, report, times_as_fast
from sklearn.datasets import load_digits
from torch import Tensor, nn

import vit
from vit.nn.transformer import set_autocast_residual

PRECISIONS = ("32-true", "bf16-mixed", "bf16-residual")
BATCH = 64
LAST = 10  # steps over which the last losses are averaged


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1])
    options = parser.parse_args()
    images, labels = digits()
    programs = {name: Training(name, 0) for name in PRECISIONS}
    seconds = in_turns({name: lambda each=each: each.step(images[:BATCH], labels[:BATCH])
                        for name, each in programs.items()}, options.rounds, clock=time.process_time)
    rows = []
    for name in PRECISIONS:
        losses = [last_loss(name, seed, options.steps, images, labels) for seed in options.seeds]
        rows.append({"precision": name, "ms": 1000 * statistics.median(seconds[name]),
                     "times as fast as bf16-mixed": times_as_fast(seconds, name, "bf16-mixed"),
                     "loss": ", ".join(f"{loss:.4f}" for loss in losses)})
    report("a training step with residual connections in bfloat16", rows, steps=options.steps, seeds=options.seeds)


def digits() -> tuple[Tensor, Tensor]:
    """(1797,3,32,32) in [-1, 1] and (1797,)"""
    found = load_digits()
    images = torch.from_numpy(found.images).float()[:, None] / 8 - 1
    return F.interpolate(images, size=(32, 32), mode="bilinear").expand(-1, 3, -1, -1), torch.from_numpy(found.target)


class Training:
    """A model with its optimizer, in one precision."""

    def __init__(self, precision: str, seed: int) -> None:
        torch.manual_seed(seed)
        self.model: nn.Module = vit.create_model("vit_tiny", image_size=32, patch_size=4, num_classes=10, depth=9)
        self.bfloat16 = precision != "32-true"
        if precision == "bf16-residual":
            set_autocast_residual(self.model)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=5e-4, fused=True)

    def step(self, images: Tensor, labels: Tensor) -> Tensor:
        """images (B,C,H,W), labels (B,) -> the loss before the step, a scalar"""
        with torch.autocast("cpu", torch.bfloat16) if self.bfloat16 else nullcontext():
            logits = self.model(images)
        loss = F.cross_entropy(logits.float(), labels)
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss.detach()


def last_loss(precision: str, seed: int, steps: int, images: Tensor, labels: Tensor) -> float:
    """The mean loss of the last steps; every precision has the same weights and batches."""
    training, generator = Training(precision, seed), torch.Generator().manual_seed(seed)
    losses = []
    for _ in range(steps):
        rows = torch.randint(len(images), (BATCH,), generator=generator)
        losses.append(training.step(images[rows], labels[rows]))
    return float(torch.stack(losses[-LAST:]).mean())


if __name__ == "__main__":
    main()
