"""Model configurations: plain values that describe the architecture, as stored in bundles."""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from vit.models.checks import (
    CHOICES,
    TEXT_POSITIONS,
    check_block,
    check_heads,
    check_mixer,
    check_names,
    check_positions,
    check_values,
    current_names,
    pair,
)
from vit.nn.embed import patch_grid
from vit.nn.stem import halvings


class ModelConfig:
    """Base class of model configurations, which are frozen dataclasses."""

    kind: ClassVar[str]

    def to_dict(self) -> dict[str, Any]:
        """JSON-serializable values with the `kind` that `model_from_config` expects."""
        values = dataclasses.asdict(self)
        return {"kind": self.kind, **{key: list(v) if isinstance(v, tuple) else v for key, v in values.items()}}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """The inverse of `to_dict`; former names of keys and values are accepted.

        Raises:
            ValueError: an unknown key, a missing or an invalid value.
        """
        values = current_names({key: value for key, value in values.items() if key != "kind"})
        check_names(cls, values)
        required = [field.name for field in dataclasses.fields(cls)
                    if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING]
        if missing := [name for name in required if name not in values]:
            raise ValueError(f"the model needs a value for {', '.join(missing)}")
        return cls(**values)


@dataclass(frozen=True, kw_only=True)
class StackConfig(ModelConfig):
    """Configuration of the blocks of encoders and decoders, the base of all configs.

    Args:
        block: "serial", attention, then MLP; "res_post_norm", the same with norms on the outputs of the branches (Swin
            v2, arXiv 2111.09883); "parallel", both on the same normalized tokens (arXiv 2302.05442).
        pre_norm: pre-norm instead of post-norm, for serial blocks.
        residual: False leaves out the residual connections of serial blocks.
        mixer: the layer between tokens: "attention", a bidirectional "lstm" or "gru", "conv1d", or "fnet" (arXiv
            2105.03824).
        kernel: tokens in a window of conv1d.
        attention: score of a query and a key: "scaled" dot product, "dot" product, "cosine", "bilinear" or "additive"
            (see `vit.nn.scores`); or "local", a scaled dot product within a window (see `vit.nn.local`).
        window, dilation, global_tokens: for attention=local: tokens to each side, their distance, and the number of
            first tokens that attend to all and to which all attend. Cross-attention is not restricted.
        heads: "split", heads share the width of the model; "full", each is as wide as the model.
        head_dim: width of a head's queries and keys; by default according to `heads`.
        value_dim: width of a head's values; that of its keys by default.
        projection: from tokens to queries, keys and values: "linear"; "sliced", each head reads only its own slice of
            the token; "none", they are the token itself, and there is no output projection.
        mlp_ratio: inner width of the MLP over `dim`; a SwiGLU has two projections of that width.
        mlp_norm: a norm on the hidden units of the MLP.
        key_bias: False removes the bias of the keys of self-attention; queries and values keep theirs.
        attn_norm: a norm on the concatenated heads, before the output projection.
        proj_bias: the projections of attention and MLP have biases.
        sincos_channels: channels of fixed tables: "interleaved", sine and cosine of each frequency in turn (arXiv
            1706.03762), or "halves", all sines before all cosines.
        rotary_pairs: channel pairs of rotary positions, "rotate_half" for (i, i + K/2) or "interleaved" for (2i, 2i+1).
        init_std: standard deviation of the initial matrices, such as 0.02 in BERT and timm; None for Xavier.
        token_std: that of class token, distillation token and registers, None for 1e-6 (MoCo v3; the class token of a
            masked autoencoder has 0.02), and of the tables of tokens and segments, None for D^-1/2.
        position_std: that of learned position tables; None for D^-1/2.
        layer_scale: initial value of LayerScale (arXiv 2103.17239); None for none.
        drop_path: stochastic depth rate (arXiv 1603.09382) of the last block.
        drop_path_schedule: "linear", from 0 in the first block to `drop_path` in the last one, as in timm (in the paper
            block l = 1, 2, ... has l / depth of it); "constant", `drop_path` in all blocks, as in CaiT (arXiv
            2103.17239) and DeiT III (arXiv 2204.07118).
    """

    choices: ClassVar[Mapping[str, Sequence[str]]] = {}  # choices that differ from CHOICES

    dim: int = 768
    depth: int = 12
    num_heads: int = 12
    mixer: str = "attention"
    kernel: int = 3
    attention: str = "scaled"
    window: int = 16
    dilation: int = 1
    global_tokens: int = 0
    heads: str = "split"
    head_dim: int | None = None
    value_dim: int | None = None
    projection: str = "linear"
    mlp_ratio: float = 4.0
    norm: str = "layer"
    norm_eps: float = 1e-6
    block: str = "serial"
    pre_norm: bool = True
    residual: bool = True
    mlp: str = "mlp"
    mlp_norm: bool = False
    activation: str = "gelu"
    qkv_bias: bool = True
    key_bias: bool = True
    qk_norm: bool = False
    attn_norm: bool = False
    proj_bias: bool = True
    sincos_channels: str = "halves"  # the order in models that were saved before this key existed
    rotary_pairs: str = "rotate_half"
    init_std: float | None = None
    token_std: float | None = None
    position_std: float | None = None
    layer_scale: float | None = None
    dropout: float = 0.0
    attention_dropout: float = 0.0
    drop_path: float = 0.0
    drop_path_schedule: str = "linear"

    @property
    def head_width(self) -> int:
        """Width of a head's queries and keys."""
        return self.head_dim or (self.dim if self.heads == "full" else self.dim // self.num_heads)

    @property
    def pooled_dim(self) -> int:
        """Input width of a classifier's head."""
        return self.dim

    @property
    def hidden(self) -> int:
        """Inner width of the MLP, rounded, because ratios such as 4304/1152 are not exact."""
        return round(self.dim * self.mlp_ratio)


@dataclass(frozen=True, kw_only=True)
class TextConfig(StackConfig):
    """A `StackConfig` for texts.

    Args:
        vocab_size: number of ids of the tokenizer.
        max_len: maximum number of tokens.
        segments: number of segment embeddings, 2 for pairs of texts; 0 for none.
        positions: "learned" table, fixed "sincos" table, "rotary", "relative" (a bias of the scores, arXiv 1910.10683)
            or "none".
        scale_embed: multiply token embeddings by sqrt(dim). Fixed position tables need this, because their values are
            of the order of 1 (arXiv 1706.03762, section 3.4).
        embed_norm: a norm on the sum of token, segment and position embeddings, as in BERT.

    Raises:
        ValueError: a value is out of range, or values do not fit together.
    """

    choices: ClassVar[Mapping[str, Sequence[str]]] = {"positions": TEXT_POSITIONS}

    vocab_size: int
    max_len: int = 512
    segments: int = 2
    positions: str = "learned"
    scale_embed: bool = False
    embed_norm: bool = False

    def __post_init__(self) -> None:
        check_values(self)
        check_heads(self)
        check_block(self)
        check_mixer(self)
        check_positions(self, axes=1)


@dataclass(frozen=True, kw_only=True)
class ImageConfig(StackConfig):
    """A `StackConfig` for images.

    Args:
        image_size, patch_size: pixels, one number or (height, width).
        registers: number of register tokens (arXiv 2309.16588).
        positions: "learned" table, fixed "sincos" table (2-D), "sincos_simple" as in SimpleViT, axial "rotary",
            "learned_rotary" for both, or "none".
        prefix_positions: class token and registers have rows in a learned table.
        stem: from pixels to patch tokens (see `vit.nn.stem`): a linear layer ("linear"), a linear layer between norms
            ("normed"), or convolutions ("conv", "compact", "masked_conv", "pooled_conv").
        patch_bias, patch_norm: the patch projection has a bias, and a norm before positions are added.
        embed_norm: a norm on the tokens before the first block, as in CLIP.
        rotary_theta: longest wavelength over 2 pi.
        rotary_coordinates: patches at 0, 1, 2, ... along each axis ("steps"), or centred in an interval that is the
            same for all grids ("centred", DINOv3).
        rotary_span: grid (rows, columns) to which steps are scaled, so that the angles at other resolutions are those
            of training (EVA-02); none by default.
        rotary_offset: coordinate of the first step.
        rotary_columns_first: the first half of the pairs encodes the column instead of the row.
        rotary_mixed: learn directions and wavelengths per head and block (RoPE-Mixed, arXiv 2403.13298); the paper has
            it with rotary_theta=10, and axial positions with 100.

    Raises:
        ValueError: a value is out of range, or values do not fit together.
    """

    choices: ClassVar[Mapping[str, Sequence[str]]] = {
        "positions": (*CHOICES["positions"], "learned_rotary", "sincos_simple")}

    image_size: tuple[int, int] = (224, 224)
    patch_size: tuple[int, int] = (16, 16)
    in_chans: int = 3
    class_token: bool = True
    registers: int = 0
    positions: str = "learned"
    prefix_positions: bool = True
    stem: str = "linear"
    patch_bias: bool = True
    patch_norm: bool = False
    embed_norm: bool = False
    rotary_theta: float = 100.0
    rotary_coordinates: str = "steps"
    rotary_span: tuple[int, int] | None = None
    rotary_offset: float = 0.0
    rotary_columns_first: bool = False
    rotary_mixed: bool = False

    def __post_init__(self) -> None:
        for key in ("image_size", "patch_size", "rotary_span"):
            if (size := getattr(self, key)) is not None:
                object.__setattr__(self, key, pair(key, size))
        check_values(self)
        patch_grid(self.image_size, self.patch_size)
        check_heads(self)
        check_block(self)
        check_mixer(self)
        if self.stem not in ("linear", "normed"):
            halvings(self.patch_size)
        for option, used in (("patch_bias=false", not self.patch_bias), ("patch_norm=true", self.patch_norm)):
            if used and self.stem != "linear":
                raise ValueError(f"{option} needs stem=linear, not stem={self.stem}")
        if self.rotary_coordinates == "centred" and (self.rotary_span or self.rotary_offset):
            raise ValueError("rotary_coordinates=centred supports neither rotary_span nor rotary_offset; remove them")
        if self.rotary_mixed and self.positions not in ("rotary", "learned_rotary"):
            raise ValueError(f"rotary_mixed=true needs positions=rotary or learned_rotary, not {self.positions}")
        check_positions(self, axes=2)

    @property
    def grid(self) -> tuple[int, int]:
        """(rows, columns) in patches."""
        return patch_grid(self.image_size, self.patch_size)

    @property
    def prefix(self) -> int:
        """Number of tokens before the patches."""
        return int(self.class_token) + self.registers


@dataclass(frozen=True, kw_only=True)
class VisionTransformerConfig(ImageConfig):
    """Configuration of a `VisionTransformer`: JSON-serializable and validated; the defaults are ViT-B/16 (arXiv
    2010.11929).

    In addition to `ImageConfig`, positions="relative" adds a bias to the attention scores (arXiv 2111.09883).

    Args:
        num_classes: 0 for no head.
        relative_hidden: inner width of the MLP of relative positions.
        dist_token: a distillation token with its own head, `head_dist` (DeiT, arXiv 2012.12877).
        pool: class token ("class"), "mean" or "sum" of the patches, class token and mean concatenated ("class_mean"),
            or attention pooling ("attention").
        pool_prefix: include class token and registers in the mean, in the sum or in attention pooling.
        pool_heads, pool_mlp_ratio: heads and MLP of attention pooling; as in the blocks by default.
        final_norm: the last norm acts on the "tokens", on the "pooled" vector (timm's `fc_norm`), or is left out
            ("none").
        patch_dropout: fraction of the patches that are dropped in training (arXiv 2212.00794).

    Raises:
        ValueError: a value is out of range, or values do not fit together.
    """

    kind: ClassVar[str] = "vit"
    choices: ClassVar[Mapping[str, Sequence[str]]] = {"positions": (*ImageConfig.choices["positions"], "relative")}

    num_classes: int = 1000
    dist_token: bool = False
    pool: str = "class"
    pool_prefix: bool = False
    pool_heads: int | None = None
    pool_mlp_ratio: float | None = None
    final_norm: str = "tokens"
    patch_dropout: float = 0.0
    relative_hidden: int = 128

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.positions == "relative" and self.patch_dropout:
            raise ValueError(f"positions=relative needs all patches of the grid; set patch_dropout=0, not "
                             f"{self.patch_dropout}")
        if self.pool in ("class", "class_mean") and not self.class_token:
            raise ValueError(f"pool={self.pool} needs class_token=true; without it use pool=mean or pool=attention")
        if self.pool == "sum" and self.patch_dropout:
            raise ValueError(f"pool=sum depends on the number of patches, which patch_dropout={self.patch_dropout} "
                             "reduces in training only; set patch_dropout=0, or pool=mean")
        if self.pool == "class_mean" and self.final_norm == "pooled":
            raise ValueError("pool=class_mean needs final_norm=tokens or none, not final_norm=pooled")
        if self.dist_token and (self.pool != "class" or self.final_norm == "pooled"):
            raise ValueError(f"dist_token=true needs class_token=true, pool=class and a final_norm on all tokens, not "
                             f"pool={self.pool} with final_norm={self.final_norm}")
        for key in ("pool_heads", "pool_mlp_ratio"):
            if (value := getattr(self, key)) is not None and not value > 0:
                raise ValueError(f"{key} is {value}, but must be above 0; null for that of the blocks")
        if self.pool_heads is not None and self.dim % self.pool_heads:
            raise ValueError(f"dim {self.dim} is not divisible by pool_heads {self.pool_heads}")

    @property
    def pooled_dim(self) -> int:
        """Input width of the head."""
        return 2 * self.dim if self.pool == "class_mean" else self.dim

    @property
    def pool_hidden(self) -> int:
        """Inner width of the MLP of attention pooling."""
        return self.hidden if self.pool_mlp_ratio is None else round(self.dim * self.pool_mlp_ratio)

    @property
    def prefix(self) -> int:
        """Number of tokens before the patches."""
        return super().prefix + int(self.dist_token)
