"""Tokenizers of a run: learned from its training texts, or those of the model or checkpoint it starts from."""

from collections.abc import Iterable, Mapping
from itertools import chain
from pathlib import Path
from typing import Any

from vit.data import PairSource, train_tokenizer
from vit.data.text.tokenizers import Tokenizer, tokenizer_from_dict
from vit.run.config.checked import checked
from vit.run.config.composing import ConfigError, stated
from vit.run.parts.init_from import Initial
from vit.run.resume import without_weights


def build_tokenizer(
    config: dict, texts: Iterable[str], initial: Initial | None = None, checkpoint: Path | None = None
) -> Tokenizer:
    """The tokenizer of what is read, where nothing is written."""
    return build(config, {"source": texts}, initial, checkpoint)["source"]


def build_tokenizers(
    config: dict, source: PairSource, initial: Initial | None = None, checkpoint: Path | None = None
) -> dict[str, Tokenizer]:
    """Those of both sides: one for both if `shared`; images need none."""
    train = source.splits["train"]
    read = {} if source.images else {"source": train.sources}
    return build(config, {**read, "target": train.targets}, initial, checkpoint)


def build(
    config: dict, texts: Mapping[str, Iterable[str]], initial: Initial | None, checkpoint: Path | None
) -> dict[str, Tokenizer]:
    """A tokenizer for each side: that of the checkpoint which is resumed, that of `init_from`, else one learnt as the
    node `data.tokenizer` says.
    """
    words = config["data"]["tokenizer"]
    known = kept(checkpoint) if checkpoint else (initial.tokenizers or {}) if initial is not None else {}
    found = {side: known[side] for side in texts if side in known}
    check_stated(config, found, f"resume={checkpoint}" if checkpoint else f"init_from={config['init_from']}")
    if len(texts) == 2 and words["shared"] and len(found) < 2:
        both = next(iter(found.values()), None) or learn(words, chain(*texts.values()))
        return dict.fromkeys(texts, both)
    found = {side: found[side] if side in found else learn(words, texts[side]) for side in texts}
    if initial is not None and not known:
        check_numbering(initial, found)
    return found


def kept(checkpoint: Path) -> dict[str, Tokenizer]:
    """Those that a run put into its checkpoint."""
    stored = without_weights(checkpoint)["config"]["tokenizers"]
    return {side: tokenizer_from_dict(values) for side, values in stored.items()}


def learn(words: dict, texts: Iterable[str]) -> Tokenizer:
    options = {key: value for key, value in words.items() if key != "shared"}
    return checked("data.tokenizer", train_tokenizer, {**options, "lines": texts}, spread=True)


def check_stated(config: dict, found: Mapping[str, Tokenizer], origin: str) -> None:
    """A tokenizer that comes along is not learnt again, so words on it must be true of it.

    Raises:
        ConfigError: names the key and the value of the tokenizer.
    """
    words = config["data"]["tokenizer"]
    for key in sorted(stated(config["words"], "data.tokenizer")):
        for tokenizer in found.values():
            seen = {"kind": tokenizer.kind, "lower": tokenizer.lower, "vocab_size": tokenizer.vocab_size}.get(key)
            fits = seen is None or (seen <= words[key] if key == "vocab_size" else seen == words[key])
            if key == "vocab_size" and tokenizer.kind == "byte":  # of which there are as many as there are
                fits = True
            if not fits:
                raise ConfigError(f"data.tokenizer.{key}={plain(words[key])}, but the tokenizer that comes along with "
                                  f"{origin} has {key}={plain(seen)}, and its embeddings know no other; leave the key "
                                  "out")


def check_numbering(initial: Initial, found: Mapping[str, Tokenizer]) -> None:
    """Embeddings are taken over where there are as many, so the tokenizer that numbered them must come along.

    Raises:
        ConfigError: it does not, as in weights of others and in checkpoints that were written without it.
    """
    count = (initial.model or {}).get("vocab_size")
    if any(tokenizer.vocab_size == count for tokenizer in found.values()):
        raise ConfigError(f"init_from={initial.name} has embeddings of {count} tokens without the tokenizer that "
                          "numbered them, and each would stand for another token of the one learnt here; take the "
                          "folder of its run, or another data.tokenizer.vocab_size, for new embeddings")


def with_tokenizers(
    config: dict, tokenizers: Mapping[str, Tokenizer], use: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """A config as it goes into checkpoints: weights of embeddings are of use only with what numbers the tokens.

    Args:
        use: what else a model that is made of the checkpoint must know to answer as it was trained to.
    """
    known = {side: tokenizer.to_dict() for side, tokenizer in tokenizers.items()}
    return {**config, "tokenizers": known, "use": dict(use or {})}


def plain(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
