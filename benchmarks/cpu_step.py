"""Training step of a small translation model on the CPU: speedup by the project's dropout, loss and memory setting.

The network of experiment=multi30k with 10,000 random token ids. Each variant is measured in a process of its own, since
the C library's handling of freed memory is set once per process; the variants run in turns. "torch's" uses
`nn.Dropout`, `F.cross_entropy` and the default memory setting.

    OMP_NUM_THREADS=1 python benchmarks/cpu_step.py                precision bf16-mixed
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

VARIANTS = {"torch's": (), "dropout": ("dropout",), "loss": ("loss",), "memory": ("memory",),
        "all but loss": ("dropout", "memory"), "all": ("dropout", "loss", "memory")}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=6, help="per process, after two warm-up steps")
    parser.add_argument("--float32", action="store_true")
    parser.add_argument("--variant", choices=VARIANTS, help="measure one variant in this process")
    options = parser.parse_args()
    if options.variant:
        print(seconds(VARIANTS[options.variant], options.float32, options.steps))
        return
    times: dict[str, list[float]] = {name: [] for name in VARIANTS}
    for number in range(options.rounds):
        for name in list(VARIANTS)[:: -1 if number % 2 else 1]:
            command = [sys.executable, __file__, "--variant", name, "--steps", str(options.steps)]
            command += ["--float32"] if options.float32 else []
            times[name].append(float(subprocess.run(command, capture_output=True, text=True, check=True).stdout))
    reference = times["torch's"]
    rows = [
        {
            "variant": name,
            "seconds": statistics.median(each),
            "least": min(each),
            "most": max(each),
            "times as fast": statistics.median(a / b for a, b in zip(reference, each, strict=True)),
        }
        for name, each in times.items()
    ]
    report("training step of a small translation model, 136 sentence pairs of 15 tokens, processor seconds", rows)


def seconds(ours: Collection[str], float32: bool, steps: int) -> float:
    """Processor seconds of one step with the named parts of this project."""
    if "memory" in ours and not keep_freed_memory():
        raise SystemExit("the C library of this machine cannot keep freed memory")
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
    """Replace each `vit.nn.Dropout` of the model by `nn.Dropout`."""
    for module in list(model.modules()):
        for name, child in module.named_children():
            if isinstance(child, Dropout):
                setattr(module, name, nn.Dropout(child.rate))


if __name__ == "__main__":
    main()
