"""Masked-token pre-training: BERT (arXiv 1810.04805)."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from vit.models.build import ACTIVATIONS, build_norm, build_text_embed, build_text_encoder
from vit.models.config import TextConfig
from vit.nn import Encoder, Pooler, TokenEmbed, apply_linear
from vit.nn.activations import Activation
from vit.nn.init import init_weights


@dataclass(frozen=True, kw_only=True)
class MaskedTextConfig(TextConfig):
    """Configuration of a `Bert`: JSON-serializable and validated; the defaults are BERT-base, but for the initial
    weights: BERT has 0.02 as `init_std`, `token_std` and `position_std`.

    A `TextClassifierConfig` with the same values and pool "pooler" describes the classifier to fine-tune.
    """

    kind: ClassVar[str] = "masked_text"

    embed_norm: bool = True
    norm_eps: float = 1e-12
    pre_norm: bool = False
    dropout: float = 0.1
    attention_dropout: float = 0.1


class MaskedText(nn.Module):
    """Masked language model with next sentence prediction: token logits and sentence pair logits.

    `embed`, `encoder` and `pool` are named as in a `Classifier`, so that it loads them by name.

    Args:
        pool: (B,N,D) -> (B,D), input of `pair_head`.
        token_head: tokens (...,D) and the embedding -> logits (...,V).
        pair_head: (B,D) -> logits (B,2) of next sentence prediction.
    """

    def __init__(
        self, embed: TokenEmbed, encoder: Encoder, pool: nn.Module, token_head: nn.Module, pair_head: nn.Module
    ) -> None:
        super().__init__()
        self.embed, self.encoder, self.pool = embed, encoder, pool
        self.token_head, self.pair_head = token_head, pair_head

    def forward(
        self, source: Tensor, mask: Tensor | None = None, segment: Tensor | None = None, positions: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """ids, mask, segment (B,N) -> token logits (B,N,V), pair logits (B,2)

        Args:
            positions: (M,) indices into `ids.flatten()` of the tokens to predict; the token logits are then (M,V). This
                saves memory, because the vocabulary is large and only one token in seven is masked.
        """
        x = self.encode(source, mask, segment)  # (B,N,D)
        selected = x if positions is None else x.flatten(0, 1)[positions]  # (M,D)
        return self.token_head(selected, self.embed), self.pair_head(self.pool(x, mask))

    def encode(self, source: Tensor, mask: Tensor | None = None, segment: Tensor | None = None) -> Tensor:
        """ids, mask, segment (B,N) -> tokens (B,N,D)"""
        return self.encoder(self.embed(source, segment=segment), mask)

    def set_grad_checkpointing(self, enable: bool = True) -> None:
        """Recompute the activations of each block in the backward pass instead of storing them; named as in timm."""
        self.encoder.checkpointing = enable


class TokenHead(nn.Module):
    """Tokens to logits over the vocabulary, with the matrix of the embedding and a bias per id."""

    def __init__(self, vocab_size: int, dim: int, activation: Activation, norm: nn.Module) -> None:
        super().__init__()
        self.dense, self.activation, self.norm = nn.Linear(dim, dim), activation, norm
        self.bias = nn.Parameter(torch.zeros(vocab_size))

    def forward(self, x: Tensor, embed: TokenEmbed) -> Tensor:
        """(...,D) -> (...,V)"""
        return embed.logits(self.norm(apply_linear(self.dense, x, self.activation))) + self.bias


class Bert(MaskedText):
    """BERT with its pre-training heads (arXiv 1810.04805)."""

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
        init_weights(self, config.init_std, config.token_std, config.position_std)
