"""Beam search on a CPU by the operations that `vit.nn.cpu` uses on this processor, and by the compiled decoding step.

Both are compared with torch's operations. The model and the search are those of `vit bench generation`; processor time,
in turns.

    OMP_NUM_THREADS=1 python benchmarks/generation_on_cpu.py
"""

import argparse
import functools
import statistics
import time

import torch

from vit.benchmarking.generation import FIRST_ID, NORM_SCALE, SHAPES, Search, by_vit
from vit.generation import Compiled
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
        eager, compiled = (functools.partial(by_vit, each, search, source) for each in (model, Compiled(model)))
        programs = {"torch's operations": (eager, frozenset()), "eager": (eager, used), "compiled": (compiled, used)}
        times = {name: [] for name in programs}
        for number in range(options.rounds + 1):
            for name, (program, enabled) in programs.items():
                took = seconds(program, enabled)
                times[name] += [took] if number else []  # the first round is a warm-up
        for name, took in times.items():
            ratio = statistics.median(a / b for a, b in zip(times["torch's operations"], took, strict=True))
            low, middle, high = (1000 * f(took) / search.tokens for f in (min, statistics.median, max))
            print(f"batch {batch}, {name}: {middle:.2f} ms per step ({low:.2f} to {high:.2f}), {ratio:.2f} times as "
                  "fast")


def seconds(program, enabled: frozenset[str]) -> float:
    cpu.ENABLED = enabled
    start = time.process_time()
    program()
    return time.process_time() - start


if __name__ == "__main__":
    main()
