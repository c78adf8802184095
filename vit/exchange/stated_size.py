"""DINOv2 of transformers, whose preprocessor_config.json may state another size of images (224) than config.json (518).

transformers resamples the positions in each forward pass. Here they are resampled once, in the same way.
"""

import math
import warnings
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor

from vit.data import Preprocessing
from vit.data.images.preprocessing import as_size
from vit.exchange.checkpoint import Checkpoint

ANTIALIAS = {"dinov2": False, "dinov2_with_registers": True}  # model types that resample, and how
TABLE = "embeddings.position_embeddings"


def at_stated_size(checkpoint: Checkpoint) -> Checkpoint:
    """The checkpoint with positions for the size that its preprocessing states, where transformers resamples them; any
    other checkpoint as it is. A warning names both sizes.
    """
    config, prepared = checkpoint.source_config, checkpoint.stated_preprocessing
    kind, name = config.get("model_type"), next((each for each in checkpoint.state if each.endswith(TABLE)), None)
    known = kind in ANTIALIAS and "image_size" in config and "patch_size" in config and name is not None
    if not known or not isinstance(prepared, Preprocessing) or prepared.size == as_size(config["image_size"]):
        return checkpoint
    patch = as_size(config["patch_size"])
    grid = tuple(pixels // side for pixels, side in zip(prepared.size, patch, strict=True))
    table = checkpoint.state[name]
    edge = math.isqrt(table.shape[1] - 1)
    if table.ndim != 3 or edge * edge != table.shape[1] - 1 or not all(grid) or prepared.size != tuple(
            count * side for count, side in zip(grid, patch, strict=True)):
        return checkpoint
    sizes = ["x".join(map(str, size)) for size in (as_size(config["image_size"]), prepared.size)]
    text = (f"positions are resampled from {edge}x{edge} to {grid[0]}x{grid[1]} patches, as transformers does, because "
            f"its config.json states images of {sizes[0]} pixels and its preprocessor_config.json {sizes[1]}")
    warnings.warn(f"{checkpoint.name}: {text}", stacklevel=4)
    state = {**checkpoint.state, name: resample_as_transformers(table, edge, grid, ANTIALIAS[kind])}
    return replace(checkpoint, state=state, source_config={**config, "image_size": list(prepared.size)},
                   notes=[*checkpoint.notes, text])


def resample_as_transformers(table: Tensor, edge: int, grid: tuple[int, int], antialias: bool) -> Tensor:
    """A table (1,1+edge*edge,D) for class token and patches -> (1,1+rows*columns,D), bicubic in float32."""
    image = table[:, 1:].float().unflatten(1, (edge, edge)).permute(0, 3, 1, 2)  # (1,D,edge,edge)
    image = F.interpolate(image, size=grid, mode="bicubic", align_corners=False, antialias=antialias)
    return torch.cat([table[:, :1], image.permute(0, 2, 3, 1).flatten(1, 2).to(table.dtype)], dim=1)
