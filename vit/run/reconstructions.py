"""Figures of the reconstructions of a masked autoencoder, during and after training."""

from pathlib import Path

import numpy as np
import pytorch_lightning as pl
import torch
from PIL import Image
from pytorch_lightning.loggers import TensorBoardLogger
from torch import Tensor

from vit.data import BadImage, Preprocessing, Split
from vit.data.images.masked_patches import EVALUATION, patch_noise
from vit.data.splits.split import evenly_spaced
from vit.models.mae import MaskedAutoencoder, from_patches, to_patches
from vit.report.figures.reconstructions import GREY, reconstructions_picture


class Reconstructions(pl.Callback):
    """Saves `reconstructions/epoch_NNN.png` every few epochs, of the same images with the same masks, and logs it to
    TensorBoard.

    The weights are those of validation. All processes compute the figure, because sharded weights are gathered from all
    of them; only the first one saves it.

    Args:
        count: number of images.
        every: number of epochs between two figures; the last epoch always has one.
    """

    def __init__(self, folder: Path, split: Split, preprocessing: Preprocessing, count: int, every: int):
        self.folder, self.preprocessing, self.every = folder, preprocessing, every
        self.images, self.index = select_images(split, preprocessing, count)

    def on_validation_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        epoch = trainer.current_epoch + 1
        if trainer.sanity_checking or not len(self.images) or epoch % self.every and epoch != trainer.max_epochs:
            return
        pictures = reconstruct(pl_module.model, self.preprocessing, self.images, self.index)
        if not trainer.is_global_zero:
            return
        path = self.folder / f"epoch_{epoch:03d}.png"
        reconstructions_picture(path, *pictures, f"epoch {epoch}")
        for logger in trainer.loggers:
            if isinstance(logger, TensorBoardLogger):
                pixels = np.array(Image.open(path).convert("RGB"))
                logger.experiment.add_image("reconstructions", pixels, trainer.global_step, dataformats="HWC")


def select_images(split: Split, preprocessing: Preprocessing, count: int) -> tuple[Tensor, Tensor]:
    """Up to `count` evenly spaced images of a split, without unreadable ones: a batch uint8 (B,C,H,W), and their
    indices (B,).
    """
    images, index = [], []
    for i in evenly_spaced(len(split), count):
        try:
            images.append(preprocessing.image(split.read(i), split.names[i]))
            index.append(i)
        except BadImage:
            continue
    return preprocessing.batch(images), torch.tensor(index, dtype=torch.int64)


@torch.no_grad()
def reconstruct(
    model: MaskedAutoencoder, preprocessing: Preprocessing, images: Tensor, index: Tensor
) -> tuple[list[np.ndarray], list[np.ndarray], list[np.ndarray]]:
    """uint8 (B,C,H,W), index (B,) -> originals, masked and reconstructed images, each B of (H,W,C)"""
    device, (rows, columns) = next(model.parameters()).device, model.config.grid
    images, index = images.to(device), index.to(device)
    normalized = preprocessing.normalize(images)
    pixels, masked = model(normalized, patch_noise(EVALUATION, 0, index, rows * columns))
    reconstructed = model.reconstruct(normalized, pixels.float(), masked)
    mean, std = (torch.tensor(v, device=device).view(-1, 1, 1) for v in (preprocessing.mean, preprocessing.std))
    restored = (reconstructed * std + mean).mul(255).round().clamp(0, 255).to(torch.uint8)
    patch = model.config.patch_size
    visible = torch.where(masked[..., None], GREY, to_patches(images, patch))
    visible = from_patches(visible, patch, (rows, columns)).to(torch.uint8)
    return tuple(list(each.permute(0, 2, 3, 1).cpu().numpy()) for each in (images, visible, restored))
