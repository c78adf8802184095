"""Tokenizers of a run: learned from its training texts, or those of the model it starts from."""

from collections.abc import Iterable
from itertools import chain

from vit.data import PairSource, train_tokenizer
from vit.data.text import Tokenizer
from vit.launch.build import checked
from vit.launch.initial import Initial


def build_tokenizer(words: dict, texts: Iterable[str], initial: Initial | None = None) -> Tokenizer:
    """One tokenizer as the node `data.tokenizer` says."""
    if initial is not None and "source" in (initial.tokenizers or {}):
        return initial.tokenizers["source"]
    options = {key: value for key, value in words.items() if key != "shared"}
    return checked("data.tokenizer", train_tokenizer, {**options, "lines": texts}, spread=True)


def build_tokenizers(words: dict, source: PairSource, initial: Initial | None = None) -> dict[str, Tokenizer]:
    """Those of both sides: one for both if `shared`; images need none."""
    known = (initial.tokenizers or {}) if initial is not None else {}
    if "target" in known and (source.images or "source" in known):
        return known
    train = source.splits["train"]
    if source.images:
        return {"target": build_tokenizer(words, train.targets)}
    if words["shared"]:
        both = build_tokenizer(words, chain(train.sources, train.targets))
        return {"source": both, "target": both}
    return {"source": build_tokenizer(words, train.sources), "target": build_tokenizer(words, train.targets)}
