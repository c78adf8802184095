"""Masked image pre-training: an encoder learns from the patches that are left what was in those that were taken away
(MAE, arXiv 2111.06377).
"""

import math
from dataclasses import dataclass, fields
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from vit.models.build import build_blocks, build_norm
from vit.models.classifier import build_embed, build_rotary
from vit.models.config import ImageConfig, StackConfig, VisionTransformerConfig
from vit.nn import Encoder, PatchEmbed, apply_linear
from vit.nn.block import Block
from vit.nn.init import init_weights
from vit.nn.transformer import Stack
from vit.weights.mae import decoder_table


@dataclass(frozen=True, kw_only=True)
class MaskedImageConfig(ImageConfig):
    """The values that fix a `MaskedAutoencoder`, JSON-able and checked; the defaults are MAE's ViT-B/16.

    Args:
        mask_ratio: part of the patches that the encoder never sees.
        norm_pixels: a patch is to be told less its own mean and over its own deviation.
        decoder_dim, decoder_depth, decoder_num_heads, decoder_mlp_ratio: its blocks; all else is as in the encoder.
    """

    kind: ClassVar[str] = "mae"
    # convolutions would look into the hidden patches
    choices: ClassVar[dict] = {**ImageConfig.choices, "stem": ("linear", "normed")}

    positions: str = "sincos"
    mask_ratio: float = 0.75
    norm_pixels: bool = True
    decoder_dim: int = 512
    decoder_depth: int = 8
    decoder_num_heads: int = 16
    decoder_mlp_ratio: float = 4.0

    def __post_init__(self) -> None:
        super().__post_init__()
        for key in ("decoder_dim", "decoder_num_heads", "decoder_mlp_ratio"):
            if getattr(self, key) <= 0:
                raise ValueError(f"{key} is {getattr(self, key)}, but must be above 0")
        unit = math.lcm(4, self.decoder_num_heads)  # heads share the width, and 2-D sin-cos positions want quarters
        if self.decoder_dim % unit:
            near = self.decoder_dim // unit * unit
            raise ValueError(f"decoder_dim {self.decoder_dim} is not divisible by {unit}, as decoder_num_heads "
                             f"{self.decoder_num_heads} and 2-D positions need; nearest: {near or unit}, {near + unit}")
        if not 0 < self.visible < math.prod(self.grid):
            raise ValueError(f"mask_ratio {self.mask_ratio} leaves {self.visible} of {math.prod(self.grid)} patches to "
                             "see; some must be seen and some hidden: take smaller patches or another mask_ratio")

    @property
    def visible(self) -> int:
        """How many patches the encoder sees, rounded as in the paper's own code."""
        return int(math.prod(self.grid) * (1 - self.mask_ratio))

    @property
    def decoder(self) -> StackConfig:
        """The values of the decoder's blocks."""
        shared = {f.name: getattr(self, f.name) for f in fields(StackConfig)}
        own = {"dim": self.decoder_dim, "depth": self.decoder_depth, "num_heads": self.decoder_num_heads}
        return StackConfig(**{**shared, **own, "mlp_ratio": self.decoder_mlp_ratio, "head_dim": None})

    def classifier(self) -> dict[str, Any]:
        """The values of the Vision Transformer that takes `embed` and `encoder` over, less its number of classes."""
        names = {field.name for field in fields(VisionTransformerConfig)} & {field.name for field in fields(self)}
        values = {key: value for key, value in self.to_dict().items() if key in names}
        pool = "class" if self.class_token else "mean"
        return {"kind": VisionTransformerConfig.kind, **values, "pool": pool}


class PixelDecoder(Stack):
    """Puts a token that stands for "hidden" wherever there is none, and tells each patch's pixels.

    Light on purpose: it is thrown away after pre-training.
    """

    def __init__(self, blocks: list[Block], norm: nn.Module, grid: tuple[int, int], width: int, dim: int,
                 pixels: int, prefix: int) -> None:
        """width: of the encoder's tokens; dim: of the decoder's; pixels: numbers in a patch."""
        super().__init__(blocks, norm)
        self.prefix = prefix
        self.proj = nn.Linear(width, dim)
        self.mask_token = nn.Parameter(torch.randn(1, 1, dim) * 0.02)
        self.register_buffer("pos_embed", decoder_table(grid, dim), persistent=False)  # (1,N,D')
        self.pixels = nn.Linear(dim, pixels)

    def forward(self, x: Tensor, kept: Tensor) -> Tensor:
        """x (B,P+K,D) of the encoder, kept (B,K) places of its patches -> pixels (B,N,ph*pw*C)"""
        first, seen = apply_linear(self.proj, x).split([self.prefix, kept.shape[1]], dim=1)
        whole = self.mask_token.to(x.dtype).expand(x.shape[0], self.pos_embed.shape[1], -1)  # (B,N,D')
        whole = whole.scatter(1, kept[..., None].expand(-1, -1, whole.shape[2]), seen.to(x.dtype))
        x = torch.cat([first.to(x.dtype), whole + self.pos_embed], dim=1)  # (B,P+N,D')
        x = self.norm(self.run(x, None, None, None, False))
        return apply_linear(self.pixels, x[:, self.prefix :])


