"""Beam search of a translation model with a key-value cache, against the same search without a cache and other engines.

All engines have the same random weights and generate the same number of tokens, and their texts are compared. The last
norm is scaled up, so that the token distribution is as uneven as that of a trained model. CTranslate2 runs in a
separate process, because in one process its OpenMP threads and those of torch would block each other.
"""

import contextlib
import itertools
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from vit.benchmarking.other_translators import by_transformers, marian, translating
from vit.benchmarking.peers import MissingPeer, check_installed
from vit.benchmarking.results import OURS, Case, Settings
from vit.benchmarking.timing import Program, in_turns
from vit.generation import Compiled, Generation, Uncached, generate
from vit.messages import ArgumentError
from vit.models import EncoderDecoderConfig, Transformer

UNCACHED, TRANSFORMERS, CT2 = "uncached", "transformers", "ctranslate2"
GENERATION_PEERS = (UNCACHED, TRANSFORMERS, CT2)
SHAPES = {
    "multi30k": {"vocab_size": 9_700, "dim": 128, "depth": 4, "decoder_depth": 4, "num_heads": 4, "mlp_ratio": 2.0},
    "marian-base": {"vocab_size": 58_101, "dim": 512, "depth": 6, "decoder_depth": 6, "num_heads": 8,
                    "mlp_ratio": 4.0, "activation": "silu"},
}
NORM_SCALE = 4.0  # factor of the last norm
FIRST_ID = 5  # first id that is not a special token
Texts = list[list[int]]


@dataclass(frozen=True)
class Search:
    """The size of the model and of the search.

    Args:
        shape: a key of `SHAPES`.
        tokens: generated tokens per text.
        source: tokens of each source.

    Raises:
        ValueError: an unknown shape, or a number below 1.
    """

    shape: str = "multi30k"
    beam: int = 5
    tokens: int = 64
    source: int = 16

    def __post_init__(self) -> None:
        if self.shape not in SHAPES:
            raise ArgumentError(f"shape {self.shape} is not one of {', '.join(SHAPES)}")
        for name in ("beam", "tokens", "source"):
            if getattr(self, name) < 1:
                raise ArgumentError(f"{name}={getattr(self, name)} must be at least 1")


def bench_generation(
    search: Search, settings: Settings, cases: list[Case], progress: Callable[[str], None] = print
) -> None:
    """Generate texts with each batch size, in float32, in eager mode or with the compiled decoding step.

    Raises:
        Unsupported: the compiled step on a GPU.
        ValueError: an engine generates other texts than this project. CTranslate2 may, because its rounding differs.
    """
    torch.manual_seed(0)
    sizes = {**SHAPES[search.shape], "max_len": max(search.tokens, search.source) + 1, "norm_eps": 1e-5}
    ours = Transformer(EncoderDecoderConfig(**sizes)).eval()
    with torch.no_grad():
        ours.decoder.blocks[-1].norm2.weight.mul_(NORM_SCALE)
    ours.to(settings.device)
    missing = missing_peers(settings)
    with contextlib.ExitStack() as stack:
        engines = build_engines(ours, search, settings, missing, stack)
        for mode, batch in itertools.product(settings.modes, settings.batches):
            size = {"shape": search.shape, "beam": search.beam, "tokens": search.tokens}
            setting = {**size, "mode": mode, "batch": batch}
            case = Case("generation", setting, "tokens", batch * search.tokens, missing=missing)
            progress(case.key)
            cases.append(case)
            source = torch.randint(FIRST_ID, ours.config.vocab_size, (batch, search.source), device=settings.device)
            own = Compiled(ours) if mode == "compiled" else ours
            compared = {OURS: partial(by_vit, own, search), **engines}
            measure(case, {name: partial(engine, source) for name, engine in compared.items()}, settings)


def missing_peers(settings: Settings) -> dict[str, str]:
    """Peers that cannot be measured, with the reason."""
    missing = {}
    for name in settings.against:
        try:
            check_generator(name, settings.clock)
        except MissingPeer as error:
            missing[name] = str(error)
    return missing


def check_generator(name: str, clock: str) -> None:
    """Checks that a library generates text, is installed, and can be measured with the clock.

    Raises:
        MissingPeer: names the reason.
    """
    if name not in GENERATION_PEERS:
        raise MissingPeer(f"{name} does not generate text")
    if name != UNCACHED:
        check_installed(name)
    if name == CT2 and clock == "processor":
        raise MissingPeer(f"{name} runs in another process, which the processor clock does not measure; use the wall "
                          "clock")


def build_engines(
    ours: Transformer, search: Search, settings: Settings, missing: dict[str, str], stack: contextlib.ExitStack
) -> dict[str, Callable[[Tensor], Texts]]:
    """For each peer, a function that maps source ids (B,S) to the ids of the best text of each row."""
    wanted = [name for name in settings.against if name not in missing]
    engines = {}
    if UNCACHED in wanted:
        engines[UNCACHED] = partial(by_vit, Uncached(ours), search)
    if {TRANSFORMERS, CT2} & set(wanted):
        theirs = marian(ours).to(settings.device)
        if TRANSFORMERS in wanted:
            engines[TRANSFORMERS] = partial(by_transformers, theirs, search.beam, search.tokens)
        if CT2 in wanted:  # last, because its converter changes the config
            engines[CT2] = stack.enter_context(translating(marian(ours), search.beam, search.tokens, settings.device))
    return engines


def by_vit(model: nn.Module, search: Search, source: Tensor) -> Texts:
    mask = torch.ones_like(source, dtype=torch.bool)
    settings = Generation(beam=search.beam, max_len=search.tokens, min_len=search.tokens)
    return [list(found[0].ids) for found in generate(model, source, mask, settings)]


def measure(case: Case, programs: dict[str, Program], settings: Settings) -> None:
    """Compare the texts of a first call, then time the rounds; the case records both.

    Raises:
        ValueError: an engine generates other texts.
    """
    texts = {name: program() for name, program in programs.items()}
    for name, rows in texts.items():
        same = statistics.mean(a == b for a, b in zip(texts[OURS], rows, strict=True))
        if name != CT2 and same < 1:
            raise ValueError(f"{name} generates other texts: only {same:.0%} of the rows are equal")
        case.facts[name] = {"same_results": same}
    in_turns(programs, settings.rounds, settings.read_clock, warmup=0, times=case.times)


