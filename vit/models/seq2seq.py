"""Sequence to sequence: the encoder reads a text or an image, the decoder generates a text."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vit.models.build import build_blocks, build_last_norm, build_text_rotary, build_text_table
from vit.models.checks import (
    CHOICES,
    TEXT_POSITIONS,
    check_block,
    check_heads,
    check_mixer,
    check_positions,
    check_values,
    current_names,
)
from vit.models.classifier import build_embed, build_rotary
from vit.models.config import ImageConfig, StackConfig
from vit.nn import Cache, Convolution, Decoder, Encoder, Local, PatchEmbed, TokenEmbed, apply_linear
from vit.nn.cpu.linear import Packed
from vit.nn.init import init_weights


class EncoderDecoder(nn.Module):
    """The encoder-decoder (arXiv 1706.03762) for texts or images as source.

    Args:
        embed: source -> tokens (B,S,D), a `TokenEmbed` or `PatchEmbed`.
        target_embed: target ids (B,T) -> tokens (B,T,D); also the output layer if there is no head.
        head: (B,T,D) -> logits (B,T,V); None to use the matrix of `target_embed`.
    """

    def __init__(
        self,
        embed: TokenEmbed | PatchEmbed,
        encoder: Encoder,
        target_embed: TokenEmbed,
        decoder: Decoder,
        head: nn.Module | None = None,
    ) -> None:
        super().__init__()
        self.embed, self.encoder = embed, encoder
        self.target_embed, self.decoder, self.head = target_embed, decoder, head
        has_windows = any(isinstance(part, (Local, Convolution)) for part in encoder.modules())
        self.padding_last = has_windows and isinstance(embed, PatchEmbed)  # of texts it is last already

    def forward(
        self,
        source: Tensor,
        target_in: Tensor,
        source_mask: Tensor | None = None,
        target_mask: Tensor | None = None,
        source_logits: bool = False,
    ) -> Tensor | tuple[Tensor, Tensor]:
        """source ids (B,S) or images (B,C,H,W), target_in ids (B,T) -> logits (B,T,V) of each next token

        Args:
            source_mask: (B,S), False for padding among tokens or patches.
            target_mask: (B,T); not needed if padding follows the text, because of the causal mask.
            source_logits: also return logits (B,S,V) of the source tokens or patches, for a CTC loss.
        """
        memory = self.encode(source, source_mask)  # (B,S,D)
        x = self.decoder(self.target_embed(target_in), memory, target_mask, self.memory_mask(source_mask))
        if not source_logits:
            return self.logits(x)
        return self.logits(x), self.logits(memory[:, getattr(self.embed, "prefix", 0) :])

    def encode(self, source: Tensor, source_mask: Tensor | None = None) -> Tensor:
        """ids (B,S) or images (B,C,H,W) -> memory (B,S,D), with class token and registers of images first

        Padding is at the end of each row of patches. For local attention and convolutions it is moved behind all rows,
        so that it does not separate them, and the memory has the original order.
        """
        if isinstance(self.embed, PatchEmbed):
            x, positions = self.embed(source, source_mask), self.embed.positions(source)
        else:
            x, positions = self.embed(source), None
        mask = self.memory_mask(source_mask)
        if mask is None or not self.padding_last:
            return self.encoder(x, mask, positions=positions)
        order = (~mask).byte().argsort(dim=1, stable=True)  # (B,S): the tokens of the image, then the padding
        index = order[..., None].expand_as(x)
        positions = order if positions is None else positions[order]
        memory = self.encoder(x.gather(1, index), mask.gather(1, order), positions=positions)
        return torch.zeros_like(memory).scatter(1, index, memory)

    def ctc_log_probs(self, source: Tensor, source_mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """images (B,C,H,W) -> CTC log-probabilities (B,columns,V), blank = `pad`, and the number of columns of each
        image that are not padding (B,). Meaningful after training with a CTC loss.
        """
        rows, columns = self.embed.size(source)
        mask = source.new_ones(len(source), rows * columns, dtype=torch.bool) if source_mask is None else source_mask
        patches = self.logits(self.encode(source, source_mask)[:, self.embed.prefix :])  # (B,rows*columns,V)
        logits, widths = column_means(patches.float(), mask, rows)
        return logits.log_softmax(-1), widths

    def memory_mask(self, source_mask: Tensor | None) -> Tensor | None:
        """mask (B,S) of tokens or patches -> mask (B,S) of the memory, which has the prefix tokens too"""
        prefix = getattr(self.embed, "prefix", 0)
        if source_mask is None or not prefix:
            return source_mask
        return F.pad(source_mask, (prefix, 0), value=True)

    def logits(self, x: Tensor, packed: Packed | None = None) -> Tensor:
        """(...,D) -> (...,V)"""
        return self.target_embed.logits(x, packed) if self.head is None else apply_linear(self.head, x)

    def start(self, source: Tensor, source_mask: Tensor | None = None, capacity: int = 64) -> Cache:
        """source (B,S) or images (B,C,H,W), source_mask (B,S) -> the cache for `advance`, with the encoded source"""
        return self.decoder.start(self.encode(source, source_mask), self.memory_mask(source_mask), capacity)

    def advance(self, ids: Tensor, cache: Cache, beam_mask: Tensor | None = None) -> Tensor:
        """The next ids (B,T) -> logits (B,1,V) of the token after the last of them.

        With `beam_mask`, as in `Decoder.advance`, the ids are those of T beams at one position -> logits (B,T,V).
        """
        if beam_mask is None:
            x = self.target_embed(ids, start=cache.position)  # (B,T,D)
        else:
            x = self.target_embed(ids.reshape(-1, 1), start=cache.position).view(*ids.shape, -1)
        x = self.decoder.advance(x, cache, beam_mask)
        return self.logits(x[:, -1:] if beam_mask is None else x, cache.packed)

    @property
    def vocab_size(self) -> int:
        """Number of target ids V."""
        return self.target_embed.token.num_embeddings

    @property
    def max_len(self) -> int | None:
        """Number of target positions; None for no limit."""
        tables = [self.target_embed.pos_embed, None if self.decoder.rotary is None else self.decoder.rotary.table]
        return min((table.shape[1] for table in tables if table is not None), default=None)

    @property
    def source_encoder(self) -> nn.ModuleDict:
        """Embedding and encoder, named as in a classifier: `load_weights(model.source_encoder, classifier_state)`."""
        return nn.ModuleDict({"embed": self.embed, "encoder": self.encoder})

    def set_grad_checkpointing(self, enable: bool = True) -> None:
        """Recompute the activations of each block in the backward pass instead of storing them; named as in timm."""
        self.encoder.checkpointing = self.decoder.checkpointing = enable


def column_means(patches: Tensor, mask: Tensor, rows: int) -> tuple[Tensor, Tensor]:
    """patches (B,rows*columns,V), mask (B,rows*columns), False for padding -> the mean of each column without padding
    (B,columns,V), and the number of columns that are not padding (B,)
    """
    valid = mask.unflatten(1, (rows, -1))  # (B,rows,columns)
    weights = valid / valid.sum(1, keepdim=True).clamp(min=1)
    return (patches.unflatten(1, (rows, -1)) * weights[..., None]).sum(1), valid.any(1).sum(1)


@dataclass(frozen=True, kw_only=True)
class EncoderDecoderConfig(StackConfig):
    """Configuration of a `Transformer`: JSON-serializable and validated; the defaults are those of arXiv 1706.03762.

    A modern form is `pre_norm=True, norm="rms", mlp="swiglu", positions="rotary", scale_embed=False`. With
    source="image" an `ImageToTextConfig` is constructed.

    Args:
        source: "text" or "image".
        vocab_size: number of target ids.
        source_vocab: number of source ids; `vocab_size` by default.
        max_len: maximum number of tokens, of source and target each.
        depth, decoder_depth: number of blocks of the encoder and of the decoder.
        mixer, decoder_mixer: the layer between the tokens of the encoder, and that between the target tokens: causal,
            as `mixer` by default. Cross-attention is always attention.
        scale_embed: multiply embeddings by sqrt(dim).
        tied: matrices that are shared: "none", target embedding and output layer ("target", arXiv 1608.05859), or those
            and the source embedding ("all").

    Raises:
        ValueError: a value is out of range, or values do not fit together.
    """

    kind: ClassVar[str] = "encoder_decoder"
    choices: ClassVar = {
        "positions": TEXT_POSITIONS,
        "source": ("text", "image"),
        "tied": ("none", "target", "all"),
        "block": ("serial", "res_post_norm"),  # parallel blocks have no cross-attention
    }

    source: str = "text"
    vocab_size: int
    source_vocab: int | None = None
    max_len: int = 512
    dim: int = 512
    depth: int = 6
    decoder_depth: int = 6
    decoder_mixer: str | None = None
    num_heads: int = 8
    positions: str = "sincos"
    scale_embed: bool = True
    tied: str = "all"
    pre_norm: bool = False
    activation: str = "relu"
    dropout: float = 0.1

    def __new__(cls, **values: Any) -> Self:
        is_image = cls is EncoderDecoderConfig and values.get("source") == "image"
        return super().__new__(ImageToTextConfig if is_image else cls)

    def __post_init__(self) -> None:
        check_values(self)
        check_heads(self)
        check_block(self)
        check_mixer(self)
        check_positions(self, axes=1)
        mixers = {"mixer": self.mixer, "decoder_mixer": self.decoder_mixer or self.mixer}
        other = next((key for key, value in mixers.items() if value != "attention"), None)
        if self.positions == "rotary" and other is not None:
            raise ValueError(f"positions=rotary act on the scores of self-attention in the encoder and in the decoder, "
                             f"but {other}={mixers[other]}; use positions=none, learned or sincos")
        if self.tied == "all" and self.source == "image":
            raise ValueError("tied=all needs source=text, because images have no ids; use tied=target")
        if self.tied == "all" and self.source_vocab not in (None, self.vocab_size):
            raise ValueError(f"tied=all needs one vocabulary, but source_vocab is {self.source_vocab} and vocab_size "
                             f"{self.vocab_size}; use tied=target")

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """The inverse of `to_dict`; keys of images, which former configs of text models have, are ignored.

        Raises:
            ValueError: an unknown key, a missing or an invalid value.
        """
        values = current_names(values)
        if values.get("source") == "image" and cls is EncoderDecoderConfig:
            return ImageToTextConfig.from_dict(values)
        unused = {field.name for field in fields(ImageToTextConfig)} - {field.name for field in fields(cls)}
        return super().from_dict({key: value for key, value in values.items() if key not in unused})


@dataclass(frozen=True, kw_only=True)
class ImageToTextConfig(EncoderDecoderConfig, ImageConfig):
    """Configuration of an image-to-text `Transformer`: that of the decoder, and of an encoder of images.

    Images smaller than `image_size` are accepted unless the stem is "conv".

    Raises:
        ValueError: a value is out of range, or values do not fit together.
    """

    # no relative positions, which need images of one size
    choices: ClassVar = EncoderDecoderConfig.choices | {"source": ("image",), "positions": CHOICES["positions"]}

    source: str = "image"
    class_token: bool = False

    def __post_init__(self) -> None:
        ImageConfig.__post_init__(self)
        EncoderDecoderConfig.__post_init__(self)


class Transformer(EncoderDecoder):
    """The Transformer for sequence to sequence (arXiv 1706.03762), and its image-to-text form."""

    def __init__(self, config: EncoderDecoderConfig) -> None:
        image, untied = config.source == "image", config.tied == "none"
        embed = build_source_embed(config)
        super().__init__(
            embed,
            Encoder(
                build_blocks(config),
                build_last_norm(config),
                rotary=build_rotary(config) if image else build_text_rotary(config, config.max_len),
            ),
            build_token_embed(config, config.vocab_size),
            Decoder(
                build_blocks(config, config.decoder_depth, decoder=True),
                build_last_norm(config),
                rotary=build_text_rotary(config, config.max_len),
            ),
            nn.Linear(config.dim, config.vocab_size, bias=False) if untied else None,
        )
        if config.tied == "all":
            self.target_embed.token = self.embed.token
        self.config = config
        init_weights(self, config.init_std, config.token_std, config.position_std)


def build_source_embed(config: EncoderDecoderConfig) -> TokenEmbed | PatchEmbed:
    if config.source == "text":
        return build_token_embed(config, config.source_vocab or config.vocab_size)
    return build_embed(config, flexible=config.stem != "conv")


def build_token_embed(config: EncoderDecoderConfig, vocab_size: int) -> TokenEmbed:
    return TokenEmbed(
        vocab_size,
        config.dim,
        pos_embed=build_text_table(config),
        scale=config.dim**0.5 if config.scale_embed else 1.0,
        dropout=config.dropout,
    )