class MaskedAutoencoder(nn.Module):
    """The encoder of a Vision Transformer over the patches that are left, and a decoder that tells the others.

    `embed` and `encoder` are named as in a `Classifier`, which takes them over by their names.
    """

    def __init__(self, config: MaskedImageConfig) -> None:
        super().__init__()
        self.config = config
        self.embed: PatchEmbed = build_embed(config)
        self.encoder = Encoder(build_blocks(config), build_norm(config)(config.dim), rotary=build_rotary(config))
        inner, pixels = config.decoder, math.prod(config.patch_size) * config.in_chans
        self.decoder = PixelDecoder(build_blocks(inner), build_norm(inner)(inner.dim), config.grid, config.dim,
                                    inner.dim, pixels, config.prefix)
        init_weights(self)

    def forward(self, images: Tensor, noise: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """images (B,C,H,W), noise (B,N) -> pixels (B,N,ph*pw*C), hidden (B,N) bool

        Args:
            noise: a number per patch; those with the smallest ones are seen. Drawn by torch where it is not given.
        """
        kept, hidden = self.choose(len(images), images.device, noise)
        return self.decoder(self.see(images, kept), kept), hidden

    def encode(self, images: Tensor) -> Tensor:
        """images (B,C,H,W) -> tokens (B,P+N,D), nothing hidden"""
        return self.encoder(self.embed(images))

    def choose(self, rows: int, device: torch.device, noise: Tensor | None) -> tuple[Tensor, Tensor]:
        """noise (B,N) -> places (B,K) of the patches that are seen, in order; hidden (B,N) bool"""
        noise = torch.rand(rows, math.prod(self.config.grid), device=device) if noise is None else noise
        kept = noise.argsort(dim=1)[:, : self.config.visible].sort(dim=1).values
        return kept, torch.ones_like(noise, dtype=torch.bool).scatter(1, kept, False)

    def see(self, images: Tensor, kept: Tensor) -> Tensor:
        """images (B,C,H,W), kept (B,K) -> the encoder's tokens (B,P+K,D): it works on a quarter of the patches."""
        x, prefix = self.embed(images), self.embed.prefix
        first = torch.arange(prefix, device=kept.device).expand(len(kept), -1)
        places = torch.cat([first, kept + prefix], dim=1)  # (B,P+K)
        return self.encoder(x.gather(1, places[..., None].expand(-1, -1, x.shape[2])), positions=places)

    def targets(self, images: Tensor) -> Tensor:
        """images (B,C,H,W) -> what is to be told of each patch, (B,N,ph*pw*C)"""
        patches = to_patches(images, self.config.patch_size)
        if not self.config.norm_pixels:
            return patches
        return (patches - patches.mean(-1, keepdim=True)) / (patches.var(-1, keepdim=True) + 1e-6).sqrt()

    def reconstruct(self, images: Tensor, pixels: Tensor, hidden: Tensor) -> Tensor:
        """The images (B,C,H,W) with their hidden patches as the decoder told them.

        Of normalised pixels nobody can know mean and deviation: they are taken from the patch that was hidden.
        """
        patches = to_patches(images, self.config.patch_size)
        if self.config.norm_pixels:
            deviation = (patches.var(-1, keepdim=True) + 1e-6).sqrt()
            pixels = pixels * deviation + patches.mean(-1, keepdim=True)
        told = torch.where(hidden[..., None], pixels.to(patches.dtype), patches)
        return from_patches(told, self.config.patch_size, self.config.grid)

    def set_grad_checkpointing(self, enable: bool = True) -> None:
        """Compute each block's activations again in the backward pass instead of keeping them; named as in timm."""
        self.encoder.checkpointing = self.decoder.checkpointing = enable


def hidden_error(pixels: Tensor, targets: Tensor, hidden: Tensor) -> Tensor:
    """pixels, targets (B,N,ph*pw*C), hidden (B,N) -> each image's mean squared error over its hidden patches, (B,)"""
    each = (pixels.float() - targets.float()).square().mean(-1)  # (B,N)
    return (each * hidden).sum(1) / hidden.sum(1)


def to_patches(images: Tensor, patch_size: tuple[int, int]) -> Tensor:
    """(B,C,H,W) -> (B,N,ph*pw*C), the channels of a pixel side by side, as the published decoders tell them"""
    ph, pw = patch_size
    x = images.unflatten(3, (-1, pw)).unflatten(2, (-1, ph))  # (B,C,rows,ph,columns,pw)
    return x.permute(0, 2, 4, 3, 5, 1).flatten(3).flatten(1, 2)


def from_patches(patches: Tensor, patch_size: tuple[int, int], grid: tuple[int, int]) -> Tensor:
    """(B,N,ph*pw*C) -> (B,C,H,W)"""
    x = patches.unflatten(2, (*patch_size, -1)).unflatten(1, grid)  # (B,rows,columns,ph,pw,C)
    return x.permute(0, 5, 1, 3, 2, 4).flatten(4).flatten(2, 3)
