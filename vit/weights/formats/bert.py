"""transformers' BERT (arXiv 1810.04805): for pre-training, as a classifier, or the encoder alone; import and export."""

import re
from collections.abc import Mapping
from typing import Any

import torch

from vit.weights.export_checks import ForeignWeights, check_exportable, original_vit_config, split_qkv
from vit.weights.formats.transformers_config import (
    check_model_type,
    common_config,
    declared_num_classes,
    dropout_config,
    parse_config,
    saved_class,
)
from vit.weights.renaming import NameMap, RenamedState
from vit.weights.weight_format import State, WeightFormat

LAYER, BLOCK = "bert.encoder.layer.{}.", "encoder.blocks.{}."
NAME_MAP = NameMap([
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
REDUNDANT = re.compile(r"cls\.predictions\.decoder\.|(bert\.)?embeddings\.position_ids$")  # tied, or implied by sizes
OLD_LEAVES = {".gamma": ".weight", ".beta": ".bias"}  # names of LayerNorm parameters in files of 2018
SIZES = {"max_position_embeddings": "max_len", "type_vocab_size": "segments", "vocab_size": "vocab_size"}
PRETRAINING_CLASSES = ("BertForPreTraining", "BertForMaskedLM")
POOLER = "pooler.dense.weight"
OTHER_CLASSES = {  # unsupported classes of transformers -> what they predict
    "BertForMultipleChoice": "a score of each of several choices",
    "BertForTokenClassification": "a class of each token",
    "BertLMHeadModel": "the next token",
}


def from_bert(state: State) -> RenamedState:
    """The state under vit's names, for a post-norm model with `norm_eps=1e-12`; queries, keys and values are fused.

    Raises:
        ValueError: the output layer is not tied to the embedding.
    """
    check_tied(state)
    needed = {name: tensor for name, tensor in state.items() if not REDUNDANT.match(name)}
    converted = RenamedState(needed, lambda name: NAME_MAP.to_vit(full_name(name)))
    converted.fuse(("q", "k", "v"), "qkv")
    if "embed.pos_embed" in converted:
        converted.make("embed.pos_embed", ["embed.pos_embed"], lambda table: table[None])  # (1,max_len,D)
    return converted


def check_tied(state: State) -> None:
    """Checks that the output layer of masked words has the embedding and the bias that it shares in vit.

    Raises:
        ValueError: it has tensors of its own.
    """
    for name, shared in (("cls.predictions.decoder.weight", TOKENS), ("cls.predictions.decoder.bias", TOKEN_BIAS)):
        if name in state and shared in state and not torch.equal(state[name], state[shared]):
            raise ValueError(f"{name} differs from {shared} (tie_word_embeddings=false), but in vit the output layer "
                             "of masked words is the embedding")


def to_bert(state: State, config: Any) -> ForeignWeights:
    """A text model as `BertForPreTraining`, `BertForSequenceClassification` or `BertModel` of transformers.

    Raises:
        ValueError: the config has a part that BERT lacks.
    """
    classifies = config.kind == "text_classifier"
    allowed = {"pre_norm": (False,), "embed_norm": (True,), "qkv_bias": (True,), "pool": ("pooler",),
               "positions": ("learned",)}
    check_exportable(config, "transformers' BERT", allowed, kind=config.kind)
    architecture = "BertForPreTraining"
    if classifies:
        architecture = "BertForSequenceClassification" if config.num_classes else "BertModel"
    foreign_config = {
        "architectures": [architecture], "model_type": "bert",
        "vocab_size": config.vocab_size, "max_position_embeddings": config.max_len,
        "type_vocab_size": config.segments or 1, **common_config(config), **dropout_config(config),
    }
    foreign = {NAME_MAP.to_foreign(name): tensor for name, tensor in split_qkv(state).items()}
    foreign[POSITIONS] = foreign[POSITIONS][0]  # (max_len,D)
    foreign.setdefault(SEGMENTS, torch.zeros(1, config.dim))
    if TOKEN_BIAS in foreign:  # the output layer is tied to the embedding, but transformers saves it as well
        foreign["cls.predictions.decoder.weight"] = foreign[TOKENS]
        foreign["cls.predictions.decoder.bias"] = foreign[TOKEN_BIAS]
    if architecture == "BertModel":
        foreign = {name.removeprefix("bert."): tensor for name, tensor in foreign.items()}
    return foreign_config, foreign


def is_bert(state: State) -> bool:
    names = ("embeddings.word_embeddings.weight", "embeddings.token_type_embeddings.weight")
    return any(all(prefix + name in state for name in names) for prefix in ("", "bert."))


def full_name(name: str) -> str:
    """The name in a model with heads and in current files: `BertModel` has no "bert." prefix, and files of 2018 name
    the parameters of a norm differently.
    """
    if name.startswith(("embeddings.", "encoder.layer.", "pooler.")):
        name = f"bert.{name}"
    for old, new in OLD_LEAVES.items():
        if "LayerNorm" in name and name.endswith(old):
            name = name.removesuffix(old) + new
    return name


def check_saved_class(state: State, source_config: Mapping[str, Any]) -> None:
    """Checks that vit has a model with the outputs of the saved class. The published `BertForMaskedLM` also have the
    pooler and the head for pairs of `BertForPreTraining`.

    Raises:
        ValueError: it has other outputs.
    """
    name = saved_class(source_config)
    alone = "to import the encoder alone, save it in transformers: model.bert.save_pretrained(FOLDER)"
    if name in OTHER_CLASSES:
        raise ValueError(f"the source is a {name}, which predicts {OTHER_CLASSES[name]}; vit does not support this; "
                         f"{alone}")
    if name == "BertForMaskedLM" and not any(f"{prefix}{POOLER}" in state for prefix in ("", "bert.")):
        raise ValueError(f"the source is a BertForMaskedLM without the pooler and the head for pairs of texts, which "
                         f"vit requires; {alone}")


def config_values(state: State, source_config: Mapping[str, Any]) -> dict[str, Any]:
    """Config values, from config.json; without config.json, those of published models.

    Raises:
        ValueError: the tensors are RoBERTa's, or the config describes another model, a decoder or other outputs.
    """
    check_model_type(source_config, ("bert",))
    check_saved_class(state, source_config)
    if source_config.get("is_decoder"):
        raise ValueError("the source's config has is_decoder=true, a BERT with causal attention, which vit does not "
                         "support")
    positions, segments = (state.get(name, state.get(name.removeprefix("bert."))) for name in (POSITIONS, SEGMENTS))
    if not source_config and positions is not None and len(segments) == 1 and len(positions) % 8 == 2:
        raise ValueError(f"a table of {len(positions)} positions and one segment belong to RoBERTa, which has BERT's "
                         "parameter names but counts positions from 2; it is not supported")
    stated = parse_config(source_config)
    own = {key: stated[key] for key in ("dim", "depth", "num_heads", "norm_eps", "activation") if key in stated}
    return {"norm_eps": 1e-12, "activation": "gelu", "pre_norm": False, **own}


def declared_config(state: State, source_config: Mapping[str, Any]) -> dict[str, Any]:
    """The declared config of a BERT with this config.json."""
    if source_config.get("model_type") is None:
        return {}
    declared = original_vit_config(
        pre_norm=False, embed_norm=True, qkv_bias=True, **declared_num_classes(source_config),
        mlp_ratio=source_config.get("intermediate_size", 3072) / source_config.get("hidden_size", 768))
    if name := saved_class(source_config):
        declared["kind"] = "masked_text" if name in PRETRAINING_CLASSES else "text_classifier"
    if "Classification" in name:
        declared["pool"] = "pooler"
    return declared | {own: source_config[key] for key, own in SIZES.items() if key in source_config}


BERT = WeightFormat("transformers BERT", is_bert, from_bert, config_values, declared_config=declared_config)
