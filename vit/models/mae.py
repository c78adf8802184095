"""Masked autoencoder: pre-training by reconstruction of masked patches (MAE, arXiv 2111.06377).

Beside the usual letters, shapes have P tokens before the patches, N' visible patches, D' width of the decoder and
(ph,pw) size of a patch in pixels.
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
from vit.nn.position import sincos_2d
from vit.nn.transformer import Stack

TOKEN_STD = 0.02  # initial deviation of mask token and, without `token_std`, class token, as in the paper's code


@dataclass(frozen=True, kw_only=True)
class MaskedImageConfig(ImageConfig):
    """Configuration of a `MaskedAutoencoder`: JSON-serializable and validated; the defaults are MAE's ViT-B/16.

    Args:
        mask_ratio: fraction of the patches that are masked.
        norm_pixels: normalize the target of each patch by its own mean and standard deviation.
        decoder_dim, decoder_depth, decoder_num_heads, decoder_mlp_ratio: sizes of the decoder's blocks, which are
            otherwise as in the encoder.

    Raises:
        ValueError: a value is out of range, or values do not fit together.
    """

    kind: ClassVar[str] = "mae"
    # the receptive field of convolutions would include masked patches
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
        if not math.isfinite(self.mask_ratio):
            raise ValueError(f"mask_ratio is {self.mask_ratio}, but must be a number between 0 and 1")
        unit = math.lcm(4, self.decoder_num_heads)  # 2-D sin-cos positions need a multiple of 4
        if self.decoder_dim % unit:
            near = self.decoder_dim // unit * unit
            nearest = f"{near}, {near + unit}" if near else unit
            raise ValueError(f"decoder_dim {self.decoder_dim} is not divisible by {unit}, as decoder_num_heads "
                             f"{self.decoder_num_heads} and 2-D positions need; nearest: {nearest}")
        if not 0 < self.visible < math.prod(self.grid):
            raise ValueError(f"mask_ratio {self.mask_ratio} leaves {self.visible} of {math.prod(self.grid)} patches "
                             "visible; at least one must be visible and one masked: use smaller patches or another "
                             "mask_ratio")

    @property
    def visible(self) -> int:
        """Number of visible patches, rounded as in the paper's code."""
        return int(math.prod(self.grid) * (1 - self.mask_ratio))

    @property
    def decoder(self) -> StackConfig:
        """Configuration of the decoder's blocks."""
        shared = {f.name: getattr(self, f.name) for f in fields(StackConfig)}
        own = {"dim": self.decoder_dim, "depth": self.decoder_depth, "num_heads": self.decoder_num_heads,
               "mlp_ratio": self.decoder_mlp_ratio, "head_dim": None, "value_dim": None}
        return StackConfig(**{**shared, **own})

    def classifier(self) -> dict[str, Any]:
        """Config values, without `num_classes`, of the Vision Transformer that loads `embed` and `encoder`."""
        names = {field.name for field in fields(VisionTransformerConfig)} & {field.name for field in fields(self)}
        values = {key: value for key, value in self.to_dict().items() if key in names}
        pool = "class" if self.class_token else "mean"
        return {"kind": VisionTransformerConfig.kind, **values, "pool": pool}


class PixelDecoder(Stack):
    """Inserts mask tokens and predicts the pixels of each patch; discarded after pre-training.

    Args:
        width, dim: widths of the encoder and of the decoder.
        pixels: values per patch, ph*pw*C.
        prefix: number of tokens before the patches.
    """

    def __init__(self, blocks: list[Block], norm: nn.Module, grid: tuple[int, int], width: int, dim: int,
                 pixels: int, prefix: int) -> None:
        super().__init__(blocks, norm)
        self.prefix = prefix
        self.proj = nn.Linear(width, dim)
        self.mask_token = nn.Parameter(torch.randn(1, 1, dim) * TOKEN_STD)
        self.register_buffer("pos_embed", sincos_2d(grid, dim, columns_first=True), persistent=False)  # (1,N,D')
        self.pixels = nn.Linear(dim, pixels)

    def forward(self, x: Tensor, visible: Tensor) -> Tensor:
        """x (B,P+N',D) of the encoder, visible (B,N') indices of its patches -> pixels (B,N,ph*pw*C)"""
        prefix, patches = apply_linear(self.proj, x).split([self.prefix, visible.shape[1]], dim=1)
        full = self.mask_token.to(x.dtype).expand(x.shape[0], self.pos_embed.shape[1], -1)  # (B,N,D')
        full = full.scatter(1, visible[..., None].expand(-1, -1, full.shape[2]), patches.to(x.dtype))
        x = torch.cat([prefix.to(x.dtype), full + self.pos_embed], dim=1)  # (B,P+N,D')
        x = self.norm(self.run(x, None, None, None, False))  # no mask, no memory, not causal
        return apply_linear(self.pixels, x[:, self.prefix :])


