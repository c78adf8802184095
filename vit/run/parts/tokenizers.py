"""Tokenizers of a run: trained on its training texts, or those of the model or checkpoint it starts from."""

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from os.path import commonprefix
from pathlib import Path
from typing import Any

from vit.data import train_tokenizer
from vit.data.text.tokenizers import Tokenizer, tokenizer_from_dict
from vit.data.threads import StageProgress, reported
from vit.files.checkpoints import without_weights
from vit.messages import agree, number_of, quoted
from vit.run.config.composing import ConfigError, stated
from vit.run.config.overrides import checked, yaml_text
from vit.run.parts.init_from import Initial
from vit.weights import KeyReport

log = logging.getLogger("vit")

EMBEDDINGS = {"source": "embed.token.weight", "target": "target_embed.token.weight"}  # side -> its embeddings
CHECKED = 1000  # validation texts that are tokenized and decoded before training


def build_tokenizers(
    config: dict, texts: Mapping[str, Sequence[str]], initial: Initial | None, checkpoint: Path | None,
    progress: StageProgress | None = None,
) -> dict[str, Tokenizer]:
    """A tokenizer per side (`source`, `target`): the one of the resumed checkpoint or of `init_from`; otherwise one is
    trained on the texts as `data.tokenizer` describes, with `shared` one for both sides.

    Args:
        texts: the training texts of each side.

    Raises:
        ConfigError: overrides of `data.tokenizer` contradict a loaded tokenizer.
    """
    node = config["data"]["tokenizer"]
    known, origin = {}, f"init_from={config['init_from']}"
    if checkpoint:
        known, origin = load_tokenizers(checkpoint), f"resume={checkpoint}"
    elif initial is not None:
        known = initial.tokenizers
    found = {side: known[side] for side in texts if side in known}
    check_stated(config, found, origin)
    if found and checkpoint is None:
        check_training_options(config, found, len(texts))
    if len(texts) == 2 and node["shared"] and len(found) < 2:
        shared = next(iter(found.values())) if found else train(node, [*texts.values()], progress)
        found = dict.fromkeys(texts, shared)
    return {side: found[side] if side in found else train(node, [texts[side]], progress) for side in texts}


def load_tokenizers(checkpoint: Path) -> dict[str, Tokenizer]:
    """The tokenizers in the checkpoint of a run; none in those of the first versions, which train them again."""
    stored = without_weights(checkpoint)["config"].get("tokenizers") or {}
    if not stored:
        log.info("%s has no tokenizers; they are trained again on the training texts", checkpoint)
    return {side: tokenizer_from_dict(values) for side, values in stored.items()}


def train(node: dict, columns: Sequence[Sequence[str]], progress: StageProgress | None) -> Tokenizer:
    """A tokenizer that is trained on the texts of all columns."""
    options = {key: value for key, value in node.items() if key != "shared"}

    def lines() -> Iterator[str]:
        yield from reported(chain(*columns), "words of the texts", sum(map(len, columns)), progress)
        if progress and node["kind"] == "bpe":  # nothing reports how many are found
            progress("merges of the tokenizer", 0, None)

    return checked("data.tokenizer", train_tokenizer, {**options, "lines": lines()}, unpack=True)


def check_stated(config: dict, found: Mapping[str, Tokenizer], origin: str) -> None:
    """Checks the overrides of `data.tokenizer` against the loaded tokenizers.

    Raises:
        ConfigError: names the key and the value of the tokenizer.
    """
    node = config["data"]["tokenizer"]
    for key in sorted(stated(config["overrides"], "data.tokenizer")):
        for tokenizer in found.values():
            actual = {"kind": tokenizer.kind, "lower": tokenizer.lower, "vocab_size": tokenizer.vocab_size}.get(key)
            fits = actual in (None, node[key])
            if key == "vocab_size":  # an upper limit; the size of a byte tokenizer is fixed
                fits = tokenizer.kind == "byte" or actual <= node[key]
            if not fits:
                raise ConfigError(f"data.tokenizer.{key}={yaml_text(node[key])}, but the tokenizer of {origin}, whose "
                                  f"embeddings are loaded, has {key}={yaml_text(actual)}; leave the key out")


