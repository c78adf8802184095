"""`generate`: from sources to texts."""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from vit.generation.beam import beam_search
from vit.generation.ctc import rescore_with_ctc
from vit.generation.ensemble import Ensemble
from vit.generation.hypotheses import Hypothesis
from vit.generation.sampling import sample
from vit.generation.search_tree import SearchTree
from vit.generation.settings import Generation
from vit.generation.text_image_tta import augmented_images
from vit.generation.uncached import Uncached, needs_uncached
from vit.generation.utf8 import Utf8
from vit.nn.cpu.prepacked import autocast_dtype, fast_call, prepacked
from vit.nn.init import evaluating

CAPACITY = 32  # steps of initial cache capacity


def generate(
    models: nn.Module | Sequence[nn.Module],
    source: Tensor,
    source_mask: Tensor | None = None,
    settings: Generation | None = None,
    rows: Sequence[int] | None = None,
    utf8: Utf8 | None = None,
    record: list[SearchTree] | None = None,
) -> list[list[Hypothesis]]:
    """Generate the `n_best` texts of every source, best first; fewer if the search finds fewer.

    The texts of a source do not depend on the rest of the batch. Modules keep their training mode. A model that
    overrides or hooks its own or its decoder's `forward` runs without a cache, which would bypass it.

    Args:
        models: an `EncoderDecoder`, or an ensemble of models with one vocabulary, whose probabilities are averaged.
        source: ids (B,S) or images (B,C,H,W).
        source_mask: (B,S), False for padding among tokens or patches.
        settings: greedy search by default.
        rows: numbers of the sources, from which random numbers of sampling are derived; 0 ... B-1 by default.
        utf8: the constraint of the texts to valid UTF-8; None for none.
        record: a list to which the tree of the search of each source is appended; with `ctc` of the search before
            rescoring.

    Raises:
        ValueError: the model has no positions for tokens after the prefix, ids are out of range, `tta` or `ctc` are set
            for a source that is not an image, or `record` is given for sampling.
    """
    models, settings = [models] if isinstance(models, nn.Module) else list(models), settings or Generation()
    settings.check_vocabulary(min(model.vocab_size for model in models))
    names = list(range(len(source))) if rows is None else [int(row) for row in rows]
    first = torch.tensor([settings.bos, *settings.prefix], device=source.device).repeat(len(source), 1)  # (B,P)
    longest = max_tokens(models, first.shape[1], settings.max_len)
    trees = new_trees(record, len(source), settings)
    if len(source) == 0:
        return []
    with torch.inference_mode(), evaluating(*models):
        sources = augmented_images(source, source_mask, settings.tta) * len(models)
        models = [form_for_steps(model, source.device.type) for model in models]
        models = [model for model in models for _ in range(settings.tta)]
        capacity = first.shape[1] + settings.beam * min(longest, CAPACITY)
        ensemble = Ensemble(models, sources, source_mask, capacity, utf8)
        if settings.ctc:
            hypotheses = search(ensemble, first, replace(settings, n_best=settings.beam), longest, trees)
            return rescore_with_ctc(models, sources, source_mask, hypotheses, settings, longest, utf8)
        if not settings.sample:
            return search(ensemble, first, settings, longest, trees)
        return independent_samples(ensemble, first, settings, longest, names)


def independent_samples(
    ensemble: Ensemble, first: Tensor, settings: Generation, longest: int, names: Sequence[int]
) -> list[list[Hypothesis]]:
    """`n_best` samples of each source, best first, for the forced ids `first` (B,P) and the numbers of the sources."""
    times = settings.n_best
    if times > 1:
        ensemble.select_rows(torch.arange(len(first), device=first.device).repeat_interleave(times))
        first = first.repeat_interleave(times, dim=0)
    samples = sample(ensemble, first, settings, longest, [(name, nth) for name in names for nth in range(times)])
    texts = [samples[start : start + times] for start in range(0, len(samples), times)]
    return [sorted(each, key=lambda text: -text.score) for each in texts]


def new_trees(record: list[SearchTree] | None, count: int, settings: Generation) -> list[SearchTree]:
    """The trees of the next search, which are appended to the record; none without a record.

    Raises:
        ValueError: there is a record, but sampling does not search.
    """
    if record is None:
        return []
    if settings.sample:
        raise ValueError("a search tree needs a search, but sample=True draws tokens; use sample=False")
    trees = [SearchTree(settings) for _ in range(count)]
    record.extend(trees)
    return trees


def search(
    ensemble: Ensemble, first: Tensor, settings: Generation, longest: int, trees: Sequence[SearchTree] = ()
) -> list[list[Hypothesis]]:
    """The texts of greedy search or beam search for the forced ids `first` (B,P); `trees` as in `beam_search`."""
    if settings.beam > 1:
        return beam_search(ensemble, first, settings, longest, trees)
    counters = [(row,) for row in range(len(first))]
    return [[text] for text in sample(ensemble, first, settings, longest, counters, trees)]


def max_tokens(models: Sequence[nn.Module], forced: int, max_len: int) -> int:
    """Maximum number of tokens to generate; the last one needs no position, because it is not fed back.

    Raises:
        ValueError: the models have no position left after `forced` tokens.
    """
    limits = [model.max_len for model in models if model.max_len is not None]
    longest = min([max_len, *(limit - forced + 1 for limit in limits)])
    if longest < 1:
        raise ValueError(f"the text starts with {forced} forced tokens, but max_len of the model is {min(limits)}; "
                         "shorten the prefix")
    return longest


def form_for_steps(model: nn.Module, device: str) -> nn.Module:
    """The fastest equivalent form of a model for step-by-step generation on devices of the type `device`."""
    return Uncached(model) if needs_uncached(model) else fast_call(prepacked(model, autocast_dtype(device)))
