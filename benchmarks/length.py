"""Time and memory of one layer as a function of sequence length: attention, recurrence, convolution.

Forward and backward pass of a layer from (B,n,D) to (B,n,D) at equal width: attention with an explicit matrix of
weights, with the fused kernel, within a window; a GRU; a 1-D convolution. The outputs of the attention variants are
compared before they are timed in turns. Memory is what the step needs beyond the model and its input: on a CPU the
increase of the peak resident set in a process of its own, after a step at a small length; on a GPU the peak of torch's
allocator.

    python benchmarks/length.py                                 n = 64 ... 4096, table, JSON and length.png
    python benchmarks/length.py --device cuda --batch 8
    python benchmarks/length.py --lengths 64 256 --rounds 2     a quick run
"""

import argparse
import contextlib
import json
import math
import resource
import statistics
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from matplotlib.axes import Axes
from pairs import in_turns, report
from torch import Tensor, nn

from vit.nn import Attention
from vit.nn.local import Local
from vit.nn.scores import ScaledDotProduct
from vit.report.figures.comparison import COLOURS
from vit.report.figures.style import FONT, INK, MUTED, new_figure, save_figure, set_title, style_axes

SMALL = 16  # a length whose step needs almost no memory
STATUS, CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


class Naive(ScaledDotProduct):
    """A score that stores the matrix of all weights, also for the backward pass."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask=None, causal: bool = False, dropout: float = 0.0) -> Tensor:
        scores = q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5
        return scores.softmax(-1) @ v


class Recurrence(nn.GRU):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x)[0]


class Convolution(nn.Conv1d):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.transpose(1, 2)).transpose(1, 2)


def layers(options: argparse.Namespace) -> dict[str, Callable[[], nn.Module]]:
    dim, heads = options.dim, options.heads
    local = partial(Local, window=options.window)
    return {
        "naive attention": lambda: Attention(dim, heads, score=Naive),
        "attention (SDPA)": lambda: Attention(dim, heads),
        f"local attention (±{options.window})": lambda: Attention(dim, heads, score=local),
        "GRU": lambda: Recurrence(dim, dim, batch_first=True),
        f"convolution ({options.kernel})": lambda: Convolution(dim, dim, options.kernel, padding=options.kernel // 2),
    }


def main() -> None:
    options = arguments()
    if options.measure:
        return print(json.dumps({"bytes": peak(options)}))
    check(options)
    rows = []
    for n in options.lengths:
        steps = {name: step(make().to(options.device), source(options, n)) for name, make in layers(options).items()}
        seconds = in_turns(steps, options.rounds, warmup=2)
        del steps
        for name, times in seconds.items():
            memory = in_own_process(options, name, n) / 2**20
            rows.append({"layer": name, "n": n, "ms": 1000 * statistics.median(times), "MiB": memory})
    draw(options.output, rows, f"{options.device}, width {options.dim}, batch {options.batch}")
    report("cost of a layer against length, forward and backward", table(rows), width=options.dim,
           heads=options.heads, batch=options.batch, device=options.device, picture=str(options.output))


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lengths", type=int, nargs="+", default=[64, 128, 256, 512, 1024, 2048, 4096])
    parser.add_argument("--dim", type=int, default=256)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--window", type=int, default=64, help="tokens to each side in local attention")
    parser.add_argument("--kernel", type=int, default=7, help="width of the convolution")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--device", default="cpu", help="cpu (default) or cuda")
    parser.add_argument("--output", type=Path, default=Path("length.png"), help="the figure")
    parser.add_argument("--measure", help=argparse.SUPPRESS)  # the memory of this layer at --lengths N, in this process
    return parser.parse_args()


def source(options: argparse.Namespace, n: int) -> Tensor:
    return torch.randn(options.batch, n, options.dim, device=options.device, requires_grad=True)


def step(layer: nn.Module, x: Tensor) -> Callable[[], None]:
    def run() -> None:
        layer.zero_grad()
        x.grad = None
        layer(x).sum().backward()

    return run


@torch.no_grad()
def check(options: argparse.Namespace) -> None:
    """Check that the attention variants have equal outputs on a sequence that the window covers."""
    made = [make() for name, make in layers(options).items() if "attention" in name]
    x = torch.randn(1, options.window + 1, options.dim)
    results = []
    for layer in made:
        layer.load_state_dict(made[0].state_dict())
        results.append(layer(x))
    worst = max(float((result - results[0]).abs().max()) for result in results)
    if worst > 1e-5:
        raise SystemExit(f"the attention variants differ by {worst}, but must be equal to 1e-5")


def in_own_process(options: argparse.Namespace, name: str, n: int) -> float:
    command = [sys.executable, __file__, "--measure", name, "--lengths", str(n)]
    for key in ("dim", "heads", "window", "kernel", "batch", "device"):
        command += [f"--{key}", str(getattr(options, key))]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)["bytes"]


def peak(options: argparse.Namespace) -> int:
    """Peak memory of one step in bytes, beyond the layer, its gradients and its input."""
    layer = layers(options)[options.measure]().to(options.device)
    step(layer, source(options, SMALL))()
    once = step(layer, source(options, options.lengths[0]))
    if options.device != "cpu":
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.max_memory_allocated()
        once()
        return torch.cuda.max_memory_allocated() - before
    before = resident_peak(reset=True)
    once()
    return resident_peak() - before


def resident_peak(reset: bool = False) -> int:
    """Peak resident set of this process in bytes, since its start or, if the system supports it, since the reset."""
    if reset:
        with contextlib.suppress(OSError):
            CLEAR.write_text("5")
    if STATUS.exists():
        line = next(line for line in STATUS.read_text().splitlines() if line.startswith("VmHWM"))
        return int(line.split()[1]) * 1024
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def table(rows: list[dict]) -> list[dict]:
    """A row per layer, for time and for memory; a column per length, and the exponent of growth at the end."""
    lengths = sorted({row["n"] for row in rows})
    result = []
    for unit in ("ms", "MiB"):
        for name in dict.fromkeys(row["layer"] for row in rows):
            found = {row["n"]: row[unit] for row in rows if row["layer"] == name}
            result.append({"layer": name, "": unit, **{f"n={n}": found[n] for n in lengths}})
            if len(lengths) > 1 and min(found.values()) > 0:
                a, b = lengths[-2:]
                result[-1]["grows as n^"] = math.log(found[b] / found[a]) / math.log(b / a)
    return result


def draw(path: Path, rows: list[dict], note: str) -> None:
    """Time and memory over the length on logarithmic axes, where quadratic growth is a line of slope 2."""
    figure = new_figure(10.4, 4.4)
    units = {"ms": ("Time of a step", "milliseconds"), "MiB": ("Memory of a step", "MiB")}
    for axes, (unit, (heading, label)) in zip(figure.subplots(1, 2), units.items(), strict=True):
        style_axes(axes)
        set_title(axes, heading, f"forward and backward of one layer, {note}")
        for name, colour in zip(dict.fromkeys(row["layer"] for row in rows), COLOURS, strict=False):
            points = [(row["n"], row[unit]) for row in rows if row["layer"] == name and row[unit] > 0]
            axes.plot(*zip(*points, strict=True), marker="o", markersize=4, color=colour, label=name)
        scale(axes, sorted({row["n"] for row in rows}), label)
    axes.legend(frameon=False, fontsize=9, labelcolor=INK, loc="upper left")
    save_figure(figure, path)


def scale(axes: Axes, lengths: list[int], label: str) -> None:
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks(lengths, [str(n) for n in lengths])
    axes.minorticks_off()
    axes.set_xlabel("tokens", fontsize=9, color=MUTED, family=FONT)
    axes.set_ylabel(label, fontsize=9, color=MUTED, family=FONT)


if __name__ == "__main__":
    main()