class MaskedAutoencoder(nn.Module):
    """A Vision Transformer encoder on the visible patches, and a light decoder that reconstructs the masked ones.

    `embed` and `encoder` are named as in a `Classifier`, which can therefore load them.
    """

    def __init__(self, config: MaskedImageConfig) -> None:
        super().__init__()
        self.config = config
        self.embed: PatchEmbed = build_embed(config)
        self.encoder = Encoder(build_blocks(config), build_norm(config)(config.dim), rotary=build_rotary(config))
        inner, pixels = config.decoder, math.prod(config.patch_size) * config.in_chans
        self.decoder = PixelDecoder(build_blocks(inner), build_norm(inner)(inner.dim), config.grid, config.dim,
                                    inner.dim, pixels, config.prefix)
        init_weights(self, config.init_std, config.token_std, config.position_std)
        if self.embed.cls_token is not None:
            nn.init.normal_(self.embed.cls_token, std=TOKEN_STD if config.token_std is None else config.token_std)

    def forward(self, images: Tensor, noise: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """images (B,C,H,W), noise (B,N) -> pixels (B,N,ph*pw*C), masked (B,N) bool

        Args:
            noise: a number per patch; patches with the smallest numbers are visible. Random by default.
        """
        visible, masked = self.random_masking(len(images), images.device, noise)
        return self.decoder(self.encode_visible(images, visible), visible), masked

    def encode(self, images: Tensor) -> Tensor:
        """images (B,C,H,W) -> tokens (B,P+N,D), without masking"""
        return self.encoder(self.embed(images))

    def random_masking(self, rows: int, device: torch.device, noise: Tensor | None) -> tuple[Tensor, Tensor]:
        """noise (B,N) -> indices (B,N') of the visible patches, ascending; masked (B,N) bool"""
        noise = torch.rand(rows, math.prod(self.config.grid), device=device) if noise is None else noise
        visible = noise.argsort(dim=1)[:, : self.config.visible].sort(dim=1).values
        return visible, torch.ones_like(noise, dtype=torch.bool).scatter(1, visible, False)

    def encode_visible(self, images: Tensor, visible: Tensor) -> Tensor:
        """images (B,C,H,W), visible (B,N') -> tokens (B,P+N',D) of the prefix and the visible patches"""
        x, prefix = self.embed(images), self.embed.prefix
        prefix_index = torch.arange(prefix, device=visible.device).expand(len(visible), -1)
        index = torch.cat([prefix_index, visible + prefix], dim=1)  # (B,P+N')
        return self.encoder(x.gather(1, index[..., None].expand(-1, -1, x.shape[2])), positions=index)

    def targets(self, images: Tensor) -> Tensor:
        """images (B,C,H,W) -> reconstruction targets (B,N,ph*pw*C)"""
        patches = to_patches(images, self.config.patch_size)
        if not self.config.norm_pixels:
            return patches
        return (patches - patches.mean(-1, keepdim=True)) / (patches.var(-1, keepdim=True) + 1e-6).sqrt()

    def reconstruct(self, images: Tensor, pixels: Tensor, masked: Tensor) -> Tensor:
        """images (B,C,H,W), pixels (B,N,ph*pw*C), masked (B,N) -> the images with predicted masked patches (B,C,H,W)

        With `norm_pixels` the model predicts no mean and deviation, so those of the original patch are used.
        """
        patches = to_patches(images, self.config.patch_size)
        if self.config.norm_pixels:
            deviation = (patches.var(-1, keepdim=True) + 1e-6).sqrt()
            pixels = pixels * deviation + patches.mean(-1, keepdim=True)
        filled = torch.where(masked[..., None], pixels.to(patches.dtype), patches)
        return from_patches(filled, self.config.patch_size, self.config.grid)

    def set_grad_checkpointing(self, enable: bool = True) -> None:
        """Recompute the activations of each block in the backward pass instead of storing them; named as in timm."""
        self.encoder.checkpointing = self.decoder.checkpointing = enable


def masked_error(pixels: Tensor, targets: Tensor, masked: Tensor) -> Tensor:
    """pixels, targets (B,N,ph*pw*C), masked (B,N) -> mean squared error of the masked patches of each image (B,)"""
    each = (pixels.float() - targets.float()).square().mean(-1)  # (B,N)
    return (each * masked).sum(1) / masked.sum(1)


def to_patches(images: Tensor, patch_size: tuple[int, int]) -> Tensor:
    """(B,C,H,W) -> (B,N,ph*pw*C), channels last, as in the published decoders"""
    ph, pw = patch_size
    x = images.unflatten(3, (-1, pw)).unflatten(2, (-1, ph))  # (B,C,rows,ph,columns,pw)
    return x.permute(0, 2, 4, 3, 5, 1).flatten(3).flatten(1, 2)


def from_patches(patches: Tensor, patch_size: tuple[int, int], grid: tuple[int, int]) -> Tensor:
    """(B,N,ph*pw*C) -> (B,C,H,W)"""
    x = patches.unflatten(2, (*patch_size, -1)).unflatten(1, grid)  # (B,rows,columns,ph,pw,C)
    return x.permute(0, 5, 1, 3, 2, 4).flatten(4).flatten(2, 3)
