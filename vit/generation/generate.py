"""From sources to texts."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import torch
from torch import Tensor, nn

from vit.generation.beam import beam_search
from vit.generation.models import Writers
from vit.generation.settings import Generation, Hypothesis
from vit.generation.spelling import spelled
from vit.generation.uncached import Uncached, bypassed
from vit.generation.views import views
from vit.generation.walk import walk
from vit.nn.fast_call import fast_call

ROOM = 32  # steps that are made room for at first


def generate(
    models: nn.Module | Sequence[nn.Module],
    source: Tensor,
    source_mask: Tensor | None = None,
    settings: Generation | None = None,
    rows: Sequence[int] | None = None,
) -> list[list[Hypothesis]]:
    """For every source its `n_best` texts, best first; fewer where there are no more.

    A source gets the same texts alone and in any batch. Every module is left in the mode it was in. A model whose own
    or whose decoder's `forward` was overridden or hooked runs whole at every step, because the cache would bypass that.

    Args:
        models: an `EncoderDecoder`, or several of one vocabulary, the mean of whose probabilities counts.
        source: ids (B,S) or images (B,C,H,W).
        source_mask: (B,S), the real ones among tokens or patches.
        rows: numbers that name the sources when tokens are drawn: with its number a source draws the same tokens in any
            batch; by default they are counted from 0.

    Raises:
        ValueError: the model has no position for a single token after the forced ones, or knows no such id; views or
            columns of what is no image.
    """
    models, settings = [models] if isinstance(models, nn.Module) else list(models), settings or Generation()
    settings.check_vocabulary(min(model.vocab_size for model in models))
    names = list(range(len(source))) if rows is None else [int(row) for row in rows]
    first = torch.tensor([settings.bos, *settings.prefix], device=source.device).repeat(len(source), 1)  # (B,P)
    longest = room_left(models, first.shape[1], settings.max_len)
    if len(source) == 0:
        return []
    with torch.inference_mode(), evaluating(models):
        sources = views(source, source_mask, settings.views) * len(models)
        models = [model for model in map(stepping, models) for _ in range(settings.views)]
        writers = Writers(models, sources, source_mask, first.shape[1] + settings.beam * min(longest, ROOM))
        if settings.beam > 1 and settings.ctc:
            found = beam_search(writers, first, replace(settings, n_best=settings.beam), longest)
            return spelled(models, sources, source_mask, found, settings, longest)
        if settings.beam > 1:
            return beam_search(writers, first, settings, longest)
        times = settings.n_best  # lines of a row that go their own ways
        if times > 1:
            writers.select_rows(torch.arange(len(source), device=source.device).repeat_interleave(times))
            first = first.repeat_interleave(times, dim=0)
        found = walk(writers, first, settings, longest, [(name, nth) for name in names for nth in range(times)])
    texts = [found[start : start + times] for start in range(0, len(found), times)]
    return [sorted(each, key=lambda text: -text.score) for each in texts]


def room_left(models: Sequence[nn.Module], forced: int, max_len: int) -> int:
    """How many tokens may be chosen: the last one needs no position, for nothing follows it."""
    limits = [model.max_len for model in models if model.max_len is not None]
    longest = min([max_len, *(limit - forced + 1 for limit in limits)])
    if longest < 1:
        raise ValueError(f"the text begins with {forced} forced tokens, but max_len of the model is {min(limits)}; "
                         "shorten the prefix")
    return longest


@contextmanager
def evaluating(models: Sequence[nn.Module]) -> Iterator[None]:
    """Without dropout inside; afterwards every module is in the mode it was in."""
    modes = {module: module.training for model in models for module in model.modules()}
    for model in models:
        model.eval()
    try:
        yield
    finally:
        for module, mode in modes.items():
            module.training = mode


def stepping(model: nn.Module) -> nn.Module:
    """The quickest form of a model that computes what its `forward` does."""
    return Uncached(model) if bypassed(model) else fast_call(model)
