"""Pictures of what a masked autoencoder tells, on the way and at the end."""

from pathlib import Path

import numpy as np
import pytorch_lightning as pl
import torch
from PIL import Image
from pytorch_lightning.loggers import TensorBoardLogger
from torch import Tensor

from vit.data import BadImage, Preprocessing, Split
from vit.data.images.masked_patches import EVALUATION, patch_noise
from vit.models.mae import MaskedAutoencoder, from_patches, to_patches
from vit.report.reconstructions import GREY, reconstructions_picture


class Reconstructions(pl.Callback):
    """Every few epochs `reconstructions/epoch_NNN.png`, of the same images with the same patches hidden, which
    TensorBoard shows too.

    Drawn while the weights that validation uses are in the model; every process computes, because sharded weights are
    whole only when all take part, and the first one writes.

    Args:
        every: so many epochs; the last one is drawn besides.
    """

    def __init__(self, folder: Path, split: Split, preprocessing: Preprocessing, count: int, every: int):
        self.folder, self.preprocessing, self.every = folder, preprocessing, every
        self.images, self.index = some_images(split, preprocessing, count)

    def on_validation_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        epoch = trainer.current_epoch + 1
        if trainer.sanity_checking or not len(self.images) or epoch % self.every and epoch != trainer.max_epochs:
            return
        pictures = reconstructed(pl_module.model, self.preprocessing, self.images, self.index)
        if not trainer.is_global_zero:
            return
        path = self.folder / f"epoch_{epoch:03d}.png"
        reconstructions_picture(path, *pictures, f"epoch {epoch}")
        for logger in trainer.loggers:
            if isinstance(logger, TensorBoardLogger):
                pixels = np.array(Image.open(path).convert("RGB"))
                logger.experiment.add_image("reconstructions", pixels, trainer.global_step, dataformats="HWC")


def some_images(split: Split, preprocessing: Preprocessing, count: int) -> tuple[Tensor, Tensor]:
    """uint8 (B,C,H,W) and places (B,) of up to `count` images of a split, evenly chosen; unreadable ones are passed
    over.
    """
    images, index = [], []
    for i in range(0, len(split), max(1, len(split) // max(count, 1)))[:count]:
        try:
            images.append(preprocessing.image(split.read(i), split.names[i]))
            index.append(i)
        except BadImage:
            continue
    return torch.stack(images) if images else torch.empty(0), torch.tensor(index, dtype=torch.int64)


@torch.no_grad()
def reconstructed(
    model: MaskedAutoencoder, preprocessing: Preprocessing, images: Tensor, index: Tensor
) -> tuple[list[np.ndarray], list[np.ndarray], list[np.ndarray]]:
    """uint8 (B,C,H,W), index (B,) -> the originals, what was left of them and what they became, each B of (H,W,C)"""
    device, (rows, columns) = next(model.parameters()).device, model.config.grid
    images, index = images.to(device), index.to(device)
    normal = preprocessing.normalize(images)
    pixels, hidden = model(normal, patch_noise(EVALUATION, 0, index, rows * columns))
    whole = model.reconstruct(normal, pixels.float(), hidden)
    mean, std = (torch.tensor(v, device=device).view(-1, 1, 1) for v in (preprocessing.mean, preprocessing.std))
    told = (whole * std + mean).mul(255).round().clamp(0, 255).to(torch.uint8)
    patch = model.config.patch_size
    left = torch.where(hidden[..., None], GREY, to_patches(images, patch))
    left = from_patches(left, patch, (rows, columns)).to(torch.uint8)
    return tuple(list(each.permute(0, 2, 3, 1).cpu().numpy()) for each in (images, left, told))
