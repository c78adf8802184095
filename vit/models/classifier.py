"""Classification: embed, encoder, pool, head. For images this is the Vision Transformer."""

import math
from collections.abc import Iterable, Sequence
from functools import partial

from torch import Tensor, nn

from vit import nn as parts
from vit.models.build import ACTIVATIONS, ROTARY_PAIRS, build_blocks, build_head, build_norm
from vit.models.checks import fixed_size_reason
from vit.models.config import ImageConfig, VisionTransformerConfig
from vit.nn import Attention, Encoder, Heads, MixedRotary, PatchDropout, PatchEmbed, Prefix, Rotary
from vit.nn.embed import patch_grid
from vit.nn.init import init_weights
from vit.nn.position import SINCOS_TABLES, fixed_table
from vit.nn.rotary import Coordinates
from vit.nn.stem import Stem
from vit.packed_images import PackedImages

STEMS = {
    "normed": parts.NormedPatches,
    "conv": parts.ConvStem,
    "compact": parts.CompactStem,
    "masked_conv": parts.MaskedConvStem,
    "pooled_conv": parts.PooledConvStem,
}


class Classifier(nn.Module):
    """Images or texts to logits over classes.

    Args:
        embed: input -> tokens (B,N,D), such as `PatchEmbed`.
        encoder: (B,N,D) -> (B,N,D).
        pool: (B,N,D) -> (B,D).
        head: (B,D) -> (B,classes).

    In training the last block computes only the tokens on which the logits depend, if these are the first ones;
    `encode` and `features` compute all tokens.

    Attributes:
        pooled_tokens: number of first tokens on which the logits depend with a pooling of the first token.
        pooled_only: whether the last block computes only these in evaluation too.
    """

    def __init__(self, embed: nn.Module, encoder: Encoder, pool: nn.Module, head: nn.Module) -> None:
        super().__init__()
        self.embed, self.encoder, self.pool, self.head = embed, encoder, pool, head
        self.pooled_tokens, self.pooled_only = 1, False

    def forward(self, source: Tensor, mask: Tensor | None = None, segment: Tensor | None = None) -> Tensor:
        """images (B,C,H,W), or ids (B,N) with a mask (B,N) and segments (B,N) -> logits (B,classes)"""
        x = self.encode(source, mask, segment, first=self.first())  # (B,N,D)
        return parts.apply_linear(self.head, self.pool(x, mask))

    def encode(
        self,
        source: Tensor,
        mask: Tensor | None = None,
        segment: Tensor | None = None,
        features: list[Tensor] | None = None,
        first: int | None = None,
    ) -> Tensor:
        """images (B,C,H,W), or ids and segments (B,N) -> tokens (B,N,D)

        Args:
            features: a list to which the output (B,N,D) of each block is appended.
            first: as in `Encoder.forward`.
        """
        x = self.embed(source) if segment is None else self.embed(source, segment=segment)
        return self.encoder(x, mask, grid=self.scaled_grid(source), features=features, first=first)

    def first(self) -> int | None:
        """Number of first tokens that a forward pass computes in the last block; None for all."""
        pooled_only = (self.training or self.pooled_only) and type(self.pool) in (parts.ClassToken, parts.Pooler)
        return self.pooled_tokens if pooled_only else None

    def scaled_grid(self, source: Tensor) -> tuple[int, int] | None:
        """The grid of images whose resolution differs from the model's; None for all other inputs."""
        return None

    def features(
        self,
        source: Tensor,
        blocks: Sequence[int] | None = None,
        mask: Tensor | None = None,
        segment: Tensor | None = None,
    ) -> list[Tensor]:
        """Outputs of the selected blocks, [(B,N,D), ...]; None for all, negative indices count from the end.

        They are not normalized; apply `model.encoder.norm` where needed.
        """
        features: list[Tensor] = []
        self.encode(source, mask, segment, features)
        return features if blocks is None else [features[i] for i in blocks]

    def set_grad_checkpointing(self, enable: bool = True) -> None:
        """Recompute the activations of each block in the backward pass instead of storing them; named as in timm."""
        self.encoder.checkpointing = enable


