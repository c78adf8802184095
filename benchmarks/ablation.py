"""Ablation: a small Vision Transformer with one part removed or replaced at a time.

All variants differ from the complete model only in the part that their name states. They are trained with the same
recipe on the same batches of scikit-learn's digits (8x8 pixels as 16 patches, 1,437 training and 360 test images). The
losses are drawn in one figure; the table has the test accuracy as mean and standard deviation over the seeds.

    OMP_NUM_THREADS=1 python benchmarks/ablation.py          all variants, 3 seeds; one thread is fastest at this size
    python benchmarks/ablation.py --epochs 5 --seeds 1       a quick run
    python benchmarks/ablation.py --depth 12                 deeper models need residuals and norms more
    python benchmarks/ablation.py --only complete "without positions"
"""

import argparse
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from matplotlib.axes import Axes
from matplotlib.ticker import NullFormatter
from pairs import report
from sklearn.datasets import load_digits
from torch import Tensor, nn

from vit.models.classifier import Classifier
from vit.nn import (
    Attention,
    BatchNorm,
    Block,
    DotProduct,
    Encoder,
    LayerNorm,
    LinearPatches,
    Mean,
    Mlp,
    NoResidualBlock,
    PatchEmbed,
    Prefix,
    init_weights,
    learned,
)
from vit.report.figures.style import FONT, INK, MUTED, new_figure, save_figure, set_title, style_axes
from vit.training import clip_gradients

DIM, HEADS = 64, 4
COMPLETE = "complete"


@dataclass(frozen=True)
class Parts:
    """The parts of a variant."""

    block: type[Block] = Block
    norm: Callable[[int], nn.Module] = LayerNorm
    attention: Callable[[], Attention] = lambda: Attention(DIM, HEADS)
    positions: bool = True

    def build(self, depth: int) -> Classifier:
        blocks = [self.block(DIM, self.attention(), Mlp(DIM, 4 * DIM), norm=self.norm) for _ in range(depth)]
        table = learned(16, DIM) if self.positions else None
        embed = PatchEmbed(LinearPatches(1, DIM, (2, 2)), (8, 8), prefix=Prefix(class_token=False), pos_embed=table)
        model = Classifier(embed, Encoder(blocks, self.norm(DIM)), Mean(), nn.Linear(DIM, 10))
        init_weights(model)
        return model


BASE = Parts()
VARIANTS = {
    COMPLETE: BASE,
    "without residuals": replace(BASE, block=NoResidualBlock),
    "without norm": replace(BASE, norm=lambda dim: nn.Identity()),
    "BatchNorm for LayerNorm": replace(BASE, norm=BatchNorm),
    "without positions": replace(BASE, positions=False),
    "one head": replace(BASE, attention=lambda: Attention(DIM, 1)),
    "without scaling": replace(BASE, attention=lambda: Attention(DIM, HEADS, score=DotProduct)),
}
COLOURS = ("#1f2933", "#d9622b", "#b58a1b", "#3d8b5f", "#2f6fb7", "#8a5fb0", "#c2427f")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=VARIANTS, default=list(VARIANTS), help="names of variants")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--depth", type=int, default=6, help="blocks")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--lr", type=float, default=1e-3, help="peak learning rate of AdamW")
    parser.add_argument("--output", type=Path, default=Path("ablation.png"), help="the figure")
    options = parser.parse_args()
    data = digits()
    curves, rows = {}, []
    for name in options.only:
        start = time.perf_counter()
        runs = [train(VARIANTS[name], data, seed, options) for seed in range(options.seeds)]
        curves[name] = np.array([losses for losses, _ in runs])  # (seeds,steps)
        rows.append(row(name, curves[name], [accuracy for _, accuracy in runs]))
        rows[-1]["s per seed"] = (time.perf_counter() - start) / options.seeds
    draw(options.output, curves, options)
    report(f"ablation on digits, {options.depth} blocks, {options.epochs} epochs, {options.seeds} seeds", rows,
           picture=str(options.output))


