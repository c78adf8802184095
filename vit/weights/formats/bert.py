"""transformers' BERT, in pre-training, as a classifier or alone: its names to ours, and ours back."""

import re
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from vit.weights.exporting import Written, fixed, parted, require
from vit.weights.formats.transformers import (
    architecture,
    check_model_type,
    declared_classes,
    dropout_words,
    read_config,
    shared_words,
)
from vit.weights.renaming import Names, Renamed
from vit.weights.weight_format import Format, State

LAYER, BLOCK = "bert.encoder.layer.{}.", "encoder.blocks.{}."
NAMES = Names([
    ("bert.embeddings.word_embeddings.weight", "embed.token.weight"),
    ("bert.embeddings.position_embeddings.weight", "embed.pos_embed"),
    ("bert.embeddings.token_type_embeddings.weight", "embed.segment.weight"),
    ("bert.embeddings.LayerNorm.", "embed.norm."),
    (LAYER + "attention.self.query.", BLOCK + "attn.q."),
    (LAYER + "attention.self.key.", BLOCK + "attn.k."),
    (LAYER + "attention.self.value.", BLOCK + "attn.v."),
    (LAYER + "attention.output.dense.", BLOCK + "attn.proj."),
    (LAYER + "attention.output.LayerNorm.", BLOCK + "norm1."),
    (LAYER + "intermediate.dense.", BLOCK + "mlp.fc1."),
    (LAYER + "output.dense.", BLOCK + "mlp.fc2."),
    (LAYER + "output.LayerNorm.", BLOCK + "norm2."),
    ("bert.pooler.dense.", "pool.dense."),
    ("cls.predictions.transform.dense.", "token_head.dense."),
    ("cls.predictions.transform.LayerNorm.", "token_head.norm."),
    ("cls.predictions.bias", "token_head.bias"),
    ("cls.seq_relationship.", "pair_head."),
    ("classifier.", "head."),
])
TOKENS, TOKEN_BIAS = "bert.embeddings.word_embeddings.weight", "cls.predictions.bias"
POSITIONS = "bert.embeddings.position_embeddings.weight"
SEGMENTS = "bert.embeddings.token_type_embeddings.weight"
# what a file holds a second time, or what follows from the sizes
REPEATED = re.compile(r"cls\.predictions\.decoder\.|(bert\.)?embeddings\.position_ids$")
OLD = {".gamma": ".weight", ".beta": ".bias"}  # of a LayerNorm in files of 2018


def from_bert(state: State) -> dict[str, Tensor]:
    """transformers' names -> ours; queries, keys and values become one matrix. Wants `norm_eps=1e-12`, post-norm."""
    first = {name: tensor for name, tensor in state.items() if not REPEATED.match(name)}
    ours = Renamed(first, lambda name: NAMES.ours(full_name(name)))
    ours.fuse(("q", "k", "v"), "qkv")
    if "embed.pos_embed" in ours:
        ours.make("embed.pos_embed", ["embed.pos_embed"], lambda table: table[None])  # (1,max_len,D)
    return ours


def to_bert(state: State, config: Any) -> Written:
    """A model that reads texts as transformers' `BertForPreTraining`, `BertForSequenceClassification` or `BertModel`.

    Raises:
        ValueError: none of these can be this network.
    """
    whose, classifies = "transformers' BERT", config.kind == "text_classifier"
    also = {"pre_norm": (False,), "embed_norm": (True,), "qkv_bias": (True,), "pool": ("pooler",),
            "positions": ("learned",)}
    require(config, whose, also, kind=config.kind)
    named = ("SequenceClassification" if config.num_classes else "") if classifies else "PreTraining"
    said = {"architectures": [f"BertFor{named}" if named else "BertModel"], "model_type": "bert"}
    sizes = {"vocab_size": config.vocab_size, "max_position_embeddings": config.max_len,
             "type_vocab_size": config.segments or 1}
    theirs = {NAMES.theirs(name): tensor for name, tensor in parted(state).items()}
    theirs[POSITIONS] = theirs[POSITIONS][0]  # (max_len,D)
    theirs.setdefault(SEGMENTS, torch.zeros(1, config.dim))
    if TOKEN_BIAS in theirs:  # the decoder's matrix and bias are tied there as well, and saved twice
        theirs |= {"cls.predictions.decoder.weight": theirs[TOKENS], "cls.predictions.decoder.bias": theirs[TOKEN_BIAS]}
    if not named:
        theirs = {name.removeprefix("bert."): tensor for name, tensor in theirs.items()}
    return {**said, **sizes, **shared_words(config), **dropout_words(config)}, theirs


def is_bert(state: State) -> bool:
    names = ("embeddings.word_embeddings.weight", "embeddings.token_type_embeddings.weight")
    return any(all(prefix + name in state for name in names) for prefix in ("", "bert."))


def full_name(name: str) -> str:
    """A `BertModel` alone leaves the first word out, and old files call a norm's parameters differently."""
    if name.startswith(("embeddings.", "encoder.layer.", "pooler.")):
        name = f"bert.{name}"
    for old, new in OLD.items():
        if "LayerNorm" in name and name.endswith(old):
            name = name.removesuffix(old) + new
    return name


def facts(state: State, source_config: Mapping[str, Any]) -> dict[str, Any]:
    """BERT normalises after each branch; the rest from its config.json.

    Raises:
        ValueError: one of the models that bear BERT's names, but count their positions from another number.
    """
    check_model_type(source_config, ("bert",))
    positions, segments = (state.get(name, state.get(name.removeprefix("bert."))) for name in (POSITIONS, SEGMENTS))
    if not source_config and positions is not None and len(segments) == 1 and len(positions) % 8 == 2:
        raise ValueError(f"a table of {len(positions)} positions and one segment are RoBERTa's, which has BERT's "
                         "names, but counts positions from 2; it is no model of ours")
    stated = read_config(source_config)
    own = {key: stated[key] for key in ("dim", "depth", "num_heads", "norm_eps", "activation") if key in stated}
    return {"norm_eps": 1e-12, "activation": "gelu", "pre_norm": False, **own}


def declared(state: State, source_config: Mapping[str, Any]) -> dict[str, Any]:
    """Every part of a BERT of this config.json."""
    if source_config.get("model_type") is None:
        return {}
    name, sizes = architecture(source_config), {"max_position_embeddings": "max_len", "type_vocab_size": "segments",
                                                "vocab_size": "vocab_size"}
    kind = {"kind": "masked_text" if name in ("BertForPreTraining", "BertForMaskedLM") else "text_classifier"}
    parts = fixed(pre_norm=False, embed_norm=True, qkv_bias=True, **declared_classes(source_config),
                  mlp_ratio=source_config.get("intermediate_size", 3072) / source_config.get("hidden_size", 768))
    parts |= kind if name else {}
    parts |= {"pool": "pooler"} if "Classification" in name else {}
    return parts | {ours: source_config[theirs] for theirs, ours in sizes.items() if theirs in source_config}


BERT = Format("transformers BERT", is_bert, from_bert, facts, declared=declared)