class VisionTransformer(Classifier):
    """The Vision Transformer (arXiv 2010.11929) and its variants, with distillation token if configured (arXiv
    2012.12877).
    """

    def __init__(self, config: VisionTransformerConfig) -> None:
        embed = build_embed(config, dist_token=config.dist_token)
        super().__init__(embed, build_encoder(config), build_pool(config), build_head(config))
        self.head_dist = build_head(config) if config.dist_token else None
        self.pooled_tokens = 2 if config.dist_token else 1
        self.distilled_training = False
        self.config = config
        init_weights(self, config.init_std, config.token_std, config.position_std)

    def forward(
        self, source: Tensor | PackedImages, mask: Tensor | None = None, segment: Tensor | None = None
    ) -> Tensor | tuple[Tensor, Tensor]:
        """images (B,C,H,W), or B images of different sizes -> logits (B,classes); with a distillation token the mean of
        both heads, as in the code of DeiT (its paper adds their probabilities), or in distilled training a tuple
        """
        if isinstance(source, PackedImages):
            return self.packed_logits(source)
        if self.head_dist is None:
            return super().forward(source, mask, segment)
        return self.distilled_logits(self.encode(source, mask, segment, first=self.first()), mask)

    def packed_logits(self, images: PackedImages) -> Tensor | tuple[Tensor, Tensor]:
        """B images of different sizes -> logits (B,classes), with a distillation token as in `forward`"""
        x, mask = self.encode_packed(images)
        if self.head_dist is not None:
            return self.distilled_logits(x, mask)
        return parts.apply_linear(self.head, self.pool(x, mask))

    def distilled_logits(self, x: Tensor, mask: Tensor | None) -> Tensor | tuple[Tensor, Tensor]:
        """x (B,N,D), mask (B,N) -> the mean (B,classes) of both heads, or in distilled training a tuple of both"""
        logits, distilled = self.head(self.pool(x, mask)), self.head_dist(x[:, 1])
        return (logits, distilled) if self.training and self.distilled_training else (logits + distilled) / 2

    def encode_packed(self, images: PackedImages) -> tuple[Tensor, Tensor | None]:
        """B images of different sizes -> tokens (B,N,D), padded after the encoder, and their mask (B,N); the mask is
        None if all images have equally many tokens
        """
        x, packing = self.embed.packed(images.patches, images.grids)  # (1,T,D)
        return packing.padded(self.encoder.packed(x, packing))

    def scaled_grid(self, source: Tensor) -> tuple[int, int] | None:
        """images (B,C,H,W) -> their grid, if `add_image_sizes` added it, otherwise None"""
        return self.embed.scaled_grid(source) if self.embed.scaled_grids else None

    def add_image_sizes(self, sizes: Iterable[tuple[int, int]]) -> None:
        """Also accept images that were scaled to other sizes (height, width). Position tables are resampled, and rotary
        positions get the coordinates of the same points in an image of full size.

        Raises:
            ValueError: a size is not divisible by the patch size, or a part of the model depends on the grid.
        """
        config = self.config
        if reason := fixed_size_reason(config.to_dict()):
            raise ValueError(f"{reason}, so that this model has one image_size")
        grids = {patch_grid(size, config.patch_size) for size in sizes} - {config.grid}  # (rows, columns)
        self.embed.scaled_grids |= grids
        if self.encoder.rotary is not None:
            for grid in sorted(grids):
                self.encoder.rotary.add_grid(grid)

    def set_distilled_training(self, enable: bool = True) -> None:
        """In training, return the logits of class token and distillation token separately; named as in timm."""
        self.distilled_training = enable


def build_embed(config: ImageConfig, flexible: bool = False, dist_token: bool = False) -> PatchEmbed:
    """The embedding of an image model: stem, tokens before the patches, and position table."""
    return PatchEmbed(
        build_stem(config),
        config.image_size,
        prefix=Prefix(config.class_token, dist_token, config.registers),
        pos_embed=build_table(config),
        norm=build_norm(config)(config.dim) if config.embed_norm else None,
        flexible=flexible,
        dropout=config.dropout,
    )


def build_stem(config: ImageConfig) -> Stem:
    if config.stem != "linear":
        return STEMS[config.stem](config.in_chans, config.dim, config.patch_size)
    norm = build_norm(config)(config.dim) if config.patch_norm else None
    return parts.LinearPatches(config.in_chans, config.dim, config.patch_size, config.patch_bias, norm)


def build_table(config: ImageConfig) -> Tensor | None:
    """The position table of the tokens, (1,N,D), or None."""
    if config.positions in ("learned", "learned_rotary"):
        return parts.learned(math.prod(config.grid) + (config.prefix if config.prefix_positions else 0), config.dim)
    if config.positions not in SINCOS_TABLES:
        return None
    return fixed_table(config.positions, config.grid, config.dim, config.sincos_channels)


def build_encoder(config: VisionTransformerConfig) -> Encoder:
    rotary = build_rotary(config)
    patch_dropout = PatchDropout(config.patch_dropout, config.prefix) if config.patch_dropout else None
    norm = build_norm(config)(config.dim) if config.final_norm == "tokens" else nn.Identity()
    return Encoder(build_blocks(config), norm, rotary=rotary, patch_dropout=patch_dropout)


def build_rotary(config: ImageConfig) -> Rotary | MixedRotary | None:
    """The rotary positions of an image, or None."""
    if config.positions not in ("rotary", "learned_rotary"):
        return None
    pairs = ROTARY_PAIRS[config.rotary_pairs]
    if config.rotary_mixed:
        return MixedRotary(config.grid, config.head_width, config.depth, config.num_heads, config.prefix,
                           config.rotary_theta, build_coordinates(config), config.rotary_columns_first, pairs)
    return Rotary(config.grid, config.head_width, config.prefix, config.rotary_theta, build_coordinates(config),
                  config.rotary_columns_first, pairs)


def build_coordinates(config: ImageConfig) -> Coordinates:
    if config.rotary_coordinates == "centred":
        return parts.centred
    if config.rotary_span is None:
        return partial(parts.steps, offset=config.rotary_offset)
    return partial(parts.stretched, span=config.rotary_span, offset=config.rotary_offset)


def build_pool(config: VisionTransformerConfig) -> nn.Module:
    """The pooling of an image classifier, with the last norm if `final_norm` is "pooled"."""
    norm = build_norm(config)
    last = norm(config.dim) if config.final_norm == "pooled" else None
    prefix = 0 if config.pool_prefix else config.prefix
    if config.pool == "class":
        return parts.ClassToken(last)
    if config.pool in ("mean", "sum"):
        return (parts.Mean if config.pool == "mean" else parts.Sum)(prefix, last)
    if config.pool == "class_mean":
        return parts.ClassMean(prefix)
    mlp = parts.Mlp(config.dim, config.pool_hidden, ACTIVATIONS[config.activation])
    width = config.dim // config.pool_heads if config.pool_heads else config.head_width
    attn = Attention(config.dim, Heads(config.pool_heads or config.num_heads, width, width), cross=True)
    return parts.AttentionPool(config.dim, attn, mlp, norm(config.dim), prefix, last)
