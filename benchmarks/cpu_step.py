"""A training step of a small translator on the CPU: what our dropout, loss and kept memory are worth.

The network of experiment=multi30k with 10,000 ids, which are random. Each way is a process of its own, since what the
C library does with freed memory is decided once; the ways run in turns. "torch's" has `nn.Dropout` everywhere,
`F.cross_entropy` and the C library as it is.

    OMP_NUM_THREADS=1 python benchmarks/cpu_step.py                as on a processor with bfloat16: bf16-mixed
    OMP_NUM_THREADS=1 python benchmarks/cpu_step.py --float32
"""

import argparse
import statistics
import subprocess
import sys
import time
from collections.abc import Collection

import torch
import torch.nn.functional as F
from pairs import report
from torch import nn

from vit.data.text.tokenizers import PAD
from vit.models import EncoderDecoderConfig, Transformer
from vit.nn import Dropout
from vit.tasks.cross_entropy import cross_entropy
from vit.training import keep_freed_memory

WAYS = {"torch's": (), "dropout": ("dropout",), "loss": ("loss",), "memory": ("memory",),
        "all but loss": ("dropout", "memory"), "all": ("dropout", "loss", "memory")}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=6, help="in a process, after two that do not count")
    parser.add_argument("--float32", action="store_true")
    parser.add_argument("--way", choices=WAYS, help="time one way in this process, as the others are started")
    options = parser.parse_args()
    if options.way:
        print(seconds(WAYS[options.way], options.float32, options.steps))
        return
    times: dict[str, list[float]] = {way: [] for way in WAYS}
    for number in range(options.rounds):
        for way in list(WAYS)[:: -1 if number % 2 else 1]:
            words = [sys.executable, __file__, "--way", way, "--steps", str(options.steps)]
            words += ["--float32"] if options.float32 else []
            times[way].append(float(subprocess.run(words, capture_output=True, text=True, check=True).stdout))
    plain = times["torch's"]
    rows = [
        {
            "way": way,
            "seconds": statistics.median(each),
            "least": min(each),
            "most": max(each),
            "times as fast": statistics.median(a / b for a, b in zip(plain, each, strict=True)),
        }
        for way, each in times.items()
    ]
    report("a training step of a small translator, 136 pairs of 15 tokens, processor seconds", rows)


def seconds(ours: Collection[str], float32: bool, steps: int) -> float:
    """Processor seconds of one step, with these parts of ours."""
    if "memory" in ours and not keep_freed_memory():
        raise SystemExit("the C library of this machine cannot be told to keep memory")
    torch.manual_seed(0)
    config = EncoderDecoderConfig(
        dim=128, depth=4, decoder_depth=4, num_heads=4, mlp_ratio=2.0, mlp="swiglu", norm="rms", pre_norm=True,
        positions="rotary", scale_embed=False, activation="silu", dropout=0.2, vocab_size=10_000, max_len=64,
    )
    model = Transformer(config).train()
    if "dropout" not in ours:
        with_torchs_dropout(model)
    ids = torch.randint(5, config.vocab_size, (136, 16))
    labels = ids[:, 1:].flatten()
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)

    def step() -> None:
        with torch.autocast("cpu", torch.bfloat16, enabled=not float32):
            logits = model(ids[:, 1:], ids[:, :-1]).flatten(0, 1)
            if "loss" in ours:
                total = cross_entropy(logits, labels, PAD, 0.1)
            else:
                total = F.cross_entropy(logits, labels, ignore_index=PAD, label_smoothing=0.1, reduction="sum")
        (total / len(labels)).backward()
        optimizer.step()
        optimizer.zero_grad()

    step(), step()
    start = time.process_time()
    for _ in range(steps):
        step()
    return (time.process_time() - start) / steps


def with_torchs_dropout(model: nn.Module) -> None:
    """The same model with `nn.Dropout` wherever ours is."""
    for module in list(model.modules()):
        for name, child in module.named_children():
            if isinstance(child, Dropout):
                setattr(module, name, nn.Dropout(child.rate))


if __name__ == "__main__":
    main()
