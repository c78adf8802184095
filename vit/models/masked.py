"""Masked pre-training: an encoder learns from what was hidden from it. Its text form is BERT (arXiv 1810.04805)."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from vit.models.build import ACTIVATIONS, build_norm, build_text_embed, build_text_encoder
from vit.models.config import TextConfig
from vit.nn import Encoder, Pooler, TokenEmbed, apply_linear
from vit.nn.init import init_weights
from vit.nn.mlp import Activation


@dataclass(frozen=True, kw_only=True)
class MaskedTextConfig(TextConfig):
    """The values that fix a `Bert`, JSON-able and checked; the defaults are BERT-base.

    A `TextClassifierConfig` of the same values and pool "pooler" is the classifier to fine-tune.
    """

    kind: ClassVar[str] = "masked_text"

    embed_norm: bool = True
    norm_eps: float = 1e-12
    pre_norm: bool = False
    dropout: float = 0.1
    attention_dropout: float = 0.1


class MaskedText(nn.Module):
    """Reads texts with hidden tokens, and tells for each place the token and for each text whether its halves belong.

    `embed`, `encoder` and `pool` are named as in a `Classifier`, which takes them over by their names.

    Args:
        pool: (B,N,D) -> (B,D), what the answer on the pair is read from.
        token_head: (...,D), the embedding -> logits (...,V).
        pair_head: (B,D) -> (B,2).
    """

    def __init__(
        self, embed: TokenEmbed, encoder: Encoder, pool: nn.Module, token_head: nn.Module, pair_head: nn.Module
    ) -> None:
        super().__init__()
        self.embed, self.encoder, self.pool = embed, encoder, pool
        self.token_head, self.pair_head = token_head, pair_head

    def forward(
        self, source: Tensor, mask: Tensor | None = None, segment: Tensor | None = None, places: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """ids, mask, segment (B,N) -> token logits (B,N,V), pair logits (B,2)

        Args:
            places: (M,) numbers of the tokens that are asked for, counted through the batch as in `ids.flatten()`; the
                token logits are then (M,V). A vocabulary is wide, and only one token in seven is asked for.
        """
        x = self.encode(source, mask, segment)  # (B,N,D)
        asked = x if places is None else x.flatten(0, 1)[places]  # (M,D)
        return self.token_head(asked, self.embed), self.pair_head(self.pool(x, mask))

    def encode(self, source: Tensor, mask: Tensor | None = None, segment: Tensor | None = None) -> Tensor:
        """ids (B,N) -> tokens (B,N,D)"""
        return self.encoder(self.embed(source, segment=segment), mask)

    def set_grad_checkpointing(self, enable: bool = True) -> None:
        """Compute each block's activations again in the backward pass instead of keeping them; named as in timm."""
        self.encoder.checkpointing = enable


class TokenHead(nn.Module):
    """From a token to logits over the vocabulary, through the embedding's own matrix and a bias per id."""

    def __init__(self, vocab_size: int, dim: int, activation: Activation, norm: nn.Module) -> None:
        super().__init__()
        self.dense, self.activation, self.norm = nn.Linear(dim, dim), activation, norm
        self.bias = nn.Parameter(torch.zeros(vocab_size))

    def forward(self, x: Tensor, embed: TokenEmbed) -> Tensor:
        """(...,D) -> (...,V)"""
        return embed.logits(self.norm(self.activation(apply_linear(self.dense, x)))) + self.bias


class Bert(MaskedText):
    """BERT as it is pre-trained, as `config` says."""

    def __init__(self, config: MaskedTextConfig) -> None:
        norm = build_norm(config)(config.dim)
        super().__init__(
            build_text_embed(config),
            build_text_encoder(config),
            Pooler(config.dim),
            TokenHead(config.vocab_size, config.dim, ACTIVATIONS[config.activation], norm),
            nn.Linear(config.dim, 2),
        )
        self.config = config
        init_weights(self)
