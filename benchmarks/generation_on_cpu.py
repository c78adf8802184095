"""Beam search on a CPU by the operations that `vit.nn.cpu` uses on this processor, against torch's.

The model and the search are those of `vit bench generation`; processor time, in turns.

    OMP_NUM_THREADS=1 python benchmarks/generation_on_cpu.py
"""

import argparse
import functools
import statistics
import time

import torch

from vit.benchmarking.generation import FIRST_ID, NORM_SCALE, SHAPES, Search, by_vit
from vit.models import EncoderDecoderConfig, Transformer
from vit.nn import cpu


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    torch.manual_seed(0)
    search, used = Search(), cpu.ENABLED
    model = Transformer(EncoderDecoderConfig(**SHAPES[search.shape], max_len=search.tokens + 1, norm_eps=1e-5)).eval()
    with torch.no_grad():
        model.decoder.blocks[-1].norm2.weight.mul_(NORM_SCALE)
    print(f"used on this processor: {', '.join(sorted(used)) or 'nothing'}")
    for batch in (1, 32):
        source = torch.randint(FIRST_ID, model.config.vocab_size, (batch, search.source))
        generate = functools.partial(by_vit, model, search, source)
        ratios = []
        for _ in range(options.rounds + 1):
            torchs, ours = (seconds(generate, enabled) for enabled in (frozenset(), used))
            ratios.append(torchs / ours)
        ratios = ratios[1:]  # the first is a warm-up
        print(f"batch {batch}: {statistics.median(ratios):.2f} times as fast ({min(ratios):.2f} to {max(ratios):.2f})")


def seconds(program, enabled: frozenset[str]) -> float:
    cpu.ENABLED = enabled
    start = time.process_time()
    program()
    return time.process_time() - start


if __name__ == "__main__":
    main()
