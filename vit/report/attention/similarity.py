"""What each block changes: the similarity of tokens to each other by depth, and of a token before and after a block."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from os import PathLike
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from torch import Tensor, nn

from vit.report.attention.cells import set_heading
from vit.report.figures.style import FONT, new_figure, save_figure
from vit.report.figures.theme import Theme, theme

Recorded = dict[str, tuple[np.ndarray, np.ndarray]]  # name of a block -> tokens before and after it, (N,D) each


@dataclass(frozen=True)
class Similarity:
    """Mean cosines of the tokens of one input in a stack of L blocks.

    Args:
        between: (L+1,), over all pairs of tokens, before the first block and after each block; NaN for a single token.
        change: (L,), of each token before a block with the same token after it.
    """

    between: np.ndarray
    change: np.ndarray


def similarity_by_depth(blocks: Sequence[tuple[np.ndarray, np.ndarray]]) -> Similarity:
    """Tokens before and after each block, (N,D) each, the first block first -> mean cosines"""
    units = [(unit(before), unit(after)) for before, after in blocks]
    between = [mean_between(each) for each in (units[0][0], *(after for _, after in units))]
    return Similarity(np.array(between), np.array([(before * after).sum(-1).mean() for before, after in units]))


def unit(tokens: np.ndarray) -> np.ndarray:
    """(N,D) -> the same directions with length 1"""
    tokens = tokens.astype(np.float64)
    return tokens / np.maximum(np.linalg.norm(tokens, axis=-1, keepdims=True), 1e-12)


def mean_between(tokens: np.ndarray) -> float:
    """The mean cosine over all pairs of N vectors (N,D) of length 1; NaN for a single vector."""
    count = len(tokens)
    total = np.square(tokens.sum(axis=0)).sum() - np.square(tokens).sum()  # over all ordered pairs of different tokens
    return float(total / (count * (count - 1))) if count > 1 else float("nan")


@contextmanager
def recorded_blocks(model: nn.Module) -> Iterator[Recorded]:
    """Within the context, a forward pass records the tokens of its first sample before and after each block; a further
    pass replaces them.
    """
    recorded: Recorded = {}
    blocks = {f"{part}.{i}": block for part in ("encoder", "decoder") if hasattr(model, part)
              for i, block in enumerate(getattr(model, part).blocks)}

    def record(name: str, inputs: tuple, output: Tensor) -> None:
        recorded[name] = inputs[0][0].float().cpu().numpy().copy(), output[0].float().cpu().numpy().copy()

    handles = [block.register_forward_hook(lambda _, inputs, output, name=name: record(name, inputs, output))
               for name, block in blocks.items()]
    try:
        yield recorded
    finally:
        for handle in handles:
            handle.remove()


def stack_similarities(recorded: Recorded) -> dict[str, Similarity]:
    """The similarities of the encoder and, if there is one, of the decoder."""
    stacks: dict[str, list] = {}
    for name, tokens in recorded.items():
        stacks.setdefault(name.partition(".")[0], []).append(tokens)
    return {name: similarity_by_depth(blocks) for name, blocks in stacks.items()}


def similarity_picture(path: str | PathLike[str], stacks: Mapping[str, Similarity], heading: str, dark: bool = False
                       ) -> Path:
    """Two lines over the depth of each stack: similarity of the tokens to each other, and before and after a block."""
    colours = theme(dark)
    figure = new_figure(6.2 * len(stacks) + 0.6, 4.4, colours.paper)
    for axes, (name, found) in zip(figure.subplots(1, len(stacks), squeeze=False)[0], stacks.items(), strict=True):
        _draw_lines(axes, name, found, colours)
    set_heading(figure, heading, 15, colours)
    return save_figure(figure, path)


def _draw_lines(axes: Axes, name: str, found: Similarity, colours: Theme) -> None:
    depth = len(found.change)
    line = {"linewidth": 2.5, "markersize": 7}
    axes.plot(range(depth + 1), found.between, "o-", color=colours.blue, label="two tokens, mean of all pairs", **line)
    axes.plot(range(1, depth + 1), found.change, "s--", color=colours.orange,
              label="a token before and after the block", **line)
    lowest = min(0.0, np.nanmin([*found.between, *found.change]))
    axes.set(ylim=(lowest - 0.05, 1.05), xlim=(-0.2, depth + 0.2), facecolor=colours.paper)
    ticks = range(0, depth + 1, 1 + depth // 13)
    axes.set_xticks(ticks, ["input" if tick == 0 else tick - 1 for tick in ticks])
    style = {"color": colours.ink, "family": FONT, "fontsize": 12}
    axes.set_xlabel(f"after block of the {name}", **style)
    axes.set_ylabel("cosine", **style)
    axes.grid(True, color=colours.rule, linewidth=0.8)
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0, colors=colours.muted, labelsize=11)
    axes.legend(loc="lower left", bbox_to_anchor=(0, 1), frameon=False, labelcolor=colours.ink,
                prop={"family": FONT, "size": 11})
