"""What a model is, in plain values: the part of a bundle that says which network to build."""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from vit.models.checks import (
    CHOICES,
    check_block,
    check_heads,
    check_names,
    check_positions,
    check_values,
    pair,
    set_pairs,
)
from vit.nn.embed import patch_grid
from vit.nn.stem import halvings


@dataclass(frozen=True, kw_only=True)
class StackConfig:
    """The values of the blocks that encoders and decoders are made of; every config of ours has them.

    Args:
        block: "serial", attention and then the MLP; "branch_norm", the same with the norms on what they add;
            "parallel", both on the same normed tokens.
        pre_norm: the norms of a serial block act on what a branch reads, not on the sum of branch and stream.
        head_dim: width of a head; `dim / num_heads` by default.
        mlp_ratio: inner width of the MLP over `dim`; a SwiGLU has two such projections.
        mlp_norm: a norm inside the MLP, before it narrows.
        key_bias: False leaves the bias of the keys out, while queries and values have theirs.
        attn_norm: a norm on the joined heads, before their last projection.
        proj_bias: the projections of the joined heads and of the MLP have biases.
        rotary_pairs: channels that rotary positions turn together: i with i + K/2, or neighbours.
        layer_scale: first value of LayerScale (arXiv 2103.17239); None for none.
        drop_path: rate at the last block, growing linearly from 0 at the first.
    """

    kind: ClassVar[str]
    choices: ClassVar[Mapping[str, Sequence[str]]] = {}  # words of this config alone, or other than in CHOICES

    dim: int = 768
    depth: int = 12
    num_heads: int = 12
    head_dim: int | None = None
    mlp_ratio: float = 4.0
    norm: str = "layer"
    norm_eps: float = 1e-6
    block: str = "serial"
    pre_norm: bool = True
    mlp: str = "mlp"
    mlp_norm: bool = False
    activation: str = "gelu"
    qkv_bias: bool = True
    key_bias: bool = True
    qk_norm: bool = False
    attn_norm: bool = False
    proj_bias: bool = True
    rotary_pairs: str = "halves"
    layer_scale: float | None = None
    dropout: float = 0.0
    attention_dropout: float = 0.0
    drop_path: float = 0.0

    @property
    def head_width(self) -> int:
        return self.head_dim or self.dim // self.num_heads

    @property
    def pooled_dim(self) -> int:
        """Width of what a classifier's head reads."""
        return self.dim

    @property
    def hidden(self) -> int:
        """Inner width of the MLP; rounded, so that a ratio written with few digits gives the width that was meant."""
        return round(self.dim * self.mlp_ratio)

    def to_dict(self) -> dict[str, Any]:
        """JSON-able, with the `kind` that `model_from_config` reads."""
        return to_dict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        return from_dict(cls, values)


@dataclass(frozen=True, kw_only=True)
class TextConfig(StackConfig):
    """A `StackConfig` that reads ids.

    Args:
        vocab_size: number of ids the tokenizer knows.
        max_len: most tokens a text may have.
        segments: kinds of tokens that have a vector each, 2 for pairs of texts; 0 leaves segments out.
        positions: learned table, fixed sin-cos table, rotary, or none.
        embed_norm: a norm on the sum of token, segment and position, as BERT has it.
    """

    vocab_size: int
    max_len: int = 512
    segments: int = 2
    positions: str = "learned"
    embed_norm: bool = False

    def __post_init__(self) -> None:
        check_values(self)
        check_heads(self)
        check_block(self)
        check_positions(self, axes=1)