def digits() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Training images (N,1,8,8) and labels (N,), then those of the test split."""
    found = load_digits()
    images = torch.from_numpy(found.images).float()[:, None] / 8 - 1
    labels = torch.from_numpy(found.target)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    images, labels = images[order], labels[order]
    return images[360:], labels[360:], images[:360], labels[:360]


def train(parts: Parts, data: tuple[Tensor, ...], seed: int, options: argparse.Namespace) -> tuple[list[float], float]:
    """The loss of every step, and the final test accuracy."""
    images, labels, test_images, test_labels = data
    torch.manual_seed(seed)
    model = parts.build(options.depth)
    optimizer = torch.optim.AdamW(model.parameters(), lr=options.lr, weight_decay=0.05)
    epoch = len(images) // options.batch  # in steps; the incomplete last batch is dropped
    steps = epoch * options.epochs
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, options.lr, steps, pct_start=0.1)
    shuffle, losses = torch.Generator().manual_seed(seed), []
    while len(losses) < steps:
        for batch in torch.randperm(len(images), generator=shuffle).split(options.batch)[:epoch]:
            loss = F.cross_entropy(model(images[batch]), labels[batch])
            optimizer.zero_grad()
            loss.backward()
            clip_gradients(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            losses.append(float(loss.detach()))
    with torch.inference_mode():
        right = model.eval()(test_images).argmax(-1) == test_labels
    return losses, float(right.float().mean())


def row(name: str, losses: np.ndarray, accuracies: list[float]) -> dict[str, object]:
    last = losses[:, -max(1, losses.shape[1] // 20):].mean(axis=1)  # of the last twentieth of the training
    return {
        "variant": name,
        "last loss": float(last.mean()),
        "± loss": float(last.std()),
        "test %": 100 * statistics.mean(accuracies),
        "± %": 100 * statistics.pstdev(accuracies),
        "steps to 0.5": first_below(losses, 0.5),
    }


def first_below(losses: np.ndarray, level: float) -> int | None:
    """The first step at which the smoothed mean loss of the seeds is below the level; None if there is none."""
    below = np.nonzero(smooth(losses.mean(axis=0)) < level)[0]
    return int(below[0]) + 1 if len(below) else None


def smooth(losses: np.ndarray, width: int = 15) -> np.ndarray:
    """Moving average of each step and the `width - 1` steps before it."""
    sums = np.cumsum(np.concatenate([[0.0], losses]))
    ends = np.arange(1, len(losses) + 1)
    starts = np.maximum(ends - width, 0)
    return (sums[ends] - sums[starts]) / (ends - starts)


def draw(path: Path, curves: dict[str, np.ndarray], options: argparse.Namespace) -> None:
    """The loss of all variants over the epochs: the mean of the seeds as a line, their range as a band."""
    figure = new_figure(8.4, 5.0)
    axes: Axes = figure.subplots()
    style_axes(axes)
    set_title(axes, "Training loss with one part removed",
              f"a Vision Transformer of {options.depth} blocks on digits; mean and range of {options.seeds} seeds")
    for (name, losses), colour in zip(curves.items(), COLOURS, strict=False):
        lines = np.array([smooth(each) for each in losses])
        x = np.arange(1, lines.shape[1] + 1) * options.epochs / lines.shape[1]
        axes.plot(x, lines.mean(axis=0), color=colour, linewidth=2.4 if name == COMPLETE else 1.6, label=name)
        axes.fill_between(x, lines.min(axis=0), lines.max(axis=0), color=colour, alpha=0.15, linewidth=0)
    axes.set_yscale("log")
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.set_xlabel("epoch", fontsize=9, color=MUTED, family=FONT)
    axes.set_ylabel("loss", fontsize=9, color=MUTED, family=FONT)
    axes.legend(frameon=False, fontsize=9, labelcolor=INK)
    save_figure(figure, path)


if __name__ == "__main__":
    main()
