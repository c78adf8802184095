"""Beam search with a key-value cache, compared with the same search without a cache, transformers and CTranslate2.

All have the same random weights (the last norm is scaled up, so that the token distribution is as uneven as that of a
trained model) and generate the same number of tokens; the texts are compared. "uncached" is the same search with a
forward pass of the whole model at each step. "times as fast" is the other's time divided by that of `vit`. CTranslate2
runs in a process of its own, because in one process its OpenMP threads and those of torch would block each other.

    python benchmarks/generation.py                                   Multi30k's shape, batch 1 and 32, on the CPU
    python benchmarks/generation.py --shape marian-base --batch 1 8 --rounds 3
    python benchmarks/generation.py --without uncached --device cuda
"""

import argparse
import multiprocessing
import statistics
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path

import torch
from pairs import in_turns, report, times_as_fast
from transformers import MarianConfig, MarianMTModel

from vit.data.text.tokenizers import BOS, EOS, PAD
from vit.generation import Generation, Uncached, generate
from vit.models import EncoderDecoderConfig, Transformer
from vit.weights.formats.marian import marian_arguments, to_marian

OURS, UNCACHED, THEIRS, CT2 = "vit", "uncached", "transformers", "ctranslate2"
SHAPES = {
    "multi30k": {"vocab_size": 9_700, "dim": 128, "depth": 4, "decoder_depth": 4, "num_heads": 4, "mlp_ratio": 2.0},
    "marian-base": {"vocab_size": 58_101, "dim": 512, "depth": 6, "decoder_depth": 6, "num_heads": 8,
                    "mlp_ratio": 4.0, "activation": "silu"},
}
NORM_SCALE = 4.0  # factor of the last norm


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=SHAPES, default="multi30k")
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 32])
    parser.add_argument("--beam", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=64, help="to generate")
    parser.add_argument("--source", type=int, default=16, help="tokens of each source")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--device", default="cpu", help="cpu (default) or cuda")
    parser.add_argument("--without", nargs="*", choices=(UNCACHED, THEIRS, CT2), default=[])
    options = parser.parse_args()
    torch.manual_seed(0)
    ours, theirs = models(options)
    rows = []
    with translating(theirs, options) as translate:
        for batch in options.batch:
            programs = searches(ours, theirs, translate, batch, options)
            same = compared({name: program() for name, program in programs.items()})
            seconds = in_turns(programs, options.rounds, warmup=0)
            rows += table(seconds, same, batch, options)
    report(f"beam {options.beam}, {options.tokens} tokens, the shape of {options.shape}", rows)


def models(options: argparse.Namespace) -> tuple[Transformer, MarianMTModel]:
    """The same network of this project and of transformers."""
    sizes = {**SHAPES[options.shape], "max_len": max(options.tokens, options.source) + 1, "norm_eps": 1e-5}
    ours = Transformer(EncoderDecoderConfig(**sizes)).eval()
    with torch.no_grad():
        ours.decoder.blocks[-1].norm2.weight.mul_(NORM_SCALE)
    theirs = MarianMTModel(MarianConfig(**marian_arguments(ours.config, bos=BOS, eos=EOS, pad=PAD))).eval()
    theirs.load_state_dict(to_marian(ours.state_dict()), strict=False)
    return ours.to(options.device), theirs.to(options.device)


@contextmanager
def translating(theirs: MarianMTModel, options: argparse.Namespace) -> Iterator[Callable | None]:
    """CTranslate2 with the same network: source ids -> ids of the best hypothesis of each."""
    if CT2 in options.without:
        yield None
        return
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    with tempfile.TemporaryDirectory() as folder:
        convert(theirs, Path(folder))
        arguments = (folder, options, torch.get_num_threads(), there)
        process = context.Process(target=serve_translations, args=arguments, daemon=True)
        process.start()
        there.close()

        def translate(source: list[list[int]]) -> list[list[int]]:
            here.send(source)
            return here.recv()

        yield translate
        process.kill()


