"""Local attention against full attention by override in a whole model: forward and backward pass over a long text.

Two text classifiers are composed from the same overrides, one with `model.attention=local`, and have equal weights.
With a window that covers the text, losses and gradients must be equal; then both are timed in turns over the full
length, by processor time. The text has no padding, so that full attention runs in the fused kernel without a mask.

    OMP_NUM_THREADS=1 python benchmarks/local_model.py
    OMP_NUM_THREADS=1 python benchmarks/local_model.py --window 64 --tokens 2048 model.dim=64 model.num_heads=2
"""

import argparse
import statistics
from collections.abc import Sequence
from functools import partial

import torch
import torch.nn.functional as F
from pairs import in_turns, report, times_as_fast
from torch import Tensor

from vit.benchmarking.timing import processor_seconds
from vit.models import TextClassifierConfig
from vit.models.text import TextClassifier
from vit.nn.local import BLOCK
from vit.run.config.composing import compose, resolve
from vit.run.parts.text_networks import text_model

VOCABULARY, CLASSES = 256, 3
COVERED = 4 * BLOCK  # tokens of the comparison
TOLERANCE = 1e-5  # of the loss, and of gradients relative to the largest


def main() -> None:
    options = arguments()
    worst = check(options.overrides)
    full, local = pair(options.overrides, options.tokens, options.window)
    batch = texts(options.batch, options.tokens)
    steps = {"full": partial(step, full.train(), *batch), "local": partial(step, local.train(), *batch)}
    seconds = in_turns(steps, options.rounds, processor_seconds)
    rows = [{"attention": name, "ms": 1000 * statistics.median(times), "least": 1000 * min(times),
             "most": 1000 * max(times), "times as fast": times_as_fast(seconds, name, "full")}
            for name, times in seconds.items()]
    config = full.config
    report(f"forward and backward pass over {options.tokens:,} tokens, milliseconds of processor time", rows,
           dim=config.dim, depth=config.depth, heads=config.num_heads, window=options.window, batch=options.batch,
           threads=torch.get_num_threads(), largest_difference=worst)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=4096)
    parser.add_argument("--window", type=int, default=16, help="tokens to each side, by default that of model.window")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("overrides", nargs="*", help="of both models, such as model.dim=64 model.positions=rotary")
    return parser.parse_args()


def pair(overrides: Sequence[str], tokens: int, window: int) -> tuple[TextClassifier, TextClassifier]:
    """The model with full and with local attention, and equal weights."""
    full = build(overrides, tokens)
    local = build([*overrides, "model.attention=local", f"model.window={window}"], tokens)
    local.load_state_dict(full.state_dict())
    return full, local


def build(overrides: Sequence[str], tokens: int) -> TextClassifier:
    torch.manual_seed(0)
    config = {**resolve(compose(["data=text_table", *overrides])), "overrides": list(overrides)}
    fits = {"vocab_size": VOCABULARY, "num_classes": CLASSES, "max_len": tokens}
    return text_model(config, fits, TextClassifierConfig, None)


def texts(batch: int, tokens: int) -> tuple[Tensor, Tensor]:
    """ids (B,N), labels (B,)"""
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(VOCABULARY, (batch, tokens), generator=generator)
    return ids, torch.randint(CLASSES, (batch,), generator=generator)


def step(model: TextClassifier, ids: Tensor, labels: Tensor) -> float:
    """The loss, after its backward pass."""
    model.zero_grad()
    loss = F.cross_entropy(model(ids), labels)
    loss.backward()
    return loss.item()


def check(overrides: Sequence[str]) -> float:
    """The largest difference of loss and gradients between full attention and a window that covers the text.

    Raises:
        SystemExit: they are not equal.
    """
    models = pair(overrides, COVERED, COVERED - 1)
    losses = [step(model.eval(), *texts(2, COVERED)) for model in models]
    full, local = (torch.cat([each.grad.flatten() for each in model.parameters()]) for model in models)
    worst = max(abs(losses[0] - losses[1]), float((full - local).abs().max() / full.abs().max()))
    if worst > TOLERANCE:
        raise SystemExit(f"full and local attention over the whole text differ by {worst:.2g}, more than {TOLERANCE}")
    return worst


if __name__ == "__main__":
    main()