def check_training_options(config: dict, found: Mapping[str, Tokenizer], sides: int) -> None:
    """Checks the overrides of `data.tokenizer` that apply to the training of tokenizers, which those of `init_from`
    replace, and logs one without effect.

    Args:
        sides: number of tokenizers of the run.

    Raises:
        ConfigError: `shared` contradicts the tokenizers of both sides.
    """
    node, options = config["data"]["tokenizer"], stated(config["overrides"], "data.tokenizer")
    if "shared" in options and len(found) == 2 and any(tokenizer.kind != "byte" for tokenizer in found.values()):
        shared = found["source"].to_dict() == found["target"].to_dict()
        if node["shared"] != shared:
            raise ConfigError(f"data.tokenizer.shared={yaml_text(node['shared'])}, but init_from={config['init_from']} "
                              f"has {'one tokenizer' if shared else 'two tokenizers'} for its two sides; leave the key "
                              "out")
    if "min_frequency" in options and (len(found) == sides or found and node["shared"]):
        log.warning("data.tokenizer.min_frequency=%s has no effect: the tokenizer of init_from=%s is used",
                    node["min_frequency"], config["init_from"])


def check_embeddings(
    config: dict, tokenizers: Mapping[str, Tokenizer], initial: Initial, loaded: KeyReport
) -> KeyReport:
    """Checks that the loaded embeddings are those of the tokens of the run, and do not replace word vectors; returns
    the report.

    Raises:
        ConfigError: the embeddings of a side were loaded without the tokenizer that defines their token ids, unless
            these are bytes; or `model.vectors` was loaded before them.
    """
    rows = {row.name: row for row in loaded.rows if row.shape is not None and row.status != "new"}
    for side, tokenizer in tokenizers.items():
        if EMBEDDINGS[side] in rows and side not in initial.tokenizers and tokenizer.kind != "byte":
            raise ConfigError(f"init_from={initial.name} has embeddings of {tokenizer.vocab_size} tokens but no "
                              "tokenizer, so they cannot be matched to the tokens of the tokenizer trained here; use "
                              "the folder of its run, or another data.tokenizer.vocab_size for new embeddings")
    if (vectors := config["model"].get("vectors")) and EMBEDDINGS["source"] in rows:
        raise ConfigError(f"model.vectors={vectors} has no effect, because the embeddings of init_from={initial.name} "
                          "are loaded; set one of them to null")
    return loaded


def check_shared_embeddings(
    config: dict, tokenizers: Mapping[str, Tokenizer], initial: Initial | None, checkpoint: Path | None
) -> None:
    """Checks that source and target have the same tokens, for a model whose two sides share one embedding matrix
    (`tied=all`). Weights that an earlier version trained otherwise are still loaded, with a warning.

    Raises:
        ConfigError: each side has its own tokenizer. If both have the same size, no shape reveals it.
    """
    if tokenizers["source"].to_dict() == tokenizers["target"].to_dict():
        return
    problem = ("model.tied=all shares one embedding matrix, but source and target have tokenizers of their own, in "
               "which an id is another token")
    is_tied = initial is not None and initial.generates_text and (initial.model or {}).get("tied") == "all"
    if checkpoint is None and not is_tied:
        raise ConfigError(f"{problem}; set model.tied=target or data.tokenizer.shared=true")
    log.warning("%s; the loaded weights were trained so: a new model with model.tied=target may be better", problem)


def warn_of_lossy_texts(tokenizer: Tokenizer, references: Iterable[str]) -> None:
    """Logs how many of the first references the tokenizer cannot represent exactly, such as capitals by a lower-case
    one: they count as wrong.
    """
    decoded = [(text, tokenizer.decode(tokenizer.encode(text))) for text in islice(references, CHECKED)]
    changed = [(text, result) for text, result in decoded if text != result]
    if changed:
        text, result = changed[0]
        same = 0  # number of first characters that the message leaves out of a long text
        if len(text) > 60:
            same = max(len(commonprefix([text, result])) - 20, 0)
        log.warning("%d of the first %s cannot be generated exactly and %s as wrong, such as %s, "
                    "which the tokenizer changes to %s", len(changed),
                    number_of(len(decoded), "validation text"), agree(len(changed), "counts", "count"),
                    quoted(text[same:]), quoted(result[same:]))


def with_tokenizers(
    config: dict, tokenizers: Mapping[str, Tokenizer], use: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """The config in checkpoints, which also hold the tokenizers: without them embeddings are of no use.

    Args:
        use: what else a model loaded from the checkpoint needs to predict as it was trained to.
    """
    known = {side: tokenizer.to_dict() for side, tokenizer in tokenizers.items()}
    return {**config, "tokenizers": known, "use": dict(use or {})}
