"""Beam search on a CPU by the operations that `vit.nn.cpu` uses on this processor, and by the compiled decoding step.

Both are compared with torch's operations. The model and the search are those of `vit bench generation`; processor time,
in turns. With `--bf16`, bfloat16 is compared with float32, and with weights that autocast casts in each step.

    OMP_NUM_THREADS=1 python benchmarks/generation_on_cpu.py
    OMP_NUM_THREADS=1 python benchmarks/generation_on_cpu.py --bf16 --shape marian-base --batch 1 8 --rounds 3
"""

import argparse
import functools
import statistics
import time
from contextlib import ExitStack
from unittest import mock

import torch

from vit.benchmarking.generation import FIRST_ID, NORM_SCALE, SHAPES, Search, by_vit
from vit.files.machine import keep_freed_memory
from vit.generation import Compiled
from vit.models import EncoderDecoderConfig, Transformer
from vit.nn import cpu
from vit.nn.cpu.linear import Packed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--bf16", action="store_true")
    parser.add_argument("--shape", choices=SHAPES, default=Search().shape)
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 32])
    options = parser.parse_args()
    keep_freed_memory()  # as the commands do
    torch.manual_seed(0)
    search, used = Search(shape=options.shape), cpu.ENABLED
    model = Transformer(EncoderDecoderConfig(**SHAPES[search.shape], max_len=search.tokens + 1, norm_eps=1e-5)).eval()
    with torch.no_grad():
        model.decoder.blocks[-1].norm2.weight.mul_(NORM_SCALE)
    print(f"used on this processor: {', '.join(sorted(used)) or 'nothing'}")
    for batch in options.batch:
        source = torch.randint(FIRST_ID, model.config.vocab_size, (batch, search.source))
        eager = functools.partial(by_vit, model, search, source)
        if options.bf16:
            programs = {
                "float32": eager,
                "bfloat16": functools.partial(in_bf16, eager),
                "bfloat16, weights cast in each step": functools.partial(cast_in_each_step, eager),
            }
        else:
            compiled = functools.partial(by_vit, Compiled(model), search, source)
            programs = {"torch's operations": functools.partial(by_torch, eager), "eager": eager, "compiled": compiled}
        report(f"batch {batch}", programs, options.rounds, search.tokens)


def report(title: str, programs: dict, rounds: int, tokens: int) -> None:
    """Prints the time of each program per step, and its speed relative to the first one."""
    times = {name: [] for name in programs}
    for number in range(rounds + 1):
        for name, program in programs.items():
            start = time.process_time()
            program()
            times[name] += [time.process_time() - start] if number else []  # the first round is a warm-up
    first = next(iter(times.values()))
    for name, took in times.items():
        ratio = statistics.median(a / b for a, b in zip(first, took, strict=True))
        low, middle, high = (1000 * f(took) / tokens for f in (min, statistics.median, max))
        print(f"{title}, {name}: {middle:.2f} ms per step ({low:.2f} to {high:.2f}), {ratio:.2f} times as fast")


def by_torch(program) -> None:
    with mock.patch.object(cpu, "ENABLED", frozenset()):
        program()


def in_bf16(program) -> None:
    with torch.autocast("cpu", torch.bfloat16):
        program()


def cast_in_each_step(program) -> None:
    with ExitStack() as stack:
        stack.enter_context(mock.patch("vit.generation.generate.prepacked", lambda model, dtype: model))
        stack.enter_context(mock.patch.object(Packed, "cast", lambda self, weight: weight))
        in_bf16(program)


if __name__ == "__main__":
    main()