@dataclass(frozen=True, kw_only=True)
class ImageConfig(StackConfig):
    """A `StackConfig` that reads images in patches.

    Args:
        image_size, patch_size: pixels, one number or (height, width).
        registers: number of register tokens (arXiv 2309.16588).
        positions: learned table, fixed 2-D sin-cos table or that of SimpleViT, axial rotary, a learned table and
            rotary, or none.
        prefix_positions: class token and registers have rows of their own in a learned table.
        patch_bias, patch_norm: the projection of the patches has a bias, and a norm before positions are added.
        embed_norm: a norm on the tokens before the first block, as CLIP has it.
        rotary_theta: longest wavelength over 2 pi.
        rotary_places: the patches stand at 0, 1, 2 ... along each axis, or centred in the image, whatever its size.
        rotary_span: grid that the steps are stretched to, (rows, columns), so that images of another resolution keep
            the angles of training (EVA-02); none by default.
        rotary_offset: where the first step stands.
        rotary_columns_first: the first half of the pairs tells the column instead of the row.
        rotary_mixed: each head of each block learns its directions and wavelengths (RoPE-Mixed, arXiv 2403.13298).
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
    rotary_places: str = "steps"
    rotary_span: tuple[int, int] | None = None
    rotary_offset: float = 0.0
    rotary_columns_first: bool = False
    rotary_mixed: bool = False

    def __post_init__(self) -> None:
        set_pairs(self)
        check_values(self)
        patch_grid(self.image_size, self.patch_size)
        check_heads(self)
        check_block(self)
        if self.stem not in ("linear", "normed"):
            halvings(self.patch_size)
        if self.stem != "linear" and (self.patch_norm or not self.patch_bias):
            raise ValueError(f"patch_bias=false and patch_norm=true need stem=linear, not stem={self.stem}")
        if self.rotary_places == "centred" and (self.rotary_span or self.rotary_offset):
            raise ValueError("rotary_places=centred has neither rotary_span nor rotary_offset; leave them out")
        if self.rotary_mixed and self.positions not in ("rotary", "learned_rotary"):
            raise ValueError(f"rotary_mixed=true needs positions=rotary or learned_rotary, not {self.positions}")
        check_positions(self, axes=2)

    @property
    def grid(self) -> tuple[int, int]:
        """(rows, columns) in patches."""
        return patch_grid(self.image_size, self.patch_size)

    @property
    def prefix(self) -> int:
        """How many tokens stand before the patches."""
        return int(self.class_token) + self.registers


@dataclass(frozen=True, kw_only=True)
class VisionTransformerConfig(ImageConfig):
    """The values that fix a `VisionTransformer`, JSON-able and checked; the defaults are ViT-B/16 (arXiv 2010.11929).

    Besides those of other images there are positions="relative", added to the scores of attention (arXiv 2111.09883).

    Args:
        num_classes: 0 leaves the head out.
        relative_hidden: inner width of the network that makes relative positions.
        dist_token: a second class token with its own head, `head_dist`, to learn from a teacher (arXiv 2012.12877).
        pool: class token, mean over the patches, both side by side (the head is then twice as wide), or attention
            pooling.
        pool_prefix: class token and registers count in the mean or the attention pooling as patches do.
        pool_heads, pool_mlp_ratio: heads and MLP of the attention pooling; as in the blocks by default.
        final_norm: the last norm acts on the tokens, on the pooled vector (timm's `fc_norm`), or is left out.
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
            raise ValueError(f"positions=relative are made for whole grids; take patch_dropout=0, not "
                             f"{self.patch_dropout}")
        if self.pool in ("class", "class_mean") and not self.class_token:
            raise ValueError(f"pool={self.pool} needs class_token=true; without it take pool=mean or pool=attention")
        if self.pool == "class_mean" and self.final_norm == "pooled":
            raise ValueError("pool=class_mean needs final_norm=tokens or none, not final_norm=pooled")
        if self.dist_token and (self.pool != "class" or self.final_norm == "pooled"):
            raise ValueError(f"dist_token=true needs class_token=true, pool=class and a final_norm on all tokens, not "
                             f"pool={self.pool} with final_norm={self.final_norm}")
        if self.pool_heads is not None and self.dim % self.pool_heads:
            raise ValueError(f"dim {self.dim} is not divisible by pool_heads {self.pool_heads}")

    @property
    def pooled_dim(self) -> int:
        """Width of what the head reads."""
        return 2 * self.dim if self.pool == "class_mean" else self.dim

    @property
    def pool_hidden(self) -> int:
        """Inner width of the attention pooling's MLP."""
        return self.hidden if self.pool_mlp_ratio is None else round(self.dim * self.pool_mlp_ratio)

    @property
    def prefix(self) -> int:
        """How many tokens stand before the patches."""
        return super().prefix + int(self.dist_token)


@dataclass(frozen=True)
class TimmConfig:
    """The values that fix a timm model of any kind by its name there."""

    kind: ClassVar[str] = "timm"

    name: str
    image_size: tuple[int, int] = (224, 224)
    in_chans: int = 3
    num_classes: int = 1000
    dropout: float = 0.0
    drop_path: float = 0.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "image_size", pair("image_size", self.image_size))
        object.__setattr__(self, "name", self.name.removeprefix("timm/"))
        check_values(self)

    def input_arguments(self) -> dict[str, int | list[int]]:
        """What timm must be told about the images; only models of fixed input size take `img_size`."""
        from timm.models import get_pretrained_cfg

        cfg = get_pretrained_cfg(self.name)
        fixed = cfg is not None and cfg.fixed_input_size
        return {"in_chans": self.in_chans, **({"img_size": list(self.image_size)} if fixed else {})}

    def to_dict(self) -> dict[str, Any]:
        """JSON-able, with the `kind` that `model_from_config` reads."""
        return to_dict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "TimmConfig":
        return from_dict(cls, values)


def to_dict(config: Any) -> dict[str, Any]:
    values = dataclasses.asdict(config)
    return {"kind": config.kind, **{key: list(v) if isinstance(v, tuple) else v for key, v in values.items()}}


def from_dict(cls: type, values: Mapping[str, Any]) -> Any:
    values = {key: value for key, value in values.items() if key != "kind"}
    check_names(cls, values)
    if missing := [field.name for field in dataclasses.fields(cls) if needed(field) and field.name not in values]:
        raise ValueError(f"the model needs a value for {', '.join(missing)}")
    return cls(**values)


def needed(field: dataclasses.Field) -> bool:
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