def convert(theirs: MarianMTModel, folder: Path) -> None:
    """Save the network for CTranslate2. The converter for Marian would remove the padding token from the vocabulary and
    start from a zero vector; the one for BART, which is the same network, leaves the model unchanged."""
    from ctranslate2.converters.transformers import BartLoader

    theirs.config.normalize_before = theirs.config.normalize_embedding = False
    device = theirs.device
    spec = BartLoader().get_model_spec(theirs.cpu())
    theirs.to(device)
    tokens = [str(number) for number in range(theirs.config.vocab_size)]
    spec.register_source_vocabulary(tokens)
    spec.register_target_vocabulary(tokens)
    spec.config.decoder_start_token = spec.config.bos_token = tokens[BOS]
    spec.config.eos_token, spec.config.unk_token = tokens[EOS], tokens[PAD]
    spec.config.layer_norm_epsilon = 1e-5
    spec.validate()
    spec.optimize()
    spec.save(str(folder))


def serve_translations(folder: str, options: argparse.Namespace, threads: int, sources: Connection) -> None:
    """The process of CTranslate2: receives batches of sources and sends hypotheses."""
    import ctranslate2

    translator = ctranslate2.Translator(folder, device=options.device, intra_threads=threads)
    while True:
        found = translator.translate_batch(
            [[str(token) for token in row] for row in sources.recv()],
            beam_size=options.beam,
            max_decoding_length=options.tokens,
            min_decoding_length=options.tokens,
            suppress_sequences=[[str(PAD)], [str(BOS)]],
        )
        sources.send([[int(token) for token in row.hypotheses[0]] for row in found])


def searches(ours, theirs, translate, batch: int, options: argparse.Namespace) -> dict[str, Callable]:
    """Name -> a search that returns the ids of the best hypothesis of each row."""
    source = torch.randint(5, ours.config.vocab_size, (batch, options.source), device=options.device)
    mask = torch.ones_like(source, dtype=torch.bool)
    settings = Generation(beam=options.beam, max_len=options.tokens, min_len=options.tokens)
    programs = {
        OURS: partial(by_vit, ours, source, mask, settings),
        UNCACHED: partial(by_vit, Uncached(ours), source, mask, settings),
        THEIRS: partial(by_transformers, theirs, source, mask, options),
        CT2: lambda: translate(source.tolist()),
    }
    return {name: program for name, program in programs.items() if name not in options.without}


def by_vit(model, source, mask, settings: Generation) -> list[list[int]]:
    return [list(found[0].ids) for found in generate(model, source, mask, settings)]


def by_transformers(model, source, mask, options: argparse.Namespace) -> list[list[int]]:
    found = model.generate(
        source,
        attention_mask=mask.long(),
        num_beams=options.beam,
        max_new_tokens=options.tokens,
        min_new_tokens=options.tokens,
        length_penalty=1.0,
        do_sample=False,
        early_stopping="never",  # the default is a heuristic; here all generate the same number of tokens
        suppress_tokens=[PAD, BOS],
    )
    return [row[1:] for row in found.tolist()]


def compared(texts: dict[str, list[list[int]]]) -> dict[str, float]:
    """Name -> fraction of rows with the same text as `vit`; it must be 1 for all but CTranslate2."""
    same = {}
    for name, rows in texts.items():
        same[name] = statistics.mean(a == b for a, b in zip(texts[OURS], rows, strict=True))
        if name != CT2 and same[name] < 1:
            raise SystemExit(f"{name} generates other texts: only {same[name]:.0%} of the rows are equal")
    return same


def table(seconds: dict[str, list[float]], same: dict[str, float], batch: int, options) -> list[dict]:
    return [
        {
            "batch": batch,
            "library": name,
            "tokens/s": batch * options.tokens / statistics.median(times),
            "same texts": same[name],
            "vit is times as fast": None if name == OURS else times_as_fast(seconds, OURS, name),
        }
        for name, times in seconds.items()
    ]


if __name__ == "__main__":
    main()
